//! Memory that a C program shares with an exported disk's driver, by `ring3.h` and as its user builds it.

mod booted;
mod supervised;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use booted::Booted;
use ring3_lab::{Backing, Cache, Device, Error, Guest, Need, Size};
use supervised::with_programs;

const READ: &str = r#"
: >/tmp/ready; ring3 run nvme --device vfio:$DISK --json --id 0 --share /tmp/share --stats /tmp/stats >/tmp/ready 2>/tmp/log & PID=$!
for try in $(seq 300); do grep -q ublkb /tmp/ready && break; [ -d /proc/$PID ] || break; sleep 0.05; done
hits() { rm -f /tmp/stats; kill -USR1 $PID; for try in $(seq 100); do grep -q peak /tmp/stats 2>/dev/null && break; sleep 0.05; done; sed -n 's/.*"shared_hits": \([0-9]*\).*/\1/p' /tmp/stats; }
dd if=/dev/urandom of=/tmp/bytes bs=1000 count=1000 2>/dev/null; dd if=/tmp/bytes of=/dev/ublkb0 2>/dev/null; sync
before=$(hits); share /tmp/share /dev/ublkb0 1000000 >/tmp/read; echo "exit $?"
cmp /tmp/bytes /tmp/read && echo "the bytes of the disk"; echo "not copied: $(($(hits) - before))"
share /tmp/share /dev/ublkb0 1000000 >/dev/full; echo "full $?"
share /tmp/nobody /dev/ublkb0 1000000; echo "nobody $?"
share /tmp/share /dev/ublkb0 99999999999 2>&1 >/dev/null; echo "short $?"
for try in $(seq 100); do [ "$(cat /sys/block/ublkb0/queue/nomerges)" = 2 ] || break; sleep 0.05; done
echo "merges $(cat /sys/block/ublkb0/queue/nomerges)"; kill $PID; wait $PID; echo "ended $?"; cat /tmp/log
"#;

