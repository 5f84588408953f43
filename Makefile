# Two commands do everything on a fresh Debian 12 or 13 machine with make and a Rust toolchain:
# `make demo` and `make test`. The rest is for those who work on ring3. Every target says what it
# does in `make help`.

RING3 := target/release/ring3
OUT   ?= out

.DEFAULT_GOAL := help
.PHONY: help setup build install install-c uninstall demo test test-quick test-array bench \
        bench-restart figures study lint fmt

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|'

setup: ## fetch QEMU, a guest kernel and the guest's programs into a cache (nothing is installed)
	@lab/setup.sh

build: ## build ring3, ring3d and ring3-driver
	@cargo build --release --quiet --locked

PREFIX ?= /usr/local
BIN ?= target/release
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# The name by which programs find the library at run time: crates/tools/capi/build.rs links it under
# that name.
SONAME = libring3.so.$(basename $(VERSION))
STRIP ?= strip
ROOT = $(DESTDIR)$(PREFIX)
# Without debug information, and with names: `ring3 bench instructions` counts functions by these,
# and a backtrace shows them. A file that is no ELF file (a wrapper script) stays as it is.
strip_debug = [ "$$(head -c 4 "$(1)" | tail -c 3)" != ELF ] || $(STRIP) --strip-debug "$(1)"
# ring3, ring3d, ring3-driver, what hosted drivers are built of, units, udev rules, manual pages,
# completions and licences; systemd's sleep hook goes below /usr. Starts nothing.
install: ## put everything below PREFIX (/usr/local) in DESTDIR; `make build` comes first
	@for name in ring3 ring3d ring3-driver libring3.so; do \
	    test -e $(BIN)/$$name || \
	        { echo "make build comes first: $(BIN)/$$name is not there"; exit 1; }; done
	@install -D -m 755 -t $(ROOT)/bin $(BIN)/ring3 $(BIN)/ring3d $(BIN)/ring3-driver
	@install -D -m 644 $(BIN)/libring3.so $(ROOT)/lib/$(SONAME)
	@for name in bin/ring3 bin/ring3d bin/ring3-driver lib/$(SONAME); do \
	    $(call strip_debug,$(ROOT)/$$name) || exit; done
	@ln -sf $(SONAME) $(ROOT)/lib/libring3.so
	@install -d $(ROOT)/share/man/man1 $(ROOT)/share/bash-completion/completions \
	    $(ROOT)/share/zsh/site-functions $(ROOT)/share/fish/vendor_completions.d
	@umask 022 && $(BIN)/ring3 man --out $(ROOT)/share/man/man1 && \
	    $(BIN)/ring3 completion bash >$(ROOT)/share/bash-completion/completions/ring3 && \
	    $(BIN)/ring3 completion zsh >$(ROOT)/share/zsh/site-functions/_ring3 && \
	    $(BIN)/ring3 completion fish >$(ROOT)/share/fish/vendor_completions.d/ring3.fish
	@install -D -m 644 -t $(ROOT)/include crates/tools/capi/include/ring3.h
	@find dde -type f | while read -r file; do \
	    install -D -m 644 "$$file" "$(DESTDIR)$(PREFIX)/share/ring3/$$file" || exit; done
	@install -d $(DESTDIR)$(PREFIX)/lib/ring3 $(DESTDIR)$(PREFIX)/lib/systemd/system
	@for unit in ring3d.service ring3d.socket; do \
	    sed 's|@PREFIX@|$(PREFIX)|' etc/$$unit \
	        >$(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit && \
	    chmod 644 $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit || exit; done
	@install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/udev/rules.d etc/60-ring3.rules
	@install -d $(DESTDIR)/usr/lib/systemd/system-sleep && \
	    sed 's|@PREFIX@|$(PREFIX)|' etc/ring3.sleep \
	        >$(DESTDIR)/usr/lib/systemd/system-sleep/ring3 && \
	    chmod 755 $(DESTDIR)/usr/lib/systemd/system-sleep/ring3
	@install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/ring3 \
	    docs/supervisor.md etc/example.toml LICENSE-APACHE LICENSE-MIT
	@install -m 644 dde/linux/COPYING $(ROOT)/share/doc/ring3/LICENSE-GPL-2
	@install -d $(DESTDIR)/etc/ring3
	@echo "installed; write a manifest into /etc/ring3 (see $(PREFIX)/share/doc/ring3), then:" \
	    "systemctl enable --now ring3d.socket ring3d.service"

# libring3, ring3.h and its pkg-config file.
install-c: ## put the C library below PREFIX (/usr/local) in DESTDIR; `make build` comes first
	@for name in libring3.so libring3.a; do test -e $(BIN)/$$name || \
	    { echo "make build comes first: $(BIN)/$$name is not there"; exit 1; }; done
	@install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib $(BIN)/libring3.a
	@install -D -m 644 $(BIN)/libring3.so $(DESTDIR)$(PREFIX)/lib/$(SONAME)
	@$(call strip_debug,$(ROOT)/lib/$(SONAME))
	@ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/libring3.so
	@install -D -m 644 -t $(DESTDIR)$(PREFIX)/include crates/tools/capi/include/ring3.h
	@install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig
	@sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' etc/ring3.pc \
	    >$(DESTDIR)$(PREFIX)/lib/pkgconfig/ring3.pc && \
	    chmod 644 $(DESTDIR)$(PREFIX)/lib/pkgconfig/ring3.pc
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

# Manifests in /etc/ring3 stay. Folders go if they are empty.
uninstall: ## remove what install and install-c have put below PREFIX in DESTDIR
	@rm -f $(ROOT)/bin/ring3 $(ROOT)/bin/ring3d $(ROOT)/bin/ring3-driver \
	    $(ROOT)/lib/libring3.so $(ROOT)/lib/$(SONAME) $(ROOT)/lib/libring3.a \
	    $(ROOT)/lib/pkgconfig/ring3.pc $(ROOT)/include/ring3.h \
	    $(ROOT)/lib/systemd/system/ring3d.service $(ROOT)/lib/systemd/system/ring3d.socket \
	    $(ROOT)/lib/udev/rules.d/60-ring3.rules $(DESTDIR)/usr/lib/systemd/system-sleep/ring3 \
	    $(ROOT)/share/man/man1/ring3.1 $(ROOT)/share/man/man1/ring3-*.1 \
	    $(ROOT)/share/bash-completion/completions/ring3 \
	    $(ROOT)/share/zsh/site-functions/_ring3 \
	    $(ROOT)/share/fish/vendor_completions.d/ring3.fish
	@rm -rf $(ROOT)/share/ring3/dde $(ROOT)/share/doc/ring3
	@for folder in lib/ring3 share/ring3; do \
	    [ ! -d $(ROOT)/$$folder ] || rmdir --ignore-fail-on-non-empty $(ROOT)/$$folder; done
	@echo "uninstalled; manifests in /etc/ring3 stay"

# File systems are put on the disk and traffic goes through the card; both are measured beside the
# kernel's drivers.
demo: setup build ## drive an NVMe disk and a network card from processes, and measure them
	@$(RING3) demo --out $(OUT)

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

# The first time takes about 10 minutes.
study: build ## how much of each network, SCSI, ATA and sound driver is critical, into OUT
	@$(RING3) split study --out $(OUT)

lint: ## formatting, warnings, documentation
	@tests/run lint

fmt: ## format everything
	@cargo fmt --all
