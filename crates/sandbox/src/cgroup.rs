//! A control group for each device, in version 2 of their hierarchy. [cgroup-v2]

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::Limits;

/// Of a processor's time, in microseconds.
const PERIOD: u64 = 100_000;

/// The controllers that are needed.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// A group that keeps its members within limits.
#[derive(Debug)]
pub(crate) struct Group {
    folder: OwnedFd,
}

impl Group {
    /// The group of `limits`, below the one of this process; made if it is not there.
    pub(crate) fn of(limits: &Limits) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let (root, own) = base(&mounts, &own).ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no cgroup v2 is mounted"))?;
        let parent = delegated(&root, &root.join(own))?;
        let folder = parent.join(format!("ring3-{}", limits.name.replace('/', "-")));
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(at(&folder, error)),
            _ => {}
        }
        let quota = PERIOD * u64::from(limits.cpu_percent) / 100;
        set(&folder.join("memory.max"), &limits.memory.to_string())?;
        set(&folder.join("cpu.max"), &format!("{quota} {PERIOD}"))?;
        set(&folder.join("pids.max"), &limits.pids.to_string())?;
        // A system without swap has no such file.
        let _ = fs::write(folder.join("memory.swap.max"), "0");
        let opened = rustix::fs::open(&folder, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { folder: opened })
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }
}

/// Where the hierarchy is mounted, and the group of this process in it.
fn base(mountinfo: &str, cgroup: &str) -> Option<(PathBuf, PathBuf)> {
    let mount = mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        (after.split(' ').next()? == "cgroup2").then(|| before.split(' ').nth(4))?
    })?;
    let own = cgroup.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some((mount.into(), own.into()))
}

/// The group in which others can be made: the own one, once nobody is in it but in groups of it. [cgroup-v2, no internal processes]
fn delegated(root: &Path, own: &Path) -> io::Result<PathBuf> {
    // A service manager, or an earlier call, has put this process into a group of its own already.
    let parent =
        if own.file_name().is_some_and(|name| name == "supervisor") && own != root { own.parent().unwrap_or(root) } else { own };
    let wanted = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
    let control = parent.join("cgroup.subtree_control");
    match fs::write(&control, &wanted) {
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            let aside = parent.join("supervisor");
            fs::create_dir(&aside).or_else(|error| if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(error) })?;
            set(&aside.join("cgroup.procs"), &std::process::id().to_string())?;
            set(&control, &wanted)?;
        }
        result => result.map_err(|error| at(&control, error))?,
    }
    Ok(parent.into())
}

fn set(file: &Path, value: &str) -> io::Result<()> {
    fs::write(file, value).map_err(|error| at(file, error))
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_the_one_of_version_2_and_the_own_group_is_in_it() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n31 25 0:27 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw\n";
        let own = "4:cpu:/a\n0::/system.slice/ring3d.service\n";
        let (root, group) = base(mounts, own).unwrap();
        assert_eq!((root, group), ("/sys/fs/cgroup/unified".into(), "system.slice/ring3d.service".into()));
        assert!(base("", own).is_none() && base(mounts, "4:cpu:/a\n").is_none());
    }
}
