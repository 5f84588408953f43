//! Guests with ring3 as `make install` installs it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What `make install` puts below a root, but for the programs, which the guest has.
pub fn installed(folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_ring3")).parent().unwrap();
    let (to, archive) = (folder.join("root"), folder.join("install.tar"));
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(root)
        .arg("install")
        .arg(format!("BIN={}", programs.display()))
        .arg(format!("DESTDIR={}", to.display()));
    let made = make.env_remove("MAKEFLAGS").output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stdout));
    let mut tar = Command::new("tar");
    tar.arg("-C")
        .arg(&to)
        .args([
            "--exclude=./usr/local/bin/*",
            "--exclude=./usr/local/lib/libring3.so*",
            "--owner=0",
            "--group=0",
            "-cf",
        ])
        .arg(&archive)
        .arg(".");
    assert!(tar.status().unwrap().success());
    archive
}
