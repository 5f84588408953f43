# The guest's half of `ring3 suites`, in the lab's own root: makes the disk under test and changes
# the root to the Debian in which the suites are. $SUITE, $PLACEMENT, $LIMIT (seconds of a test)
# and $DISK (the controller's address) are set; /suites/tests has the tests, a line each.

new=/debian
# What all of it needs to see, and where drivers' processes and the suites are counted.
root() {
    for try in $(seq 200); do [ -b /dev/vda ] && break; sleep 0.05; done
    mkdir -p $new /run && mount -t tmpfs run /run && mount -t ext4 /dev/vda $new || return
    mkdir -p $new/dev $new/proc $new/sys $new/run $new/tmp
    mount -t debugfs debug /sys/kernel/debug 2>/dev/null
    for folder in dev proc sys run; do mount -o rbind /$folder $new/$folder || return; done
    cp /suites/tests /suites/suite.sh /run/
    : >/run/kills
}
# disks PREFIX: waits for its three disks.
disks() {
    for try in $(seq 1200); do
        [ -b ${1}1 ] && [ -b ${1}2 ] && [ -b ${1}3 ] && return
        sleep 0.05
    done
    echo "there are no disks ${1}1 to 3"; return 1
}
# The block devices begin at 1, as namespaces do.
exported() {
    ring3 run nvme --device vfio:$DISK --in-process --id 1 >/run/ready 2>/run/log &
    disks /dev/ublkb || { cat /run/ready /run/log; return 1; }
}
# It may be killed as often as one likes, and take as long as a busy host lets it: a supervisor that
# gives up is not what is tried.
TERMS='burst = 1000000\nwindow_s = 1\nbackoff_ms = 1\nbackoff_max_ms = 50\ndeadline_s = 900'
supervised() {
    describe disk $DISK 'id = 1' "$TERMS"
    ring3d >/tmp/ring3d.log 2>&1 &
    disks /dev/ublkb || { cat /tmp/ring3d.log; return 1; }
}
# A driver that serves is killed, at most once a second: of those that are killed before they serve
# none ever would in a guest that needs more than a second to start one, and the supervisor gives up
# after `restart.deadline_s`.
kill_each_second() {
    while :; do
        sleep 1
        ring3 status disk --json >/tmp/status 2>/dev/null
        grep -q '"state": "running"' /tmp/status || continue
        pid=$(sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' /tmp/status | head -n 1)
        # Between two drivers it is 0, which to kill means this group of processes.
        [ "${pid:-0}" -gt 1 ] && kill -9 "$pid" 2>/dev/null && echo "$pid" >>/run/kills
    done
}
# A program is replaced by itself. A replacement that is refused is none; one that does harm is seen
# by the tests.
replace_each_second() {
    while :; do
        sleep 1
        ring3 upgrade disk >/dev/null 2>&1 && echo replaced >>/run/kills
    done
}
root || exit
case $PLACEMENT in
    kernel) prefix=/dev/nvme0n; disks $prefix ;;
    exported) prefix=/dev/ublkb; exported ;;
    supervised | killed | replaced) prefix=/dev/ublkb; supervised ;;
esac || exit
case $PLACEMENT in
    killed) kill_each_second & ENDER=$! ;;
    replaced) replace_each_second & ENDER=$! ;;
esac
chroot $new /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=linux LC_ALL=C \
    SUITE=$SUITE LIMIT=$LIMIT FIRST=${prefix}1 SECOND=${prefix}2 THIRD=${prefix}3 \
    bash /run/suite.sh
code=$?
[ -z "$ENDER" ] || kill $ENDER
case $PLACEMENT in supervised | killed | replaced)
    ring3 status disk; tail -n 40 /tmp/ring3d.log; dmesg | tail -n 20 ;;
esac
exit $code
