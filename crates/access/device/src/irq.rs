//! Interrupts as counted file descriptors.
//!
//! An [`Irq`] is an eventfd that the backend signals, or a file of the kernel that counts by
//! itself. Its count is the number of times that the device raised it since the count was last
//! read. A count above one means that interrupts were merged, which is counted as missed. They were
//! not lost, because the driver checks its rings and not the count.
//!
//! # Masking
//! INTx arrives masked and must be unmasked after it was served. MSI and MSI-X are edge-triggered
//! and stay unmasked unless they are masked explicitly. A mask is cheap (one register write for
//! MSI-X), so a queue masks its vector while it polls.
//!
//! # Storms
//! A vector that fires more often than its [`StormLimit`] is masked, reports this once, and is
//! unmasked after a pause. During the pause, `unmask` takes effect only at its end: a thread that
//! sleeps on the descriptor of an interrupt must call [`Irq::rearm`] when [`Irq::storm_pause`] has
//! run down. [`Irq::wait`] and the [`Waiter`](crate::wait::Waiter) do so.

mod counter;
mod edges;
mod fan_out;
mod storm;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

pub(crate) use edges::Edges;
pub use fan_out::FanOut;
pub use storm::StormLimit;

use crate::{Deadline, Error};
use counter::Counter;
use storm::Storm;

/// How the function signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IrqKind {
    /// The level-triggered pin.
    Intx,
    /// Message signalled, one address.
    Msi,
    /// Message signalled, a table of vectors.
    MsiX,
}

/// How many vectors of each kind a function has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct IrqLimits {
    /// 1 if the function has a pin that the backend can deliver; 2 for an IDE function in
    /// compatibility mode, whose channels each have an interrupt of their own.
    pub intx: u16,
    /// MSI vectors.
    pub msi: u16,
    /// MSI-X table entries.
    pub msix: u16,
}

impl IrqLimits {
    /// How many vectors of `kind` there are.
    pub fn of(self, kind: IrqKind) -> u16 {
        match kind {
            IrqKind::Intx => self.intx,
            IrqKind::Msi => self.msi,
            IrqKind::MsiX => self.msix,
        }
    }
}

/// What a backend must be able to do with a vector.
pub trait IrqControl: Send + Sync {
    /// Holds interrupts of `vector` back. One that comes meanwhile is delivered at
    /// [`unmask`](IrqControl::unmask).
    fn mask(&self, vector: u16) -> Result<(), Error>;
    /// Lets interrupts of `vector` through again, with one that was held back.
    fn unmask(&self, vector: u16) -> Result<(), Error>;
}

/// What an interrupt has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct IrqStats {
    /// Raised by the device.
    pub count: u64,
    /// Of these, the ones that arrived together with another and woke nobody.
    pub missed: u64,
    /// How often it came so fast that it was held back for a while.
    pub storms: u64,
}

/// One interrupt vector.
pub struct Irq {
    fd: OwnedFd,
    counter: Counter,
    vector: u16,
    kind: IrqKind,
    control: Option<Arc<dyn IrqControl>>,
    count: AtomicU64,
    missed: AtomicU64,
    /// Whether the owner wants it open; a storm may hold it back nevertheless.
    wanted: AtomicBool,
    storm: Storm,
}

impl Irq {
    /// A vector over `fd`, a non-blocking eventfd that the backend signals. Without `control` it
    /// cannot be masked.
    pub fn new(
        fd: OwnedFd,
        kind: IrqKind,
        vector: u16,
        control: Option<Arc<dyn IrqControl>>,
    ) -> Self {
        Self::counting(fd, Counter::Eventfd, kind, vector, control)
    }

    /// The pin over `fd`, a non-blocking uio file, whose count (modulo 2^32) is `count` now: what
    /// comes later is what it says more.
    pub fn of_uio(fd: OwnedFd, count: u32, control: Arc<dyn IrqControl>) -> Self {
        Self::counting(fd, Counter::Uio(AtomicU32::new(count)), IrqKind::Intx, 0, Some(control))
    }

    fn counting(
        fd: OwnedFd,
        counter: Counter,
        kind: IrqKind,
        vector: u16,
        control: Option<Arc<dyn IrqControl>>,
    ) -> Self {
        let (count, missed) = (AtomicU64::new(0), AtomicU64::new(0));
        let wanted = AtomicBool::new(kind != IrqKind::Intx);
        Self {
            fd,
            counter,
            vector,
            kind,
            control,
            count,
            missed,
            wanted,
            storm: Storm::new(StormLimit::default()),
        }
    }

    /// The same vector behind `control`, with counts of its own; the two are not to be taken from
    /// at once.
    pub fn behind(&self, control: Arc<dyn IrqControl>) -> Result<Self, Error> {
        let fd = self
            .fd
            .try_clone()
            .map_err(|error| Error::os("duplicating an interrupt's descriptor", error))?;
        Ok(Self::counting(fd, self.counter.clone(), self.kind, self.vector, Some(control)))
    }

    /// The same vector with another limit.
    pub fn with_storm_limit(mut self, limit: StormLimit) -> Self {
        self.storm = Storm::new(limit);
        self
    }

