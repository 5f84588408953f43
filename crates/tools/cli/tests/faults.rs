//! `ring3 faults`: nothing that was promised is broken, and figures are what they say.

#[path = "../../bench/tests/conforms/mod.rs"]
mod conforms;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn faults(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ring3"))
        .arg("faults")
        .args(words)
        .env("RING3_LOG", "error")
        .output()
        .unwrap()
}

fn report(output: &Output) -> Value {
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(conforms::check(&report), Ok(()));
    report
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name}: {value}"))
}

/// Faults of a quick campaign.
const COUNT: u64 = 300;

/// A quick campaign: its report, and the seconds of processors that it took, because others may
/// have the processors, too.
static QUICK: LazyLock<(Value, f64)> = LazyLock::new(|| {
    let script = "\"$0\" faults --quick --json && times";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_ring3")])
        .env("RING3_LOG", "error")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let (report, times) = said.split_once('\n').unwrap();
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(conforms::check(&report), Ok(()));
    let children = times.lines().last().unwrap().split_whitespace().map(|time| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').unwrap();
        minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
    });
    let seconds = children.sum();
    (report, seconds)
});

#[test]
fn a_quick_campaign_breaks_no_promise_and_counts_every_fault_once() {
    let (report, _) = &*QUICK;
    let counts = ["injected", "recovered"].map(|name| number(report, name));
    assert_eq!(counts, [COUNT; 2], "{report}");
    assert_eq!(
        ["mismatches", "damage", "hangs", "supervisor_deaths"].map(|name| number(report, name)),
        [0; 4],
        "{report}"
    );
    let kinds = report["by_kind"].as_object().unwrap();
    assert_eq!(kinds.values().map(|kind| number(kind, "injected")).sum::<u64>(), COUNT);
    let detected = |kind: &Value| {
        kind["detected"]
            .as_object()
            .unwrap()
            .values()
            .map(|count| count.as_u64().unwrap())
            .sum::<u64>()
    };
    assert!(kinds.values().all(|kind| detected(kind) == number(kind, "injected")), "{report}");
    assert!(
        number(&kinds["kill"]["detected"], "signal") > 0
            && number(&kinds["stop"]["detected"], "heartbeat") > 0,
        "{report}"
    );
    let outages = ["outage_ms_p50", "outage_ms_p99", "outage_ms_max"]
        .map(|name| report[name].as_f64().unwrap());
    assert!(outages[0] > 0.0 && outages.is_sorted(), "{report}");
}

#[test]
fn whoever_lies_to_ring3d_is_replaced_and_no_user_loses_the_disk() {
    let output = faults(&[
        "--ring3d", "100", "--only", "protocol", "--count", "24", "--seed", "5", "--json",
    ]);
    let report = report(&output);
    let figures = ["under_ring3d", "injected", "recovered", "hangs", "supervisor_deaths"]
        .map(|name| number(&report, name));
    assert_eq!((output.status.code(), figures), (Some(0), [24, 24, 24, 0, 0]), "{report}");
    assert!(number(&report["detected"], "protocol") > 0, "{report}");
}

#[test]
fn a_quick_campaign_takes_two_processors_less_than_forty_seconds() {
    let seconds = QUICK.1;
    assert!(seconds > 0.0 && seconds < 2.0 * 40.0, "{seconds} s of processors");
}

#[test]
fn a_fault_of_a_device_is_recorded_and_its_driver_does_the_same_without_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("fault.rec");
    let file = file.to_str().unwrap();
    let recorded = faults(&["--reproduce", "7:20", "--only", "registers", "--record", file]);
    let replayed = Command::new(env!("CARGO_BIN_EXE_ring3"))
        .args(["replay", file])
        .env("RING3_LOG", "error")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&recorded.stderr).into_owned();
    assert!(said.starts_with("ring3: ") && recorded.status.code() == Some(1), "{said}");
    let again = String::from_utf8_lossy(&replayed.stderr).into_owned();
    assert!(again.starts_with("ring3: replaying: faults lone "), "{again}");
    assert_eq!(
        (replayed.status.code(), again.split_once('\n').unwrap().1),
        (Some(1), said.as_str())
    );
}

