//! Disks that processes serve, and what is mounted of them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::{Error, Host};

/// Most levels of what stands on a disk: partition, encryption, volume, array.
const LEVELS: usize = 16;

/// Disks whose server is a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disks {
    /// Their names in /sys/block, such as `ublkb0`.
    names: BTreeSet<String>,
    dev: PathBuf,
}

/// A mounted file system on one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where the first process sees it.
    pub at: PathBuf,
    /// The disk.
    pub disk: String,
}

impl Disks {
    /// Those that there are: ublk's, and virtio's whose device is VDUSE's.
    pub fn read(host: &Host) -> Self {
        let is_served = |name: &String| {
            let device =
                fs::canonicalize(host.path(&format!("sys/block/{name}"))).unwrap_or_default();
            name.starts_with("ublkb") || device.components().any(|part| part.as_os_str() == "vduse")
        };
        Self {
            names: host.names("sys/block").into_iter().filter(is_served).collect(),
            dev: host.path("dev"),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Their file systems, in the order in which they were mounted, each once.
    pub fn mounts(&self, host: &Host) -> Vec<Mount> {
        let (mut seen, mut mounts) = (BTreeSet::new(), Vec::new());
        for line in host.read("proc/1/mountinfo").lines() {
            // [proc_pid_mountinfo(5)]
            let fields: Vec<&str> = line.split(' ').collect();
            let (Some(number), Some(at)) = (fields.get(2), fields.get(4)) else { continue };
            let source = line
                .split_once(" - ")
                .and_then(|(_, after)| after.split(' ').nth(1))
                .unwrap_or_default();
            let Some(disk) = self.under(host, number, source) else { continue };
            if seen.insert((*number).to_owned()) {
                mounts.push(Mount { at: unescape(at), disk });
            }
        }
        mounts
    }

    /// The served disk under a file system of device `number`, which was mounted from `source`.
    fn under(&self, host: &Host, number: &str, source: &str) -> Option<String> {
        let by_number = fs::canonicalize(host.path(&format!("sys/dev/block/{number}"))).ok();
        // A file system of several disks has a device of its own, and names one of them.
        let by_source = || {
            let node = fs::canonicalize(
                host.path(source.strip_prefix("/dev/").map(|name| format!("dev/{name}"))?.as_str()),
            )
            .ok()?;
            fs::canonicalize(host.path("sys/class/block").join(node.file_name()?)).ok()
        };
        self.below(&by_number.or_else(by_source)?, LEVELS)
    }

    fn below(&self, device: &Path, levels: usize) -> Option<String> {
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        // A partition lies in its disk's folder.
        let own = [Some(device), device.parent()]
            .into_iter()
            .flatten()
            .filter_map(name)
            .find(|name| self.names.contains(name));
        if own.is_some() || levels == 0 {
            return own;
        }
        let slaves = fs::read_dir(device.join("slaves")).into_iter().flatten().flatten();
        slaves
            .filter_map(|slave| fs::canonicalize(slave.path()).ok())
            .find_map(|slave| self.below(&slave, levels - 1))
    }

    /// Has each of them make durable what was written, by whoever.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        for name in &self.names {
            let path = self.dev.join(name);
            let flushed = File::open(&path).and_then(|disk| disk.sync_all());
            flushed.map_err(|error| Error::step(format!("flushing {}", path.display()), error))?;
        }
        Ok(())
    }
}

/// A path as mountinfo has it: some characters are three octal digits behind a backslash.
fn unescape(text: &str) -> PathBuf {
    [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
        .into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn disk(root: &Path, path: &str, number: &str) {
        let folder = root.join("sys/devices").join(path);
        fs::create_dir_all(folder.join("slaves")).unwrap();
        let name = folder.file_name().unwrap().to_owned();
        for place in ["block", "class/block", "dev/block"] {
            fs::create_dir_all(root.join("sys").join(place)).unwrap();
        }
        if !path.contains("/part/") {
            symlink(&folder, root.join("sys/block").join(&name)).unwrap();
        }
        symlink(&folder, root.join("sys/class/block").join(&name)).unwrap();
        symlink(&folder, root.join("sys/dev/block").join(number)).unwrap();
        fs::create_dir_all(root.join("dev")).unwrap();
        fs::write(root.join("dev").join(&name), "").unwrap();
    }

    fn machine(mounts: &str) -> (tempfile::TempDir, Host) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        disk(root, "virtual/block/ublkb0", "259:0");
        disk(root, "virtual/block/dm-0", "253:0");
        disk(root, "pci/nvme0n1", "259:5");
        disk(root, "vduse/vd0/vda", "254:0");
        symlink(
            root.join("sys/devices/virtual/block/ublkb0"),
            root.join("sys/devices/virtual/block/dm-0/slaves/ublkb0"),
        )
        .unwrap();
        fs::create_dir_all(root.join("proc/1")).unwrap();
        fs::write(root.join("proc/1/mountinfo"), mounts).unwrap();
        let host = Host::at(root, 1);
        (folder, host)
    }

    #[test]
    fn disks_of_ublk_and_of_vduse_are_served_by_processes() {
        let (_folder, host) = machine("");
        let disks = Disks::read(&host);
        assert_eq!(disks.names.iter().map(String::as_str).collect::<Vec<_>>(), ["ublkb0", "vda"]);
    }

    #[test]
    fn file_systems_on_them_are_found_through_volumes_and_by_the_source_of_those_that_have_several_disks_each_once()
     {
        let (_folder, host) = machine(
            "22 1 259:5 / / rw - ext4 /dev/nvme0n1 rw\n\
             23 22 259:0 / /data\\040one rw - ext4 /dev/ublkb0 rw\n\
             24 22 259:0 /sub /again rw - ext4 /dev/ublkb0 rw\n\
             25 22 253:0 / /volume rw - xfs /dev/mapper/x rw\n\
             26 22 0:44 / /btrfs rw - btrfs /dev/vda rw\n\
             27 22 0:45 / /proc rw - proc proc rw\n\
             broken\n",
        );
        let mounts = Disks::read(&host).mounts(&host);
        let found: Vec<_> =
            mounts.iter().map(|mount| (mount.at.to_str().unwrap(), mount.disk.as_str())).collect();
        assert_eq!(found, [("/data one", "ublkb0"), ("/volume", "ublkb0"), ("/btrfs", "vda")]);
    }

    #[test]
    fn a_machine_without_such_disks_has_nothing_to_stop() {
        let folder = tempfile::tempdir().unwrap();
        let host = Host::at(folder.path(), 1);
        assert!(Disks::read(&host).is_empty());
        assert!(crate::stop_users(&host, &crate::Options::default()).unwrap().is_none());
    }

    #[test]
    fn a_root_file_system_on_such_a_disk_is_refused() {
        let (_folder, host) = machine("22 1 259:0 / / rw - ext4 /dev/ublkb0 rw\n");
        let error = crate::stop_users(&host, &crate::Options::default()).unwrap_err().to_string();
        assert!(error.contains("root file system is on ublkb0"), "{error}");
        assert!(!crate::Note::is_there(&host), "nothing was begun");
    }
}
