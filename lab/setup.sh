#!/bin/sh
# Fetches what the lab needs into a cache folder: QEMU, the guest's programs, fio, and guest
# kernels.
#
#   lab/setup.sh                  everything that the lab needs, with the default kernel
#   lab/setup.sh tools            QEMU, busybox, mkfs and fsck
#   lab/setup.sh btrfs            mkfs.btrfs
#   lab/setup.sh network          iperf3, curl, iproute2, ethtool
#   lab/setup.sh alpha            QEMU's AlphaServer, for its IDE controller (qtest:cmd646-ide)
#   lab/setup.sh arm64            QEMU of arm64, and busybox and the C library for its guests
#   lab/setup.sh vfio-user        a QEMU with a client of vfio-user, for guests that drive ring3's
#                                 models
#   lab/setup.sh fio              a static fio, built from the distribution's source package
#   lab/setup.sh kernel VERSION   a guest kernel by version prefix: 6.12, 7.2, 6.1, ...
#   lab/setup.sh kernel VERSION-arm64
#                                 the same for guests of arm64
#   lab/setup.sh kernel VERSION-iommufd
#                                 the same with iommufd and VFIO's device nodes, of which Debian's
#                                 kernels have neither: the modules are built from its source
#   lab/setup.sh clang            clang 19, which reads kernel drivers for `ring3 split`
#   lab/setup.sh source VERSION   that kernel's source and headers, for `ring3 split`
#   lab/setup.sh kbuild           flex, bison and bc, which the kernel's own makefiles want
#   lab/setup.sh lwip             lwIP's source, for hosted network drivers
#   lab/setup.sh hosting          what `ring3 dde` needs: kbuild's tools, the default kernel's
#                                 source, and lwIP's
#   lab/setup.sh afl              AFL++'s fuzzer, for `ring3 dde fuzz`
#   lab/setup.sh cloc             cloc, which counts source lines for `ring3 bench effort`
#   lab/setup.sh python [FILE]    the Python packages of `ring3 split`, or of another lock file, in
#                                 an environment of their own
#   lab/setup.sh wheel            maturin and what tests the Python package ring3, likewise
#   lab/setup.sh split            what `ring3 split` needs: clang, the default kernel's source, its
#                                 Python packages
#   lab/setup.sh databases        sqlite and PostgreSQL, with all that they need, as one archive
#   lab/setup.sh systemd          systemd and udev of Debian 13, with all that they need, as one
#                                 archive
#   lab/setup.sh roots            fresh Debian 12 and 13 with a compiler and Python, in which the
#                                 packages of `make deb` are tried, as archives; as root
#   lab/setup.sh suites [FOLDER]  test suites of others (liburing, blktests, xfstests) built in a
#                                 Debian 13, as the image of a disk, for `ring3 suites`; as root.
#                                 FOLDER has their sources, a folder or git repository each;
#                                 without it they are cloned
#   lab/setup.sh suites-net       the kernel's own tests of network cards, from the default kernel's
#                                 source package, in a Debian 13, as the image of a disk
#   lab/setup.sh suites-db        the tests of PostgreSQL and sqlite, likewise, built from Debian's
#                                 source packages; as root
#   lab/setup.sh systemd-12       the same of Debian 12, whose systemd is older
#   lab/setup.sh kexec            kexec-tools of Debian 13, with all that they need, as one archive
#   lab/setup.sh bpftrace         bpftrace of Debian 13, with all that it needs, as one archive
#   lab/setup.sh dpdk             DPDK's testpmd of Debian 13, with its drivers of these cards, as
#                                 one archive
#   lab/setup.sh rivals           qemu-img and qemu-storage-daemon of Debian 13, with QEMU's own
#                                 NVMe driver, as one archive
#   lab/setup.sh chromium         a browser, for a test of the page of `ring3 report`
#   lab/setup.sh tree             a source tree to put on disks: busybox's, from the distribution's
#                                 source package
#   lab/setup.sh demo             what `ring3 demo` needs
#   lab/setup.sh debug-kernel     builds a guest kernel that checks itself: see lab/debug-kernel.sh,
#                                 which gets the words after it
#   lab/setup.sh verify           looks at all that is in the cache, and fetches anew what is
#                                 damaged
#
# Packages are downloaded by apt, which checks their signatures, and unpacked into the cache:
# nothing is installed, no root is needed, and the system's apt lists and settings stay as they are.
# The suites asked are derived from the configured ones. What is already there is verified and kept;
# `--update` fetches it anew.
# The cache is $RING3_CACHE, or ring3 under $XDG_CACHE_HOME or ~/.cache.
set -eu
umask 022
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

cache=${RING3_CACHE:-${XDG_CACHE_HOME:-${HOME:?neither RING3_CACHE nor HOME is set}/.cache}/ring3}
apt=$cache/apt
default_kernel=6.12
# Counts up when what is fetched changes, so that a newer ring3 does not stumble over an older
# cache. setup.rs knows it.
layout=1
update=no

say() { echo "setup: $*" >&2; }
# What failed, marked for who shows it once.
die() {
    say "error: $*"
    free=$(df -Pk "$cache" 2>/dev/null | awk 'NR == 2 { print int($4 / 1024) }')
    [ "${free:-1000}" -ge 100 ] ||
        say "$cache has $free MB left. Next: make room, then the same command again"
    exit 1
}

# What was asked for cannot be had, however often it is asked for.
refuse() {
    say "error: $*"
    exit 64
}

# A step's output is shown only when the step fails.
quietly() {
    "$@" >"$cache/setup.log" 2>&1 || {
        tail -n 20 "$cache/setup.log" >&2
        die "failed: $* (whole output: $cache/setup.log)"
    }
}

# ---- whole or damaged
# ----------------------------------------------------------------------------------------------

# A part of the cache is a folder with a `manifest` of its files' sizes and its links' aims, for
# most parts the files' `checksums`, and a stamp `layout-N` with the checksums of these two. What
# comes later (links to tools) is no damage.
list() {
    (cd "$1" &&
        find . -name __pycache__ -prune -o \( -type f -o -type l \) ! -path './layout-*' \
        ! -path ./manifest \
        ! -path ./checksums ! -path ./vmlinux -printf '%y %s %P %l\n') | sort
}

# stamp DIR [sizes]: writes them. The checksums of a whole source tree would take too long to
# compare.
stamp() {
    { list "$1" >"$1/manifest" && checksums "$1" "${2:-}" >"$1/checksums" &&
        (cd "$1" && sha256sum manifest checksums) >"$1/stamp" &&
        mv "$1/stamp" "$1/layout-$layout"; } || die "cannot write the lists of what is in $1"
}

checksums() {
    [ "$2" = sizes ] ||
        (cd "$1" && sed -n 's/^f [0-9]* \(.*\) $/\1/p' manifest | tr '\n' '\0' |
        xargs -0 -r sha256sum)
}

# damage DIR: what is missing or other than it was, a line each.
damage() {
    (cd "$1" && sha256sum --check --status "layout-$layout" 2>/dev/null) || {
        echo manifest
        return
    }
    list "$1" | comm -23 "$1/manifest" - | cut -d' ' -f3
    [ ! -s "$1/checksums" ] ||
        (cd "$1" && sha256sum --check --quiet checksums 2>/dev/null | sed 's/: FAILED.*//')
}

# Whoever may use the machine may use the cache: what is in it comes from public packages.
share() {
    find "$1" ! -type l \( ! -perm -a+r -o -type d ! -perm -a+x \) -exec chmod u+rwX,go+rX {} + \
        2>/dev/null || true
}

must_write() {
    [ "$writable" = yes ] ||
        die "${1#"$cache"/} must be fetched, and $(id -un) cannot write to $cache. Next: its" \
            "owner runs \`ring3 lab prepare\`, or set RING3_CACHE to a folder of yours"
}

# asked DIR [sizes [PROBE...]]: whether DIR is to be fetched: it is missing or damaged, or all is
# fetched anew. A part of before there were manifests gets one if PROBE, which tells by a look
# whether it works, succeeds.
asked() {
    dir=$1 sums=${2:-}
    if [ "$update" = no ] && [ -e "$dir/layout-$layout" ]; then
        [ "$writable" = no ] || share "$dir"
        if [ -s "$dir/layout-$layout" ]; then
            damaged=$(damage "$dir" | sort -u)
        elif (shift 2 && "$@") >/dev/null 2>&1; then
            [ "$writable" = no ] || stamp "$dir" "$sums"
            return 1
        else
            damaged="it does not work"
        fi
        [ -n "$damaged" ] || return 1
        say "${dir#"$cache"/} is damaged ($(echo "$damaged" | head -n 3 | tr '\n' ' ' |
            sed 's/ $//'), $(echo "$damaged" | wc -l) in all)"
    fi
    must_write "$dir"
}

