//! `ring3 new driver`: what it makes compiles and passes, without a network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn ring3(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ring3")).current_dir(folder).args(words).output().unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

#[track_caller]
fn passes(folder: &Path, words: &[&str]) -> String {
    // A folder that stays between runs, beside what cargo has built for this test.
    let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().join("new-driver");
    let output = Command::new(env!("CARGO"))
        .current_dir(folder)
        .args(words)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_NET_OFFLINE", "true")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {words:?} in {}\n{said}\n{errors}", folder.display());
    said
}

/// Makes the driver `adder`.
fn adder(folder: &Path) -> PathBuf {
    let source = root();
    let output = ring3(folder, &["new", "driver", "adder", "--source", source.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder.join("adder")
}

/// A change of the tutorial's: the file, what is replaced in it (nothing: at its end), and by what.
struct Change {
    file: String,
    before: Option<String>,
    after: String,
}

/// The indented block that begins in these lines.
fn block<'a>(lines: &mut impl Iterator<Item = &'a str>) -> String {
    let mut code = String::new();
    for line in lines.skip_while(|line| line.is_empty()) {
        match line.strip_prefix("    ") {
            Some(line) => code += line,
            None if line.is_empty() => {}
            None => break,
        }
        code.push('\n');
    }
    code.trim_end().to_owned() + "\n"
}

/// The steps of docs/tutorial.md, each with its changes.
fn steps() -> Vec<(String, Vec<Change>)> {
    let text = fs::read_to_string(root().join("docs/tutorial.md")).unwrap();
    let section = text.split("\n## Write one\n").nth(1).expect("the tutorial has the section");
    let section = section.split("\n## ").next().unwrap();
    let mut steps = Vec::new();
    for step in section.split("\n### ").skip(1) {
        let mut changes = Vec::new();
        let mut rest = step;
        while let Some(at) = rest.find("In `") {
            rest = &rest[at + 4..];
            let (file, after) = rest.split_once('`').unwrap();
            rest = after;
            let line = after.lines().next().unwrap_or_default();
            if line.starts_with(", replace") {
                let mut lines = after.lines().skip(1);
                let before = block(&mut lines);
                let by = after.split_once("\nby\n").expect("what it is replaced by").1;
                let after = block(&mut by.lines());
                changes.push(Change { file: file.into(), before: Some(before), after });
            } else if line.starts_with(", at the end:") {
                let after = block(&mut after.lines().skip(1));
                changes.push(Change { file: file.into(), before: None, after });
            }
        }
        steps.push((step.lines().next().unwrap().to_owned(), changes));
    }
    steps
}

#[test]
fn a_new_driver_compiles_passes_and_is_formatted_and_so_it_is_after_each_step_of_the_tutorial() {
    let folder = tempfile::tempdir().unwrap();
    let made = adder(folder.path());
    passes(&made, &["fmt", "--check"]);
    let said = passes(&made, &["test", "--offline", "--quiet"]);
    assert!(said.contains("5 passed"), "{said}");
    let said = passes(&made, &["run", "--offline", "--quiet"]);
    assert!(said.contains("4096 bytes of 2 are 8192"), "{said}");
    let steps = steps();
    assert!(steps.len() >= 4, "{} steps", steps.len());
    for (title, changes) in steps.iter().filter(|(_, changes)| !changes.is_empty()) {
        for Change { file, before, after } in changes {
            let path = made.join(file);
            let text = fs::read_to_string(&path).unwrap();
            let text = match before {
                Some(before) => {
                    assert!(text.contains(before), "{title}: {file} does not have\n{before}");
                    text.replacen(before, after, 1)
                }
                None => format!("{text}\n{after}"),
            };
            fs::write(&path, text).unwrap();
        }
        passes(&made, &["fmt", "--check"]);
        passes(&made, &["test", "--offline", "--quiet"]);
    }
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let source = root();
    let source = source.to_str().unwrap();
    let refused = |words: &[&str], wanted: &str| {
        let output = ring3(folder.path(), words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(wanted), "{said}");
    };
    refused(&["new", "driver", "My_Card", "--source", source], "lower-case letters");
    refused(&["new", "driver", "card", "--source", "/tmp"], "no source of ring3");
    refused(
        &["new", "driver", "card", "--source", source, "--at", "no/such/folder"],
        "choose a folder of yours with --at",
    );
    fs::create_dir(folder.path().join("card")).unwrap();
    refused(&["new", "driver", "card", "--source", source], "choose another name");
    // What nobody may write, not even root.
    refused(&["new", "driver", "card", "--source", source, "--at", "/proc/card"], "/proc/card");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
