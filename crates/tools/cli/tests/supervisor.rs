//! ring3d in guests: drivers that are killed, given up, stopped and replaced under the load of
//! unmodified programs.
//!
//! `cargo test -p ring3-cli --test supervisor -- --ignored`, or `make test`.

mod supervised;

use std::path::Path;
use std::time::Duration;

use ring3_lab::{Backing, Cache, Device, Disk, Guest, Outcome, SharedOutcome, Size};
use supervised::{LOAD, with_programs};

/// Shell functions of every step.
const PRELUDE: &str = r#"
state() { ring3 status scratch --json | sed -n 's/.*"state": "\(.*\)".*/\1/p'; }
await() {
    for try in $(seq ${2:-600}); do [ "$(state)" = $1 ] && return; sleep 0.05; done
    echo "not $1"
    ring3 status scratch
    ring3 logs scratch
    return 1
}
# Serving, and the next one waits.
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
begin() {
    mkdir -p /etc/ring3
    {
        printf '[device.scratch]\nmatch = { address = "%s" }\nbind = true\n' $DISK
        # So that the group may have 256 MiB and no more. Only NVMe controllers know it.
        [ $DISK != 0000:01:00.0 ] || echo 'hmb_mib = 0'
        printf '[device.scratch.export]\nid = 0\ndepth = 32\n[device.scratch.restart]\n%b\n' "$1"
    } >/etc/ring3/scratch.toml
    ring3d >/tmp/ring3d 2>&1 & RING3D=$!
    sleep 1
    ready || cat /tmp/ring3d
    for try in $(seq 200); do [ -b /dev/ring3/scratch ] && break; sleep 0.05; done
}
end() { kill $RING3D; wait $RING3D; echo "ring3d ended with $?"; tail -n 3 /tmp/ring3d; }
kills() {
    for kill in $(seq $1); do ready || return; kill -9 $(driver); sleep ${2:-0.7}; done
    ready
}
figures() { grep -oE '"(restarts|upgrades|total_ms)": [^,]*' /tmp/status | tr '\n' ' '; echo; }
"#;

const STARTED: &str = "
begin 'burst = 1000' || exit
ls -l /dev/ring3/scratch
ring3 status
cat /sys/block/ublkb0/queue/scheduler /sys/block/ublkb0/queue/nr_requests
ring3d; echo \"second $?\"
grep -E 'VmRSS|RssAnon|RssFile|RssShmem|VmLck' /proc/$RING3D/status
ring3 status scratch
echo $RING3D >/tmp/pid";

const KILLED: &str = "
RING3D=$(cat /tmp/pid); mkfs.ext4 -q /dev/ring3/scratch && mount /dev/ring3/scratch /mnt || exit
load --directory=/mnt --size=24M --rw=randwrite --bsrange=4k-64k --iodepth=32
kills 10
verified && echo verified
umount /mnt
fsck.ext4 -fn /dev/ring3/scratch >/tmp/fsck 2>&1 && echo clean || cat /tmp/fsck
ready
figures
ring3 logs scratch -n 30
dmesg | grep -ciE 'I/O error'
[ $(grep -c . /tmp/status) -gt 0 ] && kill -0 $RING3D && echo alive";

const FULL: &str = "
load --filename=/dev/ring3/scratch --size=24M --rw=randwrite --bs=4k --iodepth=128 --numjobs=2 \\
    --offset_increment=24M
kills 5 1; verified && echo verified; ready; figures; dmesg | grep -ciE 'I/O error'";

const STOPPED: &str = "
ready
before=$(driver)
kill -STOP $before
dd if=/dev/ring3/scratch of=/dev/null bs=4k count=64 iflag=direct 2>&1 | tail -n 1
ready
[ $(driver) != $before ] && echo replaced
ring3 logs scratch | grep 'taken for dead' | tail -n 1";

