//! Exported disks in guests: what an administrator sees and does, from the start to the stop.
//!
//! `cargo test -p ring3-cli --test export -- --ignored`, or `make test`.

mod supervised;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ring3_lab::{Backing, Cache, Device, Disk, Event, Guest, Outcome, SharedOutcome, Size};
use supervised::with_programs;

/// Shell functions of every step. `serve DRIVER OPTION...` starts ring3 and returns when its disks
/// are there; `ended` waits for its end and prints its exit code.
const PRELUDE: &str = r#"
serve() {
    : >/tmp/ready
    ring3 run "$@" --json --stats /tmp/stats >/tmp/ready 2>/tmp/log &
    PID=$!
    for try in $(seq 300); do
        grep -q ublkb /tmp/ready && return
        [ -d /proc/$PID ] || break
        sleep 0.05
    done
    cat /tmp/ready /tmp/log
    return 1
}
ended() { wait $PID; echo "exit code $?"; cat /tmp/log; }
stop() { kill $PID; ended; }
# Stops a disk that is in use: politely, and when that was refused, by force.
force() {
    kill $PID
    for try in $(seq 200); do grep -q 'is in use' /tmp/log && break; sleep 0.05; done
    kill $PID
}
# Reads a disk to its end while `$1` is done to it, and prints the exit code of the reader, buffered
# and direct.
read_during() {
    for flags in '' iflag=direct; do
        for run in 1 2 3 4 5; do
            serve $2 || exit
            dd if=/dev/ublkb0 of=/dev/null bs=${3:-64k} $flags 2>/tmp/dd & READER=$!
            for try in $(seq 200); do
                ls -l /proc/$READER/fd | grep -q ublkb0 && break
                sleep 0.05
            done
            sleep 0.1
            $1
            wait $READER
            echo "dd $? $(grep -cE 'I/O error|Input/output error' /tmp/dd)"
            ended >/tmp/ended
            head -n 1 /tmp/ended
        done
    done
}
limit() { cat /sys/block/ublkb0/queue/$1; }
# A figure of `--stats` of a device that is held.
figure() {
    rm -f /tmp/stats; kill -USR1 $PID
    for try in $(seq 100); do grep -q shared_hits /tmp/stats 2>/dev/null && break; sleep 0.05; done
    sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" /tmp/stats
}
# Kills the driver of a device that is held, and waits until the next one serves.
next() {
    figure pid >/tmp/pid; kill -9 $(cat /tmp/pid)
    for try in $(seq 600); do
        now=$(figure pid)
        [ "${now:-0}" != 0 ] && [ "$now" != "$(cat /tmp/pid)" ] && return
        sleep 0.05
    done
    return 1
}
# Kills the driver of DEVICE, which is /dev/ublkb3, under a load that checks itself, again and
# again.
killed_and_followed() {
    serve nvme --device $DEVICE $OPTIONS --id 3 || exit
    verify --filename=/dev/ublkb3 --size=16M --rw=randwrite --bsrange=4k-64k --iodepth=16 \
        --verify_backlog=64 --time_based --runtime=${1:-15} &
    FIO=$!
    for kill in 1 2 3 4; do sleep 2; next && echo "followed $kill" || cat /tmp/log; done
    wait $FIO && echo 'verified'
    dd if=/dev/ublkb3 of=/dev/null bs=64k iflag=direct 2>/dev/null && echo 'read all'
    stop; ls /dev/ublkb3 2>&1
}
verify() {
    fio --name=verify --direct=1 --ioengine=io_uring --verify=crc32c --verify_fatal=1 \
        --output=/tmp/fio "$@" >/dev/null && return
    cat /tmp/fio
    return 1
}
"#;

/// A step whose failure does not end the others: each test reads the output of its own.
fn step(guest: Guest, name: &str, script: &str) -> Guest {
    guest.step(name, &format!("{PRELUDE}(\n{script}\n)\ntrue"))
}

fn guest(name: &str) -> Guest {
    // On an idle host these take a minute; some of what they wait for is time, and a busy host has
    // many times less of it.
    let guest = Guest { time_limit: Duration::from_secs(900), ..Guest::new(name) };
    with_programs(guest).module("ublk_drv").module("ext4")
}

fn run(guest: Guest) -> Outcome {
    run_watched(guest, &mut |_| {})
}

fn run_watched(guest: Guest, watch: &mut dyn FnMut(Event)) -> Outcome {
    let outcome =
        guest.run(&Cache::open().unwrap(), watch).unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.succeeded(), "{}{}", outcome.messages, outcome.output());
    outcome
}

#[track_caller]
fn assert_says(text: &str, wanted: &[&str]) {
    wanted
        .iter()
        .for_each(|wanted| assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}"));
}