# tidy: removes what a setup that was killed left half done. A part whose successor did not take its
# place comes back.
tidy() {
    for old in "$cache"/*.old "$cache"/*/*.old; do
        [ ! -d "$old" ] || [ -e "${old%.old}" ] || mv "$old" "${old%.old}"
    done
    for kind in old new download build; do
        rm -rf "$cache"/*.$kind "$cache"/kernels/*.$kind "$cache"/sources/*.$kind \
            "$cache"/roots/*.$kind
    done
}

# ---- apt with folders of its own
# -----------------------------------------------------------------------------------

# Base address of the configured archive whose suites match $1, from what apt itself would fetch, in
# either format of the sources files.
archive() {
    apt-get update --print-uris 2>/dev/null |
        sed -n "s|^'\(.*\)/dists/\([^/]*\)/\(updates/\)\{0,1\}InRelease'.*|\1 \2|p" |
        awk -v suite="$1" '$2 ~ suite { print $1; exit }'
}

# write_sources SUITES SECURITY-SUITES NAME: binary packages and source packages apart, because the
# index of sources is needed for fio alone.
write_sources() {
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -e "$keyring" ] || die "$keyring is missing; as root: apt-get install debian-archive-keyring"
    for type in deb deb-src; do
        {
            printf 'Types: %s\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n' "$type" \
                "$main" "$1" "$keyring"
            printf 'Types: %s\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$type" \
                "$security" "$2" "$keyring"
        } >"$apt/$3.$type.sources"
    done
}

open_apt() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
        die "apt-get and dpkg-deb are needed to fetch packages (Debian 12 or 13). Elsewhere:" \
            "install QEMU 8 or later and name a kernel by hand, see docs/lab.md"
    [ "$(dpkg --print-architecture)" = amd64 ] ||
        die "the lab's packages are for amd64, this machine is $(dpkg --print-architecture)"
    release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    case $release in
        bookworm) releases="bookworm trixie" ;;
        trixie) releases="trixie bookworm" ;;
        *) die "the lab's package lists are written for Debian 12 (bookworm) and 13 (trixie)," \
            "this is '${release:-unknown}'" ;;
    esac
    main=$(archive "^$release\$")
    [ -n "$main" ] || die "no archive for '$release' is configured in /etc/apt; add one, then run" \
        "this again"
    security=$(archive "^$release-security\$")
    # A machine without the security suite: the archive keeps it beside the main one.
    [ -n "$security" ] || security=${main%/}-security
    mkdir -p "$apt/archives/partial"
    : >"$apt/no-packages"
    write_sources "$release $release-updates $release-backports" "$release-security" own
    all= all_security=
    for r in $releases; do
        all="$all $r $r-updates $r-backports" all_security="$all_security $r-security"
    done
    write_sources "$all" "$all_security" all
}

# in_apt SOURCES COMMAND...: apt-get or apt-cache on private lists, blind to what the host has
# installed, so that a package's whole closure is fetched and the result is the same everywhere.
in_apt() {
    sources=$1 program=$2; shift 2
    "$program" -o Dir::Etc::sourcelist="$apt/$sources.sources" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State="$apt" -o Dir::State::lists="$apt/lists.$sources" \
        -o Dir::State::status="$apt/no-packages" \
        -o Dir::State::extended_states="$apt/extended_states" -o Dir::Cache="$apt" \
        -o Dir::Cache::archives="$apt/archives" \
        -o APT::Sandbox::User="$(id -un)" -o APT::Install-Recommends=false \
        -o APT::Architecture=amd64 \
        -o Acquire::Languages=none -o Acquire::Retries=3 -o Acquire::http::Timeout=30 \
        -o Acquire::https::Timeout=30 \
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
        -o Acquire::IndexTargets::deb::CNF::DefaultEnabled=false \
        -o APT::Update::Post-Invoke-Success::= -o APT::Keep-Downloaded-Packages=true -qq "$@"
}

# refresh SOURCES: updates the lists, once a run.
refresh() {
    eval "[ \"\${fresh_$(echo "$1" | tr .- __):-}\" = yes ]" && return
    mkdir -p "$apt/lists.$1/partial"
    say "reading the package lists"
    quietly in_apt "$1" apt-get update
    eval "fresh_$(echo "$1" | tr .- __)=yes"
}

# unpack DIR FILE...: every package into DIR, through a neighbour folder so that DIR is whole or
# absent.
unpack() {
    dir=$1; shift
    rm -rf "$dir.new"; mkdir -p "$dir.new"
    for deb in "$@"; do
        dpkg-deb -x "$deb" "$dir.new" 2>/dev/null ||
            die "cannot unpack $deb: is there room in $cache?"
    done
}

# swap_in DIR [sizes]: puts DIR.new in the place of DIR.
swap_in() {
    share "$1.new"
    stamp "$1.new" "${2:-}"
    rm -rf "$1.old"
    [ ! -e "$1" ] || mv "$1" "$1.old"
    mv "$1.new" "$1"
    rm -rf "$1.old"
}

# ---- what the lab needs
# --------------------------------------------------------------------------------------------

# The guest models need QEMU 8 or later: where the release has an older one, its backports have it.
qemu_suite() {
    version=$(in_apt own.deb apt-cache show --no-all-versions qemu-system-x86 |
        sed -n 's/^Version: \([0-9]*:\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1)
    if [ "${version:-0}" -ge 8 ]; then echo "$release"; else echo "$release-backports"; fi
}

fetch_tools() {
    asked "$cache/tools" "" "$cache/tools/bin/qemu-system-x86_64" --version || return 0
    open_apt
    refresh own.deb
    say "fetching QEMU, busybox, kmod, e2fsprogs and xfsprogs (about 60 MB)"
    rm -rf "$apt/archives"; mkdir -p "$apt/archives/partial"
    quietly in_apt own.deb apt-get -y install --download-only -t "$(qemu_suite)" \
        qemu-system-x86 busybox-static e2fsprogs xfsprogs kmod libaio-dev
    # The C library stays the host's own: same release. Interpreters serve package scripts that
    # nothing runs here.
    rm -f "$apt"/archives/libc6_* "$apt"/archives/libc6-dev_* "$apt"/archives/libc-* \
        "$apt"/archives/linux-libc-dev_* \
        "$apt"/archives/*python3* "$apt"/archives/perl* "$apt"/archives/dpkg_* \
        "$apt"/archives/debconf_*
    say "unpacking them"
    unpack "$cache/tools" "$apt"/archives/*.deb
    rm -rf "$apt/archives" "$cache/tools.new/usr/share/doc" "$cache/tools.new/usr/share/man" \
        "$cache/tools.new/usr/share/locale" "$cache/tools.new/var"
    mkdir -p "$cache/tools.new/bin"
    cat >"$cache/tools.new/bin/qemu-system-x86_64" <<'WRAPPER'
#!/bin/sh
# QEMU out of the cache, with its own libraries and firmware.
top=$(cd "$(dirname "$0")/.." && pwd)
export LD_LIBRARY_PATH="$top/usr/lib/x86_64-linux-gnu:$top/lib/x86_64-linux-gnu\
${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export QEMU_MODULE_DIR="$top/usr/lib/x86_64-linux-gnu/qemu"
exec "$top/usr/bin/qemu-system-x86_64" -L "$top/usr/share/qemu" -L "$top/usr/share/seabios" \
    -L "$top/usr/lib/ipxe/qemu" "$@"
WRAPPER
    chmod 755 "$cache/tools.new/bin/qemu-system-x86_64"
    "$cache/tools.new/bin/qemu-system-x86_64" --version >"$cache/setup.log" 2>&1 ||
        { cat "$cache/setup.log" >&2; die "the unpacked QEMU does not start"; }
    swap_in "$cache/tools"
    say "$(head -n 1 "$cache/setup.log")"
}

# One program of a package with many; libraries and firmware are those of the tools.
fetch_alpha() {
    asked "$cache/alpha" "" "$cache/alpha/bin/qemu-system-alpha" --version || return 0
    need_tools
    open_apt
    refresh own.deb
    say "fetching qemu-system-alpha (about 40 MB)"
    work=$cache/alpha.download
    rm -rf "$work"; mkdir -p "$work"
    (cd "$work" && quietly in_apt own.deb apt-get -t "$(qemu_suite)" download qemu-system-misc)
    unpack "$cache/alpha" "$work"/*.deb
    rm -rf "$work"
    mkdir -p "$cache/alpha.new/bin"
    mv "$cache/alpha.new/usr/bin/qemu-system-alpha" "$cache/alpha.new/bin/alpha"
    rm -rf "$cache/alpha.new/usr"
    cat >"$cache/alpha.new/bin/qemu-system-alpha" <<'WRAPPER'
#!/bin/sh
# QEMU's AlphaServer with the libraries and the firmware of the cache's QEMU.
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../../tools
export LD_LIBRARY_PATH="$top/usr/lib/x86_64-linux-gnu:$top/lib/x86_64-linux-gnu\
${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export QEMU_MODULE_DIR="$top/usr/lib/x86_64-linux-gnu/qemu"
exec "$here/alpha" -L "$top/usr/share/qemu" "$@"
WRAPPER
    chmod 755 "$cache/alpha.new/bin/qemu-system-alpha"
    swap_in "$cache/alpha"
    "$cache/alpha/bin/qemu-system-alpha" --version >"$cache/setup.log" 2>&1 ||
        {
            cat "$cache/setup.log" >&2
            rm -rf "$cache/alpha"
            die "the unpacked QEMU does not start"
        }
    say "$(head -n 1 "$cache/setup.log")"
}

# QEMU has the client since 10.1, and the backports of Debian 13 have that. It brings its C library,
# so that it runs on Debian 12, too.
fetch_vfio_user() {
    asked "$cache/vfio-user" "" "$cache/vfio-user/bin/qemu-system-x86_64" --version || return 0
    open_apt
    refresh all.deb
    say "fetching a QEMU with a client of vfio-user (about 40 MB)"
    rm -rf "$apt/archives"; mkdir -p "$apt/archives/partial"
    quietly in_apt all.deb apt-get -y install --download-only -t trixie-backports qemu-system-x86
    unpack "$cache/vfio-user" "$apt"/archives/*.deb
    rm -rf "$apt/archives" "$cache/vfio-user.new/usr/share/doc" \
        "$cache/vfio-user.new/usr/share/man" \
        "$cache/vfio-user.new/usr/share/locale" "$cache/vfio-user.new/var" \
        "$cache/vfio-user.new/etc"
    mkdir -p "$cache/vfio-user.new/bin"
    cat >"$cache/vfio-user.new/bin/qemu-system-x86_64" <<'WRAPPER'
#!/bin/sh
# QEMU out of the cache, with its own C library.
top=$(cd "$(dirname "$0")/.." && pwd)
export QEMU_MODULE_DIR="$top/usr/lib/x86_64-linux-gnu/qemu"
exec "$top/usr/lib64/ld-linux-x86-64.so.2" --library-path "$top/usr/lib/x86_64-linux-gnu" \
    "$top/usr/bin/qemu-system-x86_64" \
    -L "$top/usr/share/qemu" -L "$top/usr/share/seabios" "$@"
WRAPPER
    chmod 755 "$cache/vfio-user.new/bin/qemu-system-x86_64"
    "$cache/vfio-user.new/bin/qemu-system-x86_64" --version >"$cache/setup.log" 2>&1 ||
        { cat "$cache/setup.log" >&2; die "the unpacked QEMU does not start"; }
    swap_in "$cache/vfio-user"
    say "$(head -n 1 "$cache/setup.log")"
}

# A part of its own, so that a cache that has the tools fetches this alone. Its other libraries are
# those of the tools.
fetch_btrfs() {
    asked "$cache/btrfs" "" [ "$(find "$cache/btrfs" -name mkfs.btrfs -size +0 2>/dev/null)" ] ||
        return 0
    need_tools
    open_apt
    refresh own.deb
    say "fetching btrfs-progs (about 1 MB)"
    work=$cache/btrfs.download
    rm -rf "$work"; mkdir -p "$work"
    (cd "$work" && quietly in_apt own.deb apt-get download btrfs-progs liblzo2-2)
    unpack "$cache/btrfs" "$work"/*.deb
    rm -rf "$work" "$cache/btrfs.new/usr/share"
    swap_in "$cache/btrfs"
}

# Programs that make and watch traffic in a guest, with their libraries. The C library stays the
# host's own, as that of the tools.
fetch_network() {
    asked "$cache/network" "" [ -s "$cache/network/usr/bin/iperf3" ] || return 0
    need_tools
    open_apt
    refresh own.deb
    say "fetching iperf3, curl, iproute2 and ethtool (about 20 MB)"
    rm -rf "$apt/archives"; mkdir -p "$apt/archives/partial"
    quietly in_apt own.deb apt-get -y install --download-only --no-install-recommends iperf3 curl \
        iproute2 ethtool
    # What scripts of packages need, which nothing runs here.
    rm -f "$apt"/archives/libc6_* "$apt"/archives/libc-* "$apt"/archives/*perl* \
        "$apt"/archives/debconf* "$apt"/archives/dpkg_* \
        "$apt"/archives/tar_* "$apt"/archives/adduser* "$apt"/archives/passwd* \
        "$apt"/archives/systemd*
    unpack "$cache/network" "$apt"/archives/*.deb
    rm -rf "$apt/archives" "$cache/network.new/usr/share" "$cache/network.new/etc" \
        "$cache/network.new/var"
    swap_in "$cache/network"
}

# Kernels and fio are made with some of the tools; --update of the one is not meant for the other.
need_tools() { [ -e "$cache/tools/layout-$layout" ] || fetch_tools; }

# run_tool PROGRAM NAME ARGUMENTS...: a program of the cache under NAME, with the libraries fetched
# with it.
run_tool() {
    program=$(command -v "$cache/tools/bin/$1" || command -v "$cache/tools/usr/bin/$1") ||
        die "$1 is missing in $cache/tools"
    name=$2
    shift 2
    ln -sf "$program" "$cache/tools/bin/$name"
    LD_LIBRARY_PATH="$cache/tools/usr/lib/x86_64-linux-gnu:$cache/tools/lib/x86_64-linux-gnu" \
        "$cache/tools/bin/$name" "$@"
}

need_compiler() {
    command -v cc >/dev/null && command -v make >/dev/null && [ -e /usr/include/stdlib.h ] && return
    [ "$(id -u)" = 0 ] || die "a C compiler and make are missing; as root: apt-get install gcc" \
        "make libc6-dev"
    say "installing gcc and make"
    quietly apt-get -qq update
    quietly apt-get -qq -y install --no-install-recommends gcc make libc6-dev
}

# fio_source DIR: this release's fio, or the other's: not every mirror has every source package that
# it lists. The files are checked against the signed index; unpacking is ours, so that dpkg-dev need
# not be installed.
fio_source() {
    for sources in own.deb-src all.deb-src; do
        refresh "$sources"
        for version in $(in_apt "$sources" apt-cache showsrc fio | sed -n 's/^Version: //p' |
            sort -Vru); do
            say "fetching the source of fio $version"
            rm -rf "$1"; mkdir -p "$1"
            (cd "$1" && in_apt "$sources" apt-get source --download-only "fio=$version") \
                >"$cache/setup.log" 2>&1 && return
        done
    done
    tail -n 5 "$cache/setup.log" >&2
    die "no source package of fio could be fetched"
}

fetch_fio() {
    asked "$cache/fio" "" "$cache/fio/fio" --version || return 0
    need_compiler
    need_tools
    open_apt
    work=$cache/fio.build
    fio_source "$work"
    mkdir "$work/fio"
    tar -xf "$work"/fio_*.orig.tar.gz -C "$work/fio" --strip-components=1
    say "building a static fio (about a minute)"
    mkdir "$work/aio"
    find "$cache/tools" -name libaio.a -o -name libaio.h | while read -r file; do
        cp "$file" "$work/aio/"
    done
    (
        cd "$work/fio"
        export CPATH="$work/aio" LIBRARY_PATH="$work/aio"
        # Plain libaio, no libraries of other storage systems: 3 MB instead of a 90 MB closure.
        quietly ./configure --build-static --disable-native --disable-numa --disable-rdma \
            --disable-rados --disable-rbd --disable-http \
            --disable-gfapi --disable-pmem --disable-libnfs --disable-tcmalloc --disable-shm
        quietly make -s -j"$(nproc)" fio
    )
    rm -rf "$cache/fio.new"; mkdir -p "$cache/fio.new"
    install -m 755 "$work/fio/fio" "$cache/fio.new/fio"
    strip "$cache/fio.new/fio" 2>/dev/null || true
    swap_in "$cache/fio"
    rm -rf "$work"
    say "$("$cache/fio/fio" --version)"
}

# Some 2,000 files of source text, as the distribution has them, in a form that the guest's busybox
# unpacks.
fetch_tree() {
    asked "$cache/tree" "" [ -s "$cache/tree/tree.tar.bz2" ] || return 0
    open_apt
    for sources in own.deb-src all.deb-src; do
        refresh "$sources"
        for version in $(in_apt "$sources" apt-cache showsrc busybox | sed -n 's/^Version: //p' |
            sort -Vru); do
            say "fetching the source of busybox $version"
            rm -rf "$cache/tree.new"; mkdir -p "$cache/tree.new"
            (cd "$cache/tree.new" &&
                in_apt "$sources" apt-get source --download-only "busybox=$version") \
                >"$cache/setup.log" 2>&1 || continue
            mv "$cache"/tree.new/busybox_*.orig.tar.bz2 "$cache/tree.new/tree.tar.bz2" || continue
            find "$cache/tree.new" -type f ! -name tree.tar.bz2 -delete
            swap_in "$cache/tree"
            return
        done
    done
    tail -n 5 "$cache/setup.log" >&2
    die "no source package of busybox could be fetched"
}

# The TCP/IP stack that hosted network drivers can have in their process; it is compiled with each.
fetch_lwip() {
    asked "$cache/lwip" "" [ -s "$cache/lwip/src/include/lwip/init.h" ] || return 0
    open_apt
    work=$cache/lwip.download
    for sources in own.deb-src all.deb-src; do
        refresh "$sources"
        for version in $(in_apt "$sources" apt-cache showsrc lwip | sed -n 's/^Version: //p' |
            sort -Vru); do
            say "fetching the source of lwIP $version"
            rm -rf "$work" "$cache/lwip.new"; mkdir -p "$work" "$cache/lwip.new"
            (cd "$work" && in_apt "$sources" apt-get source --download-only "lwip=$version") \
                >"$cache/setup.log" 2>&1 || continue
            unxz=xz
            command -v xz >/dev/null || {
                need_tools
                unxz="$(command -v "$cache/tools/bin/busybox" ||
                    echo "$cache/tools/usr/bin/busybox") xz"
            }
            # The stack and its licence; not its ports, applications and tests.
            tar --use-compress-program="$unxz" -xf "$work"/lwip_*.orig.tar.xz \
                -C "$cache/lwip.new" --strip-components=1 --wildcards '*/COPYING' '*/src/core' \
                '*/src/netif' '*/src/include' \
                >>"$cache/setup.log" 2>&1 || continue
            echo "$version" >"$cache/lwip.new/release"
            rm -rf "$work"
            swap_in "$cache/lwip"
            return
        done
    done
    tail -n 5 "$cache/setup.log" >&2
    die "no source package of lwIP could be fetched"
}

