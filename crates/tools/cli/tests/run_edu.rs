//! `ring3 run edu`, as a user sees it.

use std::process::{Command, Output};

fn ring3(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ring3")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_self_test_prints_a_line_for_each_fact() {
    let output = ring3(&["run", "edu", "--device", "sim:edu", "--outside"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines: Vec<_> = text(&output.stdout).lines().collect();
    assert_eq!(lines.len(), 12);
    assert_eq!(lines[2], "factorial, polled          12! = 479001600");
    assert!(lines[10].contains("blocked at 0xffff000"));
}

#[test]
fn every_fact_is_a_json_object_if_asked() {
    let output = ring3(&["run", "edu", "--device", "sim:edu", "--json"]);
    let facts: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(facts.len(), 11);
    assert_eq!(facts[1]["step"], "liveness");
}

#[test]
fn the_same_program_drives_qemus_device() {
    let output = ring3(&["run", "edu", "--device", "qtest:edu"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).lines().count(), 11);
}

#[test]
fn a_device_of_another_driver_is_refused_with_the_commands_that_fit_it() {
    for (device, words) in [
        (
            "sim:nvme",
            "sim:nvme: it is an NVMe controller, whose driver is nvme: ring3 run nvme, ring3 nvme \
            id",
        ),
        (
            "sim:ahci",
            "sim:ahci: it is an AHCI controller, whose driver is ata: ring3 run ata, ring3 ata id",
        ),
    ] {
        let output = ring3(&["run", "edu", "--device", device]);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
}

#[test]
fn whoever_wants_a_disk_of_the_teaching_device_is_told_its_driver() {
    for command in ["blk info", "nvme id", "ata id"] {
        let output = ring3(
            &[&command.split(' ').collect::<Vec<_>>()[..], &["--device", "sim:edu"]].concat(),
        );
        assert!(!output.status.success());
        let message = text(&output.stderr);
        assert!(
            message.contains("it is QEMU's teaching device, whose driver is edu: ring3 run edu"),
            "{command}: {message}"
        );
    }
}

#[test]
fn a_device_that_no_driver_fits_is_named_by_its_ids_and_class() {
    let output = ring3(&["run", "edu", "--device", "qtest:rtl8139"]);
    assert!(!output.status.success());
    let message = text(&output.stderr);
    assert!(
        message.contains("qtest:rtl8139: no driver of ring3 fits it (10ec:8139, class 0x020000)"),
        "{message}"
    );
}

#[test]
#[ignore = "boots a guest"]
fn behind_vfio_the_iommu_blocks_and_reports_what_lies_outside() {
    let output = ring3(&["lab", "run", "edu-driver"]);
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}
