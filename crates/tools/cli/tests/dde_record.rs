//! Hosted drivers that are recorded, and do the same again without their device and without those
//! who used what they drive.

mod hosted;

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use hosted::{can_build, program};

fn says(output: &Output) -> String {
    format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn record(file: &Path, command: &str) -> Output {
    program().args(["record", "-o"]).arg(file).arg("--").args(command.split(' ')).output().unwrap()
}

fn replay(file: &Path, command: &[&str]) -> Output {
    program().arg("replay").arg(file).args(command).output().unwrap()
}

/// `command` is recorded with success, and replayed to its end.
fn is_repeated(command: &str) {
    if !can_build() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording");
    let output = record(&file, command);
    assert!(output.status.success(), "{}", says(&output));
    let output = replay(&file, &[]);
    assert!(
        output.status.success() && says(&output).contains(r#""served":true"#),
        "{}",
        says(&output)
    );
}

#[test]
fn all_that_a_suite_has_done_with_a_card_is_done_again_without_card_and_suite() {
    is_repeated("net check --driver dde:e1000e --device qtest:e1000e --packets 10");
}

#[test]
fn so_is_what_it_has_done_with_a_disk_whose_driver_leaves_pointers_in_shared_memory() {
    is_repeated("blk check --destroy --driver dde:nvme --device qtest:nvme --requests 10");
}

#[test]
fn and_with_virtqueues_whose_device_says_in_memory_what_it_wants_to_be_told_of() {
    is_repeated(
        "net check --driver dde:virtio-net --device qtest:virtio-net-pci,iommu_platform=on \
        --packets 10",
    );
}

#[test]
fn a_driver_that_does_something_else_leaves_its_recording_with_the_access() {
    if !can_build() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording");
    let output = record(&file, "net info --driver dde:e1000e --device qtest:e1000e");
    assert!(output.status.success(), "{}", says(&output));
    let socket = folder.path().join("socket");
    let other = [
        "--",
        "dde",
        "run",
        "e1000e",
        "--no-msix",
        "--device",
        "qtest:e1000e",
        "--socket",
        socket.to_str().unwrap(),
    ];
    let output = replay(&file, &other);
    assert_eq!(output.status.code(), Some(1), "{}", says(&output));
    assert!(
        says(&output).contains("the driver leaves its recording at access"),
        "{}",
        says(&output)
    );
    // Nobody else can use a card of a recording.
    let device = format!("replay:{}", file.display());
    let output = program()
        .args(["net", "info", "--driver", "dde:e1000e", "--device", &device])
        .output()
        .unwrap();
    assert!(
        !output.status.success() && says(&output).contains("ring3 replay"),
        "{}",
        says(&output)
    );
}

#[test]
fn a_driver_that_was_killed_is_repeated_until_then() {
    if !can_build() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, socket) = (folder.path().join("recording"), folder.path().join("socket"));
    let device = format!("qtest:e1000e,record={}", file.display());
    let mut driver = program();
    driver.args(["dde", "run", "e1000e", "--device", &device, "--socket"]).arg(&socket);
    let mut driver = driver.stdout(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(300);
    while !socket.exists() {
        assert!(Instant::now() < deadline, "it does not serve");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(200));
    driver.kill().unwrap();
    driver.wait().unwrap();
    let output = replay(&file, &[]);
    assert!(output.status.success(), "{}", says(&output));
    assert!(
        says(&output).contains("the recording ends here: whoever made it was killed"),
        "{}",
        says(&output)
    );
}

#[test]
fn a_device_that_is_recorded_is_not_polled() {
    if !can_build() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording");
    let device = format!("qtest:e1000e,record={}", file.display());
    let output = program()
        .args(["dde", "run", "e1000e", "--reflect", "--poll", "50", "--device", &device])
        .output()
        .unwrap();
    assert!(!file.exists(), "a recording of nothing is left");
    assert_eq!(output.status.code(), Some(1), "{}", says(&output));
    assert!(says(&output).contains("leave --poll out"), "{}", says(&output));
}
