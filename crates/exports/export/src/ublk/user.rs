//! A user of a block device, as users are told.

use std::fmt;

/// Somebody who uses a block device or one of its partitions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    /// A file system, mounted there.
    Mount(String),
    /// The kernel's swap.
    Swap,
    /// A block device on top (device mapper, RAID, loop).
    Holder(String),
    /// A process that has it open.
    Process(u32, String),
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(at) => write!(f, "the mount at {at}"),
            Self::Swap => write!(f, "swap"),
            Self::Holder(name) => write!(f, "/dev/{name}"),
            Self::Process(pid, name) => write!(f, "process {pid} ({name})"),
        }
    }
}