/// What a part of a small campaign leaves in `folder`.
fn part(folder: &Path, shard: &str) -> Output {
    faults(&[
        "--count",
        "24",
        "--seed",
        "9",
        "--only",
        "kill",
        "--shard",
        shard,
        "--out",
        folder.to_str().unwrap(),
        "--json",
    ])
}

#[test]
fn parts_of_a_campaign_are_merged_into_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let parts =
        ["1/2", "2/2"].map(|shard| number(&report(&part(folder.path(), shard)), "injected"));
    assert_eq!(parts, [12, 12]);
    let files = [1, 2].map(|number| {
        folder.path().join(format!("faults-{number}-of-2.json")).display().to_string()
    });
    let table =
        String::from_utf8(faults(&["merge", "--markdown", &files[0], &files[1]]).stdout).unwrap();
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let lines: Vec<_> = table.lines().map(cells).collect();
    assert_eq!(
        (&lines[0][1][..], &lines[2][1..5]),
        ("kind", &["`kill`", "24", "24", "0"].map(String::from)[..])
    );
    let merged = faults(&["merge", "--json", &files[0], &files[1]]);
    assert_eq!((merged.status.code(), number(&report(&merged), "injected")), (Some(0), 24));
    for (wrong, says) in [
        (vec![&files[0]], "these are missing: [2]"),
        (vec![&files[0], &files[0]], "shard 1 is there twice"),
    ] {
        let words: Vec<&str> =
            ["merge"].into_iter().chain(wrong.iter().map(|file| file.as_str())).collect();
        let output = faults(&words);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains(says), "{says}");
    }
}

#[test]
fn an_interrupted_campaign_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.json");
    let words = [
        "faults",
        "--count",
        "60",
        "--seed",
        "4",
        "--only",
        "kill",
        "--json",
        "--resume",
        state.to_str().unwrap(),
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
    let child = command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The file is there once two seconds of faults are kept.
    while !state.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // It may have come to its end on a fast machine; then there is nothing to interrupt.
    let _ = kill_process(Pid::from_child(&child), Signal::INT);
    let first = child.wait_with_output().unwrap();
    let kept: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    let before = kept["kinds"]["kill"]["injected"].as_u64().unwrap();
    assert!(before == 60 || first.status.code() == Some(1) && before > 0, "{kept}");
    let output = faults(&words[1..]);
    assert_eq!((output.status.code(), number(&report(&output), "injected")), (Some(0), 60));
    let other = faults(&["--count", "61", "--resume", state.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&other.stderr).contains("of another campaign"));
    let hosted = faults(&[
        "--guest",
        "--hosted",
        "--count",
        "12",
        "--seed",
        "1",
        "--resume",
        state.to_str().unwrap(),
    ]);
    assert!(String::from_utf8_lossy(&hosted.stderr).contains("of another campaign"));
}

#[test]
fn a_fault_is_the_same_each_time_that_it_is_reproduced() {
    let once =
        || String::from_utf8(faults(&["--reproduce", "7:3", "--only", "stop"]).stdout).unwrap();
    let first = once();
    assert!(
        first.starts_with("7:3 stop of ")
            && first.contains("seen by: heartbeat")
            && first.contains("recovered: 1"),
        "{first}"
    );
    assert_eq!(once(), first);
}

/// Counts of a hunt by kind and end.
fn hunted(words: &[&str]) -> Vec<(String, String, u64)> {
    let output = faults(&[&["hunt"], words].concat());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[0].to_owned(), words[1].to_owned(), words[2].parse().unwrap())
    };
    said.lines().skip(1).map(line).collect()
}

#[test]
fn no_driver_panics_in_a_hunt_and_every_device_that_lies_is_counted_once() {
    let seen = hunted(&["--count", "40", "--seed", "12", "--jobs", "40"]);
    assert_eq!(seen.iter().map(|(_, _, count)| count).sum::<u64>(), 40, "{seen:?}");
    for kind in ["registers", "dma", "device"] {
        assert!(seen.iter().any(|(of, _, _)| of == kind), "{kind}: {seen:?}");
    }
    // The lies reach drivers, and some of these notice.
    assert!(seen.iter().any(|(_, end, _)| end == "error" || end == "exit"), "{seen:?}");
    assert!(seen.iter().all(|(_, end, _)| end != "panic"), "{seen:?}");
}

