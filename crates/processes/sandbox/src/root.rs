//! A root that has nothing in it.

use std::io;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_move, unmount,
};
use rustix::process::{chdir, chroot, pivot_root};
use rustix::thread::UnshareFlags;

use crate::Error;

/// Folders on which the empty one may be mounted, one of which is there on every system. What they
/// hold is not touched.
const AT: [&str; 4] = ["/proc", "/sys", "/dev", "/tmp"];

/// Makes an empty read-only folder the root of the calling process, which needs the right to mount,
/// and lets go of all other file systems.
pub(crate) fn empty() -> Result<(), Error> {
    let step = |what: &str| {
        let what = format!("an empty root ({what})");
        move |error: Errno| Error::step(what, error)
    };
    // SAFETY: only the namespace of mounts changes, and the one thread that there is does not rely
    // on sharing it.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
        .map_err(step("a mount namespace"))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(step("private mounts"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    let made = AT.iter().find(|at| {
        mount("ring3", **at, "tmpfs", flags, Some(c"size=4k,nr_inodes=1,mode=0555")).is_ok()
    });
    let at =
        made.ok_or_else(|| Error::step("an empty root (mounting it)", io::Error::last_os_error()))?;
    chdir(*at).map_err(step("going there"))?;
    match pivot_root(".", ".") {
        Ok(()) => unmount(".", UnmountFlags::DETACH).map_err(step("letting go of the old one"))?,
        // An initial RAM file system cannot be let go of. It is covered, and nothing leads below
        // without a right that the process does not keep.
        Err(Errno::INVAL) => {
            mount_move(".", "/").map_err(step("covering the old one"))?;
            chroot(".").map_err(step("entering it"))?;
        }
        Err(error) => return Err(step("changing to it")(error)),
    }
    chdir("/").map_err(step("going to it"))?;
    // Seen, not believed: there must be nothing.
    match rustix::fs::statat(CWD, "/proc", rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        _ => Err(Error::step("an empty root", io::Error::other("there is something in it"))),
    }
}
