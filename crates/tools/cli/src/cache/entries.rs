//! The entries of the cache, as a look at its folders finds them.
//!
//! # Trust
//! Symbolic links are never followed. A link in the place of a part or an entry is unknown, as is
//! everything else that this program does not put there: it is listed and never deleted.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// What `lab/setup.sh` fetches: folders that it fetches again when they are missing.
const FETCHED: [(&str, &str); 28] = [
    ("afl", "AFL++, for ring3 dde fuzz"),
    ("alpha", "QEMU's AlphaServer"),
    ("apt", "package lists and downloaded packages"),
    ("arm64", "QEMU of arm64, and what its guests begin with"),
    ("bpftrace", "bpftrace for guests"),
    ("btrfs", "mkfs.btrfs"),
    ("chromium", "a browser, for a test of the page of ring3 report"),
    ("clang", "clang, for ring3 split"),
    ("cloc", "cloc, for ring3 bench effort"),
    ("databases", "PostgreSQL and sqlite for guests"),
    ("dpdk", "DPDK's testpmd for guests"),
    ("fio", "fio for guests"),
    ("kbuild", "tools that build kernels"),
    ("kexec", "kexec for guests"),
    ("lwip", "lwIP's source, for ring3 dde"),
    ("mdbook", "mdBook, for make site"),
    ("network", "network programs for guests"),
    ("python", "Python packages of ring3 split"),
    ("rivals", "QEMU's own NVMe driver"),
    ("suites", "test suites of others, for ring3 suites"),
    ("suites-db", "the tests of databases, for ring3 suites"),
    ("suites-net", "the kernel's tests of network cards, for ring3 suites"),
    ("systemd", "systemd and udev for guests"),
    ("systemd-12", "systemd and udev of Debian 12 for guests"),
    ("tools", "QEMU and the guest's programs"),
    ("tree", "a source tree to put on disks"),
    ("vfio-user", "a QEMU with a client of vfio-user"),
    ("wheel", "maturin, and what tests the Python package"),
];

/// Folders of which each member is fetched on its own.
const VERSIONS: [(&str, &str); 3] = [
    ("kernels", "guest kernels"),
    ("roots", "roots of Debian, for tests of packages"),
    ("sources", "sources of kernels"),
];

/// Folders of files that are built, each under the lock `locks/FOLDER+FILE`.
const BUILT: [(&str, &str); 4] = [
    ("initramfs", "initial file systems of guests"),
    ("snapshots", "booted guests"),
    ("stripped", "programs without debug information"),
    ("vmlinux", "unpacked kernels"),
];

/// What an entry is, which decides how it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Fetched by the setup script.
    Fetched,
    /// A file under a lock of its own.
    Built,
    /// A folder of hosted drivers, with locks in it.
    Hosted,
    /// A folder of a run of the lab.
    Run,
    /// A log, facts about a kernel or inputs of a fuzzer, which no other process has to find there.
    Plain,
    /// A lock or a log of the setup: deleting it would break the exclusion of others.
    Lock,
    /// Nothing that this program puts there.
    Unknown,
}

/// One thing that is kept or deleted as a whole.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The part that it belongs to: `snapshots`.
    pub part: String,
    /// Its path in the cache: `snapshots/67a1.memory`.
    pub name: String,
    pub kind: Kind,
    /// Bytes on disk.
    pub bytes: u64,
    /// When it was made; a folder of hosted drivers: when it was used last.
    pub made: SystemTime,
}

impl Entry {
    fn new(root: &Path, part: &str, name: String, kind: Kind) -> Option<Self> {
        let path = root.join(&name);
        let data = fs::symlink_metadata(&path).ok()?;
        let stamp = stamp(&path);
        // The folder may be one that had other things in it before, and `tools` is a name that
        // others use, too: what the setup script has fetched has its stamp.
        let is_foreign = kind == Kind::Fetched && part != "apt" && stamp.is_none();
        let kind = if data.is_symlink() || is_foreign { Kind::Unknown } else { kind };
        let note = fs::symlink_metadata(length_note(&path)).map_or(0, |note| allocated(&note));
        let made = match kind {
            // What is unpacked has the times of its package; the stamp is written when it is whole.
            Kind::Fetched => stamp.unwrap_or(data.modified().ok()?),
            _ => data.modified().ok()?,
        };
        Some(Self { part: part.into(), name, kind, bytes: on_disk(&path, &data) + note, made })
    }

    /// How old it is at `now`.
    pub fn age(&self, now: SystemTime) -> Duration {
        now.duration_since(self.made).unwrap_or_default()
    }

