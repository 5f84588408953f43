//! A machine that sleeps while its disk and its card are used: fsync writers, sqlite and PostgreSQL
//! on ext4, and a TCP connection, over drivers of ring3d's. The kernel freezes all processes and
//! thaws them (`pm_test`), and stops its devices, too. Nothing wakes the guest from more than that:
//! QEMU's clock gives no event that ends a suspend to idle, and S3 ends QEMU. One level below,
//! `platform`, with the interrupts of devices off, one guest of three stood still within eight
//! rounds, its processor halted without a timer.

mod booted;
mod supervised;

use std::time::Duration;

use booted::{Booted, hub};
use ring3_lab::{Backing, Cache, Device, Disk, Error, Guest, Need, Size};
use supervised::with_programs;

/// Shell functions of every step.
const PRELUDE: &str = r#"
ready() {
    for try in $(seq 600); do
        ring3 status $1 --json >/tmp/status
        grep -q '"state": "running"' /tmp/status && ! grep -q '"standby": 0' /tmp/status && return
        sleep 0.05
    done
    cat /tmp/status
    ring3 logs $1
    return 1
}
there() { nsenter -t $(cat /tmp/other) -n "$@"; }
# What the kernel does until LEVEL, and back.
suspend() { echo $1 >/sys/power/pm_test; echo freeze >/sys/power/state; }
write() {
    while [ ! -e /tmp/over ]; do
        dd if=/dev/urandom of=/mnt/file$1 bs=4k count=8 conv=fsync,notrunc 2>/dev/null ||
            echo "writer $1 failed" >>/tmp/failed
        echo >>/tmp/written$1
    done
}
written() { cat /tmp/written* | wc -l; }
sums() { sleep 1; cat /tmp/failed 2>/dev/null; echo "I/O errors $(dmesg | grep -ciE 'I/O error')"; }
lite() { chroot /tmp/db /usr/bin/sqlite3 -bail /data/db "$1"; }
PG=/usr/lib/postgresql/17/bin
as_nobody() { chroot /tmp/db /bin/sh -c "exec busybox su -s /bin/sh nobody -c '$*'"; }
postgres() {
    set -- -c listen_addresses= -c jit=off -c dynamic_shared_memory_type=mmap \
        -c shared_buffers=8MB -c max_connections=16 -c max_wal_size=64MB -c min_wal_size=32MB
    as_nobody "exec $PG/postgres -D /data/pg -k /tmp $*" >>/tmp/postgres.log 2>&1 &
    echo $! >/tmp/postgres
    for try in $(seq 600); do as_nobody "$PG/pg_isready -q -h /tmp" && return; sleep 0.1; done
    cat /tmp/postgres.log; return 1
}
end() {
    kill -$1 $(head -n 1 /tmp/db/data/pg/postmaster.pid)
    for try in $(seq 600); do [ -d /proc/$(cat /tmp/postgres) ] || return; sleep 0.1; done
    echo 'PostgreSQL does not end'
}
"#;

const STARTED: &str = r#"
mkdir -p /tmp/db && tar -C /tmp/db -xf /databases.tar && rm /databases.tar &&
    mkdir -p /tmp/db/data /etc/ring3 || exit
