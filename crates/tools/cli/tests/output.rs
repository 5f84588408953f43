//! Exit codes when standard output cannot be written: a full disk fails every command, and a reader
//! who has read enough fails none.

use std::fs::File;
use std::io::{PipeReader, pipe};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Commands that print and end well on any machine, in words.
const GOOD: [&str; 17] = [
    "--help",
    "--version",
    "run nvme --help",
    "devices",
    "devices --json",
    "blk info --device sim:nvme",
    "blk info --device sim:nvme --json",
    "blk check --destroy --device sim:nvme --requests 20 --json",
    "blk bench --device sim:nvme --count 10",
    "blk read --device sim:nvme --length 4096 --to /dev/null --json",
    "nvme id --device sim:nvme",
    "nvme smart --device sim:nvme --json",
    "ata id --device sim:ahci",
    "run edu --device sim:edu",
    "lab list",
    "hardware list",
    "hardware list --json",
];

/// Commands that print and then fail.
const BAD: [&str; 3] = [
    "blk check --destroy --device sim:nvme,fault=status/0x281:read:1:all --requests 20",
    "blk bench --device sim:ahci,fault=fault:read:1:all --count 10",
    "doctor 0000:ff:1f.7 --json",
];

fn ring3(words: &str, output: impl Into<Stdio>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
    command
        .args(words.split(' '))
        .stdout(output)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap()
}

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// A pipe whose reader is gone.
fn closed() -> Stdio {
    let (reader, writer): (PipeReader, _) = pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn nothing_succeeds_on_a_full_disk_and_the_reason_is_said() {
    for words in GOOD.iter().chain(&BAD) {
        let output = ring3(words, full());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words}: {said}");
        assert!(said.contains("standard output: No space left on device"), "{words}: {said}");
    }
}

#[test]
fn nothing_that_prints_succeeds_without_a_standard_output() {
    for words in
        ["blk info --device sim:nvme", "nvme id --device sim:nvme --json", "devices --json"]
    {
        let script = format!("exec \"$0\" {words} >&-");
        let output =
            Command::new("sh").args(["-c", &script, env!("CARGO_BIN_EXE_ring3")]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words}: {said}");
        assert!(said.contains("standard output: Bad file descriptor"), "{words}: {said}");
    }
}

#[test]
fn a_reader_who_has_read_enough_is_no_failure_and_no_word() {
    for words in GOOD {
        let output = ring3(words, closed());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && !said.contains("standard output"),
            "{words}: {:?} {said}",
            output.status
        );
    }
}

#[test]
fn a_reader_who_has_read_enough_makes_no_success_of_a_failure() {
    for words in BAD {
        assert_eq!(ring3(words, closed()).status.code(), Some(1), "{words}");
    }
}

#[test]
fn words_that_nobody_can_read_change_no_exit_code() {
    for (words, code) in
        [("blk info --device sim:nvme", 0), ("blk info --device sim:toaster", 1), ("blk info", 2)]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
        let status =
            command.args(words.split(' ')).stdout(Stdio::null()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{words}");
    }
}

/// Long enough on the busiest host.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_disk_does_not_wait_for_who_reads_its_log() {
    // Each read leaves a line in the log, of which the pipe takes some hundreds; its reader lives
    // and does not read.
    let (_reader, writer) = pipe().unwrap();
    let words = "blk bench --device sim:nvme,fault=stray-dma:read:1:all --count 3000";
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3"));
    let mut child =
        command.args(words.split(' ')).stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if start.elapsed() > PATIENCE => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("it stands still");
            }
            None => sleep(Duration::from_millis(20)),
        }
    };
    assert!(status.success(), "{status}");
}

#[test]
fn memory_that_the_machine_does_not_have_is_refused_before_it_is_mapped() {
    for words in ["blk info --device sim:nvme,arena=1000T", "nvme id --device sim:nvme,arena=1000T"]
    {
        let output = ring3(words, Stdio::null());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && said.contains("half may be taken"),
            "{words}: {said}"
        );
    }
}
