//! The replay of fuzz targets fails where a target breaks a promise, and keeps the input.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ring3_fuzz::mutate::Inputs;
use ring3_fuzz::targets::TARGETS;
use tempfile::TempDir;

const FUZZ: &str = env!("CARGO_MANIFEST_DIR");

/// A folder with a corpus of the target that fails on purpose.
fn corpus(inputs: &[&str]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("fuzz/corpus/faulty");
    fs::create_dir_all(&folder).unwrap();
    for (index, input) in inputs.iter().enumerate() {
        fs::write(folder.join(index.to_string()), input).unwrap();
    }
    root
}

fn ring3_fuzz(root: &Path, words: &[&str]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ring3-fuzz"));
    let output = command.current_dir(root).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

/// Replays the corpus `inputs` alone.
fn replay(inputs: &[&str]) -> (TempDir, Output, String) {
    let root = corpus(inputs);
    let (output, text) = ring3_fuzz(root.path(), &["--inputs", "0", "--limit", "4", "faulty"]);
    (root, output, text)
}

/// The inputs that were kept.
fn finds(root: &TempDir) -> Vec<PathBuf> {
    let folder = root.path().join("target/fuzz/finds/faulty");
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A replay of an input that fails, between two that do not, fails and keeps that one.
fn assert_is_found(input: &str, why: &str) {
    let (root, output, text) = replay(&["a", input, "z"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("FAILED faulty: ") && text.contains(why), "{text}");
    assert!(text.ends_with("test result: FAILED. 0 passed; 1 failed\n"), "{text}");
    let kept: Vec<_> = finds(&root).iter().map(|find| fs::read_to_string(find).unwrap()).collect();
    assert_eq!(kept, [input]);
}

#[test]
fn a_target_without_inputs_fails() {
    let (_root, output, text) = replay(&[]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("FAILED faulty: ") && text.contains("has no inputs"), "{text}");
}

#[test]
fn a_target_that_keeps_its_promises_passes() {
    let (_root, output, text) = replay(&["a", "b"]);
    assert!(output.status.success(), "{text}");
    assert!(text.ends_with("test result: ok. 1 passed; 0 failed\n"), "{text}");
}

#[test]
fn a_panic_is_a_find() {
    assert_is_found("p", "a promise is broken");
}

#[test]
fn a_panic_in_another_thread_is_a_find() {
    assert_is_found("t", "a thread breaks a promise");
}

#[test]
fn an_input_that_does_not_end_is_a_find() {
    assert_is_found("h", "an input took 4 s");
}

#[test]
fn more_memory_than_the_target_allows_is_a_find() {
    assert_is_found("m", "more memory is held than the target allows");
}

#[test]
fn an_exit_within_an_input_is_a_find() {
    assert_is_found("e", "the process ended with exit code 0");
}

#[test]
fn a_wait_of_hours_takes_no_time() {
    let (_root, output, text) = replay(&["v"]);
    assert!(output.status.success(), "{text}");
}

#[test]
fn a_mutated_input_is_found_kept_and_repeated() {
    let root = corpus(&["l"]);
    let (output, text) = ring3_fuzz(root.path(), &["faulty"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("a mutation, seed ") && text.contains("an input is long"), "{text}");
    let [find] = <[PathBuf; 1]>::try_from(finds(&root)).unwrap();
    let (again, _) = ring3_fuzz(root.path(), &["faulty", find.to_str().unwrap()]);
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("an input is long"));
}

#[test]
fn a_corpus_that_is_missing_fails_its_target() {
    let root = tempfile::tempdir().unwrap();
    let (output, text) = ring3_fuzz(root.path(), &["nvme"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("FAILED nvme: "), "{text}");
}

#[test]
fn a_seed_gives_the_same_inputs_each_time_and_another_seed_others() {
    let corpus = || vec![b"an input".to_vec(), vec![7; 5000], Vec::new()];
    let inputs = |name, seed| {
        let inputs = Inputs::new(name, corpus(), seed);
        (0..300).map(|index| inputs.get(index)).collect::<Vec<_>>()
    };
    let first = inputs("nvme", 1);
    assert_eq!(first, inputs("nvme", 1));
    assert_eq!(first[..3], corpus());
    for other in [inputs("nvme", 2), inputs("ahci", 1)] {
        let same = first.iter().zip(other).skip(3).filter(|(one, other)| *one == other);
        assert!(same.count() < 30, "two seeds give the same inputs");
    }
    let distinct: BTreeSet<_> = first.iter().collect();
    assert!(distinct.len() > 250, "{} of 300 inputs differ", distinct.len());
    assert!(first[3..].iter().all(|input| input.len() <= 4096));
}

#[test]
fn every_target_has_a_program_of_libfuzzer_and_a_corpus() {
    let names = |folder: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(Path::new(FUZZ).join(folder)).unwrap();
        let stem = |path: PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
        entries.map(|entry| stem(entry.unwrap().path())).collect()
    };
    let targets: BTreeSet<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(targets, names("libfuzzer/src/bin"));
    assert_eq!(targets, names("corpus"));
}
