//! ring3d in a guest: it dies, it is replaced, its devices are pulled, and unmodified programs go
//! on.
//!
//! `cargo test -p ring3-cli --test survive -- --ignored`, or `make test`.

mod supervised;

use std::time::Duration;

use ring3_lab::{Backing, Cache, Device, Disk, Guest, Outcome, SharedOutcome, Size};
use supervised::{LOAD, with_programs};

/// Shell functions of every step.
const PRELUDE: &str = r#"
state() { ring3 status scratch --json | sed -n 's/.*"state": "\(.*\)".*/\1/p'; }
await() {
    for try in $(seq 600); do [ "$(state)" = $1 ] && return; sleep 0.05; done
    echo "not $1"
    tail -n 20 /tmp/ring3d
    return 1
}
# Serving, and the next one waits.
ready() {
    for try in $(seq 600); do
        ring3 status scratch --json >/tmp/status 2>/dev/null
        grep -q '"state": "running"' /tmp/status && ! grep -q '"standby": 0' /tmp/status && return
        sleep 0.05
    done
    cat /tmp/status /tmp/ring3d
    return 1
}
driver() { sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' /tmp/status; }
# The ring3d that is held.
daemon() {
    grep -l "^PPid:[[:space:]]*$HOLD$" /proc/[0-9]*/status 2>/dev/null |
        sed 's#/proc/\(.*\)/status#\1#' | head -n 1
}
begin() {
    mkdir -p /etc/ring3
    printf '%s\n' '[metrics]' 'listen = "/run/ring3/metrics"' \
        '[device.scratch]' "match = { address = \"$DISK\" }" 'bind = true' \
        '[device.scratch.export]' 'id = 0' 'depth = 32' \
        '[device.scratch.restart]' 'burst = 100' >/etc/ring3/scratch.toml
    ring3d --hold >/tmp/ring3d 2>&1 & HOLD=$!
    echo $HOLD >/tmp/hold
    ready
}
# Does `$1` to ring3d, and waits for the next one.
again() {
    old=$(daemon)
    kill $1 $old
    for try in $(seq 600); do
        new=$(daemon)
        [ -n "$new" ] && [ "$new" != "$old" ] && break
        sleep 0.05
    done
}
next() { again $1; ready; }
"#;

const SURVIVED: &str = "
begin || exit; first=$(driver)
load --filename=/dev/ring3/scratch --size=24M --rw=randwrite --bsrange=4k-64k --iodepth=32
for kill in 1 2 3; do
    next -9 || exit
    [ $(driver) = $first ] && echo \"goes on after $kill\"
    sleep 0.5
done
next -HUP || exit; [ $(driver) = $first ] && echo 'goes on with a new one'
kill -9 $(driver); sleep 0.2; ready && [ $(driver) != $first ] && echo 'recovered by another ring3d'
second=$(driver)
old=$(daemon)
kill -9 $old $second
sleep 0.5
ready && [ $(driver) != $second ] && echo 'both died'
verified && echo verified; echo \"errors $(dmesg | grep -ciE 'I/O error')\"
ls /dev/ring3
grep -oE '\"restarts\": [0-9]*' /tmp/status
ring3 top --once | tail -n 1
ring3 logs scratch -n 12";

const PARTED: &str = "
HOLD=$(cat /tmp/hold)
ready
parts() {
    for try in $(seq 200); do
        # A node may go between its listing and its look.
        [ \"$(ls /dev/ring3 2>/dev/null | tr '\\n' ' ')\" = \"$1\" ] && return
        sleep 0.05
    done
    ls /dev/ring3
    ring3 status scratch
    return 1
}
dd if=/table of=/dev/ring3/scratch bs=512 conv=notrunc,fsync 2>/dev/null
parts 'scratch scratch-part1 ' && echo parted
exec 9</dev/ring3/scratch-part1
next -9
parts 'scratch scratch-part1 ' &&
    dd if=/dev/ring3/scratch-part1 of=/dev/null bs=64k count=4 iflag=direct 2>/dev/null &&
    echo 'parted on'
exec 9<&-
dd if=/dev/zero of=/dev/ring3/scratch bs=512 count=1 conv=notrunc,fsync 2>/dev/null
parts 'scratch ' && echo 'watched on'";

const PULLED: &str = "
HOLD=$(cat /tmp/hold)
ready
echo 1 >/sys/bus/pci/devices/$DISK/remove &
await absent && echo absent
wait $!
echo 1 >/sys/bus/pci/rescan
ready && echo back
dd if=/dev/ring3/scratch of=/dev/null bs=64k iflag=direct 2>/dev/null && echo read";

const STOPPED: &str = "
HOLD=$(cat /tmp/hold)
ready
ring3 stop scratch && again -9
await stopped && echo 'stays stopped'
ring3 restart scratch && ready && echo restarted
kill $HOLD
for try in $(seq 200); do [ -d /proc/$HOLD ] || break; sleep 0.05; done
[ -d /proc/$HOLD ] || echo ended
ls /dev/ublkb0 /run/ring3d.* 2>&1; tail -n 5 /tmp/ring3d";

/// Many tags, which the kernel cancels for longer than the next driver takes to ask for the disk.
const DEEP: &str = "
sed -i \"s/depth = 32/depth = 4096\\nqueues = 2\\nmax_io_kib = 16/\" /etc/ring3/scratch.toml
ring3d >/tmp/ring3d 2>&1 & DAEMON=$!
for busy in 1 2; do while :; do :; done & BUSY=\"$BUSY $!\"; done
for kill in $(seq 40); do
    ready || exit
    kill -9 $(driver); sleep 0.1
done
ready || exit
echo \"$(ls /sys/block/ublkb0/mq | wc -l) queues of $(cat /sys/block/ublkb0/queue/nr_requests)\"
dmesg | grep -E 'BUG|Oops|WARNING' || echo \"the kernel is well after $kill\"
kill $BUSY $DAEMON
wait $DAEMON; echo \"ended with $?\"";

fn outcome() -> &'static Outcome {
    static OUTCOME: SharedOutcome = SharedOutcome::new();
    OUTCOME.get_or_run(|| {
        let disk = Device {
            namespaces: vec![Disk::new(Size(64 << 20), Backing::Memory)],
            ..Device::new("disk", "nvme").bound("vfio-pci")
        };
        let guest = Guest {
            memory_mib: 1024,
            time_limit: Duration::from_secs(900),
            ..Guest::new("survive")
        };
        let guest = with_programs(guest).module("ublk_drv").module("vfio-pci").device(disk);
        // A table with one partition.
        let mut table = [0; 512];
        table[446 + 4] = 0x83;
        table[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
        table[446 + 12..446 + 16].copy_from_slice(&4096u32.to_le_bytes());
        table[510..].copy_from_slice(&[0x55, 0xaa]);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), table).unwrap();
        let guest = guest.file("/table", file.path());
        let steps = [
            ("survived", SURVIVED),
            ("parted", PARTED),
            ("pulled", PULLED),
            ("stopped", STOPPED),
            ("deep", DEEP),
        ];
        let guest = steps.into_iter().fold(guest, |guest, (name, script)| {
            guest.step(name, &format!("{LOAD}{PRELUDE}(\n{script}\n)\ntrue"))
        });
        let outcome = guest
            .run(&Cache::open().unwrap(), &mut |_| {})
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(outcome.succeeded(), "{}{}", outcome.messages, outcome.output());
        outcome
    })
}

