//! What can go wrong between an export and the kernel.

use std::io;
use std::time::Duration;

use super::User;

/// An export that failed. Each message names the device and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no ublk, or not yet.
    #[error(
        "this kernel offers no ublk (/dev/ublk-control is missing): load it with `modprobe \
        ublk_drv`"
    )]
    NoUblk,
    /// The caller may not.
    #[error("/dev/ublk-control: permission denied: exporting a disk needs root (CAP_SYS_ADMIN)")]
    Permission,
    /// The kernel copies, always.
    #[error(
        "this kernel's ublk copies the bytes of every request: sharing memory with clients \
         (--share) needs Linux 7.1 or later; leave --share out, \
         and all else is as it was"
    )]
    NoSharedMemory,
    /// The kernel wants a command for each request.
    #[error(
        "this kernel's ublk takes a command for each request: --batch needs a newer one, such as \
        Linux 7.2; leave it out, and all else is as it was"
    )]
    NoBatches,
    /// The wanted identity is taken.
    #[error(
        "/dev/ublkb{id} exists and is served by {}: choose another --id, or none to let the kernel \
         choose",
        process(*pid)
    )]
    Taken {
        /// The identity.
        id: u32,
        /// Who serves it, as the kernel says it.
        pid: i32,
    },
    /// A device that somebody serves is not deleted.
    #[error("/dev/ublkb{id} is served by {}: stop that first; nothing was deleted", process(*pid))]
    Served {
        /// The identity.
        id: u32,
        /// Who serves it, as the kernel says it.
        pid: i32,
    },
    /// A device that waits for the next server.
    #[error(
        "/dev/ublkb{id} waits for a driver: its supervisor starts the next one, and \
        `ring3 ublk delete {id}` gives the disk up"
    )]
    Recovering {
        /// The identity.
        id: u32,
    },
    /// There is nothing to recover.
    #[error("/dev/ublkb{id} cannot be recovered: {reason}")]
    NotRecoverable {
        /// The identity.
        id: u32,
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// An identity that no kernel has.
    #[error(
        "/dev/ublkb{id}: there is no such device: --id is 0 to {}, for the last disk, too",
        super::uapi::MAX_ID
    )]
    Id {
        /// The identity.
        id: u64,
    },
    /// Somebody else's device, which nobody serves.
    #[error(
        "/dev/ublkb{id} was created by another program, which does not serve it (yet): choose \
         another --id, or delete it with \
         `ring3 ublk delete {id}`"
    )]
    Foreign {
        /// The identity.
        id: u32,
    },
    /// Another ring3 creates or deletes a device and does not come to an end.
    #[error(
        "another ring3 has held the lock on /dev/ublk-control for {waited:?}: `fuser \
        /dev/ublk-control` says which; look at `dmesg`"
    )]
    Locked {
        /// How long.
        waited: Duration,
    },
    /// What the disk holds back was not made durable.
    #[error(
        "{device} is stopped, but {disk} did not empty its write cache: {reason}: what was written \
        last may be lost"
    )]
    Flush {
        /// `/dev/ublkbN`.
        device: String,
        /// The disk's name.
        disk: String,
        /// Why not.
        reason: String,
    },
    /// The kernel refused a command.
    #[error("{device}: the kernel refused {command}: {cause}")]
    Command {
        /// Which command.
        command: &'static str,
        /// Which device.
        device: String,
        /// Why not.
        cause: io::Error,
    },
    /// The kernel did not answer.
    #[error(
        "{device}: the kernel did not end {command} within {waited:?}; look at `dmesg`. Some \
         kernels (6.18.4, 6.18.5) lose ADD_DEV \
         and need a restart of the machine"
    )]
    Hung {
        /// Which command.
        command: &'static str,
        /// Which device.
        device: String,
        /// How long.
        waited: Duration,
    },
    /// Somebody uses the device.
    #[error(
        "{device} is in use by {}: unmount or close it first, or stop again to take it away",
        list(users)
    )]
    Busy {
        /// `/dev/ublkbN`.
        device: String,
        /// Who.
        users: Vec<User>,
    },
    /// The kernel cannot express what the disk is.
    #[error("{disk} cannot be exported: {reason}")]
    Disk {
        /// The disk's name.
        disk: String,
        /// Why.
        reason: String,
    },
    /// A queue thread ended although the device was not stopped.
    #[error("{device} queue {queue}: {reason}")]
    Queue {
        /// `/dev/ublkbN`.
        device: String,
        /// Which queue.
        queue: u16,
        /// Why.
        reason: String,
        /// The device is gone.
        gone: bool,
    },
    /// The driver below failed.
    #[error("{disk}: {cause}")]
    Driver {
        /// The disk's name.
        disk: String,
        /// Why.
        cause: ring3_class::Error,
    },
    /// VDUSE, in place of ublk.
    #[error(transparent)]
    Vduse(#[from] ring3_vduse::Error),
    /// The kernel has no driver for such a device.
    #[error(
        "the kernel has made no {what} of {device}: load its drivers with `modprobe -a virtio_vdpa \
        {module}`"
    )]
    NoVirtio {
        /// The VDUSE device.
        device: String,
        /// What it was to become.
        what: &'static str,
        /// The driver.
        module: &'static str,
    },
    /// The operating system refused something else.
    #[error("{what}: {cause}")]
    Os {
        /// What was tried.
        what: String,
        /// Why not.
        cause: io::Error,
    },
}

impl Error {
    pub(crate) fn os(what: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        Self::Os { what: what.into(), cause: cause.into() }
    }
}

fn process(pid: i32) -> String {
    if pid > 0 {
        format!("process {pid}")
    } else {
        "a process that is setting it up or leaving it".into()
    }
}

fn list(users: &[User]) -> String {
    match users {
        [] => "somebody in another namespace".into(),
        users => users.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}