# gather PART TEXT PACKAGE...: packages of Debian 13 (or of $suite) and all that they need, for an
# archive that a guest unpacks and changes its root to. They bring their C library, so that the same
# runs on every host's kernel.
gather() {
    open_apt
    refresh all.deb
    say "fetching $2"
    work=$cache/$1.download
    shift 2
    rm -rf "$work" "$apt/archives"; mkdir -p "$work" "$apt/archives/partial"
    quietly in_apt all.deb apt-get -y install --download-only -t "${suite:-trixie}" "$@"
    # What scripts of packages need, which nothing runs here.
    rm -f "$apt"/archives/*perl* "$apt"/archives/debconf* "$apt"/archives/adduser* \
        "$apt"/archives/passwd* "$apt"/archives/dpkg_* "$apt"/archives/tar_*
}

# put_together PATH...: what was gathered, without the paths, in $work/root.new.
put_together() {
    unpack "$work/root" "$apt"/archives/*.deb
    rm -rf "$apt/archives"
    (cd "$work/root.new" &&
        rm -rf usr/share/doc usr/share/man usr/share/locale usr/lib/x86_64-linux-gnu/gconv "$@" &&
        merge_usr) ||
        die "cannot put $work together: is there room in $cache?"
}

# pack PART DIR: all that is in DIR as the archive of PART.
pack() {
    rm -rf "$cache/$1.new"; mkdir -p "$cache/$1.new"
    quietly tar -C "$2" --owner=0 --group=0 --numeric-owner -cf "$cache/$1.new/$1.tar" .
    rm -rf "$work"
    swap_in "$cache/$1"
}

# What compiles queries is left out.
fetch_databases() {
    asked "$cache/databases" "" [ -s "$cache/databases/databases.tar" ] || return 0
    gather databases "sqlite and PostgreSQL (about 50 MB)" postgresql-17 sqlite3
    rm -f "$apt"/archives/libllvm* "$apt"/archives/libz3* "$apt"/archives/locales* \
        "$apt"/archives/libc-l10n* \
        "$apt"/archives/openssl_* "$apt"/archives/postgresql-common* \
        "$apt"/archives/postgresql-client-common*
    put_together var usr/share/postgresql/17/man usr/lib/postgresql/17/lib/bitcode \
        usr/lib/postgresql/17/lib/llvmjit.so usr/lib/postgresql/17/lib/llvmjit_types.bc
    pack databases "$work/root.new"
}

# A root where systemd is the first process. ring3d's units want systemd 254.
fetch_systemd() {
    asked "$cache/systemd" "" [ -s "$cache/systemd/systemd.tar" ] || return 0
    gather systemd "systemd and udev (about 30 MB)" systemd udev kmod dash
    put_together usr/share/bash-completion usr/share/zsh usr/lib/udev/hwdb.d lib/udev/hwdb.d
    pack systemd "$work/root.new"
}

# The systemd of Debian 12 is 252: ring3d-hold.service is for it.
fetch_systemd_12() {
    asked "$cache/systemd-12" "" [ -s "$cache/systemd-12/systemd-12.tar" ] || return 0
    suite=bookworm
    gather systemd-12 "systemd and udev of Debian 12 (about 30 MB)" systemd udev kmod dash
    suite=
    put_together usr/share/bash-completion usr/share/zsh usr/lib/udev/hwdb.d lib/udev/hwdb.d
    pack systemd-12 "$work/root.new"
}

# What loads the kernel that a running one starts.
fetch_kexec() {
    asked "$cache/kexec" "" [ -s "$cache/kexec/kexec.tar" ] || return 0
    gather kexec "kexec (about 6 MB)" kexec-tools
    put_together
    pack kexec "$work/root.new"
}

# What watches ring3's probe points. It compiles its scripts by LLVM, which is most of it.
fetch_bpftrace() {
    asked "$cache/bpftrace" "" [ -s "$cache/bpftrace/bpftrace.tar" ] || return 0
    gather bpftrace "bpftrace (about 60 MB)" bpftrace
    put_together usr/share/bpftrace
    pack bpftrace "$work/root.new"
}

# DPDK's forwarder, which network drivers are measured beside. Of its drivers and libraries, what
# the cards need that ring3 drives: a tenth.
fetch_dpdk() {
    asked "$cache/dpdk" "" [ -s "$cache/dpdk/dpdk.tar" ] || return 0
    gather dpdk "DPDK's testpmd (about 40 MB)" dpdk-dev
    put_together
    lib=usr/lib/x86_64-linux-gnu
    mkdir -p "$work/kept/$lib" "$work/kept/usr/lib64" "$work/kept/usr/bin"
    (cd "$work/root.new" && cp usr/bin/dpdk-testpmd "$work/kept/usr/bin" &&
        cp -L usr/lib64/ld-linux-x86-64.so.2 "$work/kept/usr/lib64" &&
        for folder in "$lib"/dpdk/pmds-*; do
            mkdir -p "$work/kept/$folder"
            for driver in bus_pci bus_vdev mempool_ring net_e1000 net_virtio; do
                cp "$folder/librte_$driver".so.*.* "$work/kept/$folder" || exit
            done
        done &&
        for program in usr/bin/dpdk-testpmd "$work/kept/$lib"/dpdk/pmds-*/*; do
            usr/lib64/ld-linux-x86-64.so.2 --library-path "$lib" --list "$program" || exit
        done | awk '$3 ~ /^usr/ { print $3 }' | sort -u |
            while read -r library; do cp -L "$library" "$work/kept/$lib" ||
            exit; done) >"$cache/setup.log" 2>&1 ||
        { tail -n 5 "$cache/setup.log" >&2; die "the libraries of DPDK cannot be found"; }
    # A driver that is a library of others, too, must not be loaded twice.
    for driver in "$work/kept/$lib"/dpdk/pmds-*/*; do
        ln -sf "${driver#"$work/kept/$lib/"}" "$work/kept/$lib/$(basename "${driver%.*}")"
    done
    (cd "$work/kept" && merge_usr)
    pack dpdk "$work/kept"
}

# A browser, which looks at the page of `ring3 report`. The C library is the host's own, of the same
# release.
fetch_chromium() {
    asked "$cache/chromium" "" "$cache/chromium/bin/chromium" --version || return 0
    open_apt
    refresh own.deb
    say "fetching Chromium (about 200 MB)"
    rm -rf "$apt/archives"; mkdir -p "$apt/archives/partial"
    quietly in_apt own.deb apt-get -y install --download-only chromium fonts-dejavu-core
    rm -f "$apt"/archives/libc6_* "$apt"/archives/libc-bin_* "$apt"/archives/perl* \
        "$apt"/archives/dpkg_* "$apt"/archives/debconf_* "$apt"/archives/systemd_* \
        "$apt"/archives/*python3*
    say "unpacking it"
    unpack "$cache/chromium" "$apt"/archives/*.deb
    rm -rf "$apt/archives" "$cache/chromium.new/usr/share/doc" "$cache/chromium.new/usr/share/man" \
        "$cache/chromium.new/usr/share/locale" "$cache/chromium.new/usr/share/icons" \
        "$cache/chromium.new/var"
    mkdir -p "$cache/chromium.new/bin"
    cat >"$cache/chromium.new/bin/chromium" <<'WRAPPER'
#!/bin/sh
# Chromium out of the cache, with its own libraries and fonts.
top=$(cd "$(dirname "$0")/.." && pwd)
lib=usr/lib/x86_64-linux-gnu
export LD_LIBRARY_PATH="$top/$lib:$top/lib/x86_64-linux-gnu:$top/$lib/pulseaudio\
${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export FONTCONFIG_FILE="$top/fonts.conf"
exec "$top/usr/lib/chromium/chromium" "$@"
WRAPPER
    chmod 755 "$cache/chromium.new/bin/chromium"
    cat >"$cache/chromium.new/fonts.conf" <<FONTS
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">usr/share/fonts</dir></fontconfig>
FONTS
    "$cache/chromium.new/bin/chromium" --version >"$cache/setup.log" 2>&1 ||
        { cat "$cache/setup.log" >&2; die "the unpacked Chromium does not start"; }
    swap_in "$cache/chromium"
    say "$(head -n 1 "$cache/setup.log")"
}

# QEMU's tools, whose own NVMe driver disks are measured beside. They bring their C library, as
# everything that a guest changes its root to.
fetch_rivals() {
    asked "$cache/rivals" "" [ -s "$cache/rivals/rivals.tar" ] || return 0
    gather rivals "qemu-img and qemu-storage-daemon (about 15 MB)" qemu-utils
    put_together
    lib=usr/lib/x86_64-linux-gnu
    mkdir -p "$work/kept/$lib" "$work/kept/usr/lib64" "$work/kept/usr/bin"
    (cd "$work/root.new" && cp usr/bin/qemu-img usr/bin/qemu-storage-daemon "$work/kept/usr/bin" &&
        cp -L usr/lib64/ld-linux-x86-64.so.2 "$work/kept/usr/lib64" &&
        for program in usr/bin/qemu-img usr/bin/qemu-storage-daemon; do
            usr/lib64/ld-linux-x86-64.so.2 --library-path "$lib" --list "$program" || exit
        done | awk '$3 ~ /^usr/ { print $3 }' | sort -u |
            while read -r library; do cp -L "$library" "$work/kept/$lib" ||
            exit; done) >"$cache/setup.log" 2>&1 ||
        { tail -n 5 "$cache/setup.log" >&2; die "the libraries of QEMU's tools cannot be found"; }
    (cd "$work/kept" && merge_usr)
    pack rivals "$work/kept"
}

# Fresh machines in which packages are installed: what is essential, apt, and what the packages of
# ring3 depend on, so that nothing is downloaded when they are tried.
fetch_roots() {
    for one in bookworm trixie; do fetch_root "$one"; done
}

# fetch_root SUITE: as the second stage of debootstrap does it, from packages whose signatures apt
# has checked.
fetch_root() {
    asked "$cache/roots/$1" "" [ -s "$cache/roots/$1/root.tar" ] || return 0
    make_root "$cache/roots/$1.download" "$1" "a fresh Debian ($1, about 150 MB)"
    rm -rf "$cache/roots/$1.new"; mkdir -p "$cache/roots/$1.new"
    quietly tar -C "$work/root" --numeric-owner -cf "$cache/roots/$1.new/root.tar" .
    rm -rf "$work"
    swap_in "$cache/roots/$1"
}

# make_root WORK SUITE TEXT PACKAGE...: such a machine with these packages as well, in $work/root.
make_root() {
    [ "$(id -u)" = 0 ] || die "a fresh Debian is made by its packages' own scripts, as root"
    open_apt
    refresh all.deb
    work=$1 base=$2
    say "fetching $3"
    shift 3
    rm -rf "$work" "$apt/archives"; mkdir -p "$work/root" "$apt/archives/partial"
    quietly in_apt all.deb apt-get -y install --download-only -t "$base" \
        base-files base-passwd bash bsdutils coreutils dash debianutils diffutils dpkg findutils \
        grep gzip hostname init-system-helpers libc-bin login mawk mount ncurses-base ncurses-bin \
        passwd perl-base sed sysvinit-utils tar tzdata util-linux apt debian-archive-keyring \
        ca-certificates libc6-dev gcc make pkg-config python3 python3-venv "$@"
    say "installing it"
    (
        cd "$work/root"
        for folder in bin sbin lib lib64; do
            mkdir -p "usr/$folder"
            ln -s "usr/$folder" "$folder"
        done
        # What the scripts of the first packages need: all files, before any script has run.
        for deb in "$apt"/archives/*.deb; do
            dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink || exit
        done
        mkdir -p debs var/lib/dpkg/info var/lib/dpkg/updates dev proc usr/sbin
        ln "$apt"/archives/*.deb debs/ 2>/dev/null || cp "$apt"/archives/*.deb debs/
        : >var/lib/dpkg/status
        : >etc/fstab
        printf '#!/bin/sh\nexit 101\n' >usr/sbin/policy-rc.d
        chmod 755 usr/sbin/policy-rc.d
        for node in 'null 1 3' 'zero 1 5' 'full 1 7' 'random 1 8' 'urandom 1 9' 'tty 5 0'; do
            # shellcheck disable=SC2086 # three words
            set -- $node
            mknod -m 666 "dev/$1" c "$2" "$3" || exit
        done
    ) || die "cannot put $work together: is there room in $cache, and may it hold devices?"
    cat >"$work/root/install" <<'INSTALL'
#!/bin/sh
set -e
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
core() { for name; do dpkg --force-depends --install /debs/"$name"_*.deb; done; }
core base-passwd base-files dpkg libc6 perl-base mawk debconf
dpkg --force-depends --force-overwrite --unpack /debs/*.deb
dpkg --configure --pending --force-configure-any --force-depends
dpkg --configure --pending
umount /proc
INSTALL
    quietly unshare --mount --pid --fork chroot "$work/root" /bin/sh /install
    rm -rf "$work/root/debs" "$work/root/install" "$apt/archives"
}

# Test suites of others, built, in a Debian 13 as the image of a disk. The guest that runs them has
# this disk beside those that are tested.
fetch_suites() {
    asked "$cache/suites" sizes [ -s "$cache/suites/root.img" ] || return 0
    fetch_tools
    fetch_fio
    fetch_kernel "$default_kernel"
    make_root "$cache/suites.download" trixie "a Debian to run test suites in (about 200 MB)" \
        acl attr bc bsdextrautils dbench dmsetup e2fsprogs fdisk file gawk kmod pciutils procps \
        psmisc quota util-linux-extra uuid-runtime xfsprogs perl autoconf automake libtool \
        libtool-bin gettext libacl1-dev libaio-dev libattr1-dev libcap-dev libgdbm-dev libssl-dev \
        liburing-dev uuid-dev xfslibs-dev g++
    new=$work/root
    mkdir -p "$new/suites" "$new/usr/lib/modules" "$new/mnt/test" "$new/mnt/scratch"
    for one in axboe/liburing linux-blktests/blktests kdave/xfstests; do
        suite_source "$one" "${1:-}" "$new/suites/${one#*/}"
    done
    cp "$cache/fio/fio" "$new/usr/bin/fio"
    kernel=$(cat "$cache/kernels/$default_kernel/release")
    cp -a "$cache/kernels/$default_kernel/lib/modules/$kernel" "$new/usr/lib/modules/"
    # Where the suites look for what the kernel has.
    mkdir -p "$new/boot" && cp "$cache/kernels/$default_kernel/boot/config-$kernel" "$new/boot/"
    cat >"$new/build" <<'BUILD'