/// Number 1292 made the NVMe driver panic once.
#[test]
fn no_driver_panics_at_damaged_state_of_the_one_before() {
    let seen = hunted(&["--only", "saved", "--count", "2000", "--seed", "3"]);
    assert_eq!(seen.iter().map(|(_, _, count)| count).sum::<u64>(), 2000, "{seen:?}");
    let ends = |end: &str| {
        seen.iter().any(|(kind, seen, count)| kind == "saved" && seen == end && *count > 0)
    };
    // Some of it is refused, and with some of it a driver goes on.
    assert!(ends("exit") && ends("nothing") && !ends("panic"), "{seen:?}");
}

#[test]
fn a_hunt_with_what_is_no_bait_is_refused() {
    let output = faults(&["hunt", "--only", "kill"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("registers, dma, device, saved or killed")
    );
}

/// The supervisor, its sandbox, ublk and VFIO as users have them, and fio's opinion.
#[test]
#[ignore = "boots a guest: make test"]
fn a_campaign_in_a_guest_breaks_no_promise_and_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.json");
    let campaign = || {
        faults(&[
            "--guest",
            "--count",
            "12",
            "--seed",
            "1",
            "--json",
            "--resume",
            state.to_str().unwrap(),
        ])
    };
    let output = campaign();
    let whole = report(&output);
    assert!(output.status.success(), "{whole}");
    let figures = ["injected", "recovered", "under_ring3d"].map(|name| number(&whole, name));
    assert_eq!(figures, [12; 3], "{whole}");
    assert_eq!(
        ["mismatches", "damage", "hangs", "supervisor_deaths"].map(|name| number(&whole, name)),
        [0; 4],
        "{whole}"
    );
    assert!(number(&whole["by_kind"]["kill"]["detected"], "signal") > 0, "{whole}");
    assert!(whole["outage_ms_p50"].as_f64().unwrap() > 0.0, "{whole}");
    // All of it is there, so that no guest boots. The report is another one, made later.
    let again = Value::Object({
        let mut fields = report(&campaign()).as_object().unwrap().clone();
        fields.insert("provenance".into(), whole["provenance"].clone());
        fields
    });
    assert_eq!(again, whole);
    let other = faults(&[
        "--guest",
        "--kernel",
        "7.2",
        "--count",
        "12",
        "--resume",
        state.to_str().unwrap(),
    ]);
    assert!(String::from_utf8_lossy(&other.stderr).contains("of another campaign"));
}

#[test]
#[ignore = "boots a guest: make test"]
fn drivers_of_linux_in_processes_break_no_promise_either() {
    let output = faults(&["--guest", "--hosted", "--count", "8", "--seed", "1", "--json"]);
    let whole = report(&output);
    assert!(output.status.success(), "{whole}");
    assert_eq!(
        ["injected", "recovered", "under_ring3d"].map(|name| number(&whole, name)),
        [8; 3],
        "{whole}"
    );
    assert_eq!(
        ["mismatches", "damage", "hangs", "supervisor_deaths"].map(|name| number(&whole, name)),
        [0; 4],
        "{whole}"
    );
    assert_eq!(whole["hosted"], true);
}

#[test]
fn a_campaign_in_a_guest_has_no_faults_of_devices_and_no_parts() {
    let output = faults(&["--guest", "--only", "dma", "--count", "1"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("fault of a device's own"),
        "{output:?}"
    );
    assert_eq!(faults(&["--guest", "--shard", "1/2"]).status.code(), Some(2));
    assert_eq!(faults(&["--kernel", "7.2", "--count", "1"]).status.code(), Some(2));
    assert_eq!(faults(&["--hosted", "--count", "1"]).status.code(), Some(2));
}

#[test]
fn a_part_that_is_none_and_a_kind_that_is_none_are_refused() {
    for (words, says) in [
        (["--shard", "3/2"], "I/N"),
        (["--only", "magic"], "no-descriptors"),
        (["--reproduce", "7"], "SEED:INDEX"),
    ] {
        let output = faults(&words);
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains(says), "{says}");
    }
}
