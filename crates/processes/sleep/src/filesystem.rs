//! A file system that takes no writes. [ioctl_fsfreeze, Linux, include/uapi/linux/fs.h]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// _IOWR('X', 119, int) and _IOWR('X', 120, int).
const FIFREEZE: u64 = 0xc004_5877;
const FITHAW: u64 = 0xc004_5878;

/// Freezes the one at `path`; false if it cannot be frozen, or somebody has frozen it already.
pub fn freeze(path: &Path) -> io::Result<bool> {
    match command(path, FIFREEZE) {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EBUSY | libc::EOPNOTSUPP | libc::ENOENT)
            ) =>
        {
            Ok(false)
        }
        done => done.map(|()| true),
    }
}

/// Thaws it. One that somebody else has thawed, or unmounted, needs nothing.
pub fn thaw(path: &Path) -> io::Result<()> {
    match command(path, FITHAW) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(()),
        done => done,
    }
}

fn command(path: &Path, command: u64) -> io::Result<()> {
    let file = File::open(path)?;
    let argument: c_int = 0;
    // SAFETY: the descriptor is open, and the kernel reads nothing of the argument, which is an
    // integer that outlives the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), command as _, &raw const argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
