//! Makes this process fit to stand under a file system.
//!
//! A process that serves a disk must never wait for that disk, or the machine stands still: not for
//! its own pages to be read back in, not for memory that is freed by writing to the disk, and not
//! for a mount that lives on the disk.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{Resource, Rlimit, configure_io_flusher_behavior, getrlimit, setrlimit};
use rustix::thread::UnshareFlags;

/// A process that cannot be prepared.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub struct Error {
    /// What was tried, and what to do about it.
    pub what: String,
    /// Why not.
    pub source: std::io::Error,
}

/// Prepares the calling process, before it has other threads than the log's; `keep` are paths that
/// it needs later. Requirements root. What could not be had is given back in words: it serves
/// without, and they are for who has a disk.
pub fn prepare(keep: &[&Path]) -> Result<Vec<String>, Error> {
    raise_files();
    leave_mounts(keep)?;
    Ok(stay_in_memory())
}

/// Makes the calling process wait for no disk by its memory. What could not be had is given back in
/// words.
pub fn stay_in_memory() -> Vec<String> {
    let mut doubts = Vec::new();
    // Memory for this process is never found by writing to disks, ours among them.
    if let Err(error) = configure_io_flusher_behavior(true) {
        doubts.push(format!(
            "the kernel may wait for this disk while it looks for memory (PR_SET_IO_FLUSHER): \
             {error}"
        ));
    }
    // As far as it may: what comes later is locked, too, whoever the process is then.
    let lifted = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None }).is_ok();
    let unlimited = lifted || getrlimit(Resource::Memlock).current.is_none();
    // First all that is mapped now, read in; then what comes later, as it is touched: stacks would
    // be locked whole otherwise.
    let later = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    // Under a limit, memory of a driver's device could not be mapped any more once it has no
    // rights.
    let locked = mlockall(MlockAllFlags::CURRENT)
        .and_then(|()| if unlimited { mlockall(later) } else { Ok(()) });
    if !unlimited {
        doubts.push(
            "what this process maps from now on may be paged out: raise `ulimit -l`, or give it \
             CAP_SYS_RESOURCE"
                .into(),
        );
    }
    if let Err(error) = locked {
        doubts
            .push(format!("this process may be paged out (mlockall); raise `ulimit -l`: {error}"));
    }
    doubts
}

/// Lets this process open as many files as it may: each driver and each client takes some, and what
/// one of them takes the others need. What it may not is an error when it is needed.
pub fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Takes a mount namespace that sees no mounts made from now on, and lets go of file systems that
/// this process does not need.
///
/// If the process shared its namespace with a mount of its own disk, its exit could wait for that
/// mount's write-back, which only it could serve. Without letting go, a disk that is unmounted
/// elsewhere would stay mounted here.
fn leave_mounts(keep: &[&Path]) -> Result<(), Error> {
    let what = "taking a mount namespace of its own (exporting a disk needs root)";
    let refused = |source: rustix::io::Errno| Error { what: what.into(), source: source.into() };
    // SAFETY: only the namespace changes, and no thread exists that could rely on sharing the
    // working directory: the log's opens nothing.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.map_err(refused)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(refused)?;
    let mut needed: Vec<PathBuf> =
        ["/", "/usr", "/tmp", "/var/tmp", "/run", "/dev", "/sys", "/proc"]
            .map(PathBuf::from)
            .into();
    needed.extend([std::env::current_exe(), std::env::current_dir()].into_iter().flatten());
    needed.extend(
        keep.iter().filter_map(|path| fs::canonicalize(path.parent().unwrap_or(path)).ok()),
    );
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for at in superfluous(&mounts, &needed).iter().rev() {
        if let Err(error) = unmount(at, UnmountFlags::DETACH) {
            tracing::debug!(at = %at.display(), %error, "a mount stays");
        }
    }
    Ok(())
}

/// The mounts of disks (lines of mountinfo) on which none of the paths in `needed` lies.
fn superfluous(mounts: &str, needed: &[PathBuf]) -> Vec<PathBuf> {
    let at = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let source = after.split(' ').nth(1)?;
        let at = PathBuf::from(before.split(' ').nth(4)?.replace("\\040", " "));
        (source.starts_with("/dev/") && !needed.iter().any(|path| path.starts_with(&at)))
            .then_some(at)
    };
    mounts.lines().filter_map(at).collect()
}

/// The most memory that this process has had resident so far, in bytes, its DMA memory included.
pub fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
        22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        23 22 0:5 / /proc rw - proc proc rw\n\
        24 22 8:2 / /home rw - ext4 /dev/sda2 rw\n\
        25 22 8:3 / /mnt/usb\\040stick rw - vfat /dev/sdb1 rw\n";

    #[test]
    fn disks_that_the_process_does_not_need_are_let_go() {
        let needed = ["/", "/home/user/bin/ring3"].map(PathBuf::from);
        assert_eq!(superfluous(MOUNTS, &needed), [PathBuf::from("/mnt/usb stick")]);
    }

    #[test]
    fn peak_memory_is_at_least_a_page() {
        assert!(peak_memory().unwrap() >= 4096);
    }
}
