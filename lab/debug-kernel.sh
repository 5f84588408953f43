#!/bin/sh
# Builds a guest kernel that checks itself, from the distribution's source of kernel 6.12.
#
#   lab/debug-kernel.sh           kernel `debug`: KASAN, lockdep, kmemleak, UBSAN, fault injection,
#                                 KCOV
#   lab/debug-kernel.sh kcsan     kernel `debug-kcsan`: KCSAN in the place of KASAN, kmemleak and
#                                 KCOV
#   lab/debug-kernel.sh --update  the same of the newest source that the distribution has
#   lab/debug-kernel.sh --keep    keeps the objects, so that a changed option compiles only what it
#                                 changes
#
# The result is what `lab/setup.sh kernel` and `lab/setup.sh source` leave of a packaged kernel:
# kernels/NAME with the image and its modules, and sources/NAME with the source and a folder in
# which modules are built. The options are in lab/debug-kernel/*.config. An interrupted build goes
# on where it was; a finished one is built anew when an option or the source has changed.
#
# JOBS is how many compilers run at once, as many as there are processors by default. They run at
# the lowest priority.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=lab/setup.sh
RING3_SETUP_FUNCTIONS=yes . "$here/setup.sh"

say() { echo "debug-kernel: $*" >&2; }

# Counts up when the same options and source give another result.
recipe=1
# The source unpacked, the objects, and the result beside them.
room=3000
work=$cache/debug-kernel
keep=no kind=kasan

usage() { sed -n '2,21s/^# \{0,1\}//p' "$0" >&2; exit 2; }

for word; do
    case $word in
        --update) update=yes ;;
        --keep) keep=yes ;;
        kasan | kcsan) kind=$word ;;
        *) usage ;;
    esac
done
case $kind in
    kasan) name=debug ;;
    kcsan) name=debug-kcsan ;;
esac
fragments="$here/debug-kernel/guest.config $here/debug-kernel/checks.config \
$here/debug-kernel/$kind.config"
build=$work/build-$name
log=$work/$name.log

# without_setup COMMAND...: while no setup is at work in the cache, which would tidy away what is
# put there.
without_setup() {
    exec 9>>"$cache/setup.lock"
    flock -w 1800 9 || die "a setup has been at work in $cache for half an hour. Next: wait for" \
        "it or end it, then the same command again"
    "$@"
    exec 9>&-
}

# ---- what is there
# ----------------------------------------------------------------------------------------------

# The source in the cache, if it is whole: the newest.
source_here() {
    for folder in "$work"/source-*; do
        [ ! -e "$folder/whole" ] || echo "${folder#"$work/source-"}"
    done | sort -V | tail -n 1
}

# key VERSION: what the result depends on.
key() {
    # shellcheck disable=SC2086 # three files
    { echo "$recipe $1 $default_kernel" && cat $fragments; } | sha256sum | cut -c1-16
}

# Whether the kernel of these options and this source is there, and not damaged.
is_built() {
    [ "$(cat "$cache/kernels/$name/key" 2>/dev/null)" = "$(key "$1")" ] || return 1
    for part in "$cache/kernels/$name" "$cache/sources/$name"; do
        [ -z "$(damage "$part")" ] || return 1
    done
}

# ---- what it is built from
# ----------------------------------------------------------------------------------------------

# fetch_whole_source: sets `version`. `lab/setup.sh source` leaves out what splitting does not need,
# which building does.
fetch_whole_source() {
    version=$(source_here)
    [ -z "$version" ] || [ "$update" = yes ] || return 0
    open_apt
    refresh all.deb
    package=$(kernel_package "$default_kernel")
    version=$(in_apt all.deb apt-cache show "linux-headers-${package#linux-image-}" 2>/dev/null |
        sed -n 's/^Version: //p' | head -n 1)
    [ -n "$version" ] || refuse "no headers of kernel $default_kernel in this release's suites"
    [ ! -e "$work/source-$version/whole" ] || return 0
    has_room
    source=linux-source-$default_kernel
    say "fetching $source $version (about 150 MB)"
    rm -rf "$work/download"; mkdir -p "$work/download"
    (cd "$work/download" && quietly in_apt all.deb apt-get download "$source=$version")
    say "unpacking it (a minute)"
    unpack "$work/package" "$work"/download/*.deb
    new=$work/source.new
    rm -rf "$new"; mkdir "$new"
    # Of other processors' folders, the lists of options are read all the same.
    quietly nice -n 19 tar -xf "$work/package.new/usr/src/$source.tar.xz" -C "$new" \
        --strip-components=1 --anchored --no-wildcards-match-slash --wildcards \
        --exclude='*/Documentation/[!K]*' --exclude='*/arch/[!xK]*/[!c]*' \
        --exclude='*/arch/[!xK]*/configs' --exclude='*/arch/xtensa' --exclude='*/tools/testing' \
        --exclude='*/tools/perf'
    rm -rf "$work/download" "$work/package.new"
    : >"$new/whole"
    share "$new"
    rm -rf "$work/source-$version"
    mv "$new" "$work/source-$version"
}