/// One region for the block device, for a queue of the server beside it, and for a driver of this process.
const REGION: &str = r#"
: >/tmp/ready; ring3 run nvme --device vfio:$DISK --json --id 0 --share /tmp/share --socket /tmp/disk,memory=64M --stats /tmp/stats >/tmp/ready 2>/tmp/log & PID=$!
for try in $(seq 300); do grep -q ublkb /tmp/ready && break; [ -d /proc/$PID ] || break; sleep 0.05; done
figure() { rm -f /tmp/stats; kill -USR1 $PID; for try in $(seq 100); do grep -q peak /tmp/stats 2>/dev/null && break; sleep 0.05; done; sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" /tmp/stats; }
cat /tmp/ready; hits=$(figure shared_hits); misses=$(figure shared_misses)
region /tmp/share /dev/ublkb0 /tmp/disk; echo "exit $?"
echo "of the block device's: $(($(figure shared_hits) - hits)) not copied, $(($(figure shared_misses) - misses)) copied"
load() { ring3 blk bench --device $1 --dma lent --workload randwrite-128k-qd8 --count 64 --region 4 --overwrite --verify; }
load remote:/tmp/disk && echo "remote is right"
for try in $(seq 100); do [ "$(cat /sys/block/ublkb0/queue/nomerges)" = 2 ] || break; sleep 0.05; done
kill $PID; wait $PID; echo "ended $?"; cat /tmp/log; ls /tmp/disk /tmp/share 2>/dev/null
load vfio:$DISK && echo "local is right"
"#;

/// PostgreSQL on ext4, with its buffers in shared memory, ended in the middle of its work.
const DATABASE: &str = r#"
ROOT=/tmp/db PG=/usr/lib/postgresql/17/bin
quietly() { "$@" >/tmp/log 2>&1 || { echo "failed: $*"; tail -n 30 /tmp/log /tmp/postgres.log; exit 1; }; }
as_nobody() { chroot $ROOT /bin/sh -c "exec busybox su -s /bin/sh nobody -c '$*'"; }
query() { as_nobody "$PG/psql -h /tmp -At postgres -c \"$*\""; }
hits() { rm -f /tmp/stats; kill -USR1 $PID; for try in $(seq 100); do grep -q peak /tmp/stats 2>/dev/null && break; sleep 0.05; done; sed -n 's/.*"shared_hits": \([0-9]*\).*/\1/p' /tmp/stats; }
start() {
    as_nobody "LD_PRELOAD=/lib/share_preload.so RING3_SHARE=/tmp/share exec $PG/postgres -D /data/pg -k /tmp -c debug_io_direct=data,wal -c listen_addresses= -c jit=off -c dynamic_shared_memory_type=mmap -c shared_buffers=8MB -c max_connections=16 -c max_wal_size=64MB -c min_wal_size=32MB" >>/tmp/postgres.log 2>&1 & POSTGRES=$!
    for try in $(seq 600); do as_nobody "$PG/pg_isready -q -h /tmp" && return; sleep 0.1; done
    echo "PostgreSQL does not start"; cat /tmp/postgres.log; exit 1
}
# Its file of its process id is gone before it is, and it is in the file system until then.
end() { kill -$1 $(head -n 1 $ROOT/data/pg/postmaster.pid); for try in $(seq 600); do [ -d /proc/$POSTGRES ] || return; sleep 0.1; done; echo "PostgreSQL does not end"; exit 1; }
mkdir -p $ROOT && tar -C $ROOT -xf /databases.tar && rm /databases.tar || exit 1
cp /bin/busybox $ROOT/bin/busybox && ln -s busybox $ROOT/bin/sh && cp /etc/passwd $ROOT/etc/ || exit 1
cp /share_preload.so /libring3.so $ROOT/usr/lib/x86_64-linux-gnu/ && ln -sf x86_64-linux-gnu/share_preload.so $ROOT/usr/lib/ || exit 1
mkdir -p $ROOT/dev $ROOT/proc $ROOT/tmp $ROOT/data && chmod 1777 $ROOT/tmp && mount --bind /dev $ROOT/dev && mount --bind /proc $ROOT/proc || exit 1
: >/tmp/ready; ring3 run nvme --device vfio:$DISK --json --id 0 --share $ROOT/tmp/share,mode=666 --stats /tmp/stats >/tmp/ready 2>/tmp/served & PID=$!
for try in $(seq 300); do grep -q ublkb /tmp/ready && break; [ -d /proc/$PID ] || break; sleep 0.05; done
quietly mkfs.ext4 -q -F /dev/ublkb0; mount -t ext4 /dev/ublkb0 $ROOT/data && mkdir $ROOT/data/pg && chown 65534:65534 $ROOT/data/pg || exit 1
quietly as_nobody "$PG/initdb -D /data/pg -E UTF8 --locale=C -A trust -k -N"
start; quietly as_nobody "$PG/pgbench -h /tmp -i -s 2 postgres"; before=$(hits)
as_nobody "$PG/pgbench -n -h /tmp -c 4 -j 2 -T 5 postgres" >/tmp/pgbench 2>&1 || { cat /tmp/pgbench; exit 1; }
acknowledged=$(sed -n 's/number of transactions actually processed: *//p' /tmp/pgbench)
count=$(($(hits) - before)); [ $count -ge $acknowledged ] && echo "not copied: more than transactions" || echo "not copied: $count of $acknowledged transactions"
end QUIT; quietly umount $ROOT/data; quietly mount -t ext4 /dev/ublkb0 $ROOT/data; start
quietly as_nobody "$PG/pg_amcheck -h /tmp --install-missing --heapallindexed --parent-check --all" && echo "tables and indices are right"
[ "$(query "select count(*) from pgbench_history")" = $acknowledged ] && echo "all that was acknowledged is there"
end INT; quietly as_nobody "$PG/pg_checksums -D /data/pg"; grep -E 'Bad checksums: *0$' /tmp/log
umount $ROOT/data; fsck.ext4 -f -n /dev/ublkb0 >/tmp/log 2>&1 && echo "the file system is clean"
for try in $(seq 100); do [ "$(cat /sys/block/ublkb0/queue/nomerges)" = 2 ] || break; sleep 0.05; done
grep share_preload /tmp/postgres.log; kill $PID; wait $PID; echo "ended $?"
"#;

static GUEST: Booted = Booted::on("7.2", guest, "", &[("read", READ), ("region", REGION)]);
static DATABASE_GUEST: Booted = Booted::on("7.2", database_guest, "", &[("database", DATABASE)]);

/// Where `with_programs` has the library built.
fn library() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_ring3")).parent().unwrap()
}

/// `NAME.c` of the examples, compiled with `flags`.
fn example(name: &str, flags: &[&str]) -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let capi = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi");
    let program = FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path().join(name);
    let mut command = Command::new("cc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]).args(flags).arg("-I").arg(capi.join("include"));
    command.arg("-o").arg(&program).arg(capi.join(format!("examples/{name}.c")));
    command.arg("-L").arg(library()).arg("-lring3").arg(format!("-Wl,-rpath,{}", library().display()));
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
    Ok(exporting("share", 64 << 20, 1024).program(&example("share", &["-Wpedantic"])).program(&region()))
}

/// The broker's example.
fn region() -> PathBuf {
    let ring3 = Path::new(env!("CARGO_BIN_EXE_ring3"));
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--offline", "-p", "ring3-broker", "--example", "region"]);
    build.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    let release = ring3.components().any(|part| part.as_os_str() == "release");
    build.args(["--profile", if release { "release" } else { "test" }]);
    assert!(build.status().unwrap().success());
    ring3.with_file_name("examples").join("region")
}

fn database_guest(cache: &Cache) -> Result<Guest, Error> {
    ring3_lab::prepare(cache, &[Need::Databases], &mut |line| eprintln!("{line}"))?;
    let guest = exporting("share-database", 256 << 20, 2048)
        .module("ext4")
        .file("/databases.tar", &cache.path("databases/databases.tar"))
        .file("/libring3.so", &library().join("libring3.so"))
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
fn one_region_serves_the_block_device_a_queue_beside_it_and_a_driver_in_the_process_without_a_copy() {
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
            "of the block device's: 16 not copied, 0 copied",
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
