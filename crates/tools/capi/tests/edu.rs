//! Drivers in C that know `ring3.h` alone, built as their user builds them: an example, and the one
//! that a reader of docs/tutorial-c.md writes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tutorial::Act;

mod c;
mod tutorial;

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

/// The page's words for the compiler. [`c::build`] has these warnings and more, and the library of
/// this test.
const BUILD: &str = "-Wall -Wextra -Werror -o edu edu.c $(pkg-config --cflags --libs ring3)";

#[test]
fn each_step_of_the_tutorial_builds_without_a_warning_and_prints_what_the_page_says() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("edu.c");
    let (mut program, mut built, mut ran, mut runs) = (String::new(), String::new(), None, 0);
    let steps = tutorial::steps();
    assert_eq!(steps.len(), 6);
    for (title, acts) in steps {
        for act in acts {
            match act {
                Act::Edit(edit) => program = edit.apply(&program),
                Act::Build(words) => {
                    assert_eq!(words, BUILD);
                    std::fs::write(&source, &program).unwrap();
                    c::build(source.to_str().unwrap(), folder.path());
                    built.clone_from(&program);
                }
                Act::Run(device) => {
                    assert!(built == program && ran.is_none(), "{title}: {device}");
                    let mut command = Command::new(folder.path().join("edu"));
                    // The page shows warnings, as they are printed unless this says otherwise.
                    let output = command.arg(&device).env_remove("RING3_LOG").output().unwrap();
                    ran = Some((device, output));
                }
                Act::Prints { code, text: wanted } => {
                    let (device, output) = ran.take().expect("a command stands before its output");
                    let said = text(&output.stdout) + &text(&output.stderr);
                    assert_eq!(said, wanted, "{title}: {device}");
                    assert_eq!(output.status.code(), Some(code), "{title}: {device}");
                    runs += 1;
                }
            }
        }
    }
    assert!(ran.is_none());
    assert_eq!(runs, 13);
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
