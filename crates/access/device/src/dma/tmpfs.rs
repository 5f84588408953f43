//! Files with transparent huge pages, where the machine has free memory in such pieces. They need
//! no reserved pool.
//!
//! A tmpfs has its own setting for huge pages, independent of the administrator's setting for
//! memfds. So each file gets a file system that has no name and contains nothing else. [tmpfs(5),
//! `huge`]

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

/// A file of `len` bytes, which goes with its last descriptor and mapping. Needs CAP_SYS_ADMIN, and
/// Linux 5.2.
///
/// It cannot be sealed: whoever has the descriptor can take its pages away.
pub(super) fn file(len: usize) -> Result<OwnedFd, Errno> {
    let system = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in
        [("huge", "always"), ("size", &len.to_string()), ("nr_inodes", "2"), ("mode", "0700")]
    {
        fsconfig_set_string(&system, key, value)?;
    }
    fsconfig_create(&system)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let folder = fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    let file = openat(
        &folder,
        ".",
        OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )?;
    rustix::fs::ftruncate(&file, len as u64)?;
    Ok(file)
}
