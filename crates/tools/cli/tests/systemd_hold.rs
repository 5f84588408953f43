//! `ring3d-hold.service` under Debian 12's systemd (252), which is too old for `ring3d.service`: in
//! a guest whose first process it is, installed as `make install` installs it.
//!
//! `cargo test -p ring3-cli --test systemd_hold -- --ignored`, or `make test`.

mod installed;
mod supervised;

use std::process::Command;
use std::time::Duration;

use installed::installed;
use ring3_lab::{Backing, Cache, Device, Disk, Event, Guest, Outcome, SharedOutcome, Size};
use supervised::{LOAD, with_programs};

/// Shell functions of every step.
const PRELUDE: &str = r#"
unit=ring3d-hold.service
status() { ring3 status scratch --json >/tmp/status 2>/tmp/refused; }
ready() {
    for try in $(seq 600); do
        status && grep -q '"state": "running"' /tmp/status &&
            ! grep -q '"standby": 0' /tmp/status && return
        sleep 0.05
    done
    cat /tmp/status /tmp/refused
    systemctl status --no-pager -l $unit
    journalctl --no-pager -u $unit -n 30
    return 1
}
driver() { sed -n 's/.*"pid": \([0-9]*\),.*/\1/p' /tmp/status; }
holder() { systemctl show $unit -P MainPID; }
# The holder's one child that is not a driver.
daemon() { cat /proc/$(holder)/task/*/children | tr ' ' '\n' | head -n 1; }
"#;

const STARTED: &str = r#"
systemctl --version | head -n 1
mkdir -p /etc/ring3
printf '%s\n' '[device.scratch]' "match = { address = \"$DISK\" }" 'bind = true' \
    '[device.scratch.export]' 'id = 0' 'depth = 32' \
    '[device.scratch.restart]' 'burst = 100' >/etc/ring3/scratch.toml
systemctl daemon-reload
systemctl start ring3d.service 2>&1; journalctl --no-pager -u ring3d.service |
    grep -o 'systemd 252 is older than 254: enable ring3d-hold.service instead' | head -n 1
systemctl stop ring3d.service
systemctl enable --now $unit 2>&1 && ready || exit
echo "is $(systemctl is-active $unit)"
udevadm settle
echo "udev: $(udevadm info /dev/ublkb0 | grep -o 'RING3_NAME=scratch')"
journalctl --no-pager | grep ring3d-hold.service: | grep -c Unknown
confined=$(grep -E '^(Seccomp|NoNewPrivs):' /proc/$(daemon)/status | tr -d '\t' | tr '\n' ' ')
echo "confined: $confined"
"#;

const DIED: &str = r#"
driver >/tmp/driver
load --filename=/dev/ring3/scratch --size=24M --rw=randwrite --bs=4k --iodepth=32 --rate_iops=400
sleep 1
for kill in 1 2; do
    old=$(daemon)
    kill -9 $old
    for try in $(seq 600); do [ "$(daemon)" != "$old" ] && break; sleep 0.05; done
    ready || exit
    [ "$(driver)" = "$(cat /tmp/driver)" ] && echo "goes on after $kill"
done
systemctl reload $unit && sleep 1 && ready && echo reloaded
kill -9 $(cat /tmp/driver)
sleep 0.3
ready && [ $(driver) != $(cat /tmp/driver) ] && echo 'another driver'
verified && echo verified
echo "errors $(dmesg | grep -ciE 'I/O error')"
"#;

const STOPPED: &str = r#"
sleep 0.5
systemctl stop $unit
echo "then $(systemctl is-active $unit) $(systemctl show $unit -P Result)"
ls /dev/ublkb0 2>&1
"#;

fn outcome() -> &'static Outcome {
    static OUTCOME: SharedOutcome = SharedOutcome::new();
    OUTCOME.get_or_run(|| {
        let disk = Device {
            namespaces: vec![Disk::new(Size(64 << 20), Backing::Memory)],
            ..Device::new("disk", "nvme").bound("vfio-pci")
        };
        let setup = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../lab/setup.sh");
        assert!(Command::new(setup).arg("systemd-12").status().unwrap().success());
        let cache = Cache::open().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let guest = Guest {
            memory_mib: 1024,
            time_limit: Duration::from_secs(900),
            ..Guest::new("systemd-hold")
        };
        let guest = with_programs(guest).module("ublk_drv").module("vfio-pci").device(disk);
        let guest = guest.file("/systemd/1.tar", &cache.path("systemd-12/systemd-12.tar"));
        let guest = guest.file("/systemd/2.tar", &installed(folder.path()));
        let steps = [("started", STARTED), ("died", DIED), ("stopped", STOPPED)];
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
fn debian_12s_systemd_refuses_the_one_service_and_starts_the_other_confined() {
    assert_says(
        "started",
        &[
            "systemd 252",
            "enable ring3d-hold.service instead",
            "is active",
            "udev: RING3_NAME=scratch",
            "confined: NoNewPrivs:1 Seccomp:2",
        ],
    );
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_driver_goes_on_when_its_ring3d_is_killed_under_the_holder_and_is_replaced_when_it_dies() {
    assert_says(
        "died",
        &["goes on after 1", "goes on after 2", "reloaded", "another driver", "verified"],
    );
    assert_says("died", &["errors 0"]);
}

#[test]
#[ignore = "boots a guest: make test"]
fn a_stop_of_the_holders_service_takes_the_disk_away() {
    assert_says("stopped", &["then inactive success", "/dev/ublkb0: No such file"]);
}
