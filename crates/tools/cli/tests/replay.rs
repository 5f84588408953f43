//! `ring3 record` and `ring3 replay`: a command with a device, and the same without.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn ring3(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ring3")).args(words).output().unwrap()
}

fn says(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The words of `command`, recorded into `file`.
fn record(file: &Path, command: &[&str]) -> Output {
    ring3(&[&["record", "-o", file.to_str().unwrap(), "--"], command].concat())
}

fn replay(file: &Path) -> Output {
    ring3(&["replay", file.to_str().unwrap()])
}

const MODELS: [&str; 3] = ["sim:nvme,size=1M", "sim:ahci,ports=1,size=1M", "sim:ide,size=1M"];

#[test]
fn a_recorded_command_says_and_reads_the_same_without_its_device() {
    let folder = tempfile::tempdir().unwrap();
    for (number, device) in MODELS.iter().enumerate() {
        let (file, to) = (folder.path().join(number.to_string()), folder.path().join("data"));
        let command = [
            "blk",
            "read",
            "--length",
            "64K",
            "--to",
            to.to_str().unwrap(),
            "--json",
            "--device",
            device,
        ];
        let recorded = record(&file, &command);
        assert!(recorded.status.success(), "{device}: {}", says(&recorded));
        let first = fs::read(&to).unwrap();
        fs::remove_file(&to).unwrap();
        let replayed = ring3(&[&["replay", file.to_str().unwrap(), "--"], &command[..]].concat());
        assert!(replayed.status.success(), "{device}: {}", says(&replayed));
        assert!(fs::read(&to).unwrap() == first && first.len() == 64 << 10, "{device}");
        fs::remove_file(&to).unwrap();
    }
}

#[test]
fn a_recorded_command_that_writes_a_file_writes_nothing_until_the_user_repeats_it() {
    let folder = tempfile::tempdir().unwrap();
    let (file, to) = (folder.path().join("recording"), folder.path().join("data"));
    let command = [
        "blk",
        "read",
        "--length",
        "64K",
        "--to",
        to.to_str().unwrap(),
        "--device",
        "sim:nvme,size=1M",
    ];
    assert!(record(&file, &command).status.success());
    fs::write(&to, "mine").unwrap();
    let replayed = replay(&file);
    assert_eq!(replayed.status.code(), Some(1), "{}", says(&replayed));
    assert_eq!(fs::read(&to).unwrap(), b"mine");
    let repeat = format!("ring3 replay {} -- {}", file.display(), command.join(" "));
    assert!(says(&replayed).contains(&repeat), "{}", says(&replayed));
}

#[test]
fn a_recorded_command_that_only_uses_its_device_is_shown_when_it_runs_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("info");
    assert!(record(&file, &["nvme", "id", "--device", "sim:nvme"]).status.success());
    let replayed = replay(&file);
    assert!(replayed.status.success(), "{}", says(&replayed));
    assert!(
        says(&replayed).contains("replaying: nvme id --device sim:nvme"),
        "{}",
        says(&replayed)
    );
}

#[test]
fn a_driver_that_does_something_else_fails_with_the_register_that_differs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("info");
    assert!(record(&file, &["blk", "info", "--device", "sim:nvme"]).status.success());
    let other = ring3(&[
        "replay",
        file.to_str().unwrap(),
        "--",
        "blk",
        "info",
        "--irq",
        "poll",
        "--device",
        "sim:nvme",
    ]);
    assert_eq!(other.status.code(), Some(1));
    let said = says(&other);
    assert!(
        said.contains("leaves its recording at access")
            && said.contains("interrupts enabled (MsiX)"),
        "{said}"
    );
}

#[test]
fn what_was_recorded_is_shown_with_the_names_of_registers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("info");
    assert!(record(&file, &["nvme", "id", "--device", "sim:nvme"]).status.success());
    let shown = ring3(&["replay", "--show", file.to_str().unwrap()]);
    let text = String::from_utf8(shown.stdout).unwrap();
    for line in [
        "device sim:nvme, class 010802",
        "written to CC, BAR 0 + 0x14, 4 bytes",
        "a read of CSTS",
        "written to SQ0 tail doorbell",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn what_cannot_be_recorded_or_replayed_is_an_error_that_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("there"), b"").unwrap();
    fs::write(path("other"), b"{\"ring3-recording\":1}").unwrap();
    for (output, why) in [
        (record(&path("there"), &["blk", "info", "--device", "sim:nvme"]), "making the recording"),
        (record(&path("new"), &["devices"]), "names no device"),
        (replay(&path("there")), "the recording is empty"),
        (replay(&path("other")), "this is no recording"),
        (replay(&path("nowhere")), "opening the recording"),
        (
            ring3(&["blk", "info", "--device", &format!("replay:{}", path("other").display())]),
            "this is no recording",
        ),
    ] {
        assert_eq!(output.status.code(), Some(1), "{why}");
        assert!(says(&output).contains(why), "{why}: {}", says(&output));
        assert!(
            !says(&output).contains("the device broke its protocol"),
            "{why}: {}",
            says(&output)
        );
    }
}

/// Devices that lied, and states that no driver leaves, each with what a driver says to it.
#[test]
fn a_recorded_device_that_lied_gets_the_error_that_stands_beside_its_recording() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let mut count = 0;
    for file in fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "rec"))
    {
        let output = replay(&file);
        let expected = fs::read_to_string(file.with_extension("says")).unwrap();
        let name = file.display();
        assert!(
            output.status.code().is_some_and(|code| code < 2),
            "{name}: {:?}: {}",
            output.status,
            says(&output)
        );
        assert!(
            says(&output).contains(expected.trim()) && !says(&output).contains("a bug"),
            "{name}: {}",
            says(&output)
        );
        count += 1;
    }
    assert!(count > 0, "there are no recordings");
}