    pub fn can_be_deleted(&self) -> bool {
        !matches!(self.kind, Kind::Lock | Kind::Unknown)
    }

    /// What its part is for.
    pub fn content(&self) -> &'static str {
        let tables = FETCHED.iter().chain(&VERSIONS).chain(&BUILT);
        match (self.kind, &*self.part) {
            (Kind::Unknown, _) => "not ring3's: never deleted",
            (Kind::Lock, _) => "locks: never deleted",
            (Kind::Hosted, _) => "hosted drivers of Linux",
            (Kind::Run, _) => "folders of runs",
            (Kind::Plain, "debug-kernel") => "a kernel that checks itself, as it is built",
            (Kind::Plain, "fuzz") => "inputs that fuzzers have kept (fuzz/run)",
            (Kind::Plain, "split") => "facts about kernels, for ring3 split",
            (Kind::Plain, _) => "logs of runs",
            (_, part) => {
                tables.clone().find(|(name, _)| *name == part).map_or("", |(_, text)| text)
            }
        }
    }
}

/// All entries of the cache at `root`, by part and name.
pub fn read(root: &Path) -> Vec<Entry> {
    let mut entries: Vec<Entry> = names(root).iter().flat_map(|name| part(root, name)).collect();
    entries.sort_by(|one, other| (&one.part, &one.name).cmp(&(&other.part, &other.name)));
    entries
}

fn part(root: &Path, name: &str) -> Vec<Entry> {
    let is = |table: &[(&str, &str)]| table.iter().any(|(part, _)| *part == name);
    let whole = |kind| {
        Entry::new(root, if kind == Kind::Unknown { "unknown" } else { name }, name.into(), kind)
    };
    let folder = fs::symlink_metadata(root.join(name)).is_ok_and(|data| data.is_dir());
    let members = |kind: fn(&str) -> Kind| {
        names(&root.join(name))
            .iter()
            .filter_map(|member| Entry::new(root, name, format!("{name}/{member}"), kind(member)))
            .collect()
    };
    match name {
        "locks" | "setup.lock" | "setup.log" => whole(Kind::Lock).into_iter().collect(),
        _ if !folder => whole(Kind::Unknown).into_iter().collect(),
        _ if is(&FETCHED) => whole(Kind::Fetched).into_iter().collect(),
        _ if is(&VERSIONS) => members(|_| Kind::Fetched),
        // A note of a file's length goes with the file.
        _ if is(&BUILT) => {
            let mut files: Vec<Entry> = members(|_| Kind::Built);
            let known: Vec<_> = files.iter().map(|file| format!("{}.length", file.name)).collect();
            files.retain(|file| !known.contains(&file.name));
            files
        }
        "dde" => hosted(root),
        "runs" => members(|_| Kind::Run),
        "logs" => members(|log| match log.starts_with("ring3-") {
            true => Kind::Plain,
            false => Kind::Unknown,
        }),
        "debug-kernel" | "fuzz" | "split" => members(|_| Kind::Plain),
        _ => whole(Kind::Unknown).into_iter().collect(),
    }
}

/// `dde/VERSION/COMPILER`: see the `dde::place` module.
fn hosted(root: &Path) -> Vec<Entry> {
    let mut found = Vec::new();
    for version in names(&root.join("dde")) {
        let folder = root.join("dde").join(&version);
        if fs::symlink_metadata(&folder).is_ok_and(|data| data.is_dir()) {
            found.extend(names(&folder).iter().filter_map(|name| {
                Entry::new(root, "dde", format!("dde/{version}/{name}"), Kind::Hosted)
            }));
        }
    }
    found
}

/// The names in a folder that are text. Those of links are among them, and not followed.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// When the setup script found the part whole.
fn stamp(folder: &Path) -> Option<SystemTime> {
    let stamps = names(folder).into_iter().filter(|name| name.starts_with("layout-"));
    stamps.filter_map(|name| fs::symlink_metadata(folder.join(name)).ok()?.modified().ok()).max()
}

/// The file beside a built one that says how long it was made.
pub fn length_note(path: &Path) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".length");
    name.into()
}

/// Bytes that a file or a folder takes: files in memory of guests are sparse.
fn on_disk(path: &Path, data: &Metadata) -> u64 {
    let inside = if data.is_dir() {
        fs::read_dir(path).into_iter().flatten()
    } else {
        return allocated(data);
    };
    let inside = inside.flatten().filter_map(|entry| {
        // `DirEntry::metadata` does not follow a link.
        entry.metadata().ok().map(|data| on_disk(&entry.path(), &data))
    });
    allocated(data) + inside.sum::<u64>()
}

fn allocated(data: &Metadata) -> u64 {
    data.blocks() * 512
}
