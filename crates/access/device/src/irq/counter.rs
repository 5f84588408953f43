//! The meaning of a value that is read from an interrupt's descriptor.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

/// How a descriptor counts.
pub(super) enum Counter {
    /// An eventfd: 8 bytes, how often since the last read.
    Eventfd,
    /// A uio file: 4 bytes, how often ever, modulo 2^32; here is what it said last. [Linux,
    /// Documentation/driver-api/uio-howto.rst]
    Uio(AtomicU32),
}

impl Clone for Counter {
    fn clone(&self) -> Self {
        match self {
            Self::Eventfd => Self::Eventfd,
            Self::Uio(last) => Self::Uio(AtomicU32::new(last.load(Ordering::Relaxed))),
        }
    }
}

impl Counter {
    /// How often it was raised since the last call. Never blocks, as the descriptor does not.
    pub(super) fn take(&self, fd: impl AsFd) -> Result<u64, Errno> {
        let taken = match self {
            Self::Eventfd => {
                let mut count = [0; 8];
                rustix::io::read(fd, &mut count).map(|_| u64::from_ne_bytes(count))
            }
            Self::Uio(last) => {
                let mut total = [0; 4];
                rustix::io::read(fd, &mut total).map(|_| {
                    let total = u32::from_ne_bytes(total);
                    total.wrapping_sub(last.swap(total, Ordering::Relaxed)).into()
                })
            }
        };
        match taken {
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            other => other,
        }
    }
}
