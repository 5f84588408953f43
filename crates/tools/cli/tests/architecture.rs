//! ARCHITECTURE.md names files and functions that are there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Names of the kernel's, which no file of this tree has to have.
const KERNELS: [&str; 1] = ["ublk_drv"];
/// Folders that are no part of the source.
const NOT_SOURCE: [&str; 3] = ["target", ".git", "out"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .canonicalize()
        .expect("the source is there")
}

/// All files and folders below `folder`, by their paths below the root.
fn tree(root: &Path, folder: &Path, all: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of the source can be read").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if NOT_SOURCE.iter().any(|other| name == *other) {
            continue;
        }
        all.insert(path.strip_prefix(root).expect("it lies below").display().to_string());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            tree(root, &path, all);
        }
    }
}

/// What stands between backquotes on a line.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

fn is_path(name: &str) -> bool {
    let is_file = [".rs", ".toml", ".md", ".py", ".c", ".h"].iter().any(|end| name.ends_with(end));
    !name.contains(' ') && !name.starts_with('/') && (is_file || name.contains('/'))
}

/// Where a path of the document, or its end, is in the tree.
fn places<'a>(all: &'a BTreeSet<String>, name: &str) -> impl Iterator<Item = &'a String> {
    let (name, end) =
        (name.trim_end_matches('/').to_owned(), format!("/{}", name.trim_end_matches('/')));
    all.iter().filter(move |path| **path == name || path.ends_with(&end))
}

/// The last part of a name of Rust's: `take` of `Queue::take`.
fn identifier(name: &str) -> Option<&str> {
    let last = name.rsplit("::").next()?;
    let is_word = |word: &str| {
        !word.is_empty() && word.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    (name.split("::").all(is_word) && !last.starts_with(|letter: char| letter.is_numeric()))
        .then_some(last)
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |letter: Option<char>| {
        letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
    };
    text.match_indices(word).any(|(at, _)| {
        !is_part(text[..at].chars().next_back()) && !is_part(text[at + word.len()..].chars().next())
    })
}

/// The steps of the walks: what a number and its full stop begin, up to an empty line.
fn steps(section: &str) -> Vec<String> {
    let mut steps: Vec<String> = Vec::new();
    let mut is_step = false;
    for line in section.lines() {
        let number = line.split_once(". ").is_some_and(|(number, _)| number.parse::<u8>().is_ok());
        if number {
            steps.push(String::new());
        }
        is_step = (is_step || number) && !line.is_empty();
        if let Some(step) = steps.last_mut().filter(|_| is_step) {
            *step += line;
            step.push('\n');
        }
    }
    steps
}

#[test]
fn every_file_that_the_architecture_names_exists() {
    let (root, mut all) = (root(), BTreeSet::new());
    tree(&root, &root, &mut all);
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let paths: BTreeSet<_> = quoted(&text).filter(|name| is_path(name)).collect();
    assert!(paths.len() > 50, "the walks name files: {paths:?}");
    let missing: Vec<_> = paths.iter().filter(|name| places(&all, name).next().is_none()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names what is not there: {missing:?}");
}

#[test]
fn every_name_in_a_step_of_its_walks_is_in_a_file_of_the_same_walk() {
    let (root, mut all) = (root(), BTreeSet::new());
    tree(&root, &root, &mut all);
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for section in text.split("\n## ") {
        let files: BTreeSet<_> = quoted(section)
            .filter(|name| is_path(name))
            .flat_map(|name| places(&all, name))
            .collect();
        let code: String =
            files.iter().filter_map(|path| fs::read_to_string(root.join(path)).ok()).collect();
        for step in steps(section) {
            let names = quoted(&step).filter(|name| !is_path(name) && !KERNELS.contains(name));
            for name in names.filter_map(identifier) {
                checked += 1;
                if !has_word(&code, name) {
                    wrong.push(format!("{name} ({})", section.lines().next().unwrap_or_default()));
                }
            }
        }
    }
    assert!(checked > 40, "the walks name functions: {checked}");
    assert!(wrong.is_empty(), "no file of its walk has {wrong:#?}");
}
