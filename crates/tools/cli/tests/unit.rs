//! What systemd says of the services' confinement, by the lab's systemd (`lab/setup.sh systemd`):
//! that of Debian 13, whatever this machine has.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ring3_lab::{Cache, Need};

/// Of 10, in tenths: what `systemd-analyze security` may find open.
const MOST: u32 = 40;

struct Units {
    folder: tempfile::TempDir,
}

impl Units {
    /// The units as they are installed, and the lab's systemd.
    fn new() -> Self {
        let cache = Cache::open().unwrap();
        ring3_lab::prepare(&cache, &[Need::Systemd], &mut |_| {}).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(folder.path()).arg("-xf").arg(cache.path("systemd/systemd.tar"));
        tar.args(["--no-same-owner", "./usr/bin/systemd-analyze", "./usr/lib", "./usr/lib64"]);
        succeed(&mut tar);
        let units = Self { folder };
        let mut make = Command::new("make");
        make.args(["-s", "-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."), "install-units"]);
        make.arg(format!("DESTDIR={}", units.folder.path().join("to").display()));
        succeed(make.arg("PREFIX=/usr").env_remove("MAKEFLAGS"));
        units
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("to/usr/lib/systemd/system").join(name)
    }

    /// `systemd-analyze` with `words`, by its own C library.
    fn analyze(&self, words: &[&str], unit: &str) -> Output {
        let root = self.folder.path();
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let mut analyze = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"));
        analyze
            .arg("--library-path")
            .arg(format!("{0}:{0}/systemd", libraries.display()))
            .arg(root.join("usr/bin/systemd-analyze"))
            .args(words)
            .arg(self.path(unit));
        analyze.output().unwrap()
    }
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

#[test]
fn systemd_finds_at_most_four_of_ten_open_of_each_service() {
    let units = Units::new();
    for unit in ["ring3d.service", "ring3d-hold.service"] {
        let judge = |most: u32| {
            let threshold = format!("--threshold={most}");
            units.analyze(&["security", "--offline=true", "--no-pager", &threshold], unit)
        };
        let judged = judge(MOST);
        assert!(judged.status.success(), "{}", text(&judged));
        assert!(text(&judged).contains(&format!("exposure level for {unit}")), "{}", text(&judged));
        // It does judge: no service that is root and has devices gets as little as this.
        assert!(!judge(10).status.success(), "{}", text(&judge(10)));
        assert!(!text(&judged).contains("Unknown key"), "{}", text(&judged));
    }
}

#[test]
fn the_service_for_older_systemds_has_no_key_that_they_do_not_know() {
    let units = Units::new();
    let newer = ["FileDescriptorStorePreserve=", "DelegateSubgroup=", "OpenFile="];
    let keys = |unit| -> Vec<String> {
        let text = std::fs::read_to_string(units.path(unit)).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    let has = |unit| newer.map(|key| keys(unit).iter().any(|line| line.starts_with(key)));
    assert_eq!(has("ring3d-hold.service"), [false; 3]);
    assert_eq!(has("ring3d.service"), [true, true, false]);
}

#[test]
fn no_line_of_a_template_is_left_in_a_unit() {
    let units = Units::new();
    for entry in std::fs::read_dir(units.path("ring3d.service").parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let left = ["@PREFIX@", "@LIBDIR@", "@VERSION@", "#include"];
        assert!(!left.iter().any(|left| text.contains(left)), "{}", path.display());
        assert!(Path::new(&path).file_name().unwrap().to_string_lossy().starts_with("ring3d"));
    }
}