const UPGRADED: &str = "
load --filename=/dev/ring3/scratch --size=24M --rw=randwrite --bs=4k --iodepth=32
sleep 1; for time in 1 2 3; do ready; ring3 upgrade scratch; done
cp /bin/true /tmp/wrong; ready; ring3 upgrade scratch --program /tmp/wrong; echo \"wrong $?\"
ring3 upgrade scratch --program /tmp/nothing; echo \"nothing $?\"
verified && echo verified; ready; figures; dmesg | grep -ciE 'I/O error'; \
    ring3 logs scratch -n 30";

const LIMITED: &str = "
ready
first=$(driver)
G=/sys/fs/cgroup/ring3-scratch
cat $G/memory.max $G/cpu.max $G/pids.max $G/cpu.weight | tr '\\n' ' '
echo
ring3 status scratch | grep unlimited
grep -q \"^$first$\" $G/cgroup.procs && echo 'in its group'; sleep 1000 & OTHER=$!
load --filename=/dev/ring3/scratch --size=24M --rw=randwrite --bs=4k --iodepth=32
sleep 1; sh -c 'echo $$ >'$G'/cgroup.procs; exec dd if=/dev/zero of=/dev/shm/all bs=64k count=8192 \
    2>/dev/null' 2>/dev/null; rm /dev/shm/all
ready && [ $(driver) != $first ] && echo 'restarted for memory'
[ $(sed -n 's/^oom_kill //p' $G/memory.events) = $(sed -n 's/^oom_kill //p' /proc/vmstat) ] &&
    kill $OTHER && echo 'nobody else'
echo 4 >$G/pids.max
sh -c 'echo $$ >'$G'/cgroup.procs; for one in 1 2 3 4 5 6; do sleep 0.1 & done' 2>&1 |
    grep -o 'fork.*' | head -n 1
echo 64 >$G/pids.max
echo '20000 100000' >$G/cpu.max
used() { sed -n 's/^usage_usec //p' $G/cpu.stat; }
begun=$(used)
at=$(date +%s)
sleep 4
[ $(($(used) - begun)) -le $((($(date +%s) - at + 2) * 200000)) ] &&
    grep -q 'nr_throttled [1-9]' $G/cpu.stat && echo 'held back'
echo 'max 100000' >$G/cpu.max
verified && echo verified; ready; dmesg | grep -ciE 'I/O error'";

