//! Memory that a C program shares with an exported disk's driver, by `ring3.h` and as its user
//! builds it.

mod booted;
mod supervised;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use booted::Booted;
use ring3_lab::{Backing, Cache, Device, Error, Guest, Need, Size};
use supervised::{built, with_programs};

/// Shell functions of the steps under `ring3 run`.
const HELD: &str = r#"
serve() {
    : >/tmp/ready
    ring3 run nvme --device vfio:$DISK --json --id 0 --stats /tmp/stats "$@" >/tmp/ready \
        2>/tmp/served &
    PID=$!
    for try in $(seq 300); do
        grep -q ublkb /tmp/ready && break
        [ -d /proc/$PID ] || break
        sleep 0.05
    done
}
hits() {
    rm -f /tmp/stats
    kill -USR1 $PID
    for try in $(seq 100); do
        grep -q shared_hits /tmp/stats 2>/dev/null && break
        sleep 0.05
    done
    sed -n 's/.*"shared_hits": \([0-9]*\).*/\1/p' /tmp/stats
}
# Waits until the queue merges requests again.
merges() {
    for try in $(seq 100); do
        [ "$(cat /sys/block/ublkb0/queue/nomerges)" = 2 ] || break
        sleep 0.05
    done
}
"#;

const READ: &str = r#"
serve --share /tmp/share
dd if=/dev/urandom of=/tmp/bytes bs=1000 count=1000 2>/dev/null
dd if=/tmp/bytes of=/dev/ublkb0 2>/dev/null
sync
before=$(hits); share /tmp/share /dev/ublkb0 1000000 >/tmp/read; echo "exit $?"
cmp /tmp/bytes /tmp/read && echo "the bytes of the disk"; echo "not copied: $(($(hits) - before))"
share /tmp/share /dev/ublkb0 1000000 >/dev/full; echo "full $?"
share /tmp/nobody /dev/ublkb0 1000000; echo "nobody $?"
share /tmp/share /dev/ublkb0 99999999999 2>&1 >/dev/null; echo "short $?"
merges
echo "merges $(cat /sys/block/ublkb0/queue/nomerges)"
kill $PID
wait $PID
echo "ended $?"
cat /tmp/served
"#;

/// One region for the block device, for a queue of the server beside it, and for a driver of this
/// process.
const REGION: &str = r#"
serve --share /tmp/share --socket /tmp/disk,memory=64M
cat /tmp/ready; hits=$(hits)
region /tmp/share /dev/ublkb0 /tmp/disk; echo "exit $?"
echo "of the block device's: $(($(hits) - hits)) not copied"
load() {
    ring3 blk bench --device $1 --dma lent --workload randwrite-128k-qd8 --count 64 --region 4 \
        --overwrite --verify
}
load remote:/tmp/disk && echo "remote is right"
merges
kill $PID; wait $PID; echo "ended $?"; cat /tmp/served; ls /tmp/disk /tmp/share 2>/dev/null
load vfio:$DISK && echo "local is right"
"#;

/// PostgreSQL on ext4, with its buffers in shared memory, ended in the middle of its work.
const DATABASE: &str = r#"
ROOT=/tmp/db PG=/usr/lib/postgresql/17/bin
quietly() {
    "$@" >/tmp/log 2>&1 || {
        echo "failed: $*"
        tail -n 30 /tmp/log /tmp/postgres.log
        exit 1
    }
}
as_nobody() { chroot $ROOT /bin/sh -c "exec busybox su -s /bin/sh nobody -c '$*'"; }
query() { as_nobody "$PG/psql -h /tmp -At postgres -c \"$*\""; }
start() {
    as_nobody "LD_PRELOAD=/lib/share_preload.so RING3_SHARE=/tmp/share" \
        "exec $PG/postgres -D /data/pg -k /tmp -c debug_io_direct=data,wal -c listen_addresses=" \
        "-c jit=off -c dynamic_shared_memory_type=mmap -c shared_buffers=8MB" \
        "-c max_connections=16 -c max_wal_size=64MB -c min_wal_size=32MB" >>/tmp/postgres.log 2>&1 &
    POSTGRES=$!
    for try in $(seq 600); do as_nobody "$PG/pg_isready -q -h /tmp" && return; sleep 0.1; done
    echo "PostgreSQL does not start"; cat /tmp/postgres.log; exit 1
}
# Its file of its process id is gone before it is, and it is in the file system until then.
end() {
    kill -$1 $(head -n 1 $ROOT/data/pg/postmaster.pid)
    for try in $(seq 600); do
        [ -d /proc/$POSTGRES ] || return
        sleep 0.1
    done
    echo "PostgreSQL does not end"
    exit 1
}
mkdir -p $ROOT && tar -C $ROOT -xf /databases.tar && rm /databases.tar || exit 1
cp /bin/busybox $ROOT/bin/busybox && ln -s busybox $ROOT/bin/sh && cp /etc/passwd $ROOT/etc/ ||
    exit 1
