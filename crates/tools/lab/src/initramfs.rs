//! The guest's root file system: one archive of everything that does not change between runs, built
//! once.
//!
//! It is not compressed: unpacking under emulation costs more than reading.

use crate::archive::Writer;
use crate::cache::{Cache, Fingerprint};
use crate::closure;
use crate::error::{Doing, Error};
use crate::machine::Machine;
use crate::setup::PREPARE;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const INIT: &str = include_str!("../../../../lab/guest/init");
const NODE_CONSOLE: (u32, u32) = (5, 1);

/// Programs of the cache that every guest has, with the names that they answer to. Absent ones are
/// left out.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("fio/fio", &["fio"]),
    ("btrfs/sbin/mkfs.btrfs", &["mkfs.btrfs"]),
    ("btrfs/usr/sbin/mkfs.btrfs", &["mkfs.btrfs"]),
    ("tools/sbin/mke2fs", &["mke2fs", "mkfs.ext4"]),
    ("tools/sbin/e2fsck", &["e2fsck", "fsck.ext4"]),
    ("tools/sbin/mkfs.xfs", &["mkfs.xfs"]),
    ("tools/sbin/xfs_repair", &["xfs_repair"]),
    ("tools/usr/sbin/mke2fs", &["mke2fs", "mkfs.ext4"]),
    ("tools/usr/sbin/e2fsck", &["e2fsck", "fsck.ext4"]),
    ("tools/usr/sbin/mkfs.xfs", &["mkfs.xfs"]),
    ("tools/usr/sbin/xfs_repair", &["xfs_repair"]),
];

/// The base archive for `machine`, from the cache or built now. Its name carries the hash of what
/// is in it.
pub(crate) fn base(cache: &Cache, machine: Machine) -> Result<PathBuf, Error> {
    let (busybox, own) = (busybox(cache, machine)?, busybox(cache, Machine::default())?);
    let mut files = BTreeMap::new();
    if machine.is_arm64() {
        files.extend(closure::arm64(cache));
    }
    let programs = if machine.is_arm64() { &[] } else { PROGRAMS };
    for (program, names) in programs {
        let path = cache.path(program);
        if !path.exists() {
            continue;
        }
        files.extend(closure::libraries(cache, &[], &path)?);
        files.insert(format!("/usr/local/bin/{}", names[0]), path);
    }
    let mut hash = Fingerprint::new();
    hash.add(INIT).add(env!("CARGO_PKG_VERSION")).add(identity(&busybox)?);
    for (guest, host) in &files {
        hash.add(guest).add(identity(host)?);
    }
    cache.file(Path::new(&format!("initramfs/{}.cpio", hash.hex())), |out| {
        let archive = build(&busybox, &applets(&own)?, &files)?;
        out.write_all(&archive).doing("writing the base initramfs into", cache.root())
    })
}

fn build(
    busybox: &Path,
    applets: &[String],
    files: &BTreeMap<String, PathBuf>,
) -> Result<Vec<u8>, Error> {
    let mut archive = Writer::new();
    for folder in ["/dev", "/proc", "/sys", "/tmp", "/run", "/out", "/mnt", "/root", "/job"] {
        archive.folder(folder);
    }
    // The kernel opens it for /init before anything is mounted.
    archive.node("/dev/console", NODE_CONSOLE.0, NODE_CONSOLE.1);
    archive.file("/init", 0o755, INIT.as_bytes())?;
    archive.file(
        "/etc/passwd",
        0o644,
        b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    )?;
    archive.file("/etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
    archive.file("/bin/busybox", 0o755, &read(busybox)?)?;
    for applet in applets {
        archive.link(&format!("/bin/{applet}"), "busybox");
    }
    for (guest, host) in files {
        archive.file(guest, 0o755, &read(host)?)?;
    }
    for (_, names) in PROGRAMS {
        for name in &names[1..] {
            let target = format!("/usr/local/bin/{}", names[0]);
            if files.contains_key(&target) {
                archive.link(&format!("/usr/local/bin/{name}"), names[0]);
            }
        }
    }
    Ok(archive.finish())
}

/// Tells one version of a file from another without reading it.
pub(crate) fn identity(path: &Path) -> Result<String, Error> {
    use std::os::unix::fs::MetadataExt;
    let data = fs::metadata(path).doing("looking at", path)?;
    Ok(format!("{} {} {}.{}", path.display(), data.len(), data.mtime(), data.mtime_nsec()))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).doing("reading a file for the guest", path)
}

fn busybox(cache: &Cache, machine: Machine) -> Result<PathBuf, Error> {
    let part = if machine.is_arm64() { "arm64/root" } else { "tools" };
    let places =
        ["bin/busybox", "usr/bin/busybox"].map(|name| cache.path(format!("{part}/{name}")));
    places.into_iter().find(|path| path.exists()).ok_or_else(|| Error::Missing {
        what: "busybox".into(),
        why: "the cache has no tools".into(),
        next: PREPARE,
        cache: cache.root().into(),
    })
}

fn applets(busybox: &Path) -> Result<Vec<String>, Error> {
    let output = Command::new(busybox).arg("--list").output().doing("running", busybox)?;
    let names = String::from_utf8_lossy(&output.stdout);
    Ok(names
        .lines()
        .filter(|name| *name != "busybox" && !name.is_empty())
        .map(String::from)
        .collect())
}
