//! Tells the program which commit it is built from, for the reports that it writes and for
//! `ring3 --version`.

use std::path::Path;
use std::process::Command;

fn main() {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
    };
    println!("cargo:rerun-if-changed=build.rs");
    // Sources without a repository may lie in somebody else's.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3);
    let top = git(&["rev-parse", "--show-toplevel"]);
    if top.as_deref().map(Path::new) != root {
        return;
    }
    // It grows with each commit and each check-out, in a worktree as well.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    if let Some(commit) = git(&["rev-parse", "HEAD"]) {
        println!("cargo:rustc-env=RING3_COMMIT={commit}");
    }
    // The commit's date: a build of the same commit on another day is the same program.
    if let Some(commit) = git(&["log", "-1", "--abbrev=7", "--format=%h %cs"]) {
        println!("cargo:rustc-env=RING3_LONG_VERSION={} ({commit})", env!("CARGO_PKG_VERSION"));
    }
}
