//! `lab/setup.sh` on small caches, with an archive of one package whose programs stand first on the
//! PATH. No guest, no network.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../lab/setup.sh");
const NOBODY: u32 = 65534;

/// A cache with tools, and an archive that has btrfs-progs.
struct Lab {
    folder: tempfile::TempDir,
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

impl Lab {
    fn new() -> Self {
        let lab = Self { folder: tempfile::tempdir().unwrap() };
        fs::set_permissions(lab.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        lab.program(
            "apt-get",
            "case \"$*\" in *print-uris*) . /etc/os-release; \
             echo \"'http://x/dists/$VERSION_CODENAME/InRelease' x 0\" ;; \
             *download*) echo fetched >>$FETCHED; touch a.deb ;; esac",
        );
        lab.program("apt-cache", "echo 'Version: 1:10.0'");
        lab.program(
            "dpkg-deb",
            "mkdir -p $3/sbin; echo mkfs >$3/sbin/mkfs.btrfs; ln -s mkfs.btrfs $3/sbin/link; echo \
            other >$3/other",
        );
        write(&lab.cache().join("tools/layout-1"), "", 0o644);
        write(&lab.cache().join("tools/bin/qemu-system-x86_64"), "#!/bin/sh\n", 0o755);
        lab
    }

    fn program(&self, name: &str, script: &str) {
        write(&self.folder.path().join("bin").join(name), &format!("#!/bin/sh\n{script}\n"), 0o755);
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn part(&self) -> PathBuf {
        self.cache().join("btrfs")
    }

    fn command(&self, words: &[&str]) -> Command {
        let path = format!(
            "{}:{}",
            self.folder.path().join("bin").display(),
            std::env::var("PATH").unwrap()
        );
        let mut command = Command::new("sh");
        command.arg(SCRIPT).args(words).env("PATH", path).env("RING3_CACHE", self.cache());
        command
            .env("FETCHED", self.folder.path().join("fetched"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn setup(&self, words: &[&str]) -> Output {
        let output = self.command(words).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        output
    }

    /// How often something came from the archive.
    fn fetched(&self) -> usize {
        fs::read_to_string(self.folder.path().join("fetched")).unwrap_or_default().lines().count()
    }

    fn is_whole(&self) -> bool {
        fs::read_to_string(self.part().join("sbin/link")).is_ok_and(|text| text == "mkfs\n")
            && self.part().join("other").exists()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_is_whole_is_not_fetched_again() {
    let lab = Lab::new();
    lab.setup(&["btrfs"]);
    lab.setup(&["btrfs"]);
    lab.setup(&["verify"]);
    assert_eq!(lab.fetched(), 1);
}

#[test]
fn a_file_that_is_gone_or_cut_short_or_changed_and_a_link_that_is_gone_are_fetched_anew() {
    let lab = Lab::new();
    lab.setup(&["btrfs"]);
    let part = lab.part();
    let damages: [(&str, &dyn Fn()); 5] = [
        ("other", &|| fs::remove_file(part.join("other")).unwrap()),
        ("sbin/mkfs.btrfs", &|| fs::write(part.join("sbin/mkfs.btrfs"), "mk").unwrap()),
        ("sbin/mkfs.btrfs", &|| fs::write(part.join("sbin/mkfs.btrfs"), "mkfS\n").unwrap()),
        ("sbin/link", &|| fs::remove_file(part.join("sbin/link")).unwrap()),
        ("manifest", &|| fs::write(part.join("manifest"), "").unwrap()),
    ];
    for (number, (name, damage)) in damages.into_iter().enumerate() {
        damage();
        let said = said(&lab.setup(&["verify"]));
        assert!(said.contains(&format!("btrfs is damaged ({name}, 1 in all)")), "{said}");
        assert!(lab.is_whole());
        assert_eq!(lab.fetched(), number + 2);
    }
}

#[test]
fn a_part_of_an_older_cache_is_kept_if_it_works_and_fetched_anew_if_not() {
    let lab = Lab::new();
    let program = lab.cache().join("fio/fio");
    write(&lab.cache().join("fio/layout-1"), "", 0o644);
    write(&program, "#!/bin/sh\n", 0o755);
    lab.setup(&["verify"]);
    assert!(fs::read_to_string(lab.cache().join("fio/manifest")).unwrap().contains("fio"));
    write(&lab.cache().join("btrfs/layout-1"), "", 0o644);
    lab.setup(&["verify"]);
    assert_eq!((lab.fetched(), lab.is_whole()), (1, true));
}

#[test]
fn modes_that_shut_others_out_are_mended_without_fetching() {
    let lab = Lab::new();
    lab.setup(&["btrfs"]);
    fs::set_permissions(lab.part().join("other"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(lab.part().join("sbin"), fs::Permissions::from_mode(0o700)).unwrap();
    lab.setup(&["verify"]);
    let mode =
        |name: &str| fs::metadata(lab.part().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("other"), mode("sbin"), lab.fetched()), (0o644, 0o755, 1));
}

#[test]
fn a_setup_that_was_killed_at_any_step_is_repaired_by_the_next() {
    let lab = Lab::new();
    lab.setup(&["btrfs"]);
    // While unpacking; between the two renames; after them.
    for (from, to) in [("btrfs", "btrfs.new"), ("btrfs", "btrfs.old")] {
        fs::rename(lab.cache().join(from), lab.cache().join(to)).unwrap();
        write(&lab.cache().join("btrfs.download/a.deb"), "", 0o644);
        lab.setup(&["btrfs"]);
        assert!(lab.is_whole());
        assert!(
            !lab.cache().join("btrfs.new").exists() && !lab.cache().join("btrfs.download").exists()
        );
    }
    assert_eq!(lab.fetched(), 2);
}

#[test]
fn a_setup_that_fails_for_want_of_room_leaves_none_of_its_own_behind() {
    let lab = Lab::new();
    lab.program("dpkg-deb", "mkdir -p $3; echo x >$3/part; exit 2");
    let output = lab.command(&["btrfs"]).output().unwrap();
    assert!(
        !output.status.success() && said(&output).contains("is there room"),
        "{}",
        said(&output)
    );
    let left: Vec<_> =
        fs::read_dir(lab.cache()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("btrfs")), "{left:?}");
}

#[test]
fn two_setups_at_once_fetch_once() {
    let lab = Lab::new();
    let children: Vec<Child> = (0..3).map(|_| lab.command(&["btrfs"]).spawn().unwrap()).collect();
    let outputs: Vec<Output> =
        children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()));
    assert_eq!((lab.fetched(), lab.is_whole()), (1, true));
}

#[test]
fn a_cache_of_somebody_else_is_verified_and_its_repair_left_to_its_owner() {
    let lab = Lab::new();
    lab.setup(&["btrfs"]);
    let other = |words: &[&str]| {
        let mut command = lab.command(words);
        if rustix::process::geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.output().unwrap()
    };
    if !rustix::process::geteuid().is_root() {
        return;
    }
    assert!(other(&["verify"]).status.success());
    fs::remove_file(lab.part().join("other")).unwrap();
    let output = other(&["verify"]);
    assert!(!output.status.success());
    assert!(said(&output).contains("its owner runs `ring3 lab prepare`"), "{}", said(&output));
}