/// One guest without any device: the disk that does nothing, and a simulated one.
fn without_devices() -> &'static Outcome {
    static OUTCOME: SharedOutcome = SharedOutcome::new();
    OUTCOME.get_or_run(|| {
        let steps = [
            (
                "limits",
                "serve null --size 64 --max-io 128 && cat /tmp/ready && limit max_sectors_kb && \
                 limit logical_block_size && stop; ls /dev/ublk*",
            ),
            ("blocks of 4096", "serve null --block-size 4096 && limit logical_block_size && stop"),
            ("idle", IDLE),
            ("idle poll", IDLE_POLL),
            ("idle poll alone", IDLE_POLL_ALONE),
            ("mounted", MOUNTED),
            ("taken away", TAKEN_AWAY),
            ("under a loop device", UNDER_A_LOOP_DEVICE),
            ("read while forced", "read_during force 'null --size 1048576'"),
            (
                "read while the driver fails",
                "for flags in '' iflag=direct; do \
                 serve nvme --device sim:nvme,size=64M,fault=remove:read:100 || exit; \
                 dd if=/dev/ublkb0 of=/dev/null bs=64k $flags; echo dd $?; ended; done",
            ),
            (
                "flush",
                "serve nvme --device sim:nvme,fault=status/0x280:flush:1:all && stop; \
                 serve nvme --device sim:nvme && stop",
            ),
            ("scheduler", SCHEDULER),
            (
                "sizes",
                "for size in 1 3 1099511627776; do serve null --size $size && \
                 cat /sys/block/ublkb0/size && stop; done",
            ),
            ("orphans", ORPHANS),
            ("two starts", TWO_STARTS),
            ("closed reader", CLOSED_READER),
            ("taken id", "serve null --id 5 && ring3 run null --id 5; stop"),
            (
                "orphan",
                "serve null --id 7 && kill -9 $PID; wait $PID; ls /dev/ublkc7 && \
                 serve null --id 7 && stop",
            ),
            ("namespace", NAMESPACE),
            (
                "queues",
                "serve null --queues 4 && cat /tmp/ready && cat /proc/$PID/task/*/comm | \
                 grep -c ublk0q && stop",
            ),
            ("verify", VERIFY),
            ("file system", FILE_SYSTEM),
            ("logout", LOGOUT),
            (
                "nohup",
                "trap '' HUP; serve null; trap - HUP; kill -HUP $PID; sleep 2; \
                 [ -b /dev/ublkb0 ] && echo 'still there'; stop",
            ),
            ("lost", LOST),
            ("silent reader", SILENT_READER),
            (
                "no announcement",
                "ring3 run null >/dev/full; echo exit code $?; ls /dev/ublkb* 2>&1; true",
            ),
            ("no report", NO_REPORT),
            ("memory", MEMORY),
            ("followed", FOLLOWED),
            (
                "no shared memory",
                "ring3 run nvme --device sim:nvme --share /tmp/share; echo exit code $?; \
                 ls /tmp/share /dev/ublkc* 2>&1; serve null && stop",
            ),
            (
                "no batches",
                "ring3 run null --batch; echo exit code $?; ls /dev/ublkc* 2>&1; serve null && \
                 stop",
            ),
            ("no ublk", NO_UBLK),
        ];
        let guest = Guest { vcpus: Some(4), ..guest("exports").module("loop") };
        run(steps.into_iter().fold(guest, |guest, (name, script)| step(guest, name, script)))
    })
}