#!/bin/sh
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
for user in fsgqa fsgqa2 123456-fsgqa; do
    useradd --badname -m "$user" 2>/dev/null || useradd --badnames -m "$user"
done
cd /suites/liburing && ./configure && make -j"$(nproc)" -C src && make -k -j"$(nproc)" -C test
cd /suites/blktests && make -j"$(nproc)"
cd /suites/xfstests && make -j"$(nproc)"
find /suites -name '*.o' -delete
# A test and its groups in each line.
mkdir /suites/lists
for test in /suites/liburing/test/*.t; do
    name=$(basename "$test" .t) groups=all
    ! grep -q 'argv\[1\]' "${test%.t}.c" 2>/dev/null || groups='all device'
    echo "$name $groups"
done >/suites/lists/liburing
cd /suites/blktests/tests
for test in $(grep -l '^test_device()' block/[0-9]*[0-9]); do echo "$test device"; done \
    >/suites/lists/blktests
sed -n 's|^\([0-9][0-9]*\) |generic/\1 |p' /suites/xfstests/tests/generic/group.list \
    >/suites/lists/xfstests
BUILD
    say "building the suites (5 to 20 minutes)"
    quietly unshare --mount --pid --fork chroot "$new" /bin/sh /build
    rm -f "$new/build"
    rm -rf "$new/usr/share/doc" "$new/usr/share/man" "$new/usr/share/locale"
    suite_image suites 4G
}

# suite_image PART SIZE: $new as the image of a disk of that size, and the lists of its suites
# beside it.
suite_image() {
    rm -rf "$cache/$1.new"; mkdir -p "$cache/$1.new"
    truncate -s "$2" "$cache/$1.new/root.img"
    mkfs=$(command -v "$cache/tools/sbin/mkfs.ext4" ||
        command -v "$cache/tools/usr/sbin/mkfs.ext4") || die "the tools have no mkfs.ext4"
    lib=lib/x86_64-linux-gnu
    quietly env LD_LIBRARY_PATH="$cache/tools/$lib:$cache/tools/usr/$lib" \
        "$mkfs" -q -F -m 0 -d "$new" "$cache/$1.new/root.img"
    mv "$new/suites/revisions" "$new"/suites/lists/* "$cache/$1.new/"
    rm -rf "$work"
    swap_in "$cache/$1" sizes
}

# The kernel's own tests of network cards, and what they call. Unlike the suites above, nothing is
# installed in this root and nothing comes from elsewhere than Debian.
fetch_suites_net() {
    asked "$cache/suites-net" sizes [ -s "$cache/suites-net/root.img" ] || return 0
    need_compiler
    need_tools
    fetch_kernel "$default_kernel"
    gather suites-net "a Debian to test network cards in (about 40 MB)" \
        base-files bash bc bridge-utils bsdextrautils coreutils dash diffutils ethtool findutils \
        gawk grep iproute2 iputils-arping iputils-ping jq kmod mount netbase netsniff-ng procps \
        psmisc python3 python3-yaml sed smcroute socat tcpdump util-linux
    kernel_source "$default_kernel"
    (cd "$work" && quietly in_apt all.deb apt-get download "$source=$version")
    mv "$work/$source"_*.deb "$work/source.deb"
    put_together usr/lib/python3/dist-packages/test usr/share/bash-completion
    new=$work/root.new
    mkdir -p "$new/suites/lists" "$new/suites/linux" "$new/mnt/test" "$new/mnt/scratch"
    find_unxz
    say "unpacking the tests of $source $version (a minute)"
    (
        cd "$new/suites/linux" &&
            dpkg-deb --fsys-tarfile "$work/source.deb" | tar -xO --wildcards '*/linux-source-*.xz' |
            $unxz -d | tar -x --strip-components=1 --wildcards '*/Documentation/netlink/specs' \
            '*/tools/net/ynl' '*/tools/testing/selftests/drivers/net' \
            '*/tools/testing/selftests/kselftest*' \
            '*/tools/testing/selftests/net'
    ) >"$cache/setup.log" 2>&1 ||
        die "$source has no tests of network cards (whole output: $cache/setup.log)"
    tests=$new/suites/linux/tools/testing/selftests
    # The guest's C library is another one than this machine's.
    quietly cc -O2 -static -I"$tests" -o "$tests/net/lib/csum" "$tests/net/lib/csum.c"
    # What programs expect that installing their packages would have made.
    ln -sf gawk "$new/usr/bin/awk"
    ln -sf dash "$new/usr/bin/sh"
    mkdir -p "$new/usr/include/linux" && cp /usr/include/linux/ethtool.h "$new/usr/include/linux/"
    printf '%s\n' root:x:0:0:root:/root:/bin/bash tcpdump:x:100:100::/:/bin/false \
        nobody:x:65534:65534::/:/bin/false >"$new/etc/passwd"
    printf '%s\n' root:x:0: tcpdump:x:100: nogroup:x:65534: >"$new/etc/group"
    kernel=$(cat "$cache/kernels/$default_kernel/release")
    modules=$cache/kernels/$default_kernel/lib/modules/$kernel
    mkdir -p "$new/usr/lib/modules/$kernel/kernel/drivers" "$new/root"
    (
        cd "$modules" && cp -a modules.* "$new/usr/lib/modules/$kernel/" &&
            cp -a kernel/net kernel/crypto kernel/lib "$new/usr/lib/modules/$kernel/kernel/" &&
            cp -a kernel/drivers/net "$new/usr/lib/modules/$kernel/kernel/drivers/" &&
            rm -rf "$new/usr/lib/modules/$kernel/kernel/drivers/net/wireless" \
                "$new/usr/lib/modules/$kernel/kernel/drivers/net/ethernet"
    ) || die "cannot put $work together: is there room in $cache?"
    net_tests "$tests" >"$new/suites/lists/selftests"
    echo "selftests $version" >"$new/suites/revisions"
    suite_image suites-net 2G
}

