//! ring3d as a service of a real systemd, in a guest whose first process that is: installed as
//! `make install` installs it.
//!
//! `cargo test -p ring3-cli --test systemd -- --ignored`, or `make test`.

mod installed;
mod supervised;

use std::time::Duration;

use installed::installed;
use ring3_lab::{Backing, Cache, Device, Disk, Event, Guest, Need, Outcome, SharedOutcome, Size};
use supervised::{LOAD, with_programs};

/// Shell functions of every step.
const PRELUDE: &str = r#"
status() { ring3 status scratch --json >/tmp/status 2>/tmp/refused; }
ready() {
    for try in $(seq 600); do
        status && grep -q '"state": "running"' /tmp/status &&
            ! grep -q '"standby": 0' /tmp/status && return
        sleep 0.05
    done
    cat /tmp/status /tmp/refused
    systemctl status --no-pager -l ring3d
    journalctl --no-pager -u ring3d -n 30
    return 1
}
driver() { sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' /tmp/status; }
daemon() { systemctl show ring3d -P MainPID; }
# Does `$@`, and waits for another ring3d.
next() {
    old=$(daemon)
    "$@" || return
    for try in $(seq 600); do
        new=$(daemon)
        [ "$new" != 0 ] && [ "$new" != "$old" ] && break
        sleep 0.05
    done
    ready
}
same() { [ "$(driver)" = "$(cat /tmp/driver)" ] && echo "$1"; }
# Returns when the disk is in use.
write() {
    load --filename=/dev/ring3/scratch --size=24M --rw=randwrite --bs=4k --iodepth=32 \
        --rate_iops=400
    for try in $(seq 600); do
        for fio in $(pidof fio); do ls -l /proc/$fio/fd | grep -q ublkb0 && return; done
        sleep 0.05
    done
}
"#;

const STARTED: &str = r#"
[ "$(cat /proc/1/comm)" = systemd ] && systemctl --version | head -n 1
mkdir -p /etc/ring3
printf '%s\n' '[device.scratch]' "match = { address = \"$DISK\" }" 'bind = true' \
    '[device.scratch.export]' 'id = 0' 'depth = 32' \
    '[device.scratch.restart]' 'burst = 100' >/etc/ring3/scratch.toml
systemctl daemon-reload && systemctl enable --now ring3d.socket ring3d.service 2>&1 && ready || exit
echo "is $(systemctl is-active ring3d.service) $(systemctl show ring3d -P Type)"
driver >/tmp/driver
udevadm settle
echo "udev: $(udevadm info /dev/ublkb0 | grep -o 'RING3_NAME=scratch')"
echo "unit: $(systemctl is-active dev-ring3-scratch.device)"
ls -l /dev/ring3/scratch
[ "$(systemctl show ring3d -P NFileDescriptorStore)" -gt 0 ] && echo 'descriptors are kept'
echo "groups: $(sed 's/^0:://' /proc/$(daemon)/cgroup /proc/$(driver)/cgroup | tr '\n' ' ')"
"#;

const DIED: &str = r#"
write
for kill in 1 2 3; do next kill -9 $(daemon) || exit; same "goes on after $kill"; done
next systemctl reload ring3d 2>&1 && same 'goes on after a reload' ||
    { systemctl status ring3d --no-pager; journalctl --no-pager -n 20; exit; }
old=$(daemon); next kill -STOP $old && same 'goes on after the watchdog'
kill -9 $(driver)
sleep 0.3
ready && [ $(driver) != $(cat /tmp/driver) ] && echo 'another driver'
driver >/tmp/driver
verified && echo verified
echo "errors $(dmesg | grep -ciE 'I/O error')"
echo "restarted $(systemctl show ring3d -P NRestarts) times"
"#;

const TOLD: &str = r#"
journalctl --no-pager -o json -u ring3d RING3_DEVICE=scratch RING3_STATE=recovering -n 1 |
    tr ',' '\n' | grep -E 'RING3_|PRIORITY|SYSLOG_IDENTIFIER|"MESSAGE"'
"#;

const LEFT: &str = r#"
mkdir -p /run/systemd/system/ring3d.service.d
printf '[Service]\nTimeoutStopSec=3\n' >/run/systemd/system/ring3d.service.d/short.conf
systemctl daemon-reload
write
systemctl stop ring3d.socket ring3d.service
echo "stopped: $(systemctl is-active ring3d.service) $(systemctl show ring3d -P Result)"
[ -d /proc/$(cat /tmp/driver) ] && echo 'its driver goes on'
systemctl start ring3d.socket ring3d.service && ready && same 'adopted by the next'
verified && echo verified; echo "errors $(dmesg | grep -ciE 'I/O error')"
"#;

const STOPPED: &str = r#"
sleep 0.5
systemctl stop ring3d.socket ring3d.service
echo "then $(systemctl is-active ring3d.service) $(systemctl show ring3d -P ExecMainCode)"
[ -d /proc/$(cat /tmp/driver) ] || echo 'its driver has ended'
ls /dev/ublkb0 /dev/ring3/scratch 2>&1
systemctl start ring3d.socket
echo "before $(systemctl is-active ring3d.service)"
ready && echo "activated: $(systemctl is-active ring3d.service)"
dd if=/dev/ring3/scratch of=/dev/null bs=64k count=16 iflag=direct 2>/dev/null && echo read
"#;

fn outcome() -> &'static Outcome {
    static OUTCOME: SharedOutcome = SharedOutcome::new();
    OUTCOME.get_or_run(|| {
        let disk = Device {
            namespaces: vec![Disk::new(Size(64 << 20), Backing::Memory)],
            ..Device::new("disk", "nvme").bound("vfio-pci")
        };
        let cache = Cache::open().unwrap();
        ring3_lab::prepare(&cache, &[Need::Systemd], &mut |_| {})
            .unwrap_or_else(|error| panic!("{error}"));
        let folder = tempfile::tempdir().unwrap();
        let watched = folder.path().join("watched");
        std::fs::write(&watched, "[Service]\nWatchdogSec=3\n").unwrap();
        let guest = Guest {
            memory_mib: 1024,
            time_limit: Duration::from_secs(900),
            ..Guest::new("systemd")
        };
        let guest = with_programs(guest).module("ublk_drv").module("vfio-pci").device(disk);
        let guest = guest.file("/systemd/1.tar", &cache.path("systemd/systemd.tar"));
        let guest = guest.file("/systemd/2.tar", &installed(folder.path()));
        let place = "/usr/local/lib/systemd/system/ring3d.service.d/watched.conf";
        let guest = guest.file(place, &watched);
        let steps = [
            ("started", STARTED),
            ("died", DIED),
            ("told", TOLD),
            ("left", LEFT),
            ("stopped", STOPPED),
        ];
        let guest = steps.into_iter().fold(guest, |guest, (name, script)| {
            guest.step(name, &format!("{LOAD}{PRELUDE}(\n{script}\n)\ntrue"))
        });
        let show = std::env::var_os("RING3_TEST_SHOW").is_some();
        let outcome = guest.run(&cache, &mut |event| match event {
            Event::Line(line) if show => println!("{line}"),
            _ => {}
        });
        let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
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
fn systemd_starts_ring3d_as_it_was_installed_and_knows_its_disk_as_a_unit() {
    assert_says(
        "started",
        &["is active notify", "udev: RING3_NAME=scratch", "unit: active", "descriptors are kept"],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_driver_goes_on_when_its_ring3d_is_killed_reloaded_or_restarted_by_systemd_or_stopped_by_the_watchdog()
 {
    let goes_on =
        ["goes on after 1", "goes on after 2", "goes on after 3", "goes on after a reload"];
    assert_says("died", &goes_on);
    assert_says(
        "died",
        &[
            "goes on after the watchdog",
            "restarted 5 times",
            "another driver",
            "verified",
            "errors 0",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn the_journal_has_fields_for_a_device_and_its_state() {
    assert_says(
        "told",
        &[
            "\"RING3_DEVICE\":\"scratch\"",
            "\"RING3_STATE\":\"recovering\"",
            "\"SYSLOG_IDENTIFIER\":\"ring3d\"",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_disk_in_use_is_served_on_after_a_stop_that_took_too_long_and_adopted_by_the_next_ring3d() {
    assert_says(
        "left",
        &[
            "stopped: failed timeout",
            "its driver goes on",
            "adopted by the next",
            "verified",
            "errors 0",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_service_that_was_stopped_has_no_disk_and_a_question_on_its_socket_starts_it() {
    assert_says(
        "stopped",
        &["then inactive 1", "its driver has ended", "/dev/ublkb0: No such file"],
    );
    assert_says("stopped", &["before inactive", "activated: active", "read"]);
}
