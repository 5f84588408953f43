# Two commands do everything on a fresh Debian 12 or 13 machine with make and a Rust toolchain:
# `make demo` and `make test`. The rest is for those who work on ring3. Every target says what it
# does in `make help`.

RING3 := target/release/ring3
OUT   ?= out

.DEFAULT_GOAL := help
.PHONY: help setup build install install-c uninstall deb release site demo test test-quick \
        test-array bench bench-restart figures papers study suites fuzz \
        deny lint fmt

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|'

setup: ## fetch QEMU, a guest kernel and the guest's programs into a cache (nothing is installed)
	@lab/setup.sh

build: ## build ring3, ring3d, ring3-driver and the libraries for C and Python
	@cargo build --release --quiet --locked

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
BIN ?= target/release
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# The name by which programs find the library at run time: crates/tools/capi/build.rs links it under
# that name.
SONAME = libring3.so.$(basename $(VERSION))
STRIP ?= strip
# With names: `ring3 bench instructions` counts functions by these, and a backtrace shows them.
STRIP_FLAGS ?= --strip-debug
ROOT = $(DESTDIR)$(PREFIX)
LIB = $(DESTDIR)$(LIBDIR)
# A file that is neither an ELF file nor an archive (a wrapper script) stays as it is.
strip_file = case "$$(head -c 4 "$(1)" | tail -c 3)" in \
    ELF | '<ar') $(STRIP) $(2) "$(1)" ;; esac
# built NAME...: what `make build` makes is there.
built = for name in $(1); do test -e $(BIN)/$$name || \
    { echo "make build comes first: $(BIN)/$$name is not there"; exit 1; }; done
# put FOLDER FILE...: files of etc/ with the place of the programs and the version in them. A line
# \#include NAME is that file of etc/.
put = install -d $(1) && for file in $(2); do \
    sed -e '/^\#include ring3d.sandbox$$/{r etc/ring3d.sandbox' -e 'd}' etc/$$file | \
        sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' \
        >$(1)/$$file && chmod 644 $(1)/$$file || exit; done
# tree FOLDER PATH...: files of the source tree, with their paths, below FOLDER.
tree = find $(2) -type f ! -name '*.pyc' | while read -r file; do \
    install -D -m 644 "$$file" "$(1)/$$file" || exit; done

# What each of the packages has; `make deb` calls the same rules.
.PHONY: install-ring3 install-units install-lib install-link install-dev install-dde install-split \
        install-doc install-done
install: install-ring3 install-lib install-link install-dde install-split install-done
install: ## put everything below PREFIX (/usr/local) in DESTDIR; `make build` comes first