# net_tests FOLDER: the kernel's tests that a card of a guest can run, with their groups in each
# line. Tests of forwarding take pairs of cards, and say in NUM_NETIFS how many of them.
net_tests() (
    cd "$1" || exit
    for test in drivers/net/*.py drivers/net/hw/*.py drivers/net/hw/ethtool*.sh net/netdevice.sh; do
        case ${test##*/} in
            ethtool_lib.sh | '*'*) ;;
            ping.py | queues.py | stats.py | csum.py | netdevice.sh)
                echo "$test all card drivers" ;;
            *) echo "$test all drivers" ;;
        esac
    done
    grep -lE '^NUM_NETIFS=[24]$' net/forwarding/*.sh | while read -r test; do
        case ${test##*/} in
            min_max_mtu.sh | router.sh | router_vid_1.sh | bridge_vlan_aware.sh | \
                bridge_vlan_unaware.sh | bridge_mld.sh | no_forwarding.sh | router_bridge_vlan.sh)
                echo "$test all card forwarding" ;;
            *) echo "$test all forwarding" ;;
        esac
    done
)

# The tests of databases, with the databases that they belong to, in a Debian 13.
fetch_suites_db() {
    asked "$cache/suites-db" sizes [ -s "$cache/suites-db/root.img" ] || return 0
    need_tools
    make_root "$cache/suites-db.download" trixie "a Debian to build databases in (about 150 MB)" \
        bc bzip2 e2fsprogs kmod procps psmisc tcl tcl-dev util-linux-extra xz-utils zlib1g-dev
    new=$work/root
    mkdir -p "$new/suites/lists" "$new/mnt/test" "$new/mnt/scratch"
    debian_source "$new/suites/postgres" postgresql-17 postgresql-15
    debian_source "$new/suites/sqlite" sqlite3
    cat >"$new/build" <<'BUILD'
#!/bin/sh
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
useradd -m postgres

# No library but the C library's: what is tested is the database, and its disk.
cd /suites/postgres
./configure -q --prefix=/usr/local/pgsql --without-readline --without-icu --without-zlib \
    CFLAGS='-O1 -g0'
make -s -j"$(nproc)" && make -s install && make -s -C src/test/regress
chown -R postgres src/test/regress
find . -name '*.o' -delete
mkdir /suites/sqlite-build && cd /suites/sqlite-build
../sqlite/configure -q --enable-all --with-tcl="$(dirname /usr/lib/*/tcl8.6/tclConfig.sh)" \
    CFLAGS='-O1 -g0'
make -s -j"$(nproc)" testfixture
find . -name '*.o' -delete
BUILD
    say "building PostgreSQL and sqlite's test program (5 to 20 minutes)"
    quietly unshare --mount --pid --fork chroot "$new" /bin/sh /build
    rm -f "$new/build"
    db_tests "$new/suites"
    rm -rf "$new/usr/share/doc" "$new/usr/share/man" "$new/usr/share/locale"
    suite_image suites-db 3G
}

# db_tests FOLDER: the lists of the tests of both, with their groups in each line.
#
# A test of PostgreSQL's runs behind `test_setup`, which makes what most of them use. `quick` are
# those that write and need no other; `schedule` is the whole list as one test, in the order in
# which `make installcheck` runs it. Of sqlite's, `quick` are those of transactions, of the journal
# and of the write-ahead log; `veryquick` is sqlite's own choice, as one test.
db_tests() {
    {
        for test in insert insert_conflict hash_index copy vacuum largeobject update delete \
            transactions gist spgist cluster; do
            [ ! -e "$1/postgres/src/test/regress/sql/$test.sql" ] || echo "$test all quick"
        done
        echo "parallel_schedule all schedule"
    } >"$1/lists/postgres"
    {
        (cd "$1/sqlite/test" && ls -- *.test) | sed 's/\.test$//' | while read -r test; do
            case $test in
                wal | wal2 | wal3 | walcrash | walfault | journal1 | pager1 | trans | trans2 | \
                    savepoint | vacuum | backup | crash | crash2 | io)
                    echo "$test all quick" ;;
                veryquick) echo "$test veryquick" ;;
                all | extraquick | full | fuzz | permutations | quick | soak) ;;
                *) echo "$test all" ;;
            esac
        done
    } >"$1/lists/sqlite"
}

