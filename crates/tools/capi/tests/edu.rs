//! A driver in C that knows `ring3.h` alone, built as its user builds it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

mod c;

fn example() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let program = c::build("examples/edu.c", folder.path());
        (folder, program)
    });
    program
}

fn run(device: &str) -> Output {
    Command::new(example()).arg(device).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_program_in_c_asks_for_the_version_of_the_library_that_it_was_linked_with() {
    let output = Command::new("readelf").arg("-d").arg(example()).output().unwrap();
    let name = concat!(
        "[libring3.so.",
        env!("CARGO_PKG_VERSION_MAJOR"),
        ".",
        env!("CARGO_PKG_VERSION_MINOR"),
        "]"
    );
    assert!(text(&output.stdout).contains(name), "{}", text(&output.stdout));
}

#[test]
fn a_driver_in_c_drives_qemus_device() {
    let output = run("qtest:edu");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 5, "{said}");
    assert!(lines[1].contains("479001600") && lines[4].contains("there and back"), "{said}");
}

#[test]
fn it_drives_the_model_as_well() {
    let output = run("sim:edu");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_device_that_is_another_is_refused_by_its_ids() {
    let output = run("sim:nvme");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("sim:nvme: it is "), "{}", text(&output.stderr));
}

#[test]
fn a_name_of_no_device_is_an_error_that_says_which_there_are() {
    let output = run("nonsense");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("vfio:0000:01:00.0"), "{}", text(&output.stderr));
}

#[test]
fn the_header_is_also_c_plus_plus() {
    if Command::new("c++").arg("--version").output().is_err() {
        eprintln!("skipped: no c++");
        return;
    }
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut command = Command::new("c++");
    command
        .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++", "-I"])
        .arg(&include);
    let output = command
        .arg(include.join("ring3.h"))
        .args(["-Wno-pragma-once-outside-header"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}
