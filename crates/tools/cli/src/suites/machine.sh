# The guest's half of `ring3 suites`, in the lab's own root: makes the devices under test and
# changes the root to the Debian in which the suites are. $SUITE, $PLACEMENT and $LIMIT (seconds of
# a test) are set; /suites/tests has the tests, a line each. disks.sh or cards.sh stands before
# this: the functions `on_kernel`, `exported` and `supervised`, the names of ring3d's devices in
# $SUPERVISED, and variables of the suite in $UNDER_TEST.

new=/debian
# What all of it needs to see, and where drivers' processes and the suites are counted.
root() {
    for try in $(seq 200); do [ -b /dev/vda ] && break; sleep 0.05; done
    mkdir -p $new /run && mount -t tmpfs run /run && mount -t ext4 /dev/vda $new || return
    mkdir -p $new/dev $new/proc $new/sys $new/run $new/tmp
    mount -t debugfs debug /sys/kernel/debug 2>/dev/null
    for folder in dev proc sys run; do mount -o rbind /$folder $new/$folder || return; done
    cp /suites/tests /suites/suite.sh /run/
    # What the kernel asks for while tests run is in their root.
    printf '#!/bin/sh\nexec chroot %s /usr/sbin/modprobe "$@"\n' $new >/run/modprobe
    chmod 755 /run/modprobe && echo /run/modprobe >/proc/sys/kernel/modprobe
    : >/run/kills
}
# It may be killed as often as one likes, and take as long as a busy host lets it: a supervisor that
# gives up is not what is tried.
TERMS='burst = 1000000\nwindow_s = 1\nbackoff_ms = 1\nbackoff_max_ms = 50\ndeadline_s = 900'
# A driver that serves is killed, at most once a second: of those that are killed before they serve
# none ever would in a guest that needs more than a second to start one, and the supervisor gives up
# after `restart.deadline_s`.
kill_each_second() {
    while :; do
        sleep 1
        for name in $SUPERVISED; do
            ring3 status $name --json >/tmp/status 2>/dev/null
            grep -q '"state": "running"' /tmp/status || continue
            pid=$(sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' /tmp/status | head -n 1)
            # Between two drivers it is 0, which to kill means this group of processes.
            [ "${pid:-0}" -gt 1 ] && kill -9 "$pid" 2>/dev/null && echo "$pid" >>/run/kills
        done
    done
}
# A program is replaced by itself. A replacement that is refused is none; one that does harm is seen
# by the tests.
replace_each_second() {
    while :; do
        sleep 1
        for name in $SUPERVISED; do
            ring3 upgrade $name >/dev/null 2>&1 && echo replaced >>/run/kills
        done
    done
}
root || exit
case $PLACEMENT in
    kernel) on_kernel ;;
    exported) exported ;;
    supervised | killed | replaced) supervised ;;
esac || exit
case $PLACEMENT in
    killed) kill_each_second & ENDER=$! ;;
    replaced) replace_each_second & ENDER=$! ;;
esac
chroot $new /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=linux LC_ALL=C \
    SUITE=$SUITE LIMIT=$LIMIT $UNDER_TEST \
    bash /run/suite.sh
code=$?
[ -z "$ENDER" ] || kill $ENDER
case $PLACEMENT in supervised | killed | replaced)
    ring3 status; tail -n 40 /tmp/ring3d.log; dmesg | tail -n 20 ;;
esac
exit $code
