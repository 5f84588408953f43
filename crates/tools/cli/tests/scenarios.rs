//! The scenarios that come with ring3 pass, on the kernels and in the ways in which they can run.

use std::process::Command;

fn ring3(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_ring3")).args(arguments).output().unwrap()
}

/// What the run said if it has failed.
fn failure(arguments: &[&str]) -> Option<String> {
    let output = ring3(&[&["lab", "run"], arguments].concat());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (!output.status.success())
        .then(|| format!("{arguments:?}\n{}{}", text(&output.stdout), text(&output.stderr)))
}

fn passes(arguments: &[&str]) {
    if let Some(said) = failure(arguments) {
        panic!("{said}");
    }
}

#[test]
#[ignore = "boots guests"]
fn every_scenario_passes_on_its_own_kernel() {
    let list: serde_json::Value =
        serde_json::from_slice(&ring3(&["lab", "list", "--json"]).stdout).unwrap();
    // All of them: a failed one says nothing of those after it. That of the other machine has a
    // program of its own, which `tests/arm64` builds.
    let failed: Vec<String> = (list.as_array().unwrap().iter())
        .map(|scenario| scenario["name"].as_str().unwrap())
        .filter(|name| *name != "arm64")
        .filter_map(|name| failure(&[name]))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
#[ignore = "boots guests"]
fn older_and_newer_kernels_boot_with_their_disks() {
    passes(&["nvme", "--kernel", "6.1"]);
    passes(&["two-disks", "--kernel", "7.2"]);
    passes(&["ahci", "--kernel", "7.2"]);
}

#[test]
#[ignore = "boots guests"]
fn a_virtio_iommu_serves_the_newer_machine_too() {
    passes(&["edu", "--set", "iommu=virtio"]);
}

#[test]
#[ignore = "boots guests"]
fn scenarios_whose_devices_can_be_plugged_pass_from_a_snapshot() {
    passes(&["edu", "--set", "boot=snapshot"]);
    passes(&["two-disks", "--set", "boot=snapshot"]);
}

#[test]
fn a_scenario_that_is_not_there_is_an_error_that_lists_those_that_are() {
    let output = ring3(&["lab", "run", "nonsense"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("two-disks"));
}