    /// Whether it can be held back.
    pub fn can_mask(&self) -> bool {
        self.control.is_some()
    }

    /// How it is signalled.
    pub fn kind(&self) -> IrqKind {
        self.kind
    }

    /// Its number within its kind.
    pub fn vector(&self) -> u16 {
        self.vector
    }

    /// How many times the device raised it, as far as [taken](Irq::take).
    #[inline]
    pub fn taken(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Takes what has come since the last call: how many times the device raised it. Never blocks.
    pub fn take(&self) -> Result<u64, Error> {
        let count = self.take_unnoted()?;
        if count > 0 && self.storm.record(count) {
            self.hold_back()?;
        }
        Ok(count)
    }

    /// The same after a time in which nobody looked at the count: how large it is says nothing of a
    /// storm.
    pub(crate) fn take_unnoted(&self) -> Result<u64, Error> {
        let count = self
            .counter
            .take(&self.fd)
            .map_err(|error| Error::os("reading an interrupt's count", error))?;
        self.count.fetch_add(count, Ordering::Relaxed);
        self.missed.fetch_add(count.saturating_sub(1), Ordering::Relaxed);
        if count > 0 && self.kind == IrqKind::Intx {
            // The backend has masked it when it fired.
            self.wanted.store(false, Ordering::Relaxed);
        }
        Ok(count)
    }

    /// Waits until the device raises it or `deadline` passes; returns the count, zero at the
    /// deadline.
    pub fn wait(&self, deadline: Deadline) -> Result<u64, Error> {
        loop {
            let count = self.take()?;
            if count > 0 || deadline.expired() {
                return Ok(count);
            }
            self.sleep(deadline.remaining())?;
        }
    }

    /// Sleeps until the descriptor is signalled, a storm's pause is over, or `left` has passed; may
    /// wake up for nothing.
    pub(crate) fn sleep(&self, left: Duration) -> Result<(), Error> {
        self.sleep_unless(left, None)
    }

    /// As [`sleep`](Self::sleep), and wakes up when `other` is readable, too.
    fn sleep_unless(&self, left: Duration, other: Option<&OwnedFd>) -> Result<(), Error> {
        let timeout = self.patience(left);
        let mut fds = [
            PollFd::new(&self.fd, PollFlags::IN),
            PollFd::new(other.unwrap_or(&self.fd), PollFlags::IN),
        ];
        match poll(&mut fds[..1 + usize::from(other.is_some())], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => self.rearm().map(drop),
            Err(error) => Err(Error::os("waiting for an interrupt", error)),
        }
    }

    /// How long a sleep of at most `left` may last: not beyond the end of a storm's pause.
    fn patience(&self, left: Duration) -> Option<rustix::event::Timespec> {
        rustix::event::Timespec::try_from(self.storm_pause().map_or(left, |held| left.min(held)))
            .ok()
    }

    /// Holds further interrupts back; without effect where the backend cannot.
    pub fn mask(&self) -> Result<(), Error> {
        self.wanted.store(false, Ordering::Relaxed);
        self.control.as_ref().map_or(Ok(()), |control| control.mask(self.vector))
    }

    /// Lets interrupts through again, after a storm only when its pause is over. After it, look at
    /// the ring once more before sleeping.
    pub fn unmask(&self) -> Result<(), Error> {
        self.wanted.store(true, Ordering::Relaxed);
        match self.storm_pause() {
            None => self.control.as_ref().map_or(Ok(()), |control| control.unmask(self.vector)),
            Some(_) => self.rearm().map(drop),
        }
    }

    /// Whether it was unmasked since it was last masked, by whoever owned it then; if a storm holds
    /// it back, that ends by itself.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The rest of the pause that an interrupt storm has caused; `None` if there is no pause.
    pub fn storm_pause(&self) -> Option<Duration> {
        self.storm.storm_pause()
    }

    /// Ends a storm's pause if it has run down: the interrupt is open again if its owner wants it
    /// open. True if it ended now.
    pub fn rearm(&self) -> Result<bool, Error> {
        if self.storm_pause() != Some(Duration::ZERO) {
            return Ok(false);
        }
        self.storm.release();
        if self.wanted.load(Ordering::Relaxed) {
            self.unmask()?;
        }
        Ok(true)
    }

    fn hold_back(&self) -> Result<(), Error> {
        let StormLimit { count, window, hold } = self.storm.limit();
        if self.storm.storms() == 1 {
            tracing::warn!(
                "{:?} vector {}: more than {count} interrupts in {window:?}; it is masked for \
                {hold:?} now and whenever this happens again",
                self.kind,
                self.vector
            );
        }
        self.control.as_ref().map_or(Ok(()), |control| control.mask(self.vector))
    }

    /// What it has seen so far.
    pub fn stats(&self) -> IrqStats {
        let (count, missed) =
            (self.count.load(Ordering::Relaxed), self.missed.load(Ordering::Relaxed));
        IrqStats { count, missed, storms: self.storm.storms() }
    }
}

impl AsFd for Irq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