const PARTED: &str = "
ready
write() { dd if=$1 of=/dev/ring3/scratch bs=512 seek=${2:-0} conv=notrunc,fsync 2>/dev/null; }
parts() {
    for try in $(seq 1200); do
        [ \"$(ls /dev/ring3 2>/dev/null | tr '\\n' ' ')\" = \"scratch $1\" ] && return
        sleep 0.05
    done
    ls /dev/ring3
    ring3 status scratch
    return 1
}
refused() {
    for try in $(seq 1200); do
        ring3 status scratch | grep \"table is not used.*$1\" && return
        sleep 0.05
    done
    ring3 status scratch
}
write /table && write /copy $((196608 - 33))
parts 'scratch-part1 scratch-part2 ' && echo 'two partitions'
cat /sys/block/ublkb0/ublkb0p[12]/size | tr '\\n' ' '
echo
mkfs.ext4 -q /dev/ring3/scratch-part1 && mount /dev/ring3/scratch-part1 /mnt &&
    echo 'still there' >/mnt/file
sync
kill -9 $(driver)
sleep 0.3
ready
echo 3 >/proc/sys/vm/drop_caches
cat /mnt/file
ring3 upgrade scratch >/dev/null
parts 'scratch-part1 scratch-part2 ' && echo 'and partitions too'
ring3 stop scratch 2>&1 | grep -o 'the mount at /mnt'
umount /mnt
fsck.ext4 -fn /dev/ring3/scratch-part1 >/tmp/fsck 2>&1 && echo clean || cat /tmp/fsck
ready
ring3 stop scratch
ls /dev/ring3
ring3 restart scratch
ready
parts 'scratch-part1 scratch-part2 ' && echo 'found again'
write /overlap
refused overlap
write /beyond
refused 'the disk has'
write /absurd
dd if=/dev/zero of=/dev/ring3/scratch bs=512 count=33 seek=$((196608 - 33)) conv=fsync 2>/dev/null
refused '\\(damaged\\|an answer\\|be read\\)' && echo absurd
parts 'scratch-part1 scratch-part2 ' && echo 'as they were'
dd if=/dev/zero of=/dev/ring3/scratch bs=512 count=34 conv=fsync 2>/dev/null
parts '' && echo none
ring3 status scratch | grep -c 'not used'
kill -0 $(cat /tmp/pid) && echo alive";

/// A GUID partition table of two partitions and its copy, and tables that say what cannot be.
fn tables(folder: &Path, sectors: u64) {
    let mut disk = std::io::Cursor::new(vec![0; sectors as usize * 512]);
    gpt::mbr::ProtectiveMBR::with_lb_size(sectors as u32 - 1).overwrite_lba0(&mut disk).unwrap();
    let size = gpt::disk::LogicalBlockSize::Lb512;
    let mut table = gpt::GptConfig::new()
        .writable(true)
        .logical_block_size(size)
        .create_from_device(disk, None)
        .unwrap();
    for (number, first, len) in [(1, 2048, 65536), (2, 81920, 4096)] {
        table
            .add_partition_at("part", number, first, len, gpt::partition_types::LINUX_FS, 0)
            .unwrap();
    }
    let bytes = table.write().unwrap().into_inner();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    write("table", &bytes[..34 * 512]);
    write("copy", &bytes[bytes.len() - 33 * 512..]);
    let mbr = |entries: &[(u32, u32)]| {
        let mut sector = [0; 512];
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        for (entry, (first, len)) in sector[446..].chunks_exact_mut(16).zip(entries) {
            entry[4] = 0x83;
            entry[8..12].copy_from_slice(&first.to_le_bytes());
            entry[12..].copy_from_slice(&len.to_le_bytes());
        }
        sector
    };
    write("overlap", &mbr(&[(2048, 4096), (4096, 4096)]));
    write("beyond", &mbr(&[(2048, u32::MAX)]));
    // As many entries as can be said, each as long as can be said, with a checksum that is right.
    let mut absurd = bytes[..34 * 512].to_vec();
    absurd[512 + 80..512 + 88].fill(0xff);
    absurd[512 + 16..512 + 20].fill(0);
    let sum = crc32fast::hash(&absurd[512..][..92]);
    absurd[512 + 16..512 + 20].copy_from_slice(&sum.to_le_bytes());
    write("absurd", &absurd);
}

const COMMANDS: &str = "
ready
before=$(driver)
ring3 restart scratch
echo \"restart $?\"
ready
[ $(driver) != $before ] && echo another
exec 9</dev/ring3/scratch; ring3 stop scratch; echo \"used $?\"; exec 9<&-
sed -i 's/depth = 32/depth = 16/' /etc/ring3/scratch.toml; ring3 reload; echo \"changed $?\"
ring3 stop scratch
echo \"stop $?\"
state
ls /dev/ublkb0 /dev/ring3/scratch 2>&1
ring3 restart scratch
echo \"again $?\"
state
ring3 stop scratch
ring3 reload
echo \"reload $?\"
sleep 1
ready
cat /sys/block/ublkb0/queue/nr_requests
ring3 restart nobody; echo \"nobody $?\"; ring3 status --socket /tmp/none; echo \"none $?\"";

const GIVEN_UP: &str = "
ready; exec 9</dev/ring3/scratch; RING3D=$(cat /tmp/pid); kill $RING3D; sleep 2; \
    kill -0 $RING3D && echo 'waits for its users'; grep 'in use' /tmp/ring3d | tail -n 1
kill $RING3D; wait $RING3D 2>/dev/null; for try in $(seq 100); do [ -d /proc/$RING3D ] || break; \
    sleep 0.1; done; [ -d /proc/$RING3D ] || echo insisted; exec 9<&-
begin 'burst = 2\ndeadline_s = 5' || exit
for kill in 1 2 3; do ready; kill -9 $(driver); sleep 0.2; done; state
since=$(date +%s); dd if=/dev/ring3/scratch of=/dev/null bs=4k count=1 iflag=direct 2>&1 | \
    grep -oE 'I/O error|Input/output error|No such.*'; took=$(($(date +%s) - since)); \
    [ $took -le 9 ] && echo 'in time' || echo \"after $took s\"
await failed && echo failed; ring3 logs scratch -n 5; ring3 restart scratch; echo \"restart $?\"; \
    state; end";

/// A disk of each controller whose drivers may be followed without a reset.
const ADOPTED: &str = "
for controller in nvme:$DISK ahci:$SATA; do
    DISK=${controller#*:}; begin 'burst = 1000\nadopt = true' || exit
    load --filename=/dev/ring3/scratch --size=24M --rw=randwrite --bs=4k --iodepth=32
    kills 5 1; verified && echo \"${controller%%:*} verified\"; ready; figures; \
        ring3 logs scratch -n 60 | grep adopt | head -n 3
    [ $(ring3 status scratch --json | grep -c '\"adopted\": true') -ge 3 ] && \
        echo \"${controller%%:*} adopted\"; end
done";

fn guest(kernel: &str) -> Outcome {
    let disk = Device {
        namespaces: vec![Disk::new(Size(96 << 20), Backing::Memory)],
        ..Device::new("disk", "nvme").bound("vfio-pci")
    };
    let steps = [
        ("started", STARTED),
        ("killed", KILLED),
        ("full", FULL),
        ("stopped", STOPPED),
        ("upgraded", UPGRADED),
        ("limited", LIMITED),
        ("parted", PARTED),
        ("commands", COMMANDS),
        ("given up", GIVEN_UP),
        ("adopted", ADOPTED),
    ];
    let guest = Guest {
        kernel: kernel.into(),
        memory_mib: 768,
        time_limit: Duration::from_secs(1500),
        ..Guest::new(&format!("supervisor-{kernel}"))
    };
    let guest =
        with_programs(guest).module("ublk_drv").module("ext4").module("vfio-pci").device(disk);
    let guest =
        guest.device(Device::ahci("sata", Size(96 << 20), Backing::Memory).bound("vfio-pci"));
    let folder = tempfile::tempdir().unwrap();
    tables(folder.path(), (96 << 20) / 512);
    let names = ["table", "copy", "overlap", "beyond", "absurd"];
    let guest = names
        .iter()
        .fold(guest, |guest, name| guest.file(&format!("/{name}"), &folder.path().join(name)));
    let guest = steps.into_iter().fold(guest, |guest, (name, script)| {
        guest.step(name, &format!("{LOAD}{PRELUDE}(\n{script}\n)\ntrue"))
    });
    let outcome =
        guest.run(&Cache::open().unwrap(), &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.succeeded(), "{}{}", outcome.messages, outcome.output());
    outcome
}

fn usual() -> &'static Outcome {
    static OUTCOME: SharedOutcome = SharedOutcome::new();
    OUTCOME.get_or_run(|| guest("6.12"))
}

fn newest() -> &'static Outcome {
    static OUTCOME: SharedOutcome = SharedOutcome::new();
    OUTCOME.get_or_run(|| guest("7.2"))
}

