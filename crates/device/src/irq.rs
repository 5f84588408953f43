//! Interrupts as counted file descriptors.
//!
//! An [`Irq`] is an eventfd that the backend signals. Its count says how often the device raised it since it was last taken;
//! a count above one means that interrupts came together, which is counted as missed (they were not lost: the driver looks at
//! its rings, not at the count).
//!
//! # Masking
//! INTx arrives masked and must be unmasked after it was served; MSI and MSI-X are edges and stay open unless masked.
//! A mask is cheap (one register write for MSI-X), so a queue masks its vector while it polls.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::{Deadline, Error};

/// How the function signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IrqKind {
    /// The level-triggered pin.
    Intx,
    /// Message signalled, one address.
    Msi,
    /// Message signalled, a table of vectors.
    MsiX,
}

/// How many vectors of each kind a function has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IrqLimits {
    /// 1 if the function has a pin that the backend can deliver.
    pub intx: u16,
    /// MSI vectors.
    pub msi: u16,
    /// MSI-X table entries.
    pub msix: u16,
}

/// What a backend must be able to do with a vector.
pub trait IrqControl: Send + Sync {
    /// Holds interrupts of `vector` back. One that comes meanwhile is delivered at [`unmask`](IrqControl::unmask).
    fn mask(&self, vector: u16) -> Result<(), Error>;
    /// Lets interrupts of `vector` through again, with one that was held back.
    fn unmask(&self, vector: u16) -> Result<(), Error>;
}

/// What an interrupt has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IrqStats {
    /// Raised by the device.
    pub count: u64,
    /// Of these, the ones that arrived together with another and woke nobody.
    pub missed: u64,
}

/// One interrupt vector.
pub struct Irq {
    fd: OwnedFd,
    vector: u16,
    kind: IrqKind,
    control: Option<Arc<dyn IrqControl>>,
    count: AtomicU64,
    missed: AtomicU64,
}

impl Irq {
    /// A vector over `fd`, a non-blocking eventfd that the backend signals. Without `control` it cannot be masked.
    pub fn new(fd: OwnedFd, kind: IrqKind, vector: u16, control: Option<Arc<dyn IrqControl>>) -> Self {
        Self { fd, vector, kind, control, count: AtomicU64::new(0), missed: AtomicU64::new(0) }
    }

    /// How it is signalled.
    pub fn kind(&self) -> IrqKind {
        self.kind
    }

    /// Its number within its kind.
    pub fn vector(&self) -> u16 {
        self.vector
    }

    /// Takes what has come since the last call: how many times the device raised it. Never blocks.
    pub fn take(&self) -> Result<u64, Error> {
        let mut count = [0u8; 8];
        match rustix::io::read(&self.fd, &mut count) {
            Ok(_) => {
                let count = u64::from_ne_bytes(count);
                self.count.fetch_add(count, Ordering::Relaxed);
                self.missed.fetch_add(count.saturating_sub(1), Ordering::Relaxed);
                Ok(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(Error::os("reading an interrupt's eventfd", error)),
        }
    }

    /// Waits until the device raises it or `deadline` passes; returns the count, zero at the deadline.
    pub fn wait(&self, deadline: Deadline) -> Result<u64, Error> {
        loop {
            let count = self.take()?;
            let remaining = deadline.remaining();
            if count > 0 || remaining.is_zero() {
                return Ok(count);
            }
            let timeout = rustix::event::Timespec::try_from(remaining).ok();
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(Error::os("waiting for an interrupt", error)),
            }
        }
    }

    /// Holds further interrupts back; without effect where the backend cannot.
    pub fn mask(&self) -> Result<(), Error> {
        self.control.as_ref().map_or(Ok(()), |control| control.mask(self.vector))
    }

    /// Lets interrupts through again. After it, look at the ring once more before sleeping.
    pub fn unmask(&self) -> Result<(), Error> {
        self.control.as_ref().map_or(Ok(()), |control| control.unmask(self.vector))
    }

    /// What it has seen so far.
    pub fn stats(&self) -> IrqStats {
        IrqStats { count: self.count.load(Ordering::Relaxed), missed: self.missed.load(Ordering::Relaxed) }
    }
}

impl AsFd for Irq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
