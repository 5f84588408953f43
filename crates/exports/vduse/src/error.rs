//! What can go wrong.

use std::io;

/// A device that could not be made, served or attached. The text says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no VDUSE, or not yet.
    #[error(
        "this kernel offers no VDUSE (/dev/vduse/control is missing): load it with `modprobe \
        vduse` (Linux 5.15 and later)"
    )]
    Missing,
    /// The caller may not.
    #[error(
        "/dev/vduse: permission denied: making, serving and deleting VDUSE devices needs root \
        (CAP_SYS_ADMIN, for a network card CAP_NET_ADMIN)"
    )]
    Permission,
    /// No name of a device.
    #[error(
        "'{0}' is no name of a VDUSE device: 1 to 63 letters, digits, '-', '_' and '.', and not \
        'control'"
    )]
    Name(String),
    /// There is a device of that name.
    #[error(
        "/dev/vduse/{0} exists: its server has died, or it is another program's: go on with it by \
        its name, or choose another one"
    )]
    Exists(String),
    /// Another process has it open.
    #[error("/dev/vduse/{0} is served by another process: choose another name, or stop that one")]
    Served(String),
    /// There is no device of that name.
    #[error("there is no VDUSE device '{0}': `ls /dev/vduse` says which there are")]
    Absent(String),
    /// Its server is not done with it.
    #[error("/dev/vduse/{0} is not ready: its server has not set its queues up yet; try again")]
    NotReady(String),
    /// There is nobody on the bus who takes such devices.
    #[error(
        "the kernel has no management device 'vduse' on its vDPA bus: load it with `modprobe vduse`"
    )]
    NoManagement,
    /// The bus itself is not there.
    #[error("this kernel has no vDPA bus: load it with `modprobe vdpa`")]
    NoBus,
    /// What a dead server has left cannot be read, or is of another device.
    #[error("{path}: {reason}")]
    Log {
        /// The log of what is in flight.
        path: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// What the driver has written makes no sense.
    #[error(
        "what the driver has written into virtqueue {queue} makes no sense ({fault}): it is served \
        again after a reset (unbind and bind its driver)"
    )]
    Driver {
        /// Which queue.
        queue: u16,
        /// Why.
        fault: Fault,
    },
    /// The operating system refused.
    #[error("{what}: {cause}")]
    Os {
        /// What was tried.
        what: String,
        /// Why not.
        cause: io::Error,
    },
}

impl Error {
    /// An [`Error::Os`].
    pub fn os(what: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        Self::Os { what: what.into(), cause: cause.into() }
    }
}

/// What a driver has written that cannot be: its virtqueue needs a reset. [virtio 2.1.2]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No ring can be like that.
    #[error("a ring of {0} entries, or at places that are not aligned")]
    Shape(u32),
    /// An address where nothing is mapped, or not so much, or not for that.
    #[error("{len} bytes at {iova:#x} are not mapped")]
    Unmapped {
        /// Where.
        iova: u64,
        /// How many.
        len: u64,
    },
    /// The index says that more is available than the ring has entries.
    #[error("the available index is {ahead} ahead in a ring of {size}")]
    Index {
        /// How far.
        ahead: u16,
        /// Entries of the ring.
        size: u16,
    },
    /// A descriptor that is none.
    #[error("descriptor {0} is beyond its table")]
    Descriptor(u16),
    /// More descriptors than there are.
    #[error("the chain of descriptor {0} has no end")]
    Loop(u16),
    /// More pieces than the device takes, or 4 GiB.
    #[error("the chain of descriptor {0} is too long")]
    Long(u16),
    /// An indirect table that cannot be.
    #[error("the indirect table of descriptor {0} is none")]
    Indirect(u16),
    /// Something to read behind something to write.
    #[error("the chain of descriptor {0} goes on to read after it has begun to write")]
    Order(u16),
    /// A chain that is in flight already.
    #[error("descriptor {0} is offered while it is in flight")]
    Twice(u16),
}
