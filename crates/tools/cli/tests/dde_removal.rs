//! A hosted driver's device that vanishes without having been asked for: QEMU is killed, and with
//! it the device. The driver ends with the reason, and soon.

mod hosted;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use hosted::{can_build, program};

/// A driver that has not let go of its device within ten seconds ends without.
const SOON: Duration = Duration::from_secs(20);

/// The process that `parent` has started for its device.
fn qemu_of(parent: u32) -> rustix::process::Pid {
    let threads = std::fs::read_dir(format!("/proc/{parent}/task"))
        .unwrap()
        .map(|thread| thread.unwrap().path());
    let children: String = threads
        .map(|thread| std::fs::read_to_string(thread.join("children")).unwrap_or_default())
        .collect();
    let is_qemu = |pid: &&str| {
        std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.starts_with("qemu"))
    };
    let pid = children
        .split_whitespace()
        .find(is_qemu)
        .unwrap_or_else(|| panic!("no QEMU among {children:?}"));
    rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap()
}

/// How it has ended, and what it has said; killed if it has not.
fn end_of(mut child: Child) -> (Option<i32>, String) {
    let deadline = Instant::now() + SOON;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

/// `driver` on `device`, which `vanishes` while `load` uses it. The driver ends with `code` and the
/// reason.
fn ends(
    driver: &str,
    device: &str,
    load: &[&str],
    vanishes: impl FnOnce(&Child),
    code: i32,
    reason: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut hosted = program();
    hosted.args(["dde", "run", driver, "--device", device, "--socket"]).arg(&socket);
    let mut hosted = hosted.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(hosted.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(r#""served":true"#)), "{}", end_of(hosted).1);
    let remote = format!("remote:{}", socket.display());
    let user = (!load.is_empty()).then(|| {
        let mut user = program();
        user.args(load).args(["--device", &remote]).stdout(Stdio::null()).stderr(Stdio::piped());
        let user = user.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        user
    });
    vanishes(&hosted);
    let (ended, said) = end_of(hosted);
    assert!(ended == Some(code) && said.contains(reason), "{driver} {load:?}: {ended:?}\n{said}");
    if let Some(user) = user {
        let (code, said) = end_of(user);
        assert!(code.is_some_and(|code| code != 0), "{driver} {load:?}: {code:?}\n{said}");
    }
}

/// `driver` on a device of a QEMU that is killed while `load` uses it.
fn vanishes(driver: &str, device: &str, load: &[&str]) {
    let kill = |hosted: &Child| {
        rustix::process::kill_process(qemu_of(hosted.id()), rustix::process::Signal::KILL).unwrap()
    };
    ends(driver, device, load, kill, 3, "the device is gone");
}

#[test]
fn a_disk_that_vanishes_ends_its_driver_and_fails_its_users() {
    if can_build() {
        let load = ["blk", "check", "--destroy", "--requests", "1000000"];
        vanishes("nvme", "qtest:nvme", &[]);
        vanishes("nvme", "qtest:nvme", &load);
    }
}

#[test]
fn a_card_whose_driver_waits_for_a_device_that_is_gone_ends_with_the_reason_all_the_same() {
    if can_build() {
        vanishes("virtio-net", "qtest:virtio-net-pci,iommu_platform=on", &[]);
    }
}

#[test]
fn a_disk_of_usb_that_is_pulled_out_ends_its_driver_and_fails_its_users() {
    if !can_build() {
        return;
    }
    for load in [&[][..], &["blk", "check", "--destroy", "--requests", "1000000"]] {
        let folder = tempfile::tempdir().unwrap();
        let monitor = folder.path().join("monitor");
        let pull = |_: &Child| {
            let mut qemu = UnixStream::connect(&monitor).unwrap();
            let words = r#"{"execute": "qmp_capabilities"}
                {"execute": "device_del", "arguments": {"id": "disk0"}}"#;
            qemu.write_all(words.as_bytes()).unwrap();
            let answers = BufReader::new(qemu).lines().map_while(Result::ok);
            assert_eq!(answers.filter(|answer| answer.contains("return")).take(2).count(), 2);
        };
        ends(
            "xhci",
            &format!("qtest:qemu-xhci,monitor={}", monitor.display()),
            load,
            pull,
            1,
            "the disk is gone",
        );
    }
}