# objtool reads and writes objects by this library.
fetch_libelf() {
    [ ! -e "$work/libelf/usr/include/gelf.h" ] || return 0
    open_apt
    refresh own.deb
    library=$(in_apt own.deb apt-cache depends libelf-dev |
        sed -n 's/.*Depends: \(libelf1[a-z0-9]*\).*/\1/p' | head -n 1)
    [ -n "$library" ] || die "the package libelf-dev of this release depends on no libelf1, which" \
        "it is known to"
    say "fetching $library and its headers (less than 1 MB)"
    rm -rf "$work/download"; mkdir -p "$work/download"
    (cd "$work/download" &&
        quietly in_apt own.deb apt-get download libelf-dev "$library" zlib1g-dev)
    unpack "$work/libelf" "$work"/download/*.deb
    rm -rf "$work/download" "$work/libelf"
    # A merged /usr is not merged in every package.
    libraries=$work/libelf.new/usr/lib/x86_64-linux-gnu
    mkdir -p "$libraries"
    [ ! -d "$work/libelf.new/lib" ] ||
        cp -a "$work"/libelf.new/lib/x86_64-linux-gnu/. "$libraries/"
    mv "$work/libelf.new" "$work/libelf"
}

has_room() {
    free=$(df -Pk "$work" | awk 'NR == 2 { print int($4 / 1024) }')
    [ "$free" -ge "$room" ] || die "a kernel needs $room MB while it is built, and $work has" \
        "$free MB left. Next: make room (\`ring3 cache\` lists what is in the cache), then the" \
        "same command again"
}

fetch_parts() {
    need_compiler
    command -v xz >/dev/null ||
        die "xz is missing, which packs the kernel; as root: apt-get install xz-utils"
    # Apart, because these have variables of the same names; and --update is meant for the source.
    (update=no && need_tools && fetch_kbuild)
    fetch_libelf
    fetch_whole_source
}

# ---- building
# ----------------------------------------------------------------------------------------------

# kbuild WORD...: the kernel's make. The result names neither this machine nor this day.
# What runs at the PVH entry has no processor's data yet, where KCOV and KCSAN look for the task.
# `start` are words that come before it.
kbuild() {
    ${start:-} env PATH="$cache/kbuild/bin:$PATH" KBUILD_BUILD_USER=ring3 KBUILD_BUILD_HOST=lab \
        KBUILD_BUILD_TIMESTAMP="Thu Jan 1 00:00:00 UTC 1970" \
        nice -n 19 make -C "$tree" O="$build" ARCH=x86 KCOV_INSTRUMENT_enlighten.o=n \
        KCSAN_SANITIZE_enlighten.o=n HOSTCFLAGS="-I$elf/include" \
        HOSTLDFLAGS="-Wl,-rpath,$elf/lib/x86_64-linux-gnu -L$elf/lib/x86_64-linux-gnu" "$@"
}

# failed WHAT: shows the errors among what was written.
failed() {
    # Neither what went well nor make's own lines, of which there is one for each folder.
    reasons=$(grep -v -E '^(make|  [A-Z])' "$log" |
        grep -E -i -A 3 'error|fatal|undefined|killed|no space' | tail -n 20)
    [ -n "$reasons" ] || reasons=$(tail -n 20 "$log")
    echo "$reasons" >&2
    ! grep -q -i killed "$log" || say "a compiler was killed. Next: JOBS=1 lab/debug-kernel.sh" \
        "$kind, which needs half the memory"
    die "$1 failed (whole output: $log). The same command again goes on where it was"
}

# Merges the fragments on top of nothing, and looks what became of each option: kconfig drops
# silently what another option forbids.
configure() {
    # Objects of another source are of no use, and their lists of headers are wrong.
    [ "$(readlink "$build/source")" = "$tree" ] || {
        rm -rf "$build"
        has_room
    }
    mkdir -p "$build"
    # shellcheck disable=SC2086 # three files
    (cd "$tree" && PATH=$cache/kbuild/bin:$PATH ARCH=x86 \
        ./scripts/kconfig/merge_config.sh -n -O "$build" $fragments) >"$log" 2>&1 ||
        failed "configuring"
    # shellcheck disable=SC2086 # three files
    dropped=$(cat $fragments | while read -r line; do
        case $line in
            '# CONFIG_'*' is not set')
                option=${line#\# }
                option=${option%% *}
                ! grep -q "^$option=" "$build/.config" || echo "$line" ;;
            CONFIG_*) grep -q -x -F -e "$line" "$build/.config" || echo "$line" ;;
        esac
    done)
    [ -z "$dropped" ] || {
        echo "$dropped" | while read -r line; do say "not so in $build/.config: $line"; done
        die "$(echo "$dropped" | wc -l) options cannot be had as lab/debug-kernel/*.config has" \
            "them. Next: see in the source's Kconfig files what they depend on"
    }
    say "$(grep -c '=[ym]$' "$build/.config") options are on, of which" \
        "$(grep -c '=m$' "$build/.config") are modules"
}

# How many objects are left. That dry run ends with an error where it would link what it has not
# compiled.
left() { kbuild -n bzImage modules 2>/dev/null | grep -c -E "echo '  (CC|AS) " || true; }

# Runs make and says every half minute how far it is.
compile() {
    say "preparing (half a minute)"
    kbuild -j"$jobs" prepare >"$log" 2>&1 || failed "preparing"
    objects=$(left)
    say "compiling about $objects objects with $jobs compilers"
    began=$(date +%s) turn=0
    # Of the makes below it, make ends none; timeout hands a signal to all of them.
    (start="exec timeout -k 10 1d" && kbuild -j"$jobs" bzImage modules) >"$log" 2>&1 &
    make=$!
    trap 'kill "$make" || true; wait "$make" || true
        say "interrupted. The same command again goes on where it was"; exit 130' INT TERM HUP
    while kill -0 "$make" 2>/dev/null; do
        sleep 5
        turn=$((turn + 1))
        [ $((turn % 6)) != 0 ] || say "$(grep -c -E '^  (CC|AS) ' "$log" || true) of about" \
            "$objects objects, $((($(date +%s) - began) / 60)) min"
    done
    wait "$make" || failed "compiling"
    trap - INT TERM HUP
    say "compiled in $((($(date +%s) - began) / 60)) min"
}

# ---- the result
# ----------------------------------------------------------------------------------------------

# The image and the modules, as a kernel's package has them.
gather_kernel() {
    new=$work/$name.kernel.new
    rm -rf "$new"; mkdir -p "$new"
    kbuild INSTALL_MOD_PATH="$new" DEPMOD=true modules_install >"$log" 2>&1 ||
        failed "copying the modules"
    cp "$build/arch/x86/boot/bzImage" "$new/vmlinuz"
    cp "$build/.config" "$new/config"
    cp "$build/System.map" "$new/System.map"
    rm -f "$new/lib/modules/$release/build"
    echo "$release" >"$new/release"
    key "$version" >"$new/key"
}

# The folder in which modules are built: what a build has generated, and the programs that it ran.
gather_headers() {
    new=$work/$name.sources.new
    headers=$new/headers/src/linux-headers-$release
    rm -rf "$new"; mkdir -p "$headers"
    (cd "$build" && find .config Module.symvers include arch/x86/include scripts \
        tools/objtool/objtool \( -type f -o -type l \) ! -name '*.o' ! -name '.*.cmd' |
        tar -cf - -T -) | tar -xf - -C "$headers" || die "cannot copy the headers to $headers"
    cat >"$headers/Makefile" <<'MAKEFILE'
# Builds modules for this kernel: make -C THIS-FOLDER M=FOLDER modules
include $(dir $(abspath $(lastword $(MAKEFILE_LIST))))../../../source/Makefile
MAKEFILE
    ln -s "../../debug-kernel/source-$version" "$new/source"
    echo "$release" >"$new/release"
}

# Puts both in their places. run_tool, too, has a variable `name`. A source that no kernel is of any
# more goes.
put_in_place() {
    (run_tool kmod depmod -b "$work/$name.kernel.new" "$release") >"$cache/setup.log" 2>&1 ||
        die "depmod failed (whole output: $cache/setup.log)"
    rm -rf "$cache/kernels/$name.new" "$cache/sources/$name.new"
    mv "$work/$name.kernel.new" "$cache/kernels/$name.new"
    mv "$work/$name.sources.new" "$cache/sources/$name.new"
    swap_in "$cache/sources/$name" sizes
    swap_in "$cache/kernels/$name"
    for folder in "$work"/source-*; do
        used=no
        for link in "$cache"/sources/debug*/source; do
            [ "$(readlink "$link")" != "../../debug-kernel/${folder##*/}" ] || used=yes
        done
        [ "$used" = yes ] || rm -rf "$folder"
    done
}

mkdir -p "$work" "$cache/kernels" "$cache/sources" 2>/dev/null && [ -w "$cache" ] ||
    die "cannot write to $cache; set RING3_CACHE to a folder of yours"
writable=yes
jobs=${JOBS:-$(nproc)}
# One build at a time; a second one waits and then finds everything there.
exec 8>>"$work/lock"
flock -n 8 || {
    say "another build is at work in $work: waiting for it"
    flock 8
}
version=$(source_here)
if [ "$update" = no ] && [ -n "$version" ] && is_built "$version"; then
    say "kernel $(cat "$cache/kernels/$name/release") is there"
    exit
fi
without_setup fetch_parts
if is_built "$version"; then
    say "kernel $(cat "$cache/kernels/$name/release") is there, and no source is newer"
    exit
fi
tree=$work/source-$version elf=$work/libelf/usr
configure
compile
release=$(cat "$build/include/config/kernel.release")
gather_kernel
gather_headers
without_setup put_in_place
[ "$keep" = yes ] || rm -rf "$build"
say "kernel $release is in $cache/kernels/$name. Next: ring3 lab run two-disks --kernel $name"