cp /share_preload.so /libring3.so.* $ROOT/usr/lib/x86_64-linux-gnu/ &&
    ln -sf x86_64-linux-gnu/share_preload.so $ROOT/usr/lib/ || exit 1
mkdir -p $ROOT/dev $ROOT/proc $ROOT/tmp $ROOT/data && chmod 1777 $ROOT/tmp &&
    mount --bind /dev $ROOT/dev && mount --bind /proc $ROOT/proc || exit 1
serve --share $ROOT/tmp/share,mode=666
quietly mkfs.ext4 -q -F /dev/ublkb0
mount -t ext4 /dev/ublkb0 $ROOT/data && mkdir $ROOT/data/pg && chown 65534:65534 $ROOT/data/pg ||
    exit 1
quietly as_nobody "$PG/initdb -D /data/pg -E UTF8 --locale=C -A trust -k -N"
start; quietly as_nobody "$PG/pgbench -h /tmp -i -s 2 postgres"; before=$(hits)
as_nobody "$PG/pgbench -n -h /tmp -c 4 -j 2 -T 5 postgres" >/tmp/pgbench 2>&1 || {
    cat /tmp/pgbench
    exit 1
}
acknowledged=$(sed -n 's/number of transactions actually processed: *//p' /tmp/pgbench)
count=$(($(hits) - before))
[ $count -ge $acknowledged ] && echo "not copied: more than transactions" ||
    echo "not copied: $count of $acknowledged transactions"
end QUIT; quietly umount $ROOT/data; quietly mount -t ext4 /dev/ublkb0 $ROOT/data; start
quietly as_nobody \
    "$PG/pg_amcheck -h /tmp --install-missing --heapallindexed --parent-check --all" &&
    echo "tables and indices are right"
[ "$(query "select count(*) from pgbench_history")" = $acknowledged ] &&
    echo "all that was acknowledged is there"
end INT; quietly as_nobody "$PG/pg_checksums -D /data/pg"; grep -E 'Bad checksums: *0$' /tmp/log
umount $ROOT/data; fsck.ext4 -f -n /dev/ublkb0 >/tmp/log 2>&1 && echo "the file system is clean"
merges
grep share_preload /tmp/postgres.log; kill $PID; wait $PID; echo "ended $?"
"#;

