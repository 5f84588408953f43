//! Programs in C that use ring3's drivers, and know `ring3.h` alone. The same behind VFIO, in a
//! guest: `crates/tools/cli/tests/programs_guest.rs`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

mod c;

/// The example `name`, built once.
fn example(name: &str) -> PathBuf {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        for name in ["verify", "poll"] {
            c::build(&format!("examples/{name}.c"), folder.path());
        }
        folder
    });
    folder.path().join(name)
}

fn verify(device: &str) -> Output {
    Command::new(example("verify")).args([device, "overwrite"]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn verifies(device: &str) {
    let output = verify(device);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.ends_with("1024 blocks written, read and verified\n"), "{said}");
}

#[test]
fn a_program_in_c_writes_and_verifies_blocks_of_each_model_of_a_disk() {
    for model in ["sim:nvme", "sim:ahci", "sim:ide", "sim:virtio-blk"] {
        verifies(model);
    }
}

#[test]
fn it_does_so_on_qemus_nvme_controller() {
    verifies("qtest:nvme");
}

#[test]
fn a_device_without_a_disk_is_refused_with_its_name() {
    let output = verify("sim:e1000");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("sim:e1000: "), "{}", text(&output.stderr));
}

/// Reads by the loop of the program until it has read something, and ends it.
fn polls(device: &str) {
    let mut program = Command::new(example("poll"))
        .arg(device)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut asked = program.stdin.take().unwrap();
    let mut said = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut read = 0u64;
    while read < 100 {
        asked.write_all(b"?\n").unwrap();
        let line = said.next().expect("the program answers each line").unwrap();
        read = line.strip_suffix(" blocks read").unwrap().parse().unwrap();
    }
    drop(asked);
    assert!(program.wait().unwrap().success());
}

#[test]
fn a_programs_own_loop_waits_for_a_disk_and_for_something_else() {
    polls("sim:nvme");
}

#[test]
fn a_programs_own_loop_waits_for_qemus_controller() {
    polls("qtest:nvme");
}

#[test]
fn the_examples_are_short() {
    for (name, most) in [("verify", 110), ("poll", 110)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.c"));
        let lines = std::fs::read_to_string(path).unwrap().lines().count();
        assert!(lines <= most, "{name}.c has {lines} lines");
    }
}