#[track_caller]
fn assert_says(step: &str, wanted: &[&str]) {
    let said = outcome().said(step).unwrap();
    wanted
        .iter()
        .for_each(|wanted| assert!(said.contains(wanted), "{wanted:?} is not in:\n{said}"));
}

#[test]
#[ignore = "boots a guest: make test"]
fn drivers_and_their_users_go_on_when_ring3d_is_killed_or_replaced() {
    let goes_on =
        ["goes on after 1", "goes on after 2", "goes on after 3", "goes on with a new one"];
    assert_says("survived", &goes_on);
    assert_says("survived", &["verified", "errors 0"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_ring3d_that_was_started_again_recovers_drivers_that_it_has_not_started_and_those_that_died_with_the_last_one()
 {
    assert_says("survived", &["recovered by another ring3d", "both died", "verified", "errors 0"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn partitions_stay_when_ring3d_is_killed_and_are_watched_by_the_next_one() {
    assert_says("parted", &["parted\nparted on\nwatched on\n"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_device_that_is_pulled_stops_its_driver_and_one_that_is_plugged_in_starts_it() {
    assert_says("pulled", &["absent", "back", "read"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn what_a_user_has_stopped_stays_stopped_and_the_holder_ends_with_what_it_holds() {
    assert_says("stopped", &["stays stopped", "restarted", "ended"]);
    assert_says("stopped", &["/dev/ublkb0: No such file", "/run/ring3d.*: No such file"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn the_kernel_is_well_after_drivers_of_deep_queues_were_killed_one_after_another() {
    assert_says("deep", &["2 queues of 4095", "the kernel is well after 40", "ended with 0"]);
}
