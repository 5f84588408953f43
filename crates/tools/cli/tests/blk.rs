//! `ring3 blk` on QEMU's disk: what goes in comes out, and what makes no sense is refused before
//! anything is written.

use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Runs `ring3 blk` with `args` and `input` as standard input.
fn blk(args: &[&str], input: &Path) -> Output {
    let input = std::fs::File::open(input).unwrap();
    Command::new(env!("CARGO_BIN_EXE_ring3"))
        .arg("blk")
        .args(args)
        .stdin(input)
        .stdout(Stdio::piped())
        .output()
        .unwrap()
}

fn good(args: &[&str], input: &Path) -> Vec<u8> {
    let output = blk(args, input);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The words of a failure.
fn bad(args: &[&str], input: &Path) -> String {
    let output = blk(args, input);
    assert!(!output.status.success(), "{args:?} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

struct Files {
    folder: tempfile::TempDir,
    device: String,
}

impl Files {
    /// A disk of 4 MiB in a file.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        std::fs::File::create(&disk).unwrap().set_len(4 << 20).unwrap();
        let device = format!("qtest:nvme,file={}", disk.display());
        Self { folder, device }
    }

    fn with(&self, name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512 * 5 + i) as u8).collect()
}

#[test]
fn what_is_written_from_a_pipe_is_read_into_a_pipe() {
    let files = Files::new();
    let input = files.with("in", &pattern(1 << 20));
    good(&["write", "--device", &files.device, "--offset", "3b"], &input);
    let output =
        good(&["read", "--device", &files.device, "--offset", "1536", "--length", "1M"], &input);
    assert!(output == pattern(1 << 20));
}

#[test]
fn a_sparse_copy_has_the_size_of_the_disk_and_its_bytes() {
    let files = Files::new();
    let (input, to) = (files.with("in", &pattern(512)), files.folder.path().join("out"));
    good(&["write", "--device", &files.device, "--offset", "1M"], &input);
    good(&["read", "--device", &files.device, "--sparse", "--to", to.to_str().unwrap()], &input);
    let bytes = std::fs::read(&to).unwrap();
    assert!(bytes.len() == 4 << 20 && bytes[1 << 20..][..512] == pattern(512));
    assert!(
        std::os::unix::fs::MetadataExt::blocks(&to.metadata().unwrap()) * 512 < 1 << 20,
        "the file has no holes"
    );
}

#[test]
fn a_file_larger_than_the_disk_changes_nothing() {
    let files = Files::new();
    let input = files.with("in", &vec![1; (4 << 20) + 512]);
    let words =
        bad(&["write", "--device", &files.device, "--from", input.to_str().unwrap()], &input);
    assert!(words.contains("only 4194304 fit"), "{words}");
    assert!(good(&["read", "--device", &files.device], &input).iter().all(|&byte| byte == 0));
}

#[test]
fn half_a_block_is_refused_or_filled_up() {
    let files = Files::new();
    let input = files.with("in", &[7; 700]);
    assert!(bad(&["write", "--device", &files.device], &input).contains("--pad"));
    good(&["write", "--device", &files.device, "--pad"], &input);
    let output = good(&["read", "--device", &files.device, "--length", "2b"], &input);
    assert!(output[..700] == [7; 700] && output[700..] == [0; 324]);
}

#[test]
fn the_suite_runs_only_if_destruction_is_meant() {
    let files = Files::new();
    let input = files.with("in", &[]);
    assert!(bad(&["check", "--device", &files.device], &input).contains("--destroy"));
    let output = good(
        &["check", "--device", &files.device, "--destroy", "--requests", "50", "--json"],
        &input,
    );
    let last = String::from_utf8(output).unwrap().lines().last().map(str::to_owned).unwrap();
    let result: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert_eq!(result["failed"], 0);
}

#[test]
fn a_device_without_a_disk_is_an_error_that_says_what_to_ask() {
    let said = bad(&["info", "--json", "--device", "sim:e1000"], Path::new("/dev/null"));
    assert!(said.contains("no disk") && said.contains("ring3 net info"), "{said}");
}

/// A read of a simulated disk whose data nobody takes yet, after its first bytes have come.
fn read_underway() -> (Child, ChildStdout) {
    let mut read = Command::new(env!("CARGO_BIN_EXE_ring3"))
        .args(["blk", "read", "--device", "sim:nvme,size=64M"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut data = read.stdout.take().unwrap();
    data.read_exact(&mut [0; 4096]).unwrap();
    kill_process(Pid::from_child(&read), Signal::INT).unwrap();
    (read, data)
}

#[test]
fn a_copy_that_is_interrupted_says_how_far_it_was() {
    let (read, mut data) = read_underway();
    std::io::copy(&mut data, &mut std::io::sink()).unwrap();
    let ended = read.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success());
    assert!(said.contains("interrupted: ") && said.contains("of 67108864 bytes"), "{said}");
}

#[test]
fn a_copy_that_is_interrupted_does_not_wait_for_the_end_of_a_pipe() {
    let (read, data) = read_underway();
    let ended = read.wait_with_output().unwrap();
    drop(data);
    assert_eq!(ended.status.code(), Some(130));
}
