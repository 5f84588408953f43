//! `ring3 bench kill`: nothing that was acknowledged is lost, and what is lost is found.

#[path = "../../bench/tests/conforms/mod.rs"]
mod conforms;

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

fn kill(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ring3"))
        .args(["bench", "kill", "--json"])
        .args(words)
        .output()
        .unwrap()
}

fn outcome(output: &Output) -> serde_json::Value {
    let outcome = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(conforms::check(&outcome), Ok(()));
    outcome
}

fn keeps_what_was_acknowledged(model: &str) {
    let output = kill(&["--model", model, "--times", "32"]);
    let outcome = outcome(&output);
    assert!(output.status.success(), "{outcome}");
    assert_eq!(
        (&outcome["kills"], &outcome["kills_at_start"], &outcome["mismatches"]),
        (&32.into(), &4.into(), &0.into())
    );
    // Each life that was not killed at its start has read every block.
    assert!(
        outcome["reads"].as_u64().unwrap() >= 28 * 512 && outcome["writes"].as_u64().unwrap() > 100,
        "{outcome}"
    );
    are_sorted(&outcome, &["recovery_ms_p50", "recovery_ms_p99", "recovery_ms_max"]);
    are_sorted(&outcome, &["fence_ms_p50", "fence_ms_max"]);
    assert_eq!(outcome["function_resets"], 0);
}

fn are_sorted(outcome: &serde_json::Value, times: &[&str]) {
    let times: Vec<_> = times.iter().map(|name| outcome[name].as_f64().unwrap()).collect();
    assert!(times[0] > 0.0 && times.is_sorted(), "{outcome}");
}

#[test]
fn an_nvme_driver_that_is_killed_loses_nothing_that_it_acknowledged() {
    keeps_what_was_acknowledged("nvme");
}

#[test]
fn an_ahci_driver_that_is_killed_loses_nothing_that_it_acknowledged() {
    keeps_what_was_acknowledged("ahci,ports=1,size=16M,delay=50us");
}

fn goes_from_driver_to_driver(model: &str) {
    let output = kill(&["--model", model, "--hand-over", "--times", "20"]);
    let outcome = outcome(&output);
    assert!(output.status.success(), "{outcome}");
    assert_eq!(
        (&outcome["hand_overs"], &outcome["mismatches"], &outcome["resets"]),
        (&20.into(), &0.into(), &0.into())
    );
    assert!(
        outcome["in_flight"].as_u64().unwrap() >= 20 && outcome["writes"].as_u64().unwrap() > 100,
        "{outcome}"
    );
    are_sorted(&outcome, &["stall_ms_p50", "stall_ms_p99", "stall_ms_max"]);
}

#[test]
fn an_nvme_disk_that_drivers_leave_to_the_next_under_load_loses_nothing_and_its_controller_is_never_reset()
 {
    goes_from_driver_to_driver("nvme");
}

#[test]
fn an_ahci_disk_that_drivers_leave_to_the_next_under_load_loses_nothing_and_its_controller_is_never_reset()
 {
    goes_from_driver_to_driver("ahci");
}

#[test]
fn a_device_is_overwritten_only_if_that_is_said() {
    let device = "sim:nvme,delay=50us,size=16M";
    let refused = kill(&["--device", device, "--times", "2"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--overwrite"));
    let output = kill(&["--device", device, "--overwrite", "--times", "2"]);
    assert!(output.status.success());
    assert_eq!(
        (&outcome(&output)["model"], &outcome(&output)["mismatches"]),
        (&device.into(), &0.into())
    );
}

#[test]
fn a_block_that_is_wrong_fails_the_command() {
    // A few, as one may be on its way to a driver that is killed.
    let output = kill(&["--model", "nvme,size=16M,fault=corrupt:read:700:24", "--times", "4"]);
    let mismatches = outcome(&output)["mismatches"].as_u64().unwrap();
    assert!(output.status.code() == Some(1) && mismatches > 0, "{:?}, {mismatches}", output.status);
}

#[test]
fn a_driver_that_cannot_work_is_an_error_and_no_result() {
    let output = kill(&["--model", "edu,delay=1ms", "--times", "1"]);
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("has ended by itself"));
}

#[test]
fn a_campaign_that_is_interrupted_says_what_it_has_seen_and_is_no_success() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
    let child = command
        .args(["bench", "kill", "--json", "--times", "1000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &outcome(&output)["mismatches"]), (Some(1), &0.into()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("interrupted after") && said.contains("of 1000000"), "{said}");
}
