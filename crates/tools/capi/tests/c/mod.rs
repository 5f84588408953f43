//! Programs in C, built as their user builds them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of `libring3.so`, which cargo has built for this test.
pub fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    assert!(folder.join("libring3.so").exists(), "no libring3.so in {}", folder.display());
    folder
}

/// The program of `source`, a path below the crate's folder, in `folder`.
pub fn build(source: &str, folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join(source);
    let program = folder.join(source.file_stem().unwrap());
    let output = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2", "-g", "-I"])
        .arg(root.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .arg("-L")
        .arg(library())
        .arg("-lring3")
        .arg(format!("-Wl,-rpath,{}", library().display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}