/// Fields 14 and 15 of stat are the process's time in hundredths of a second. Neither time nor a
/// wake-up of any thread, in three seconds: what follows a load may last into the first of them.
const IDLE: &str = "
used() { cut -d' ' -f14,15 /proc/$PID/stat; cat /proc/$PID/task/*/status | grep ctxt_switches; }
serve nvme --device sim:nvme --queues 2
dd if=/dev/ublkb0 of=/dev/null bs=4k count=1000 iflag=direct 2>/dev/null
for try in 1 2 3 4 5; do
    before=$(used); sleep 3
    [ \"$before\" = \"$(used)\" ] && echo 'used nothing' && break || echo \"$before then $(used)\"
done
stop";

/// Under a load of one request after the other it is found by looking; afterwards nobody looks.
const IDLE_POLL: &str = "
used() { cut -d' ' -f14,15 /proc/$PID/stat; cat /proc/$PID/task/*/status | grep ctxt_switches; }
serve null --idle-poll 1000
dd if=/dev/ublkb0 of=/dev/null bs=4k count=5000 iflag=direct 2>/dev/null
for try in 1 2 3 4 5; do
    before=$(used); sleep 3
    [ \"$before\" = \"$(used)\" ] && echo 'used nothing' && break || echo \"$before then $(used)\"
done
stop; grep -o 'polls_hit.*[0-9]' /tmp/stats; cat /tmp/log";

/// A thread that looks would take the processor from who is to make the next request.
const IDLE_POLL_ALONE: &str = "
: >/tmp/ready
taskset 1 ring3 run null --idle-poll 1000 --json --stats /tmp/stats >/tmp/ready 2>/tmp/log &
PID=$!
for try in $(seq 300); do grep -q ublkb /tmp/ready && break; sleep 0.05; done
dd if=/dev/ublkb0 of=/dev/null bs=4k count=1000 iflag=direct 2>/dev/null
stop; grep -o 'polls_hit.*[0-9]' /tmp/stats";

const MOUNTED: &str = "
serve nvme --device sim:nvme,size=64M && mkfs.ext4 -q /dev/ublkb0 && mount /dev/ublkb0 /mnt || exit
kill $PID; sleep 1; cp /bin/busybox /mnt/ && sync && echo 'still serving'
umount /mnt; ended";

const TAKEN_AWAY: &str = "
serve null --size 64; sleep 1000 </dev/ublkb0 & HOLDER=$!
kill $PID; for try in $(seq 600); do grep -q 'in use' /tmp/log && break; sleep 0.05; done
for try in $(seq 60); do [ -b /dev/ublkb0 ] || break; kill $PID; sleep 0.5; done
ended
kill $HOLDER
ls /dev/ublkb0 2>&1
true";

/// A session that ends sends both signals at once, and nobody is there any more who could have read
/// the refusal.
const LOGOUT: &str = "
serve nvme --device sim:nvme,size=64M && mkfs.ext4 -q /dev/ublkb0 && mount /dev/ublkb0 /mnt || exit
kill -TERM $PID; kill -HUP $PID; kill -TERM $PID; sleep 2; kill -HUP $PID; sleep 1
cp /bin/busybox /mnt/ && sync && echo 'still serving'
umount /mnt; ended";

/// The blocks are far from what is read of a disk that is new.
const LOST: &str = "
serve nvme --device sim:nvme,size=64M,fault=remove:read@100000-100007 || exit
dd if=/dev/ublkb0 of=/dev/null bs=4k skip=12500 count=1 iflag=direct 2>&1 | grep -i error
ended; ls /dev/ublkb0 2>&1; true";

/// Each read leaves a line in the log. The pipe is full, and who could read it does not.
const SILENT_READER: &str = "
mkfifo /tmp/full; exec 9<>/tmp/full; dd if=/dev/zero of=/tmp/full bs=4096 count=16 2>/dev/null
: >/tmp/ready
ring3 run nvme --device sim:nvme,fault=stray-dma:read:1:all --json >/tmp/ready 2>&9 &
PID=$!
for try in $(seq 300); do grep -q ublkb /tmp/ready && break; sleep 0.05; done
timeout 60 dd if=/dev/ublkb0 of=/dev/null bs=4k count=3000 iflag=direct 2>/dev/null &&
    echo 'read all'
kill $PID; wait $PID; echo \"exit code $?\"";

/// A page of memory takes the report's place.
const NO_REPORT: &str = "
ring3 run null --stats /no/such/folder; echo start $?
mkdir /tmp/small && mount -t tmpfs -o size=4k none /tmp/small || exit
: >/tmp/ready; ring3 run null --json --stats /tmp/small/stats >/tmp/ready 2>/tmp/log & PID=$!
for try in $(seq 300); do grep -q ublkb /tmp/ready && break; sleep 0.05; done
dd if=/dev/zero of=/tmp/small/other bs=4k count=1 2>/dev/null; stop; umount /tmp/small";

const MEMORY: &str = "
serve null --queues 128 || exit
cat /tmp/ready
[ $(grep VmHWM /proc/$PID/status | tr -dc 0-9) -lt 200000 ] && echo 'as much as for four'
stop
ring3 run null --queues 4 --depth 4096 --max-io 32768; echo refused $?";

/// The model is the disk: it outlives the drivers, as a device does.
const FOLLOWED: &str = r#"
ring3 model nvme,size=64M --socket /tmp/model >/tmp/served 2>&1 & MODEL=$!
for try in $(seq 100); do [ -S /tmp/model ] && break; sleep 0.05; done
DEVICE=vfio-user:/tmp/model; killed_and_followed; kill $MODEL; wait $MODEL 2>/dev/null; true"#;

const UNDER_A_LOOP_DEVICE: &str = "
serve nvme --device sim:nvme,size=64M && losetup /dev/loop0 /dev/ublkb0 || exit
kill $PID
for try in $(seq 100); do grep -q 'is in use' /tmp/log && break; sleep 0.05; done
losetup -d /dev/loop0
ended";

const SCHEDULER: &str = "
serve null && limit scheduler && stop; serve null --scheduler keep && limit scheduler && stop
serve null --scheduler kyber && limit scheduler && stop";

/// Each start clears away what the crashes before it have left, with a number of its own or
/// without; what is served stays.
const ORPHANS: &str = "
for crash in 1 2 3 4; do serve null && kill -9 $PID; wait $PID; sleep 0.3; done
ls /dev/ublkc* | wc -l; ring3 ublk list; ring3 ublk list --json; serve null --id 9 || exit
ring3 ublk delete 9; echo \"refused $?\"; ring3 ublk delete --json; stop
serve null --id 8 && kill -9 $PID
wait $PID
sleep 0.3
ring3 ublk delete
echo \"deleted $?\"
ring3 ublk list
ls /dev/ublk*";

/// What a dead process has left under the number is in the way of both.
const TWO_STARTS: &str = "
for round in 1 2 3 4 5; do
    serve null --id 3 && kill -9 $PID; wait $PID
    ring3 run null --id 3 >/tmp/a 2>&1 & A=$!
    ring3 run null --id 3 >/tmp/b 2>&1 & B=$!
    for try in $(seq 200); do
        grep -q ring3: /tmp/a /tmp/b && grep -q 'is null' /tmp/a /tmp/b && break
        sleep 0.05
    done
    [ $(grep -l ring3: /tmp/a /tmp/b | wc -l) = 1 ] &&
        dd if=/dev/ublkb3 of=/dev/null bs=4k count=100 iflag=direct 2>/dev/null && echo 'one serves'
    cat /tmp/a /tmp/b; kill $A $B 2>/dev/null; wait $A; wait $B
done";

const CLOSED_READER: &str = "
: >/tmp/ready
sh -c 'echo $$ >/tmp/pid; exec ring3 run null --ready-fd 7 7>&1 >/tmp/ready 2>/tmp/log' | true &
for try in $(seq 200); do grep -q ublkb0 /tmp/ready && break; sleep 0.05; done; sleep 0.5
[ -b /dev/ublkb0 ] && echo 'still there'; kill $(cat /tmp/pid); wait; cat /tmp/log";

/// What is mounted after the start is not seen by the driver's process.
const NAMESPACE: &str = "
serve nvme --device sim:nvme,size=64M && mkfs.ext4 -q /dev/ublkb0 && mount /dev/ublkb0 /mnt || exit
grep -c /mnt /proc/$PID/mountinfo; grep -c /mnt /proc/self/mountinfo; umount /mnt; stop";

const VERIFY: &str = "
serve nvme --device sim:nvme,size=64M --queues 2 || exit
for depth in 1 32 128; do
    verify --filename=/dev/ublkb0 --size=24M --rw=randwrite --bsrange=512-1M --blockalign=512 \\
        --iodepth=$depth --fsync=16 && echo \"depth $depth\"
done
verify --filename=/dev/ublkb0 --size=24M --rw=write --bs=64k --iodepth=8 --fsync=4 &&
    echo sequential
blkdiscard -o 0 -l 16M /dev/ublkb0 && cmp -n 16777216 /dev/ublkb0 /dev/zero && echo discarded
kill -USR1 $PID; sleep 0.5; cat /tmp/stats; stop";

const FILE_SYSTEM: &str = "
serve nvme --device sim:nvme,size=96M || exit
printf 'n\\np\\n1\\n\\n\\nw\\n' | fdisk /dev/ublkb0 >/dev/null; ls /dev/ublkb0p1
mkfs.ext4 -q /dev/ublkb0p1 && mount -o discard /dev/ublkb0p1 /mnt || exit
cp -r /bin /mnt/ 2>/dev/null; sum=$(md5sum </mnt/bin/busybox); umount /mnt
fsck.ext4 -fn /dev/ublkb0p1 >/tmp/fsck 2>&1 && echo clean || cat /tmp/fsck
mount /dev/ublkb0p1 /mnt
[ \"$sum\" = \"$(md5sum </mnt/bin/busybox)\" ] && echo same
rm -r /mnt/bin
sync
umount /mnt
fsck.ext4 -fn /dev/ublkb0p1 >/dev/null 2>&1 && echo 'clean again'
stop";

/// The kernel closes the queues of the disk before in its own time, and the module is in use until
/// then.
const NO_UBLK: &str = "
for try in $(seq 100); do rmmod ublk_drv 2>/dev/null && break; sleep 0.05; done
timeout 10 ring3 run null; echo exit code $?";

#[test]
#[ignore = "boots a guest"]
fn the_kernel_learns_the_limits_of_the_disk_and_nothing_is_left_after_the_stop() {
    let text = without_devices().said("limits").unwrap();
    assert_says(
        text,
        &[
            "\"device\":\"/dev/ublkb0\"",
            "\"bytes\":67108864",
            "\n128\n512\n",
            "exit code 0\n/dev/ublk-control\n",
        ],
    );
    assert!(text.ends_with("/dev/ublk-control\n"), "{text}");
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_of_4096_byte_blocks_is_exported_as_one() {
    assert_says(without_devices().said("blocks of 4096").unwrap(), &["4096\n", "exit code 0"]);
}

#[test]
#[ignore = "boots a guest"]
fn an_idle_disk_uses_no_processor_time_at_all() {
    assert_says(without_devices().said("idle").unwrap(), &["used nothing", "exit code 0"]);
}

/// The number of `polls_hit` in a report.
fn polls_hit(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("polls_hit\":"))?.trim().parse().ok()
}

#[test]
#[ignore = "boots a guest"]
fn a_queue_that_looks_for_the_next_request_finds_it_and_uses_nothing_once_there_are_none() {
    let text = without_devices().said("idle poll").unwrap();
    assert_says(text, &["used nothing", "exit code 0"]);
    // How many depends on the host: who is preempted gives up looking for a while.
    assert!(
        polls_hit(text).is_some_and(|found| found > 0) && !text.contains("is left out"),
        "{text}"
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_queue_without_a_spare_processor_never_looks_and_says_so() {
    let text = without_devices().said("idle poll alone").unwrap();
    assert_says(text, &["--idle-poll is left out", "exit code 0"]);
    assert_eq!(polls_hit(text), Some(0), "{text}");
}

#[test]
#[ignore = "boots a guest"]
fn a_stop_while_mounted_says_where_and_is_done_after_the_unmount() {
    let text = without_devices().said("mounted").unwrap();
    assert_says(
        text,
        &[
            "still serving",
            "exit code 0",
            "/dev/ublkb0 is in use by the mount at /mnt",
            "served until it is free",
        ],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_second_signal_takes_the_disk_away_and_the_exit_code_says_so() {
    let text = without_devices().said("taken away").unwrap();
    assert_says(text, &["(sleep)", "exit code 3", "/dev/ublkb0: No such file"]);
}

/// The kernel's own drivers do no less: who reads an image off a disk must not believe that it is
/// whole.
#[test]
#[ignore = "boots a guest"]
fn who_reads_a_disk_that_is_taken_away_gets_an_error_and_never_the_end_of_the_disk() {
    let text = without_devices().said("read while forced").unwrap();
    assert_eq!(
        (text.matches("dd 1 1\n").count(), text.matches("exit code 3\n").count()),
        (10, 10),
        "{text}"
    );
}

#[test]
#[ignore = "boots a guest"]
fn who_reads_a_disk_whose_driver_has_failed_gets_an_error_and_the_process_ends_with_one() {
    let text = without_devices().said("read while the driver fails").unwrap();
    assert_eq!(
        (text.matches("dd 1\n").count(), text.matches("cannot recover its device").count()),
        (2, 2),
        "{text}"
    );
    assert!(!text.contains("exit code 0"), "{text}");
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_under_a_loop_device_is_in_use() {
    assert_says(
        without_devices().said("under a loop device").unwrap(),
        &["exit code 0", "/dev/ublkb0 is in use by /dev/loop0"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_stop_empties_the_disks_cache_and_a_disk_that_cannot_is_no_success() {
    assert_says(
        without_devices().said("flush").unwrap(),
        &["exit code 1\n", "did not empty its write cache", "exit code 0\n"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_that_does_not_turn_has_no_scheduler_unless_the_user_wants_one() {
    let text = without_devices().said("scheduler").unwrap();
    assert_says(text, &["[none]", "[mq-deadline]", "exit code 0"]);
    assert_eq!(text.matches("exit code 0").count(), 3, "{text}");
}

#[test]
#[ignore = "boots a guest"]
fn disks_of_one_mebibyte_and_of_an_exbibyte_are_exported() {
    assert_says(
        without_devices().said("sizes").unwrap(),
        &["\n2251799813685248\n", "2048\n", "6144\n"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn what_crashes_have_left_is_deleted_by_the_next_start_and_by_a_command_and_what_is_served_is_not()
{
    let text = without_devices().said("orphans").unwrap();
    assert_says(text, &["\n1\nID "]);
    assert_says(
        text,
        &[
            "orphan",
            "\"state\": \"orphan\"",
            "served by process",
            "refused 1\n",
            "{\"deleted\":[]}",
            "exit code 0",
        ],
    );
    assert_says(
        text,
        &["deleted /dev/ublkc8\ndeleted 0\nthere is no ublk device\n/dev/ublk-control\n"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn of_two_starts_with_one_number_one_serves_and_the_other_says_why_not() {
    let text = without_devices().said("two starts").unwrap();
    assert_eq!(
        (text.matches("one serves\n").count(), text.matches("exists and is served by").count()),
        (5, 5),
        "{text}"
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_stays_if_nobody_wants_to_hear_that_it_is_there() {
    assert_says(
        without_devices().said("closed reader").unwrap(),
        &["still there\n", "nobody was told"],
    );
}

/// Options that no machine can do are refused by their range, before anything is touched; no guest
/// needed.
#[test]
fn options_out_of_range_are_refused_with_the_range() {
    let refused = |arguments: &[&str]| {
        let done = Command::new(env!("CARGO_BIN_EXE_ring3"))
            .args(["run", "null"])
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(done.stderr).unwrap()
    };
    for id in ["4294967295", "1048576", "-1"] {
        assert_says(&refused(&[&format!("--id={id}")]), &["1048575"]);
    }
    for block_size in ["0", "1", "511", "520", "8192", "4294967296", "x"] {
        assert_says(&refused(&["--block-size", block_size]), &["512, 1024, 2048 or 4096"]);
    }
    for wrong in [
        "--queues=0",
        "--depth=0",
        "--depth=4097",
        "--max-io=0",
        "--max-io=4194304",
        "--size=0",
        "--size=18446744073709551615",
    ] {
        refused(&[wrong]);
    }
}

#[test]
#[ignore = "boots a guest"]
fn a_session_that_ends_does_not_take_a_mounted_disk_away() {
    let text = without_devices().said("logout").unwrap();
    assert_says(
        text,
        &["still serving\n", "exit code 0", "/dev/ublkb0 is in use by the mount at /mnt"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_hang_up_that_the_starter_ignores_is_ignored() {
    assert_says(without_devices().said("nohup").unwrap(), &["still there\n", "exit code 0"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_device_that_is_lost_ends_the_process_with_a_code_of_its_own() {
    let text = without_devices().said("lost").unwrap();
    assert_says(
        text,
        &["exit code 4", "the driver cannot recover its device", "/dev/ublkb0: No such file"],
    );
    assert!(text.to_lowercase().contains("error"), "the read did not fail:\n{text}");
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_is_served_and_stopped_while_nobody_reads_its_log() {
    assert_says(without_devices().said("silent reader").unwrap(), &["read all\n", "exit code 0"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_disk_that_cannot_be_announced_is_not_left_behind() {
    assert_says(
        without_devices().said("no announcement").unwrap(),
        &["No space left", "exit code 1", "No such file"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_report_that_cannot_be_written_is_an_error_at_the_start_and_at_the_end() {
    let text = without_devices().said("no report").unwrap();
    assert_says(
        text,
        &[
            "--stats /no/such/folder",
            "start 1\n",
            "exit code 1",
            "--stats /tmp/small/stats: No space left",
        ],
    );
}

#[test]
#[ignore = "boots a guest"]
fn memory_is_for_the_queues_that_there_will_be_and_no_more_than_there_is() {
    assert_says(
        without_devices().said("memory").unwrap(),
        &[
            "\"queues\":4",
            "as much as for four\n",
            "exit code 0",
            "half may be taken",
            "refused 1\n",
        ],
    );
}

#[track_caller]
fn assert_followed(text: &str) {
    assert_says(
        text,
        &[
            "followed 1\n",
            "followed 4\n",
            "verified\n",
            "read all\n",
            "exit code 0\n",
            "/dev/ublkb3: No such file",
        ],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_driver_that_is_killed_under_load_is_followed_by_the_next_and_nobody_sees_an_error() {
    assert_followed(without_devices().said("followed").unwrap());
}

/// The kernel compares the number of the server since 6.18.
#[test]
#[ignore = "boots a guest"]
fn the_same_on_the_newest_kernel() {
    let guest = Guest { kernel: "7.2".into(), ..guest("followed-7.2") };
    assert_followed(run(step(guest, "followed", FOLLOWED)).said("followed").unwrap());
}

/// What users of earlier releases have in their scripts.
#[test]
fn options_that_are_no_more_name_what_is_in_their_place() {
    for option in ["--recoverable", "--recoverable=wait", "--recover=3"] {
        let done = Command::new(env!("CARGO_BIN_EXE_ring3"))
            .args(["run", "null", option])
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(1), "{option}");
        assert_says(
            &String::from_utf8(done.stderr).unwrap(),
            &["are no more", "starts its driver again", "docs/supervisor.md"],
        );
    }
}

#[test]
#[ignore = "boots a guest"]
fn a_driver_of_hardware_that_is_killed_under_load_is_followed_on_a_device_that_was_fenced() {
    assert_followed(through_vfio().said("followed").unwrap());
}

#[test]
#[ignore = "boots a guest"]
fn an_id_in_use_is_refused_with_the_process_that_has_it() {
    assert_says(
        without_devices().said("taken id").unwrap(),
        &["/dev/ublkb5 exists and is served by process", "exit code 0"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn the_id_of_a_killed_process_can_be_used_again() {
    assert_says(without_devices().said("orphan").unwrap(), &["/dev/ublkc7", "exit code 0"]);
}

#[test]
#[ignore = "boots a guest"]
fn the_driver_does_not_share_a_mount_of_its_own_disk() {
    assert_says(without_devices().said("namespace").unwrap(), &["0\n1\n"]);
}

#[test]
#[ignore = "boots a guest"]
fn each_queue_has_a_thread() {
    assert_says(without_devices().said("queues").unwrap(), &["\"queues\":4", "\n4\n"]);
}

#[test]
#[ignore = "boots a guest"]
fn what_was_written_is_read_back_at_every_depth_and_discarded_blocks_are_zeroes() {
    let text = without_devices().said("verify").unwrap();
    assert_says(
        text,
        &["depth 1\n", "depth 32\n", "depth 128\n", "sequential\n", "discarded\n", "\"errors\": 0"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_partition_with_a_file_system_on_it_is_clean_after_use() {
    assert_says(
        without_devices().said("file system").unwrap(),
        &["/dev/ublkb0p1\n", "clean\n", "same\n", "clean again\n", "exit code 0"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn a_kernel_without_ublk_is_an_error_that_names_the_module() {
    assert_says(without_devices().said("no ublk").unwrap(), &["modprobe ublk_drv", "exit code 1"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_kernel_that_cannot_share_memory_says_so_before_anything_is_started_and_exports_as_ever() {
    let text = without_devices().said("no shared memory").unwrap();
    assert_says(
        text,
        &["Linux 7.1 or later", "exit code 1", "/tmp/share: No such file", "exit code 0"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn batches_are_refused_where_the_kernel_has_none_and_without_them_all_is_as_it_was() {
    let text = without_devices().said("no batches").unwrap();
    assert_says(
        text,
        &[
            "takes a command for each request",
            "exit code 1",
            "/dev/ublkc*: No such file",
            "exit code 0",
        ],
    );
}

/// One guest with an NVMe controller behind an IOMMU: two namespaces, in the hands of vfio-pci.
fn through_vfio() -> &'static Outcome {
    static OUTCOME: SharedOutcome = SharedOutcome::new();
    OUTCOME.get_or_run(|| {
        let namespace = |block_size, size| Disk {
            block_size: Some(block_size),
            ..Disk::new(size, Backing::File)
        };
        let disk = Device {
            // Whoever reads the first one to its end, block by block, takes more than a minute: it
            // is unbound before, also on a busy host.
            namespaces: vec![namespace(512, Size(4 << 30)), namespace(4096, Size(64 << 20))],
            ..Device::new("disk", "nvme").bound("vfio-pci")
        };
        let steps = [
            ("two namespaces", TWO_NAMESPACES),
            ("partitions", PARTITIONS),
            (
                "pin",
                "serve nvme --device vfio:$DISK --namespace 1 --irq intx && \
                 verify --filename=/dev/ublkb0 --size=8M --rw=randwrite --bs=4k --iodepth=8 && \
                 echo verified; stop",
            ),
            (
                "polled",
                "serve nvme --device vfio:$DISK --namespace 1 --irq poll && \
                 verify --filename=/dev/ublkb0 --size=8M --rw=randwrite --bs=4k --iodepth=8 && \
                 echo verified; stop",
            ),
            ("killed", KILLED),
            ("followed", "DEVICE=vfio:$DISK OPTIONS='--namespace 1'; killed_and_followed"),
            ("wanted back", WANTED_BACK),
            ("read while unbound", &read_while_unbound("")),
            ("read in one process while unbound", &read_while_unbound("--in-process")),
            (
                "second claim",
                "serve nvme --device vfio:$DISK --namespace 1 && \
                 ring3 run nvme --device vfio:$DISK; stop",
            ),
            ("resets of a claim", RESETS_OF_A_CLAIM),
            ("reset by others", RESET_BY_OTHERS),
            ("bus error", BUS_ERROR),
        ];
        // One processor: the device comes and goes here, under which QEMU 10.0 can lose the timer
        // of a second one.
        let mut guest = Guest {
            memory_mib: 768,
            vcpus: Some(1),
            ..guest("vfio-exports").module("vfio-pci").device(disk)
        };
        let monitor = std::env::temp_dir().join(format!("ring3-monitor-{}", std::process::id()));
        guest
            .qemu_arguments
            .extend(["-monitor".into(), format!("unix:{},server=on,wait=off", monitor.display())]);
        let outcome = run_watched(
            steps.into_iter().fold(guest, |guest, (name, script)| step(guest, name, script)),
            &mut |event| {
                if matches!(event, Event::Line("inject now")) {
                    inject_bus_error(&monitor);
                }
            },
        );
        // QEMU leaves it behind if it is killed.
        let _ = std::fs::remove_file(monitor);
        outcome
    })
}

/// The port above the disk reports a malformed packet, which nothing repeats.
fn inject_bus_error(monitor: &Path) {
    let mut qemu = UnixStream::connect(monitor).unwrap();
    qemu.write_all(b"pcie_aer_inject_error port1 MALF_TLP\n").unwrap();
    // It is done when the monitor asks for the next command.
    let mut said = String::new();
    let mut bytes = [0; 256];
    while said.matches("(qemu) ").count() < 2 {
        let read = qemu.read(&mut bytes).unwrap();
        assert!(read > 0, "the monitor has ended: {said}");
        said += &String::from_utf8_lossy(&bytes[..read]);
    }
}

const TWO_NAMESPACES: &str = "
serve nvme --device vfio:$DISK || exit
cat /tmp/ready
cat /sys/block/ublkb0/queue/logical_block_size /sys/block/ublkb1/queue/logical_block_size
for disk in ublkb0 ublkb1; do
    verify --filename=/dev/$disk --size=16M --rw=randwrite --bsrange=4k-256k --blockalign=4k \\
        --iodepth=16 --fsync=16 && echo \"$disk verified\"
done
stop; cat /tmp/stats; ls /dev/ublkb* 2>&1; true";

/// The disk is a file of the host: it keeps what was written from one process to the next. The
/// holder tells the kernel of partitions, as soon as who wrote the table has closed the disk.
const PARTITIONS: &str = "
serve nvme --device vfio:$DISK --namespace 1 || exit
printf 'n\\np\\n1\\n\\n+20M\\nn\\np\\n2\\n\\n+40M\\nw\\n' | fdisk /dev/ublkb0 >/dev/null 2>&1
for try in $(seq 100); do [ -b /dev/ublkb0p2 ] && break; sleep 0.1; done
mkfs.ext4 -q /dev/ublkb0p2 && mount /dev/ublkb0p2 /mnt && cp /bin/busybox /mnt/ && umount /mnt; stop
serve nvme --device vfio:$DISK --namespace 1 || exit
ls /dev/ublkb0p1 /dev/ublkb0p2
mount /dev/ublkb0p2 /mnt && cmp /bin/busybox /mnt/busybox && echo same
umount /mnt
fsck.ext4 -fn /dev/ublkb0p2 >/dev/null 2>&1 && echo clean; stop";

/// The kernel asks for the device and waits until it has it.
const WANTED_BACK: &str = "
serve nvme --device vfio:$DISK --namespace 1 || exit
echo $DISK >/sys/bus/pci/drivers/vfio-pci/unbind && echo 'given back'; ended; ls /dev/ublkb0 2>&1
echo $DISK >/sys/bus/pci/drivers_probe";

fn read_while_unbound(options: &str) -> String {
    format!(
        "unbind() {{
            echo $DISK >/sys/bus/pci/drivers/vfio-pci/unbind
            echo $DISK >/sys/bus/pci/drivers_probe
        }}
        read_during unbind \"nvme --device vfio:$DISK --namespace 1 {options}\" 512"
    )
}

/// Byte 4 of configuration space is COMMAND; bit 2 lets the function start transfers.
const KILLED: &str = "
command() { od -An -tu1 -j4 -N1 /sys/bus/pci/devices/$DISK/config; }
serve nvme --device vfio:$DISK --in-process --namespace 1 --id 0 || exit
fio --name=load --filename=/dev/ublkb0 --direct=1 --ioengine=io_uring --iodepth=32 --rw=randwrite \\
    --bs=4k --time_based --runtime=20 >/tmp/fio 2>&1 &
LOAD=$!
sleep 1.5; echo \"before $(( $(command) & 4 ))\"; kill -9 $PID; wait $PID; wait $LOAD; \
    echo \"fio $?\"
echo \"after $(( $(command) & 4 ))\"
serve nvme --device vfio:$DISK --in-process --namespace 1 --id 0 &&
    dd if=/dev/ublkb0 of=/dev/null bs=1M count=4 2>&1 && stop";

/// Each function level reset takes 100 ms: one is part of opening a VFIO device, one of closing it.
const RESETS_OF_A_CLAIM: &str = "
mount -t tracefs none /sys/kernel/tracing; trace=/sys/kernel/tracing
echo pcie_flr >$trace/set_ftrace_filter && echo function >$trace/current_tracer || exit
ring3 nvme id --device vfio:$DISK >/dev/null && echo \"resets $(grep -c 'pcie_flr <-' \
    $trace/trace)\"
echo nop >$trace/current_tracer";

/// Whoever waits for a request to time out waits for more than 30 seconds.
const RESET_BY_OTHERS: &str = "
serve nvme --device vfio:$DISK --in-process --namespace 1 || exit
fio --name=load --filename=/dev/ublkb0 --direct=1 --ioengine=io_uring --iodepth=8 --rw=randread \\
    --bs=4k --time_based --runtime=10 --output=/tmp/fio &
LOAD=$!
sleep 1
for round in 1 2 3; do
    echo 1 >/sys/bus/pci/devices/$DISK/reset
    timeout 20 dd if=/dev/ublkb0 of=/dev/null bs=4k count=16 iflag=direct 2>&1 |
        grep -q '16+0 records out' && echo 'goes on'
done
wait $LOAD; echo \"fio $?\"; stop; cat /tmp/stats";

/// Last: what the port has been through since is nobody's business.
const BUS_ERROR: &str = "
serve nvme --device vfio:$DISK --in-process --namespace 1 || exit
echo 'inject now'
for try in $(seq 600); do [ -d /proc/$PID ] || break; sleep 0.1; done; kill $PID 2>/dev/null
ended; ls /dev/ublkb0 2>&1; dmesg | grep -i aer | tail -n 5";

#[test]
#[ignore = "boots a guest"]
fn a_claim_costs_the_two_resets_of_the_kernel_and_no_third() {
    assert_says(through_vfio().said("resets of a claim").unwrap(), &["resets 2\n"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_function_that_is_reset_through_sysfs_under_load_goes_on() {
    let text = through_vfio().said("reset by others").unwrap();
    assert_eq!(text.matches("goes on\n").count(), 3, "{text}");
    assert_says(text, &["fio 0\n", "exit code 0", "\"errors\": 0", "behind the driver's back"]);
}

#[test]
#[ignore = "boots a guest"]
fn an_error_that_the_bus_cannot_correct_ends_the_driver_with_its_name() {
    let text = through_vfio().said("bus error").unwrap();
    assert_says(
        text,
        &[
            "exit code 1",
            "the bus reports an error of the device that it cannot correct",
            "No such file",
        ],
    );
}

#[test]
#[ignore = "boots a guest"]
fn namespaces_of_different_formats_are_disks_of_their_own() {
    let text = through_vfio().said("two namespaces").unwrap();
    assert_says(
        text,
        &[
            "namespace 1\"",
            "namespace 2\"",
            "\n512\n4096\n",
            "ublkb0 verified\n",
            "ublkb1 verified\n",
            "exit code 0",
        ],
    );
    assert_says(text, &["\"outages\": []", "\"bytes_moved\""]);
}

#[test]
#[ignore = "boots a guest"]
fn partitions_are_found_when_the_disk_comes_back() {
    assert_says(
        through_vfio().said("partitions").unwrap(),
        &["/dev/ublkb0p1\n", "/dev/ublkb0p2\n", "same\n", "clean\n", "exit code 0"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn the_pin_does_as_well_as_messages() {
    assert_says(through_vfio().said("pin").unwrap(), &["verified", "exit code 0"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_controller_without_interrupts_is_polled() {
    assert_says(through_vfio().said("polled").unwrap(), &["verified", "exit code 0"]);
}

#[test]
#[ignore = "boots a guest"]
fn a_driver_killed_under_load_leaves_a_silent_device_that_can_be_claimed_again() {
    let text = through_vfio().said("killed").unwrap();
    assert_says(text, &["before 4\n", "after 0\n", "exit code 0"]);
    assert!(!text.contains("fio 0"), "the load did not notice:\n{text}");
}

#[test]
#[ignore = "boots a guest"]
fn a_device_that_the_system_wants_back_is_given_back_and_its_disk_taken_away() {
    let text = through_vfio().said("wanted back").unwrap();
    assert_says(
        text,
        &["given back", "the system wants the device back", "exit code 3", "No such file"],
    );
}

#[test]
#[ignore = "boots a guest"]
fn who_reads_a_disk_that_is_unbound_gets_an_error_and_never_the_end_of_the_disk() {
    for step in ["read while unbound", "read in one process while unbound"] {
        let text = through_vfio().said(step).unwrap();
        assert_eq!(
            (text.matches("dd 1 1\n").count(), text.matches("exit code 3\n").count()),
            (10, 10),
            "{text}"
        );
    }
}

#[test]
#[ignore = "boots a guest"]
fn a_second_claim_is_refused_and_the_first_goes_on() {
    assert_says(through_vfio().said("second claim").unwrap(), &["busy", "exit code 0"]);
}