card=$(basename /sys/bus/pci/devices/$THERE/net/*)
unshare -n sleep 100000 & echo $! >/tmp/other
while [ "$(readlink /proc/$(cat /tmp/other)/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do
    usleep 10000
done
ip link set dev "$card" netns $(cat /tmp/other)
there ip link set dev "$card" name there0
there ifconfig there0 10.7.0.2 up
printf '[device.scratch]\nmatch = { address = "%s" }\n[device.scratch.export]\nid = 0\n[device.lan]
match = { address = "%s" }\n[device.lan.export]\nkind = "tap"\n' $DISK $HERE >/etc/ring3/all.toml
ring3d --hold >/tmp/ring3d 2>&1 & echo $! >/tmp/holder
sleep 1
ready scratch && ready lan || {
    cat /tmp/ring3d
    exit
}
ifconfig lan 10.7.0.1 up
for try in $(seq 100); do
    ping -c 1 -W 1 10.7.0.2 >/dev/null && echo reached && break
done
mkfs.ext4 -q /dev/ring3/scratch && mount /dev/ring3/scratch /mnt &&
    mount --bind /mnt /tmp/db/data && lite 'create table t(n);'
for pid in $(cat /sys/fs/cgroup/ring3-scratch/cgroup.procs); do
    tr '\0' ' ' </proc/$pid/cmdline
    echo
done
getfattr -n user.survive_final_kill_signal /sys/fs/cgroup/ring3-scratch 2>/dev/null
for writer in 1 2 3 4; do write $writer & done
for number in $(seq 100000); do
    [ -e /tmp/over ] && break
    lite "insert into t values ($number);" && echo $number >/tmp/acknowledged ||
        echo "sqlite failed" >>/tmp/failed
done >/tmp/sqlite 2>&1 &
dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>/dev/null
sleep 10000 | there timeout 900 nc -l -p 9 >/tmp/arrived & sleep 1
for piece in $(seq 0 255); do
    dd if=/tmp/data bs=32k count=1 skip=$piece 2>/dev/null
    [ -e /tmp/over ] || sleep 0.5
done | nc 10.7.0.2 9 &
echo 1 >/sys/module/suspend/parameters/pm_test_delay
sleep 2
[ $(written) -gt 0 ] && echo 'it is written to'
"#;

/// PostgreSQL beside the others, and clients that count what it has acknowledged.
const DATABASE: &str = r#"
cp /bin/busybox /tmp/db/bin/busybox && ln -s busybox /tmp/db/bin/sh || exit
cp /etc/passwd /tmp/db/etc/ || exit
mkdir -p /tmp/db/dev /tmp/db/proc /tmp/db/tmp /mnt/pg && chmod 1777 /tmp/db/tmp || exit
chown 65534:65534 /mnt/pg || exit
mount --bind /dev /tmp/db/dev && mount --bind /proc /tmp/db/proc || exit
as_nobody "$PG/initdb -D /data/pg -E UTF8 --locale=C -A trust -k -N" >/tmp/log 2>&1 && postgres &&
    as_nobody "$PG/pgbench -h /tmp -i -s 1 postgres" >>/tmp/log 2>&1 || { cat /tmp/log; exit; }
while [ ! -e /tmp/over ]; do
    as_nobody "$PG/pgbench -n -h /tmp -c 2 -T 2 postgres" >/tmp/bench 2>&1 ||
        { echo 'pgbench failed'; cat /tmp/bench; } >>/tmp/failed
    sed -n 's/number of transactions actually processed: *//p' /tmp/bench >>/tmp/transactions
done &
echo $! >/tmp/clients
for try in $(seq 300); do
    [ -s /tmp/transactions ] && echo 'transactions are acknowledged' && break
    sleep 0.1
done
"#;

const TEN: &str = r#"
slept=0; for time in $(seq 10); do
    before=$(written); ring3 sleep || { echo "sleep $?"; ring3 logs scratch -n 20; }
    [ $time = 5 ] && {
        ring3 status
        ring3 restart scratch
        ls /sys/fs/cgroup/ring3-asleep >/dev/null && echo 'gathered'
    }
    still=$(written); suspend freezer && slept=$((slept + 1)) || dmesg | tail -n 30
    [ $(written) = $still ] || echo 'somebody wrote'
    ring3 wake || echo "wake $?"
    for try in $(seq 200); do
        [ $(written) -gt $still ] && break
        sleep 0.05
    done
    [ $(written) -gt $still ] || echo 'nobody writes'
done
echo "slept $slept of 10"
ready scratch && ready lan
grep -h -oE '"restarts": [^,]*' /tmp/status
ls -d /sys/fs/cgroup/ring3-asleep /run/ring3/asleep 2>&1 | grep -v 'No such'
sums
"#;

const DEVICES: &str = r#"
for time in 1 2; do
    ring3 sleep && suspend devices && echo "slept $time"
    ring3 wake
    ready scratch
    ready lan
done
ring3 sleep --hibernate && suspend devices && echo "slept with drivers"
ring3 wake
ready scratch
ready lan
ring3 logs scratch | grep -c 'is started anew afterwards'; sums
"#;

const ENDED: &str = r#"
touch /tmp/over
sleep 3
for try in $(seq 100); do
    cmp -s /tmp/data /tmp/arrived && break
    sleep 0.2
done
cmp /tmp/data /tmp/arrived && echo 'it arrived whole'
[ $(lite 'select count(*) from t;') -ge $(cat /tmp/acknowledged) ] &&
    echo 'all that sqlite acknowledged is there'
lite 'pragma integrity_check;'
for try in $(seq 300); do [ -d /proc/$(cat /tmp/clients) ] || break; sleep 0.1; done
end QUIT; postgres || exit
acknowledged=$(awk '{ all += $1 } END { print all + 0 }' /tmp/transactions)
counted=$(as_nobody "$PG/psql -h /tmp -At postgres -c \"select count(*) from pgbench_history\"")
[ "$acknowledged" -gt 0 ] && [ "$counted" = "$acknowledged" ] &&
    echo 'all that PostgreSQL acknowledged is there' ||
    echo "PostgreSQL has $counted of $acknowledged transactions"
as_nobody "$PG/pg_amcheck -h /tmp --install-missing --heapallindexed --parent-check --all" \
    >/tmp/log 2>&1 && echo 'tables and indices are right' || cat /tmp/log
end INT; as_nobody "$PG/pg_checksums -D /data/pg" 2>&1 | grep 'Bad checksums'
umount /tmp/db/data
umount /mnt
fsck.ext4 -fn /dev/ring3/scratch >/tmp/fsck 2>&1 && echo clean || cat /tmp/fsck
sums
"#;

static GUEST: Booted = Booted::new(
    guest,
    PRELUDE,
    &[
        ("started", STARTED),
        ("database", DATABASE),
        ("ten", TEN),
        ("devices", DEVICES),
        ("ended", ENDED),
    ],
);

fn guest(cache: &Cache) -> Result<Guest, Error> {
    ring3_lab::prepare(cache, &[Need::Network, Need::Databases], &mut |_| {})?;
    let disk = Device {
        namespaces: vec![Disk::new(Size(256 << 20), Backing::Memory)],
        ..Device::new("disk", "nvme").bound("vfio-pci")
    };
    let guest =
        Guest { memory_mib: 2048, time_limit: Duration::from_secs(900), ..Guest::new("sleep") };
    Ok(with_programs(guest)
        .network_programs(cache)
        .file("/databases.tar", &cache.path("databases/databases.tar"))
        .device(disk)
        .device(hub(Device::new("here", "e1000e").bound("vfio-pci")))
        .device(hub(Device::new("there", "e1000e")))
        .module("e1000e")
        .module("ext4")
        .module("ublk_drv")
        .module("vfio-pci")
        .module("vfio_iommu_type1")
        .module("tun"))
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_machine_whose_disk_is_written_by_fsync_sleeps_ten_times_of_ten() {
    GUEST.says("started", &["reached", "it is written to"]);
    GUEST.says("database", &["transactions are acknowledged"]);
    GUEST.says("ten", &["slept 10 of 10", "I/O errors 0"]);
    let said = GUEST.said("ten");
    assert!(
        !said.contains("somebody wrote")
            && !said.contains("nobody writes")
            && !said.contains("failed"),
        "{said}"
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn devices_that_the_kernel_has_stopped_come_back() {
    GUEST.says("devices", &["slept 1", "slept 2", "slept with drivers", "I/O errors 0"]);
    assert!(!GUEST.said("devices").contains("failed"), "{}", GUEST.said("devices"));
}

#[test]
#[ignore = "boots a guest: make test"]
fn nothing_that_was_written_or_sent_is_lost() {
    GUEST.says(
        "ended",
        &[
            "it arrived whole",
            "all that sqlite acknowledged is there",
            "ok\n",
            "all that PostgreSQL acknowledged is there",
            "tables and indices are right",
            "Bad checksums:  0",
            "clean",
            "I/O errors 0",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn while_the_machine_sleeps_devices_say_so_and_take_no_orders() {
    GUEST.says("ten", &["gathered", "sleeping", "the machine is about to sleep"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn drivers_are_marked_for_who_kills_all_that_is_left_at_a_shutdown() {
    GUEST.says("started", &["@ring3-driver drive scratch"]);
}
