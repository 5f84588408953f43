//! `make install` and `make uninstall` with the program of this build: completions, manual pages
//! and licences are in their places, and go again. The supervisor's tests have the whole list.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder with what `make build` makes, of which only `ring3` is real.
fn built() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().join("built");
    fs::create_dir(&bin).unwrap();
    for name in ["ring3d", "ring3-driver", "libring3.so"] {
        fs::write(bin.join(name), "#!/bin/sh\n").unwrap();
        fs::set_permissions(bin.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    symlink(env!("CARGO_BIN_EXE_ring3"), bin.join("ring3")).unwrap();
    folder
}

fn make(target: &str, folder: &Path) {
    let mut make = Command::new("make");
    make.args(["-s", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."), target]);
    make.arg(format!("DESTDIR={}", folder.join("root").display()))
        .arg(format!("BIN={}", folder.join("built").display()));
    let output = make.env_remove("MAKEFLAGS").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { files(&path) } else { BTreeSet::from([path]) })
        .collect()
}

#[test]
fn an_installation_has_pages_completions_and_licences_and_can_be_removed() {
    let folder = built();
    make("install", folder.path());
    let local = folder.path().join("root/usr/local");
    for name in [
        "share/man/man1/ring3.1",
        "share/man/man1/ring3-blk-info.1",
        "share/bash-completion/completions/ring3",
        "share/zsh/site-functions/_ring3",
        "share/fish/vendor_completions.d/ring3.fish",
        "share/doc/ring3/LICENSE-APACHE",
        "share/doc/ring3/LICENSE-MIT",
        "share/doc/ring3/LICENSE-GPL-2",
    ] {
        let length = fs::metadata(local.join(name)).map(|data| data.len());
        assert!(length.is_ok_and(|length| length > 100), "{name}");
    }
    let installed = Command::new(local.join("bin/ring3")).arg("--version").output().unwrap();
    assert!(installed.stdout.starts_with(b"ring3 "), "{installed:?}");
    let length = |path: &Path| fs::metadata(path).unwrap().len();
    let built = Path::new(env!("CARGO_BIN_EXE_ring3"));
    assert!(length(&local.join("bin/ring3")) < length(built), "it is stripped");
    make("uninstall", folder.path());
    assert_eq!(files(&folder.path().join("root")), BTreeSet::new());
}