/// Shell functions of the steps under a supervisor.
const SUPERVISED: &str = r#"
state() { ring3 status scratch --json | sed -n 's/.*"state": "\(.*\)".*/\1/p'; }
await() {
    for try in $(seq ${2:-600}); do
        [ "$(state)" = $1 ] && return
        sleep 0.05
    done
    echo "not $1"
    ring3 status scratch
    ring3 logs scratch
    return 1
}
ready() {
    for try in $(seq 600); do
        ring3 status scratch --json >/tmp/status
        grep -q '"state": "running"' /tmp/status && ! grep -q '"standby": 0' /tmp/status && return
        sleep 0.05
    done
    cat /tmp/status
    ring3 logs scratch
    return 1
}
driver() { sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' /tmp/status; }
# Waits until another driver than $1 runs: ring3d may not have noticed yet that that one has died.
followed() {
    for try in $(seq 600); do
        ready; [ "$(driver)" = "$1" ] || return 0
        sleep 0.05
    done
}
hits() { ring3 status scratch --json | sed -n 's/.*"shared_hits": \([0-9]*\).*/\1/p'; }
begin() {
    mkdir -p /etc/ring3
    printf '[device.scratch]\nmatch = { address = "%s" }\nbind = true\n[device.scratch.export]
id = 0\ndepth = 32\nshare = { socket = "/tmp/share", memory_mib = %s }
[device.scratch.restart]\n%b\n' \
        $DISK "$1" "$2" >/etc/ring3/scratch.toml
    ring3d --hold >/tmp/ring3d 2>&1 &
    HOLD=$!
    sleep 1
    ready || cat /tmp/ring3d
    for try in $(seq 200); do
        [ -b /dev/ring3/scratch ] && break
        sleep 0.05
    done
}
end() { kill $HOLD; wait $HOLD; echo "ring3d ended with $?"; }
lend() {
    : >/tmp/lent
    ring3 blk lend --share /tmp/share --size $1 --json >/tmp/lent 2>/tmp/lent.log & LENT=$!
    for try in $(seq 300); do
        grep -q file /tmp/lent && break
        [ -d /proc/$LENT ] || break
        sleep 0.05
    done
    FILE=$(sed -n 's/.*"file":"\([^"]*\)".*/\1/p' /tmp/lent)
    [ -n "$FILE" ] && return
    cat /tmp/lent.log
    return 1
}
daemon() {
    grep -l "^PPid:[[:space:]]*$HOLD$" /proc/[0-9]*/status 2>/dev/null |
        sed 's#/proc/\(.*\)/status#\1#' | head -n 1
}
again() {
    old=$(daemon)
    kill $1 $old
    for try in $(seq 600); do
        new=$(daemon)
        [ -n "$new" ] && [ "$new" != "$old" ] && break
        sleep 0.05
    done
}
merges() { cat /sys/block/ublkb0/queue/nomerges; }
hit() { for try in $(seq 100); do [ "$(hits)" -gt 0 ] && return; sleep 0.1; done; return 1; }
free() {
    for try in $(seq 200); do
        [ "$(merges)" = 2 ] || break
        sleep 0.05
    done
    echo "merges $(merges)"
}
pins() {
    echo $(($(sed -n 's/nr_foll_pin_acquired //p' /proc/vmstat) - \
        $(sed -n 's/nr_foll_pin_released //p' /proc/vmstat)))
}
# The shell becomes the load, so that the signal that ends a load in the background reaches it.
load() {
    exec fio --name=load --mem=mmaphuge:$FILE --filename=/dev/ring3/scratch --direct=1 \
        --ioengine=io_uring --rw=randwrite --bsrange=4k-128k --iodepth=16 --size=64M \
        --verify=crc32c --verify_fatal=1 --verify_backlog=32 --time_based --runtime=${1:-600} \
        --output=/tmp/fio >/dev/null 2>&1
}
# Ends the load, which lasts as long as what happens beside it, and says whether all was right.
verified() {
    kill -INT $FIO; wait $FIO
    grep -q 'err= 0' /tmp/fio && ! grep -q 'verify: bad\|verify failed' /tmp/fio && echo "$1" ||
        { cat /tmp/fio; ring3 logs scratch; }
}
"#;

/// Drivers that die and are replaced, and ring3d as well, under the verification of a program whose
/// memory is lent.
const LENT: &str = r#"
before=$(pins); begin 64 'burst = 1000' || exit
lend 48 || { ring3 logs scratch; cat /tmp/ring3d; exit; }
load & FIO=$!; hit=0 merged=0
for time in 1 2 3 4 5; do
    ready; sleep 0.$time; old=$(driver); kill -9 $old; followed $old; hit && hit=$((hit + 1))
    [ "$(merges)" = 2 ] || merged=$((merged + 1))
done
echo "hits after $hit kills, merged after $merged"; verified "all that was written is there"
kill -0 $LENT && echo "the client has noticed nothing"
grep -oE '"(restarts|errors)": [^,]*' /tmp/status | tr '\n' ' '; echo
load & FIO=$!; sleep 1; ring3 upgrade scratch; sleep 1; ready; hit
echo "upgraded, hits $(($(hits) > 0))"; verified "verified by a new program"
load & FIO=$!; sleep 1; again -9; ready; kill -9 $(driver); sleep 0.2; ready; hit
echo "another ring3d, hits $(($(hits) > 0))"
old=$(daemon); kill -9 $old $(driver); sleep 0.5; ready; hit
echo "both died, hits $(($(hits) > 0))"; verified "verified by another ring3d"
kill -0 $LENT && echo "and still nothing"; kill $LENT; wait $LENT; free
dmesg | grep -ciE 'I/O error'
lend 64 && echo 'all that may be lent'; ring3 blk lend --share /tmp/share --size 16; echo "more: $?"
ready; kill -9 $(driver); kill -9 $LENT; wait $LENT 2>/dev/null; ready; free
lend 16; ring3 stop scratch; wait $LENT; cat /tmp/lent.log; ring3 restart scratch; ready
lend 16 && echo 'lent anew'; kill $LENT; wait $LENT; free; end
for try in $(seq 100); do [ "$(pins)" = $before ] && break; sleep 0.05; done
ls /dev/ublkc0 /tmp/share 2>&1 | grep -c 'No such file'; echo "pins $(($(pins) - before))"
"#;

/// A disk that is taken from its users, while its driver is dead.
const TAKEN: &str = r#"
begin 64 'burst = 1\ndeadline_s = 5' || exit; lend 48; load & FIO=$!; exec 8<$FILE
for kill in 1 2; do ready || exit; sleep 0.3; kill -9 $(driver); sleep 0.3; done
await failed && echo 'given up'
wait $FIO || echo 'its users see errors'
grep 'verify: bad\|verify failed' /tmp/fio
sum=$(md5sum </proc/self/fd/8)
sleep 0.5
[ "$sum" = "$(md5sum </proc/self/fd/8)" ] && echo 'and nothing is written any more'
exec 8<&-
wait $LENT; cat /tmp/lent.log; ls /dev/ublkc0 2>&1; end
"#;

/// A queue that is frozen again and again, under a load.
const FROZEN: &str = r#"
begin 64 'burst = 1000' || exit
fio --name=load --filename=/dev/ring3/scratch --direct=1 --ioengine=io_uring --rw=randrw --bs=4k \
    --iodepth=16 --size=64M --time_based --runtime=600 --output=/tmp/fio >/dev/null 2>&1 &
FIO=$!
sleep 1
frozen_queue 0 20 100
kill -0 $FIO && echo 'the load goes on'
kill -INT $FIO
wait $FIO
end
"#;

/// Clients that lend and go again and again beside a load, while drivers die.
const CHURN: &str = r#"
begin 64 'burst = 100000\ndeadline_s = 60' || exit; : >/tmp/churn
# The steps before have seen errors that they wanted.
errors() { dmesg | grep -ciE 'I/O error'; }
before=$(errors)
churn() {
    while [ -e /tmp/churn ]; do
        : >/tmp/churn.$1
        ring3 blk lend --share /tmp/share --size 8 --json >/tmp/churn.$1 2>>/tmp/churn.log &
        CLIENT=$!
        for try in $(seq 200); do
            [ -s /tmp/churn.$1 ] || [ ! -d /proc/$CLIENT ] && break
            sleep 0.02
        done
        [ -s /tmp/churn.$1 ] && echo >>/tmp/churned
        kill $CLIENT
        wait $CLIENT
    done 2>/dev/null
}
churn 1 & FIRST=$!; churn 2 & SECOND=$!
fio --name=load --filename=/dev/ring3/scratch --direct=1 --ioengine=io_uring --rw=randwrite \
    --bs=4k --iodepth=16 --size=64M --verify=crc32c --verify_fatal=1 --verify_backlog=32 \
    --loops=100000 --output=/tmp/fio >/dev/null 2>&1 &
FIO=$!
kills=0
while [ $kills -lt ${KILLS:-8} ]; do
    ready || break
    usleep $((RANDOM * 30))
    kill -9 $(driver)
    kills=$((kills + 1))
done
ready && echo "$kills kills, and it runs"
rm /tmp/churn
wait $FIRST $SECOND
kill -0 $FIO && echo 'the load goes on'
kill -INT $FIO
wait $FIO
grep -c 'verify: bad\|verify failed' /tmp/fio
echo $(($(errors) - before))
[ $(wc -l </tmp/churned) -gt 8 ] && echo 'and lent all the while'
echo "lent $(wc -l </tmp/churned) times" >&2
end
"#;

/// A driver of `ring3 run`.
const CONFINED: &str = r#"
before=$(pins)
: >/tmp/ready
ring3 run nvme --device vfio:$DISK --user nobody --id 0 --share /tmp/share,memory=64 \
    --json >/tmp/ready 2>/tmp/log &
PID=$!
for try in $(seq 300); do
    grep -q ublkb /tmp/ready && break
    [ -d /proc/$PID ] || break
    sleep 0.05
done
lend 48
ring3 blk lend --share /tmp/share --size 32
echo "more: $?"
mkdir -p /dev/ring3
ln -sf /dev/ublkb0 /dev/ring3/scratch
(load 3) && echo 'verified'
load & FIO=$!
sleep 1
kill -9 $(sed -n 's/.*"pid":\([0-9]*\).*/\1/p' /tmp/ready | head -n 1)
for try in $(seq 200); do grep -q 'users waited' /tmp/log && break; sleep 0.05; done
grep -o 'was ended by signal 9' /tmp/log
sleep 1
verified 'all that was written is there'
kill -0 $LENT && echo 'the client has noticed nothing'
kill $LENT
wait $LENT
free
kill $PID
wait $PID
echo "ended $?"
for try in $(seq 100); do [ "$(pins)" = $before ] && break; sleep 0.05; done
ls /dev/ublkc0 /tmp/share 2>&1 | grep -c 'No such file'; echo "pins $(($(pins) - before))"
"#;

static GUEST: Booted = Booted::on("7.2", guest, HELD, &[("read", READ), ("region", REGION)]);
static SUPERVISED_GUEST: Booted = Booted::on(
    "7.2",
    supervised_guest,
    SUPERVISED,
    &[
        ("lent", LENT),
        ("taken", TAKEN),
        ("confined", CONFINED),
        ("churn", CHURN),
        ("frozen", FROZEN),
    ],
);
static DATABASE_GUEST: Booted = Booted::on("7.2", database_guest, HELD, &[("database", DATABASE)]);

/// The name by which programs find the library at run time.
const SONAME: &str =
    concat!("libring3.so.", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

/// `NAME.c` of the examples, compiled with `flags`.
fn example(name: &str, flags: &[&str]) -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let capi = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi");
    let program = FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path().join(name);
    let mut command = Command::new("cc");
    command
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"])
        .args(flags)
        .arg("-I")
        .arg(capi.join("include"));
    command.arg("-o").arg(&program).arg(capi.join(format!("examples/{name}.c")));
    command
        .arg("-L")
        .arg(built().join("deps"))
        .arg("-lring3")
        .arg(format!("-Wl,-rpath,{}", built().join("deps").display()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn exporting(name: &str, disk: u64, memory_mib: u32) -> Guest {
    with_programs(Guest { time_limit: Duration::from_secs(300), memory_mib, ..Guest::new(name) })
        .device(Device::nvme("disk", Size(disk), Backing::Memory).bound("vfio-pci"))
        .module("vfio-pci")
        .module("vfio_iommu_type1")
        .module("ublk_drv")
}

fn guest(_: &Cache) -> Result<Guest, Error> {
    Ok(exporting("share", 64 << 20, 1024)
        .program(&example("share", &["-Wpedantic"]))
        .program(&built().join("examples/region")))
}

fn supervised_guest(_: &Cache) -> Result<Guest, Error> {
    Ok(Guest {
        hugepages: 64,
        time_limit: Duration::from_secs(600),
        ..exporting("lent", 256 << 20, 1280).program(&built().join("examples/frozen_queue"))
    })
}

fn database_guest(cache: &Cache) -> Result<Guest, Error> {
    ring3_lab::prepare(cache, &[Need::Databases], &mut |line| eprintln!("{line}"))?;
    let guest = exporting("share-database", 256 << 20, 2048)
        .module("ext4")
        .file("/databases.tar", &cache.path("databases/databases.tar"))
        .file(&format!("/{SONAME}"), &built().join("deps").join(SONAME))
        .file("/share_preload.so", &example("share_preload", &["-shared", "-fPIC"]));
    Ok(guest)
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_program_in_c_reads_a_disk_into_memory_that_it_shares_and_says_what_cannot_be() {
    GUEST.says(
        "read",
        &[
            "exit 0",
            "the bytes of the disk",
            "not copied: 8",
            "share: standard output: No space left on device\nfull 1",
            "nobody 1",
            "it is shorter than that\nshort 1",
            "merges 0",
            "ended 0",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn one_region_serves_the_block_device_a_queue_beside_it_and_a_driver_in_the_process_without_a_copy()
{
    let said = GUEST.said("region");
    GUEST.says(
        "region",
        &[
            r#""sockets":["/tmp/disk"],"mapped":true"#,
            "lent to /dev/ublkb0 and remote:/tmp/disk",
            "round 0: the same bytes",
            "round 1: the same bytes",
            "of the remote disk's: 16 not copied, 0 copied",
            "revoked\nexit 0",
            "of the block device's: 16 not copied",
            "remote is right",
            "ended 0",
            "local is right",
        ],
    );
    assert_eq!(said.matches("64 requests mapped in 64 segments").count(), 2, "{said}");
    assert!(!said.contains("ended 0\n/tmp"), "{said}");
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_database_with_its_buffers_in_shared_memory_loses_nothing_that_it_has_acknowledged() {
    DATABASE_GUEST.says(
        "database",
        &[
            "not copied: more than transactions",
            "tables and indices are right",
            "all that was acknowledged is there",
            "Bad checksums:  0",
            "the file system is clean",
            "ended 0",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn memory_that_is_lent_to_a_supervised_disk_goes_on_with_drivers_and_supervisors_that_follow_and_nothing_is_lost()
 {
    SUPERVISED_GUEST.says(
        "lent",
        &[
            "hits after 5 kills, merged after 0\nall that was written is there\nthe client has \
            noticed nothing",
            "\"errors\": 0 \"restarts\": 5",
            "upgraded, hits 1\nverified by a new program",
            "another ring3d, hits 1\nboth died, hits 1\nverified by another ring3d\nand still \
            nothing\nmerges 0\n0",
            "all that may be lent\nring3: busy: clients may lend 64 MiB, and 64 MiB are lent",
            "more: 1\nmerges 0\nring3: /tmp/share: the export has ended, and the memory is shared \
            with nobody\nlent anew\nmerges 0\nring3d ended with 0\n2\npins 0",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_supervised_disk_that_is_given_up_ends_requests_in_lent_memory_when_its_device_is_quiet() {
    SUPERVISED_GUEST.says(
        "taken",
        &[
            "given up\nits users see errors\nand nothing is written any more",
            "the export has ended",
            "No such file",
            "ended with 0",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn while_the_queue_of_a_disk_is_frozen_no_request_completes() {
    SUPERVISED_GUEST.says(
        "frozen",
        &["frozen 20 times, 0 requests completed meanwhile\nthe load goes on", "ended with 0"],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn drivers_that_die_while_clients_lend_and_go_under_load_are_followed_by_others() {
    SUPERVISED_GUEST.says(
        "churn",
        &[
            "8 kills, and it runs\nthe load goes on\n0\n0\nand lent all the while",
            "ring3d ended with 0",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_driver_of_run_takes_lent_memory_within_bounds_and_the_next_one_goes_on_with_it() {
    SUPERVISED_GUEST.says(
        "confined",
        &[
            "clients may lend 64 MiB, and 48 MiB are lent",
            "more: 1\nverified\nwas ended by signal 9\nall that was written is there\nthe client \
            has noticed nothing\nmerges 0\nended 0\n2\npins 0",
        ],
    );
}