# debian_source FOLDER NAME...: the newest of these source packages that a mirror has, unpacked, and
# its version. Not every mirror has every source package that it lists.
debian_source() {
    folder=$1
    shift
    refresh all.deb-src
    rm -rf "$work/source"; mkdir -p "$work/source" "$folder"
    for name; do
        for version in $(in_apt all.deb-src apt-cache showsrc "$name" |
            sed -n 's/^Version: //p' | sort -Vru); do
            say "fetching the source of $name $version"
            (cd "$work/source" &&
                in_apt all.deb-src apt-get source --download-only "$name=$version") \
                >"$cache/setup.log" 2>&1 || continue
            file=$(find "$work/source" -name "$name"_*.orig.tar.*)
            cp "$file" "$work/root/source.tar"
            quietly chroot "$work/root" tar -xf /source.tar -C "/suites/${folder##*/}" \
                --strip-components=1
            rm -rf "$work/source" "$work/root/source.tar"
            echo "${folder##*/} $version" >>"${folder%/*}/revisions"
            return
        done
    done
    die "no source package of $* could be fetched"
}

# suite_source OWNER/NAME FOLDER TO: its sources out of FOLDER, or from GitHub, and the revision.
suite_source() {
    from=$2/${1#*/}
    [ -n "$2" ] || from=https://github.com/$1
    say "the sources of ${1#*/} from $from"
    if [ -n "$2" ] && [ ! -e "$from/HEAD" ] && [ ! -e "$from/.git" ]; then
        [ -d "$from" ] || die "$from is missing"
        cp -a "$from" "$3"
        revision=unknown
    else
        command -v git >/dev/null || die "git is missing; as root: apt-get install git"
        quietly git clone -q "$from" "$3"
        revision=$(git -C "$3" log -1 --format='%h of %cs')
        rm -rf "$3/.git"
    fi
    echo "${1#*/} $revision" >>"${3%/*}/revisions"
}

# Where /usr is not merged in a package, the rest expects that it is.
merge_usr() {
    for folder in bin sbin lib lib64; do
        [ -L "$folder" ] || {
            mkdir -p "usr/$folder"
            [ ! -d "$folder" ] || {
                cp -a "$folder/." "usr/$folder/"
                rm -rf "$folder"
            }
            ln -s "usr/$folder" "$folder"
        }
    done
}

# kernel_package PREFIX: newest plain amd64 kernel of that version, of this release when it has one.
kernel_package() {
    # Up to 6.1 the package name carries the ABI number (6.1.0-56), later the whole version
    # (6.12.117+deb12).
    names=$(in_apt all.deb apt-cache pkgnames linux-image- |
        grep -E "^linux-image-$(echo "$1" | sed 's/\./\\./g')([.+-][0-9].*)?-amd64$" |
        grep -v -E -- '-(cloud|rt)-amd64$|-unsigned$|^linux-image-[0-9]+\.[0-9]+-amd64$' || true)
    own=$(echo "$names" | grep "+deb$(. /etc/os-release && echo "$VERSION_ID")" || true)
    echo "${own:-$names}" | sort -V | tail -n 1
}

# has_its_modules DIR: whether the kernel image is as long as its header says ([BOOT] setup_sects,
# syssize) and each module is there.
has_its_modules() (
    cd "$1" || exit
    number() { od -An -v -t "u$2" -j "$1" -N "$2" vmlinuz | tr -d ' '; }
    [ "$(stat -c %s vmlinuz)" -ge $((($(number 497 1) + 1) * 512 + $(number 500 4) * 16)) ] || exit
    cd "lib/modules/$(cat release)" || exit
    sed 's/:.*//' modules.dep | while read -r module; do [ -s "$module" ] || exit 1; done
)

# built KIND NAME: says what to do about a part that is built and not fetched, if it is missing or
# damaged.
built() {
    (update=no && asked "$cache/$1/$2") || return 0
    refuse "kernel $2 is built from source, in about 25 minutes. Next: in ring3's source," \
        "lab/debug-kernel.sh$(case $2 in *-kcsan) echo " kcsan" ;; esac)"
}

# in_arm64 COMMAND...: apt-get or apt-cache on the lists of arm64's packages.
in_arm64() {
    program=$1; shift
    in_apt arm64.deb "$program" -o APT::Architecture=arm64 "$@"
}

# open_arm64: reads these lists.
open_arm64() {
    open_apt
    cp "$apt/all.deb.sources" "$apt/arm64.deb.sources"
    [ "${fresh_arm64:-}" != yes ] || return 0
    mkdir -p "$apt/lists.arm64.deb/partial"
    say "reading arm64's package lists"
    quietly in_arm64 apt-get update
    fresh_arm64=yes
}

# One program of the tools' package family, with their libraries; and what its guests begin with.
fetch_arm64() {
    asked "$cache/arm64" "" "$cache/arm64/bin/qemu-system-aarch64" --version || return 0
    need_tools
    open_arm64
    refresh own.deb
    say "fetching QEMU, busybox and the C library of arm64 (about 15 MB)"
    work=$cache/arm64.download
    rm -rf "$work"; mkdir -p "$work"
    (cd "$work" && quietly in_apt own.deb apt-get -t "$(qemu_suite)" download qemu-system-arm)
    unpack "$cache/arm64" "$work"/*.deb
    rm -f "$work"/*.deb
    # A C library is at least as new as what is linked to the one of this machine.
    (cd "$work" && quietly in_arm64 apt-get download busybox-static libc6 libgcc-s1)
    mkdir "$cache/arm64.new/root"
    for deb in "$work"/*.deb; do
        dpkg-deb -x "$deb" "$cache/arm64.new/root" || die "cannot unpack $deb"
    done
    # A merged /usr or not: the guest has one folder.
    find "$cache/arm64.new/root" -type d -path '*/lib/aarch64-linux-gnu' \
        ! -path '*/usr/lib/*' | while read -r folder; do
        mkdir -p "$cache/arm64.new/root/usr/lib/aarch64-linux-gnu"
        cp -a "$folder/." "$cache/arm64.new/root/usr/lib/aarch64-linux-gnu/"
    done
    rm -rf "$work" "$cache/arm64.new/usr/share" "$cache/arm64.new/root/usr/share"
    mkdir -p "$cache/arm64.new/bin"
    cat >"$cache/arm64.new/bin/qemu-system-aarch64" <<'WRAPPER'
#!/bin/sh
# QEMU of arm64 out of the cache, with the tools' libraries and firmware.
here=$(cd "$(dirname "$0")/.." && pwd)
top=$here/../tools
export LD_LIBRARY_PATH="$top/usr/lib/x86_64-linux-gnu:$top/lib/x86_64-linux-gnu\
${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export QEMU_MODULE_DIR="$top/usr/lib/x86_64-linux-gnu/qemu"
exec "$here/usr/bin/qemu-system-aarch64" -L "$top/usr/share/qemu" -L "$top/usr/lib/ipxe/qemu" "$@"
WRAPPER
    chmod 755 "$cache/arm64.new/bin/qemu-system-aarch64"
    # Beside the tools, where it will lie.
    "$cache/arm64.new/bin/qemu-system-aarch64" --version >"$cache/setup.log" 2>&1 ||
        { cat "$cache/setup.log" >&2; die "the unpacked QEMU does not start"; }
    swap_in "$cache/arm64"
    say "$(head -n 1 "$cache/setup.log") (arm64)"
}

# has_its_image DIR: whether there is an image of more than 1 MiB, and each module. The size in its
# header counts memory that the file does not hold, and says nothing. [arm64/booting.rst]
has_its_image() (
    cd "$1" || exit
    [ "$(stat -c %s vmlinuz)" -gt 1048576 ] || exit
    cd "lib/modules/$(cat release)" || exit
    sed 's/:.*//' modules.dep | while read -r module; do [ -s "$module" ] || exit 1; done
)

# fetch_arm64_kernel VERSION-arm64: as the others, but that QEMU boots the image as it is.
fetch_arm64_kernel() {
    asked "$cache/kernels/$1" "" has_its_image "$cache/kernels/$1" || return 0
    need_tools
    open_arm64
    package=$(in_arm64 apt-cache pkgnames linux-image- |
        grep -E "^linux-image-$(echo "${1%-arm64}" | sed 's/\./\\./g')([.+-][0-9].*)?-arm64$" |
        grep -v -E -- '-(cloud|rt|16k)-arm64$|-unsigned$|^linux-image-[0-9]+\.[0-9]+-arm64$' |
        sort -V | tail -n 1)
    [ -n "$package" ] || refuse "no kernel $1 in this release's suites"
    say "fetching $package (about 95 MB)"
    work=$cache/kernels/$1.download
    rm -rf "$work"; mkdir -p "$work"
    (cd "$work" && quietly in_arm64 apt-get download "$package")
    unpack "$cache/kernels/$1" "$work"/*.deb
    rm -rf "$work" "$cache/kernels/$1.new/usr/share"
    new=$cache/kernels/$1.new
    [ -d "$new/lib/modules" ] || { rmdir "$new/lib" 2>/dev/null || true; ln -s usr/lib "$new/lib"; }
    kernel=${package#linux-image-}
    [ -f "$new/boot/vmlinuz-$kernel" ] || die "$package holds no kernel image"
    mv "$new/boot/vmlinuz-$kernel" "$new/vmlinuz"
    # Trees of devices that no guest has.
    rm -rf "$new/usr/lib/linux-image-$kernel"
    quietly run_tool kmod depmod -b "$new" "$kernel"
    echo "$kernel" >"$new/release"
    swap_in "$cache/kernels/$1"
    say "kernel $(cat "$cache/kernels/$1/release")"
}

# build_iommufd KERNEL: the kernel without "-iommufd" and its modules, but VFIO's, which are built
# anew beside iommufd. Nothing that is linked into the kernel depends on either.
build_iommufd() {
    base=${1%-iommufd}
    fetch_kernel "$base"
    asked "$cache/kernels/$1" "" has_its_modules "$cache/kernels/$1" || return 0
    need_tools
    need_compiler
    fetch_kbuild
    fetch_source "$base"
    say "building iommufd and VFIO's modules for kernel $base (ten seconds)"
    new=$cache/kernels/$1.new
    source=$cache/sources/$base/source
    headers=$(echo "$cache/sources/$base/headers/src/linux-headers-"*-amd64)
    rm -rf "$new" "$cache/kernels/$1.build"
    cp -al "$cache/kernels/$base" "$new"
    rm -f "$new"/layout-* "$new/checksums" "$new/manifest"
    work=$cache/kernels/$1.build
    mkdir -p "$work/drivers/iommu"
    cp -r "$source/drivers/vfio" "$work/drivers/"
    cp -r "$source/drivers/iommu/iommufd" "$source/drivers/iommu/"*.h "$work/drivers/iommu/"
    # A part of the kernel's library that only iommufd wants, which the kernel was built without.
    {
        printf '#include <linux/export.h>\n#undef EXPORT_SYMBOL_GPL\n'
        printf '#define EXPORT_SYMBOL_GPL(name)\n'
        cat "$source/lib/interval_tree.c"
    } >"$work/drivers/iommu/iommufd/span.c"
    echo 'iommufd-y += span.o' >>"$work/drivers/iommu/iommufd/Makefile"
    echo 'obj-y := drivers/iommu/iommufd/ drivers/vfio/' >"$work/Kbuild"
    options="-DCONFIG_IOMMUFD_MODULE=1 -DCONFIG_VFIO_DEVICE_CDEV=1"
    options="$options -DCONFIG_INTERVAL_TREE_SPAN_ITER=1"
    PATH=$cache/kbuild/bin:$PATH quietly make -s "-j$(nproc)" -C "$source" "O=$headers" "M=$work" \
        CC=gcc CONFIG_DEBUG_INFO_BTF_MODULES= CONFIG_IOMMUFD=m CONFIG_VFIO_DEVICE_CDEV=y \
        CONFIG_VFIO_MDEV= CONFIG_VIRTIO_VFIO_PCI= "KCFLAGS=$options" modules
    kernel=$(cat "$new/release")
    # depmod takes these before the others.
    mkdir "$new/lib/modules/$kernel/updates"
    find "$work/drivers" -name '*.ko' -exec mv {} "$new/lib/modules/$kernel/updates/" \;
    rm -rf "$work"
    # Not through the links to the other kernel's files.
    rm -f "$new/lib/modules/$kernel"/modules.*.bin
    for table in "$new/lib/modules/$kernel"/modules.*; do
        cp "$table" "$table.own"
        mv "$table.own" "$table"
    done
    quietly run_tool kmod depmod -b "$new" "$kernel"
    swap_in "$cache/kernels/$1"
    say "kernel $1"
}

fetch_kernel() {
    case $1 in debug | debug-kcsan) built kernels "$1"; return ;; esac
    case $1 in *-iommufd) build_iommufd "$1"; return ;; esac
    case $1 in *-arm64) fetch_arm64_kernel "$1"; return ;; esac
    echo "$1" | grep -q -E '^[0-9]+\.[0-9]+(\.[0-9]+)?$' ||
        die "'$1' is not a kernel version such as 6.12"
    asked "$cache/kernels/$1" "" has_its_modules "$cache/kernels/$1" || return 0
    need_tools
    open_apt
    refresh all.deb
    package=$(kernel_package "$1")
    [ -n "$package" ] || refuse "no kernel $1 in this release's suites; there are:" \
        "$(in_apt all.deb apt-cache pkgnames linux-image- |
        sed -n 's/^linux-image-\([0-9]*\.[0-9]*\)\..*-amd64$/\1/p' | sort -Vu | tr '\n' ' ')"
    say "fetching $package (about 100 MB)"
    work=$cache/kernels/$1.download
    rm -rf "$work"; mkdir -p "$work"
    # From 7.x on the image package is empty and its parts are packages of their own.
    parts=$(in_apt all.deb apt-cache pkgnames linux- |
        grep -x -E \
            "linux-(base|binary|modules)-$(echo "${package#linux-image-}" | sed 's/[.+]/\\&/g')" ||
        true)
    (cd "$work" && quietly in_apt all.deb apt-get download "$package" $parts)
    unpack "$cache/kernels/$1" "$work"/*.deb
    rm -rf "$work" "$cache/kernels/$1.new/usr/share"
    new=$cache/kernels/$1.new
    # A merged /usr keeps the modules there.
    [ -d "$new/lib/modules" ] || { rmdir "$new/lib" 2>/dev/null || true; ln -s usr/lib "$new/lib"; }
    kernel=${package#linux-image-}
    # The image lies in /boot, or beside its modules since 7.x.
    for image in "$new/boot/vmlinuz-$kernel" "$new/lib/modules/$kernel/vmlinuz"; do
        [ ! -f "$image" ] || mv "$image" "$new/vmlinuz"
    done
    [ -e "$new/vmlinuz" ] && [ -d "$new/lib/modules/$kernel" ] ||
        die "$package holds no kernel image or no modules"
    quietly run_tool kmod depmod -b "$new" "$kernel"
    echo "$kernel" >"$new/release"
    swap_in "$cache/kernels/$1"
    say "kernel $(cat "$cache/kernels/$1/release")"
}

# The compiler that reads kernel sources: the same major version in Debian 12 and 13, because the
# text of its output is read.
fetch_clang() {
    asked "$cache/clang" "" "$cache/clang/bin/clang" --version || return 0
    open_apt
    refresh own.deb
    say "fetching clang 19 (about 60 MB)"
    work=$cache/clang.download
    rm -rf "$work"; mkdir -p "$work"
    # The C and C++ libraries stay the host's own: same release.
    (cd "$work" &&
        quietly in_apt own.deb apt-get download clang-19 libclang-common-19-dev libclang-cpp19 \
        libllvm19 \
        libz3-4 libedit2 libxml2 \
        libicu"$(case $release in bookworm) echo 72 ;; *) echo 76 ;; esac)" libbsd0 libmd0 \
        libffi8)
    say "unpacking it"
    unpack "$cache/clang" "$work"/*.deb
    rm -rf "$work" "$cache/clang.new/usr/share" "$cache/clang.new/usr/lib/llvm-19/lib/clang/19/lib"
    mkdir -p "$cache/clang.new/bin"
    cat >"$cache/clang.new/bin/clang" <<'WRAPPER'
#!/bin/sh
# clang out of the cache, with its own libraries.
top=$(cd "$(dirname "$0")/.." && pwd)
export LD_LIBRARY_PATH="$top/usr/lib/llvm-19/lib:$top/usr/lib/x86_64-linux-gnu\
:$top/lib/x86_64-linux-gnu\
${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$top/usr/lib/llvm-19/bin/clang" "$@"
WRAPPER
    chmod 755 "$cache/clang.new/bin/clang"
    "$cache/clang.new/bin/clang" --version >"$cache/setup.log" 2>&1 || {
        cat "$cache/setup.log" >&2
        die "the unpacked clang does not start"
    }
    swap_in "$cache/clang"
    say "$(head -n 1 "$cache/setup.log")"
}

# What the kernel's makefiles run beside make and the compiler. Flex and bison look for m4 and their
# texts by these variables.
fetch_kbuild() {
    asked "$cache/kbuild" "" "$cache/kbuild/bin/bison" --version || return 0
    open_apt
    refresh own.deb
    say "fetching flex, bison and bc (about 2 MB)"
    work=$cache/kbuild.download
    rm -rf "$work"; mkdir -p "$work"
    (cd "$work" && quietly in_apt own.deb apt-get download flex bison bc m4 libsigsegv2)
    unpack "$cache/kbuild" "$work"/*.deb
    rm -rf "$work" "$cache/kbuild.new/usr/share/doc" "$cache/kbuild.new/usr/share/man" \
        "$cache/kbuild.new/usr/share/locale" "$cache/kbuild.new/usr/share/info"
    mkdir -p "$cache/kbuild.new/bin"
    for program in flex bison bc m4; do
        cat >"$cache/kbuild.new/bin/$program" <<WRAPPER
#!/bin/sh
# $program out of the cache, with its own libraries and texts.
top=\$(cd "\$(dirname "\$0")/.." && pwd)
export M4="\$top/bin/m4" BISON_PKGDATADIR="\$top/usr/share/bison"
export LD_LIBRARY_PATH="\$top/usr/lib/x86_64-linux-gnu:\$top/lib/x86_64-linux-gnu\
\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
exec "\$top/usr/bin/$program" "\$@"
WRAPPER
        chmod 755 "$cache/kbuild.new/bin/$program"
    done
    "$cache/kbuild.new/bin/bison" --version >"$cache/setup.log" 2>&1 || {
        cat "$cache/setup.log" >&2
        die "the unpacked bison does not start"
    }
    swap_in "$cache/kbuild"
}

# The fuzzer itself; what it runs is compiled by the host's compiler. It is linked with Python, for
# mutators that nobody asks for here.
fetch_afl() {
    asked "$cache/afl" "" "$cache/afl/bin/afl-fuzz" -h || return 0
    open_apt
    refresh own.deb
    say "fetching AFL++ (about 5 MB)"
    work=$cache/afl.download
    rm -rf "$work"; mkdir -p "$work"
    python=$(in_apt own.deb apt-cache depends afl++ |
        sed -n 's/.*Depends: \(libpython3[.0-9]*\).*/\1/p' | head -n 1)
    [ -n "$python" ] || die "the package afl++ of this release depends on no libpython3, which it" \
        "is known to"
    (cd "$work" && quietly in_apt own.deb apt-get download afl++ "$python" libexpat1 zlib1g)
    unpack "$cache/afl" "$work"/*.deb
    rm -rf "$work" "$cache/afl.new/usr/share"
    mkdir -p "$cache/afl.new/bin"
    cat >"$cache/afl.new/bin/afl-fuzz" <<'WRAPPER'
#!/bin/sh
# afl-fuzz out of the cache, with its own libraries. AFL_PATH is where it looks for parts that
# nothing here uses.
top=$(cd "$(dirname "$0")/.." && pwd)
export LD_LIBRARY_PATH="$top/usr/lib/x86_64-linux-gnu:$top/lib/x86_64-linux-gnu\
${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export AFL_PATH="$top/usr/lib/afl"
exec "$top/usr/bin/afl-fuzz" "$@"
WRAPPER
    chmod 755 "$cache/afl.new/bin/afl-fuzz"
    # It ends with 1 when it has said how it is used.
    "$cache/afl.new/bin/afl-fuzz" -h >"$cache/setup.log" 2>&1 ||
        grep -q afl-fuzz++ "$cache/setup.log" || {
        cat "$cache/setup.log" >&2
        die "the unpacked AFL++ does not start"
    }
    swap_in "$cache/afl"
}

# A program of Perl's, with its modules.
fetch_cloc() {
    asked "$cache/cloc" "" "$cache/cloc/bin/cloc" --version || return 0
    command -v perl >/dev/null ||
        die "perl is missing, which cloc is written in; as root: apt-get install perl"
    open_apt
    refresh own.deb
    say "fetching cloc (less than 1 MB)"
    work=$cache/cloc.download
    rm -rf "$work"; mkdir -p "$work"
    (cd "$work" &&
        quietly in_apt own.deb apt-get download cloc libalgorithm-diff-perl \
        libparallel-forkmanager-perl libregexp-common-perl libmoo-perl \
        librole-tiny-perl libclass-method-modifiers-perl libsub-quote-perl libmodule-runtime-perl)
    unpack "$cache/cloc" "$work"/*.deb
    rm -rf "$work" "$cache/cloc.new/usr/share/doc" "$cache/cloc.new/usr/share/man"
    mkdir -p "$cache/cloc.new/bin"
    cat >"$cache/cloc.new/bin/cloc" <<'WRAPPER'
#!/bin/sh
# cloc out of the cache, with its own modules.
top=$(cd "$(dirname "$0")/.." && pwd)
export PERL5LIB="$top/usr/share/perl5${PERL5LIB:+:$PERL5LIB}"
exec perl "$top/usr/bin/cloc" "$@"
WRAPPER
    chmod 755 "$cache/cloc.new/bin/cloc"
    "$cache/cloc.new/bin/cloc" --version >"$cache/setup.log" 2>&1 || {
        cat "$cache/setup.log" >&2
        die "the unpacked cloc does not start"
    }
    swap_in "$cache/cloc"
}

need_python() {
    python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null &&
        return
    [ "$(id -u)" = 0 ] || die "Python 3.11 or later with its venv module is missing; as root:" \
        "apt-get install python3-venv"
    say "installing python3-venv"
    quietly apt-get -qq update
    quietly apt-get -qq -y install --no-install-recommends python3-venv
}

# fetch_python LOCK-FILE [FOLDER]: the packages that `ring3 split` stands on, or those for FOLDER,
# in the versions and with the checksums of the lock file.
fetch_python() {
    lock=$1
    [ -r "$lock" ] || die "there is no $lock: name a lock file, for example" \
        "split/requirements.lock of ring3's source"
    env=$cache/${2:-python}
    # One that was copied from elsewhere, or whose Python is gone, is no use however whole it is.
    if cmp -s "$lock" "$env/requirements.lock" &&
        grep -q "^command = .* $env\$" "$env/pyvenv.cfg" &&
        "$env/bin/python" -c '' 2>/dev/null; then
        [ -e "$env/layout-$layout" ] || [ "$writable" = no ] || : >"$env/layout-$layout"
        asked "$env" sizes true || return 0
    fi
    must_write "$env"
    need_python
    say "fetching the Python packages of $lock"
    # An environment knows its own path, so that it is made in place; the copy of the lock file says
    # that it is whole.
    cp "$lock" "$cache/requirements.lock"
    rm -rf "$env"
    quietly python3 -m venv "$env"
    quietly "$env/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \
        --only-binary :all: --require-hashes \
        -r "$cache/requirements.lock"
    share "$env"
    stamp "$env" sizes
    mv "$cache/requirements.lock" "$env/requirements.lock"
}

# find_unxz: $unxz is a program that unpacks.
find_unxz() {
    unxz=xz
    command -v xz >/dev/null || {
        need_tools
        unxz="$(command -v "$cache/tools/bin/busybox" || echo "$cache/tools/usr/bin/busybox") xz"
    }
}

# kernel_source PREFIX: $kernel of that version, its packages $headers and $source, and their
# $version.
kernel_source() {
    package=$(kernel_package "$1")
    kernel=${package#linux-image-} # 6.12.117+deb12-amd64
    headers=linux-headers-$kernel
    version=$(in_apt all.deb apt-cache show "$headers" 2>/dev/null | sed -n 's/^Version: //p' |
        head -n 1)
    [ -n "$version" ] || refuse "no headers of kernel $1 in this release's suites"
    source=linux-source-$(echo "$version" | cut -d. -f1,2)
}

# fetch_source VERSION: what the kernel of the same name was built from:
# $cache/sources/VERSION/{source,headers}. The headers carry the configuration and everything that a
# build generates, so that nothing is built here.
fetch_source() {
    case $1 in debug | debug-kcsan) built sources "$1"; return ;; esac
    echo "$1" | grep -q -E '^[0-9]+\.[0-9]+(\.[0-9]+)?$' ||
        die "'$1' is not a kernel version such as 6.12"
    asked "$cache/sources/$1" sizes [ -e "$cache/sources/$1/source/Makefile" ] || return 0
    open_apt
    refresh all.deb
    kernel_source "$1"
    common=linux-headers-${kernel%-amd64}-common
    say "fetching $headers and $source $version (about 170 MB)"
    work=$cache/sources/$1.download
    rm -rf "$work"; mkdir -p "$work"
    kbuild=$(in_apt all.deb apt-cache show "$headers=$version" |
        sed -n 's/^Depends:.*\(linux-kbuild-[^ ,]*\).*/\1/p' | head -n 1)
    (cd "$work" &&
        quietly in_apt all.deb apt-get download "$headers=$version" "$common=$version" \
        "$kbuild=$version" "$source=$version")
    say "unpacking them (a minute)"
    unpack "$cache/sources/$1" "$work"/*.deb
    rm -rf "$work"
    new=$cache/sources/$1.new
    mkdir "$new/source"
    find_unxz
    # No driver's source lies in what is left out, and it is a third of the tree.
    quietly tar --use-compress-program="$unxz" -xf "$new/usr/src/$source.tar.xz" \
        -C "$new/source" --strip-components=1 --anchored --no-wildcards-match-slash \
        --wildcards --exclude='*/Documentation' --exclude='*/tools' --exclude='*/arch/[!uxK]*' \
        --exclude='*/arch/xtensa'
    rm -rf "$new/usr/src/$source.tar.xz" "$new/usr/share" "$new/lib/modules"
    mv "$new/usr" "$new/headers" # src/ and lib/, which refer to each other by relative links
    echo "$kernel" >"$new/release"
    swap_in "$cache/sources/$1" sizes
}

# verify: each part that is there.
verify() {
    [ "$writable" = no ] || find "$cache" -maxdepth 1 -type d ! -perm -a+rx -exec chmod a+rx {} +
    for made in initramfs snapshots vmlinux; do
        [ ! -d "$cache/$made" ] || [ "$writable" = no ] || share "$cache/$made"
    done
    for part in tools fio btrfs network tree alpha arm64 vfio-user databases systemd systemd-12 \
        suites-net suites-db kexec bpftrace dpdk rivals clang kbuild lwip afl cloc chromium; do
        [ ! -d "$cache/$part" ] || "fetch_$(echo "$part" | tr - _)"
    done
    for part in "$cache"/roots/*/; do [ ! -d "$part" ] || fetch_root "$(basename "$part")"; done
    for part in "$cache"/kernels/*/; do [ ! -d "$part" ] || fetch_kernel "$(basename "$part")"; done
    for part in "$cache"/sources/*/; do [ ! -d "$part" ] || fetch_source "$(basename "$part")"; done
    [ ! -e "$cache/python/requirements.lock" ] || fetch_python "$cache/python/requirements.lock"
    [ ! -e "$cache/wheel/requirements.lock" ] ||
        fetch_python "$cache/wheel/requirements.lock" wheel
}

# debug-kernel.sh is a script of its own, which takes the functions and waits for this one's lock
# only at its beginning and its end.
[ -z "${RING3_SETUP_FUNCTIONS:-}" ] || return 0
[ "${1:-}" != debug-kernel ] || { shift; exec sh "$(dirname "$0")/debug-kernel.sh" "$@"; }
writable=yes
mkdir -p "$cache/kernels" "$cache/sources" 2>/dev/null && [ -w "$cache" ] || writable=no
[ -d "$cache" ] || die "cannot create $cache; set RING3_CACHE to a folder of yours"
# One setup at a time; a second one waits and then finds everything there.
if [ "${RING3_SETUP_LOCKED:-}" != "$cache" ] && { [ "$writable" = yes ] ||
    [ -e "$cache/setup.lock" ]; }; then
    code=0
    RING3_SETUP_LOCKED=$cache flock -E 99 -w 1800 "$cache/setup.lock" sh "$0" "$@" || code=$?
    [ "$code" != 99 ] || die "another setup has been at work in $cache for half an hour. Next:" \
        "wait for it or end it, then the same command again"
    exit "$code"
fi
if [ "$writable" = yes ]; then
    tidy
    trap tidy EXIT
    trap 'exit 130' INT TERM HUP
fi
[ "${1:-}" != --update ] || { update=yes; shift; }
case "${1:-all}" in
    all)
        need_compiler
        fetch_tools
        fetch_fio
        fetch_btrfs
        fetch_network
        fetch_kernel "$default_kernel"
        fetch_tree
        fetch_alpha
        fetch_vfio_user
        fetch_databases
        fetch_systemd ;;
    demo)
        need_compiler
        fetch_tools
        fetch_kernel "$default_kernel"
        fetch_network
        fetch_tree
        fetch_fio ;;
    tools) fetch_tools ;;
    btrfs) fetch_btrfs ;;
    network) fetch_network ;;
    dpdk) fetch_dpdk ;;
    rivals) fetch_rivals ;;
    alpha) fetch_alpha ;;
    arm64) fetch_arm64 ;;
    vfio-user) fetch_vfio_user ;;
    clang) fetch_clang ;;
    afl) fetch_afl ;;
    cloc) fetch_cloc ;;
    chromium) fetch_chromium ;;
    python) fetch_python "${2:-$(dirname "$0")/../split/requirements.lock}" ;;
    wheel) fetch_python "$(dirname "$0")/../crates/tools/python/requirements.lock" wheel ;;
    kbuild) need_compiler; fetch_kbuild ;;
    hosting)
        need_compiler; fetch_kbuild
        # A source of before hosted drivers lacks the architecture that they are compiled for; it
        # stays until another is there.
        [ -e "$cache/sources/$default_kernel/source/arch/Kconfig" ] || update=yes
        fetch_source "$default_kernel"
        fetch_lwip ;;
    lwip) fetch_lwip ;;
    split)
        need_compiler
        fetch_clang
        fetch_source "$default_kernel"
        fetch_python "$(dirname "$0")/../split/requirements.lock" ;;
    source)
        shift
        [ $# -gt 0 ] || die "the source of which kernel? For example: source 6.12"
        for version; do
            fetch_source "$version"
        done ;;
    fio) fetch_fio ;;
    databases) fetch_databases ;;
    systemd) fetch_systemd ;;
    systemd-12) fetch_systemd_12 ;;
    kexec) fetch_kexec ;;
    bpftrace) fetch_bpftrace ;;
    roots) fetch_roots ;;
    suites) fetch_suites "${2:-}" ;;
    suites-net) fetch_suites_net ;;
    suites-db) fetch_suites_db ;;
    tree) fetch_tree ;;
    verify) verify ;;
    kernel)
        shift
        [ $# -gt 0 ] || die "which kernel? For example: kernel 6.12"
        for version; do
            fetch_kernel "$version"
        done ;;
    *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
