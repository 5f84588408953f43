//! Unmodified drivers of Linux in a process, on QEMU's cards. Where the kernel's source is not in the cache, and cannot be fetched, a test that builds one is skipped, and says so.

use std::process::{Command, Output};

use serde_json::Value;

fn ring3(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
    // The tests' libraries lie beside the tests.
    command.args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether there is what drivers are built of.
fn can_build() -> bool {
    let cache = ring3_lab::Cache::open().unwrap();
    let there = ring3_lab::Need::Hosting.is_met(&cache);
    if !there {
        eprintln!("skipped: what hosted drivers are built of is not in the cache; lab/setup.sh hosting fetches it");
    }
    there
}

#[test]
fn hosted_drivers_are_listed_with_what_they_were_tried_with() {
    let output = ring3(&["dde", "list", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let listed: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let e1000e = listed.iter().find(|listed| listed["driver"] == "e1000e").unwrap();
    assert_eq!(e1000e["devices"][0], "qtest:e1000e");
}

#[test]
fn a_driver_that_is_none_is_refused_with_those_that_there_are() {
    let output = ring3(&["dde", "build", "nosuch"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("e1000e"), "{}", text(&output.stderr));
    let output = ring3(&["net", "check", "--driver", "e1000e", "--device", "qtest:e1000e"]);
    assert!(text(&output.stderr).contains("dde:e1000e is one"), "{}", text(&output.stderr));
}

#[test]
fn a_card_without_a_peer_is_asked_for_one_unless_it_is_of_qemu() {
    let output = ring3(&["net", "check", "--device", "sim:e1000"]);
    assert!(text(&output.stderr).contains("--peer names it"), "{}", text(&output.stderr));
}

#[test]
fn linuxs_e1000e_drives_qemus_card_as_every_card_must_be_driven() {
    if !can_build() {
        return;
    }
    let built = ring3(&["dde", "build", "e1000e", "--json"]);
    assert!(built.status.success(), "{}", text(&built.stderr));
    let again: Value = serde_json::from_slice(&ring3(&["dde", "build", "e1000e", "--json"]).stdout).unwrap();
    assert_eq!(again["cached"], true, "{again}");
    // By MSI-X, MSI and the pin.
    for device in ["qtest:e1000e", "qtest:e1000e,msix=off", "qtest:e1000e,msix=off,msi=off"] {
        let output = ring3(&["net", "check", "--driver", "dde:e1000e", "--device", device, "--packets", "2000", "--json"]);
        let (said, wrong) = (text(&output.stdout), text(&output.stderr));
        let result: Value = serde_json::from_str(said.lines().last().unwrap_or_else(|| panic!("{wrong}"))).unwrap();
        assert_eq!(result["failed"], 0, "{device}\n{said}\n{wrong}");
    }
}