# ring3, ring3d, ring3-driver, units, udev rules, manual pages, completions, scripts for bpftrace
# and licences; systemd's sleep hook goes below /usr. Starts nothing.
install-ring3: install-units
	@$(call built,ring3 ring3d ring3-driver)
	@install -D -m 755 -t $(ROOT)/bin $(BIN)/ring3 $(BIN)/ring3d $(BIN)/ring3-driver
	@for name in ring3 ring3d ring3-driver; do \
	    $(call strip_file,$(ROOT)/bin/$$name,$(STRIP_FLAGS)) || exit; done
	@install -d $(ROOT)/share/man/man1 $(ROOT)/share/bash-completion/completions \
	    $(DESTDIR)$(ZSHDIR) $(ROOT)/share/fish/vendor_completions.d
	@umask 022 && $(BIN)/ring3 man --out $(ROOT)/share/man/man1 && \
	    $(BIN)/ring3 completion bash >$(ROOT)/share/bash-completion/completions/ring3 && \
	    $(BIN)/ring3 completion zsh >$(DESTDIR)$(ZSHDIR)/_ring3 && \
	    $(BIN)/ring3 completion fish >$(ROOT)/share/fish/vendor_completions.d/ring3.fish
	@$(call put,$(ROOT)/share/man/man8,ring3d.8 ring3-driver.8)
	@install -d $(ROOT)/lib/ring3 $(ROOT)/share/ring3/bpftrace
	@$(call put,$(ROOT)/share/ring3,$(patsubst etc/%,%,$(wildcard etc/bpftrace/*.bt)))
	@install -D -m 644 -t $(ROOT)/lib/udev/rules.d etc/60-ring3.rules
	@install -d $(DESTDIR)/usr/lib/systemd/system-sleep && \
	    sed 's|@PREFIX@|$(PREFIX)|' etc/ring3.sleep \
	        >$(DESTDIR)/usr/lib/systemd/system-sleep/ring3 && \
	    chmod 755 $(DESTDIR)/usr/lib/systemd/system-sleep/ring3
	@install -D -m 644 -t $(ROOT)/share/doc/ring3 \
	    docs/supervisor.md etc/example.toml LICENSE-APACHE LICENSE-MIT
	@install -m 644 dde/linux/COPYING $(ROOT)/share/doc/ring3/LICENSE-GPL-2
	@install -d $(DESTDIR)/etc/ring3

install-units:
	@$(call put,$(ROOT)/lib/systemd/system,ring3d.service ring3d-hold.service ring3d.socket \
	    ring3d-metrics.socket)

# The library alone, for programs that are linked with it.
install-lib:
	@$(call built,libring3.so)
	@install -D -m 644 $(BIN)/libring3.so $(LIB)/$(SONAME)
	@$(call strip_file,$(LIB)/$(SONAME),$(STRIP_FLAGS))

# What a hosted driver is linked with, too.
install-link:
	@install -d $(LIB) && ln -sf $(SONAME) $(LIB)/libring3.so
	@install -D -m 644 -t $(ROOT)/include crates/tools/capi/include/ring3.h

# What C programs are compiled with. Half of the archive is the intermediate code of the standard
# library, which no C linker reads.
install-dev: install-link
	@$(call built,libring3.a)
	@install -D -m 644 -t $(LIB) $(BIN)/libring3.a
	@$(call strip_file,$(LIB)/libring3.a,--strip-debug -R .llvmbc -R .llvmcmd)
	@$(call put,$(LIB)/pkgconfig,ring3.pc)

# What hosted drivers are built of.
install-dde:
	@$(call tree,$(ROOT)/share/ring3,dde)

# The splitter, its runtime and its examples. Python packages are fetched when it is first used.
install-split:
	@$(call tree,$(ROOT)/share/ring3,split/src split/runtime split/examples)
	@install -D -m 644 -t $(ROOT)/share/ring3/split \
	    split/README.md split/pyproject.toml split/requirements.lock

# The documents, with the paths by which they refer to each other.
install-doc:
	@$(call tree,$(ROOT)/share/doc/ring3-doc,docs README.md ARCHITECTURE.md CONTRIBUTING.md \
	    CHANGELOG.md SECURITY.md)
	@rm $(ROOT)/share/doc/ring3-doc/docs/site $(ROOT)/share/doc/ring3-doc/docs/site.css
	@install -D -m 644 -t $(ROOT)/share/doc/ring3-doc/examples crates/tools/capi/examples/*.c

install-done:
	@echo "installed; write a manifest into /etc/ring3 (see $(PREFIX)/share/doc/ring3), then:" \
	    "systemctl enable --now ring3d.socket ring3d.service"

# libring3, ring3.h and its pkg-config file.
install-c: install-lib install-dev
install-c: ## put the C library below PREFIX (/usr/local) in DESTDIR; `make build` comes first
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

# Manifests in /etc/ring3 stay. Folders go if they are empty.
uninstall: ## remove what install and install-c have put below PREFIX in DESTDIR
	@rm -f $(ROOT)/bin/ring3 $(ROOT)/bin/ring3d $(ROOT)/bin/ring3-driver \
	    $(LIB)/libring3.so $(LIB)/$(SONAME) $(LIB)/libring3.a \
	    $(LIB)/pkgconfig/ring3.pc $(ROOT)/include/ring3.h \
	    $(ROOT)/lib/systemd/system/ring3d.service $(ROOT)/lib/systemd/system/ring3d.socket \
	    $(ROOT)/lib/systemd/system/ring3d-hold.service \
	    $(ROOT)/lib/systemd/system/ring3d-metrics.socket \
	    $(ROOT)/lib/udev/rules.d/60-ring3.rules $(DESTDIR)/usr/lib/systemd/system-sleep/ring3 \
	    $(ROOT)/share/man/man1/ring3.1 $(ROOT)/share/man/man1/ring3-*.1 \
	    $(ROOT)/share/man/man8/ring3d.8 $(ROOT)/share/man/man8/ring3-driver.8 \
	    $(ROOT)/share/bash-completion/completions/ring3 $(DESTDIR)$(ZSHDIR)/_ring3 \
	    $(ROOT)/share/fish/vendor_completions.d/ring3.fish
	@rm -rf $(ROOT)/share/ring3/bpftrace $(ROOT)/share/ring3/dde $(ROOT)/share/ring3/split \
	    $(ROOT)/share/doc/ring3 $(ROOT)/share/doc/ring3-doc
	@for folder in lib/ring3 share/ring3; do \
	    [ ! -d $(ROOT)/$$folder ] || rmdir --ignore-fail-on-non-empty $(ROOT)/$$folder; done
	@echo "uninstalled; manifests in /etc/ring3 stay"

# Packages of Debian 12 and 13, with the rules of install, by dpkg-deb alone. docs/install.md
deb: build ## Debian packages, into OUT (default: out) below deb
	@packaging/deb $(OUT)/deb $(BIN)

release: build ## packages, source, list of parts and checksums, into OUT below release
	@packaging/release $(OUT)/release $(BIN)

# The first time, cargo builds mdBook: about 5 minutes.
site: ## the documents as a site with full-text search, into OUT below site
	@docs/site $(OUT)/site

# Models first, while what the guests need is fetched; then file systems are put on a disk and
# traffic goes through a card, and both are measured beside the kernel's drivers.
# What the guests need is fetched during the build. What cannot be fetched is told by the program,
# which asks for it again.
demo: ## drive an NVMe disk and a network card from processes, and measure them
	@setsid lab/setup.sh demo >/dev/null 2>&1 & fetching=$$!; \
	    trap 'kill -TERM -$$fetching 2>/dev/null' EXIT; trap 'exit 130' INT TERM; \
	    cargo build --release --quiet --locked --bin ring3 --bin ring3d --bin ring3-driver && \
	    $(RING3) demo --out $(OUT)

test: ## all tests: unit, models and faults, loom, conformance, QEMU's devices, guests
	@tests/run all

test-quick: ## the tests that boot no guest
	@tests/run quick

# On a cluster of one node of its own; wants Debian's slurmctld, slurmd, slurm-client and munge, and
# root.
test-array: build ## a campaign of faults as an array job of Slurm
	@tests/array-jobs $(RING3)

bench: setup build ## the disk figures, kernel and ring3 in one run, into OUT (default: out)
	@$(RING3) bench disk --mode both --out $(OUT)

# Interrupted, it goes on where it was.
bench-restart: setup build ## drivers killed and replaced under load, into OUT: about an hour
	@$(RING3) bench restart --series --out $(OUT)

# Interrupted, it goes on where it was.
figures: setup build ## the papers' disk figures into OUT: hours
	@$(RING3) bench disk --figure leslie --controller ahci --controller ide --controller nvme \
	    --out $(OUT)
	@$(RING3) bench disk --timeline --controller ahci --controller nvme --out $(OUT)
	@$(RING3) bench disk --work --out $(OUT)

# Interrupted, it goes on where it was.
papers: setup build ## the figures in docs/papers anew, by short rounds: about 10 minutes
	@$(RING3) report --run --quick --from $(OUT)/report --out $(OUT)/report.html
	@rm -rf docs/papers/reports && mkdir -p docs/papers/reports
	@cd $(OUT)/report && cp --parents places.json parts/*/*.json $(CURDIR)/docs/papers/reports
	@cd docs/papers/reports/parts && rm -f */begun.json */done.json
	@$(RING3) report --from docs/papers/reports \
	    --pages README.md docs/papers/*.md docs/report.md

# The first time takes about 10 minutes.
study: build ## how much of each network, SCSI, ATA and sound driver is critical, into OUT
	@$(RING3) split study --out $(OUT)

# Hours under emulation; what has a result in OUT/suites is not run again.
suites: build ## test suites of others on the kernel's disk and on ring3's, into OUT
	@$(RING3) suites --out $(OUT)/suites

# The first time, building takes about 10 minutes. fuzz/run says what else it does.
fuzz: ## parsers and drivers against hostile bytes, each for 10 seconds
	@fuzz/run --quick

# By cargo-deny, which cargo builds the first time: about 5 minutes.
deny: ## licences, sources and known vulnerabilities of others' crates
	@cargo deny --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-deny
	@cargo deny check

lint: ## formatting, warnings, documentation
	@tests/run lint

fmt: ## format everything
	@cargo fmt --all
