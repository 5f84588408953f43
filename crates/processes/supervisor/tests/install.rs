//! `make install`: what it puts where, and that systemd would take it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn installed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().join("built");
    fs::create_dir(&bin).unwrap();
    for name in ["ring3", "ring3d", "ring3-driver", "libring3.so"] {
        fs::write(bin.join(name), "#!/bin/sh\n").unwrap();
        fs::set_permissions(bin.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    assert!(make(folder.path(), &bin));
    folder
}

fn make(folder: &Path, bin: &Path) -> bool {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
    let mut make = Command::new("make");
    make.args(["-s", "-C", root, "install"]);
    make.arg(format!("DESTDIR={}", folder.join("root").display()))
        .arg(format!("BIN={}", bin.display()));
    make.status().unwrap().success()
}

fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| if path.is_dir() { files(&path) } else { BTreeSet::from([path]) })
        .collect()
}

#[test]
fn an_installation_is_these_files_and_no_others() {
    let folder = installed();
    let root = folder.path().join("root");
    let expected = [
        "usr/lib/systemd/system-sleep/ring3",
        "usr/local/bin/ring3",
        "usr/local/bin/ring3-driver",
        "usr/local/bin/ring3d",
        "usr/local/include/ring3.h",
        "usr/local/lib/libring3.so",
        concat!(
            "usr/local/lib/libring3.so.",
            env!("CARGO_PKG_VERSION_MAJOR"),
            ".",
            env!("CARGO_PKG_VERSION_MINOR")
        ),
        "usr/local/lib/systemd/system/ring3d-hold.service",
        "usr/local/lib/systemd/system/ring3d-metrics.socket",
        "usr/local/lib/systemd/system/ring3d.service",
        "usr/local/lib/systemd/system/ring3d.socket",
        "usr/local/lib/udev/rules.d/60-ring3.rules",
        "usr/local/share/bash-completion/completions/ring3",
        "usr/local/share/doc/ring3/LICENSE-APACHE",
        "usr/local/share/doc/ring3/LICENSE-GPL-2",
        "usr/local/share/doc/ring3/LICENSE-MIT",
        "usr/local/share/doc/ring3/example.toml",
        "usr/local/share/doc/ring3/supervisor.md",
        "usr/local/share/fish/vendor_completions.d/ring3.fish",
        "usr/local/share/man/man8/ring3-driver.8",
        "usr/local/share/man/man8/ring3d.8",
        "usr/local/share/ring3/split/README.md",
        "usr/local/share/ring3/split/pyproject.toml",
        "usr/local/share/ring3/split/requirements.lock",
        "usr/local/share/zsh/site-functions/_ring3",
    ];
    let tree = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."));
    let sources = ["dde", "split/src", "split/runtime", "split/examples"];
    let shared = |file: PathBuf, below: &Path| {
        Path::new("usr/local/share/ring3").join(file.strip_prefix(below).unwrap())
    };
    let hosting = sources
        .into_iter()
        .flat_map(|part| files(&tree.join(part)))
        .filter(|file| file.extension().is_none_or(|kind| kind != "pyc"))
        .map(|file| shared(file, tree));
    let scripts = files(&tree.join("etc/bpftrace")).into_iter();
    let scripts = scripts.map(|file| shared(file, &tree.join("etc")));
    let expected = expected.into_iter().map(PathBuf::from).chain(hosting).chain(scripts);
    let expected = expected.map(|file| root.join(file));
    assert_eq!(files(&root), expected.collect());
    assert!(root.join("etc/ring3").is_dir());
    assert!(!make(folder.path(), &folder.path().join("nothing")));
}

#[test]
fn the_example_is_a_manifest_of_defaults() {
    let text =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../etc/example.toml"))
            .unwrap();
    let example = ring3_supervisor::manifest::parse(&text).unwrap().remove(0);
    let least = "[device.scratch]\nmatch = { address = \"0000:01:00.0\" }\nbind = true";
    assert_eq!(example, ring3_supervisor::manifest::parse(least).unwrap().remove(0));
}

/// By systemd's own tool, where that is installed.
#[test]
fn systemd_takes_the_units() {
    let folder = installed();
    let root = folder.path().join("root");
    let units = ["ring3d.service", "ring3d-hold.service", "ring3d.socket", "ring3d-metrics.socket"]
        .map(|name| root.join("usr/local/lib/systemd/system").join(name));
    for unit in &units {
        let text = fs::read_to_string(unit).unwrap();
        assert!(!text.contains("@PREFIX@"), "{text}");
        // What it would start lies elsewhere here.
        fs::write(unit, text.replace("/usr/local", &root.join("usr/local").display().to_string()))
            .unwrap();
    }
    let Ok(output) = Command::new("systemd-analyze").arg("verify").args(&units).output() else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    // Older than 254: docs/supervisor.md.
    let is_new = |line: &str| {
        ["'DelegateSubgroup'", "'FileDescriptorStorePreserve'"].iter().any(|key| line.contains(key))
    };
    let wrong: Vec<_> =
        said.lines().filter(|line| line.contains("ring3d") && !is_new(line)).collect();
    assert!(output.status.success() && wrong.is_empty(), "{said}");
}
