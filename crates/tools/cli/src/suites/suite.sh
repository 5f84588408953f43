# Runs the tests of /run/tests one by one, in the Debian in which they were built. Before and after
# each there is a line that begins with "suites:"; all between them is the test's output.
#
#   suites: begin NAME
#   suites: end NAME EXIT SECONDS KILLS ERRORS
#
# EXIT is 124 after $LIMIT seconds. KILLS counts deaths of the driver meanwhile, ERRORS I/O errors
# that the kernel has logged of the disks under test.
group=/sys/fs/cgroup/suites
mkdir -p $group
kills() { wc -l </run/kills; }
failures() { dmesg | grep -E 'I/O error.*(ublkb|nvme0n)[0-9]'; }
errors() { failures | wc -l; }
complaints() { dmesg | grep -cE 'kernel BUG|WARNING:|BUG:|Oops:|general protection fault'; }

# Ends all that a test has left; fails if something cannot be ended.
clear_up() {
    echo 1 >$group/cgroup.kill
    for try in $(seq 200); do
        grep -q 'populated 0' $group/cgroup.events && return
        sleep 0.1
    done
    echo "processes that do not end:"
    for pid in $(cat $group/cgroup.procs); do
        echo "$pid $(tr '\0' ' ' </proc/$pid/cmdline)"; cat /proc/$pid/stack
    done
    return 1
}
# limited COMMAND...: in a control group of its own.
limited() {
    (
        echo $BASHPID >$group/cgroup.procs
        exec timeout -s TERM -k 5 "$LIMIT" setsid -w "$@"
    ) </dev/null 2>&1
    code=$?
    [ $code != 137 ] || code=124
    clear_up || { code=125; return 1; }
}

begin_liburing() {
    mkfs.ext4 -q -F $FIRST && mount $FIRST /mnt/test
}
# Those that take the name of a file get a disk; the others' files are on the other disk.
run_liburing() {
    local folder=/mnt/test/$1 device=
    ! grep -q 'argv\[1\]' /suites/liburing/test/$1.c || device=$SECOND
    mkdir -p $folder && cd $folder && limited /suites/liburing/test/$1.t $device
    local failed=$?
    cd / && rm -rf $folder
    return $failed
}

begin_blktests() {
    printf 'TEST_DEVS=(%s)\nTIMEOUT=%s\nDEVICE_ONLY=1\n' $FIRST $((LIMIT / 3)) \
        >/suites/blktests/config
}
run_blktests() {
    cd /suites/blktests && rm -rf /tmp/results && limited ./check -o /tmp/results $1
    local failed=$?
    [ $code = 0 ] || find /tmp/results -type f -name '*.*' -exec tail -n 40 {} +
    return $failed
}

begin_xfstests() {
    mkfs.ext4 -q -F $FIRST || return
    printf 'export %s\n' TEST_DEV=$FIRST TEST_DIR=/mnt/test SCRATCH_DEV=$SECOND \
        SCRATCH_MNT=/mnt/scratch LOGWRITES_DEV=$THIRD FSTYP=ext4 >/suites/xfstests/local.config
}
run_xfstests() {
    cd /suites/xfstests && rm -rf results && limited ./check $1
    local failed=$?
    [ $code = 0 ] || for file in results/$1.out.bad results/$1.full results/$1.dmesg; do
        [ ! -e $file ] || { echo "== $file"; tail -n 60 $file; }
    done
    for place in /mnt/scratch /mnt/test; do
        ! mountpoint -q $place || umount $place 2>/dev/null || umount -l $place
    done
    [ $code = 0 ] || dmsetup remove_all -f 2>/dev/null
    # What a test has left half done is not the next one's.
    [ $code != 124 ] || mkfs.ext4 -q -F $FIRST
    return $failed
}

begin_$SUITE || { echo "suites: $SUITE cannot begin"; exit 1; }
while read -r name; do
    # What is tried after that says nothing of the test: another machine.
    [ -b $FIRST ] && [ -b $SECOND ] || { echo "the disk is gone"; exit 1; }
    echo "suites: begin $name"
    killed=$(kills) failed=$(errors) complained=$(complaints) began=$EPOCHREALTIME
    run_$SUITE "$name"; stuck=$?
    seconds=$(echo "$EPOCHREALTIME - $began" | bc)
    [ "$(complaints)" = "$complained" ] || { echo "the kernel complains:"; dmesg | tail -n 60; }
    [ "$(errors)" = "$failed" ] || failures | tail -n 20
    # On a line of its own, whatever the test has printed last.
    printf '\nsuites: end %s\n' \
        "$name $code $seconds $(($(kills) - killed)) $(($(errors) - failed))"
    # The next test gets a machine of its own.
    [ $stuck = 0 ] || exit 1
done </run/tests