#[track_caller]
fn assert_says(text: &str, wanted: &[&str]) {
    wanted
        .iter()
        .for_each(|wanted| assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}"));
}

macro_rules! on_both_kernels {
    ($($(#[$doc:meta])* $name:ident, $newest:ident: $step:literal, $wanted:expr;)*) => {$(
        $(#[$doc])*
        #[test]
        #[ignore = "boots a guest: make test"]
        fn $name() {
            assert_says(usual().said($step).unwrap(), &$wanted);
        }

        #[test]
        #[ignore = "boots a guest: make test"]
        fn $newest() {
            assert_says(newest().said($step).unwrap(), &$wanted);
        }
    )*};
}

on_both_kernels! {
    a_device_gets_a_driver_a_standby_and_a_stable_name_and_a_second_supervisor_is_refused,
    a_device_gets_a_driver_and_a_second_supervisor_is_refused_on_7_2:
        "started",
        [
            "/dev/ring3/scratch -> ../ublkb0", "running", "[none]", "\n31\n",
            "another ring3d listens", "second 1",
        ];
    drivers_that_are_killed_under_a_file_system_cost_no_error_and_no_byte,
    drivers_that_are_killed_under_a_file_system_cost_no_error_and_no_byte_on_7_2:
        "killed",
        [
            "verified\n", "clean\n", "\"restarts\": 10", "SIGKILL", "the last operations",
            "\n0\nalive",
        ];
    a_kill_with_every_tag_in_flight_is_recovered_as_fast,
    a_kill_with_every_tag_in_flight_is_recovered_as_fast_on_7_2:
        "full", ["verified\n", "\"restarts\": 15", "\n0\n"];
    an_idle_driver_that_stands_still_is_found_out_by_the_first_request,
    an_idle_driver_that_stands_still_is_found_out_by_the_first_request_on_7_2:
        "stopped", ["64+0 records out", "replaced\n", "taken for dead"];
    a_program_is_replaced_under_load_and_a_wrong_one_goes_back,
    a_program_is_replaced_under_load_and_a_wrong_one_goes_back_on_7_2:
        "upgraded",
        [
            "its users waited", "verified\n", "\"upgrades\": 3", "wrong 1",
            "old one drives scratch on", "nothing 1", "\n0\n",
        ];
    a_driver_whose_group_runs_out_of_memory_time_or_threads_is_restarted_or_held_back,
    a_driver_whose_group_runs_out_of_memory_time_or_threads_is_restarted_or_held_back_on_7_2:
        "limited",
        [
            "268435456 max 100000 64 100 \nin its group\n", "restarted for memory\nnobody else\n",
            "fork", "held back\nverified\n0\n",
        ];
    partitions_of_a_supervised_disk_come_and_stay_and_tables_that_cannot_be_are_refused,
    partitions_of_a_supervised_disk_come_and_stay_and_tables_that_cannot_be_are_refused_on_7_2:
        "parted",
        [
            "two partitions\n65536 4096 \nstill there\nand partitions too\nthe mount at /mnt\n\
             clean\n",
            "found again\n", "partitions 1 and 2 overlap", "and the disk has 100663296",
            "absurd\nas they were\nnone\n0\nalive",
        ];
    users_restart_and_stop_a_device_and_are_told_why_not,
    users_restart_and_stop_a_device_and_are_told_why_not_on_7_2:
        "commands",
        [
            "restart 0", "another\n", "is in use by", "used 1",
            "ring3 stop scratch, and reload then", "changed 1", "stop 0\nstopped\n",
            "again 0\nrunning\n", "reload 0\n15\n", "there is no device nobody", "start ring3d",
            "none 1",
        ];
    a_killed_drivers_controller_is_adopted_where_a_manifest_says_so,
    a_killed_drivers_controller_is_adopted_where_a_manifest_says_so_on_7_2:
        "adopted",
        [
            "nvme verified\n\"restarts\": 5 ", "nvme adopted\n", "ahci verified\n\"restarts\": 5 ",
            "ahci adopted\n",
        ];
    what_dies_too_often_is_given_up_with_errors_in_time_and_can_be_tried_again,
    what_dies_too_often_is_given_up_with_errors_in_time_on_7_2:
        "given up",
        [
            "waits for its users", "insisted\n", "backing_off\n", "in time\n", "failed\n",
            "restart 0\nrunning\n", "ring3d ended with 0",
        ];
}
