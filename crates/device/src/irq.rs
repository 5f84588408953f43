//! Interrupts as counted file descriptors.
//!
//! An [`Irq`] is an eventfd that the backend signals, or a file of the kernel that counts by itself. Its count says how often the device raised it since it was last taken;
//! a count above one means that interrupts came together, which is counted as missed (they were not lost: the driver looks at
//! its rings, not at the count).
//!
//! # Masking
//! INTx arrives masked and must be unmasked after it was served; MSI and MSI-X are edges and stay open unless masked.
//! A mask is cheap (one register write for MSI-X), so a queue masks its vector while it polls.
//!
//! # Storms
//! A vector that comes more often than its [`StormLimit`] is masked, says so once, and is let through again after a pause. While it
//! is held back, `unmask` takes effect only at the end of the pause: whoever sleeps on the descriptor of an interrupt calls
//! [`Irq::rearm`] when [`Irq::held`] has run down. [`Irq::wait`] and the [`Waiter`](crate::wait::Waiter) do.

mod counter;
mod edges;
mod fan_out;
mod storm;

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
    /// 1 if the function has a pin that the backend can deliver; 2 for an IDE function in compatibility mode, whose channels
    /// each have an interrupt of their own.
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
    /// A vector over `fd`, a non-blocking eventfd that the backend signals. Without `control` it cannot be masked.
    pub fn new(fd: OwnedFd, kind: IrqKind, vector: u16, control: Option<Arc<dyn IrqControl>>) -> Self {
        Self::counting(fd, Counter::Eventfd, kind, vector, control)
    }

    /// The pin over `fd`, a non-blocking uio file, whose count (modulo 2^32) is `count` now: what comes later is what it says more.
    pub fn of_uio(fd: OwnedFd, count: u32, control: Arc<dyn IrqControl>) -> Self {
        Self::counting(fd, Counter::Uio(AtomicU32::new(count)), IrqKind::Intx, 0, Some(control))
    }

    fn counting(fd: OwnedFd, counter: Counter, kind: IrqKind, vector: u16, control: Option<Arc<dyn IrqControl>>) -> Self {
        let (count, missed) = (AtomicU64::new(0), AtomicU64::new(0));
        let wanted = AtomicBool::new(kind != IrqKind::Intx);
        Self { fd, counter, vector, kind, control, count, missed, wanted, storm: Storm::new(StormLimit::default()) }
    }

    /// The same vector behind `control`, with counts of its own; the two are not to be taken from at once.
    pub fn behind(&self, control: Arc<dyn IrqControl>) -> Result<Self, Error> {
        let fd = self.fd.try_clone().map_err(|error| Error::os("duplicating an interrupt's descriptor", error))?;
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
        if count > 0 && self.storm.note(count) {
            self.hold_back()?;
        }
        Ok(count)
    }

    /// The same after a time in which nobody looked at the count: how large it is says nothing of a storm.
    pub(crate) fn take_unnoted(&self) -> Result<u64, Error> {
        let count = self.counter.take(&self.fd).map_err(|error| Error::os("reading an interrupt's count", error))?;
        self.count.fetch_add(count, Ordering::Relaxed);
        self.missed.fetch_add(count.saturating_sub(1), Ordering::Relaxed);
        if count > 0 && self.kind == IrqKind::Intx {
            // The backend has masked it when it fired.
            self.wanted.store(false, Ordering::Relaxed);
        }
        Ok(count)
    }

    /// Waits until the device raises it or `deadline` passes; returns the count, zero at the deadline.
    pub fn wait(&self, deadline: Deadline) -> Result<u64, Error> {
        loop {
            let count = self.take()?;
            if count > 0 || deadline.expired() {
                return Ok(count);
            }
            self.sleep(deadline)?;
        }
    }

    /// Sleeps until the descriptor is signalled, a storm's pause is over, or `deadline` passes; may wake up for nothing.
    pub(crate) fn sleep(&self, deadline: Deadline) -> Result<(), Error> {
        self.sleep_unless(deadline, None)
    }

    /// As [`sleep`](Self::sleep), and wakes up when `other` is readable, too.
    fn sleep_unless(&self, deadline: Deadline, other: Option<&OwnedFd>) -> Result<(), Error> {
        let timeout = self.patience(deadline);
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN), PollFd::new(other.unwrap_or(&self.fd), PollFlags::IN)];
        match poll(&mut fds[..1 + usize::from(other.is_some())], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => self.rearm().map(drop),
            Err(error) => Err(Error::os("waiting for an interrupt", error)),
        }
    }

    /// How long a sleep may last: until `deadline`, or the end of a storm's pause.
    fn patience(&self, deadline: Deadline) -> Option<rustix::event::Timespec> {
        let left = deadline.remaining();
        rustix::event::Timespec::try_from(self.held().map_or(left, |held| left.min(held))).ok()
    }

    /// Holds further interrupts back; without effect where the backend cannot.
    pub fn mask(&self) -> Result<(), Error> {
        self.wanted.store(false, Ordering::Relaxed);
        self.control.as_ref().map_or(Ok(()), |control| control.mask(self.vector))
    }

    /// Lets interrupts through again, after a storm only when its pause is over. After it, look at the ring once more before
    /// sleeping.
    pub fn unmask(&self) -> Result<(), Error> {
        self.wanted.store(true, Ordering::Relaxed);
        match self.held() {
            None => self.control.as_ref().map_or(Ok(()), |control| control.unmask(self.vector)),
            Some(_) => self.rearm().map(drop),
        }
    }

    /// What is left of the pause that a storm has caused; `None` if it is not held back.
    pub fn held(&self) -> Option<Duration> {
        self.storm.held()
    }

    /// Ends a storm's pause if it has run down: the interrupt is open again if its owner wants it open. True if it ended now.
    pub fn rearm(&self) -> Result<bool, Error> {
        if self.held() != Some(Duration::ZERO) {
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
                "{:?} vector {}: more than {count} interrupts in {window:?}; it is masked for {hold:?} now and whenever this happens again",
                self.kind,
                self.vector
            );
        }
        self.control.as_ref().map_or(Ok(()), |control| control.mask(self.vector))
    }

    /// What it has seen so far.
    pub fn stats(&self) -> IrqStats {
        let (count, missed) = (self.count.load(Ordering::Relaxed), self.missed.load(Ordering::Relaxed));
        IrqStats { count, missed, storms: self.storm.storms() }
    }
}

impl AsFd for Irq {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[derive(Default)]
    struct Journal(Mutex<Vec<&'static str>>);

    impl IrqControl for Journal {
        fn mask(&self, _: u16) -> Result<(), Error> {
            self.0.lock().unwrap().push("mask");
            Ok(())
        }
        fn unmask(&self, _: u16) -> Result<(), Error> {
            self.0.lock().unwrap().push("unmask");
            Ok(())
        }
    }

    fn vector(kind: IrqKind) -> (Irq, OwnedFd, Arc<Journal>) {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let device = fd.try_clone().unwrap();
        let journal = Arc::new(Journal::default());
        let limit = StormLimit { count: 10, window: Duration::from_secs(5), hold: Duration::from_millis(20) };
        (Irq::new(fd, kind, 3, Some(journal.clone())).with_storm_limit(limit), device, journal)
    }

    fn raise(device: &OwnedFd, times: u64) {
        rustix::io::write(device, &times.to_ne_bytes()).unwrap();
    }

    #[test]
    fn interrupts_that_come_together_are_counted_as_missed() {
        let (irq, device, _) = vector(IrqKind::MsiX);
        raise(&device, 3);
        irq.take().unwrap();
        assert_eq!(irq.stats(), IrqStats { count: 3, missed: 2, storms: 0 });
    }

    #[test]
    fn a_uio_file_counts_on_from_what_it_said_when_it_was_opened_even_around_zero() {
        let (reader, device) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let irq = Irq::of_uio(reader, u32::MAX, Arc::new(Journal::default()));
        let says = |total: u32| rustix::io::write(&device, &total.to_ne_bytes()).unwrap();
        says(0);
        assert_eq!(irq.take().unwrap(), 1);
        says(3);
        assert_eq!((irq.take().unwrap(), irq.take().unwrap()), (3, 0));
        assert_eq!(irq.stats(), IrqStats { count: 4, missed: 2, storms: 0 });
    }

    #[test]
    fn a_vector_behind_another_control_is_counted_in_its_own_way() {
        // A uio file says how often ever, in 4 bytes.
        let (file, kernel) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let journal = Arc::new(Journal::default());
        let irq = Irq::of_uio(file, 7, journal.clone()).behind(journal.clone()).unwrap();
        rustix::io::write(&kernel, &9u32.to_ne_bytes()).unwrap();
        assert_eq!((irq.take().unwrap(), irq.kind()), (2, IrqKind::Intx));
        irq.unmask().unwrap();
        assert_eq!(journal.0.lock().unwrap().as_slice(), ["unmask"]);
    }

    #[test]
    fn a_storm_masks_the_vector_once() {
        let (irq, device, journal) = vector(IrqKind::MsiX);
        for _ in 0..3 {
            raise(&device, 11);
            irq.take().unwrap();
        }
        assert_eq!((irq.stats().storms, journal.0.lock().unwrap().as_slice()), (1, ["mask"].as_slice()));
    }

    #[test]
    fn a_vector_that_storms_is_let_through_after_the_pause() {
        let (irq, device, journal) = vector(IrqKind::MsiX);
        raise(&device, 11);
        irq.take().unwrap();
        irq.wait(Deadline::after(Duration::from_millis(60))).unwrap();
        assert_eq!(journal.0.lock().unwrap().as_slice(), ["mask", "unmask"]);
    }

    #[test]
    fn unmasking_during_the_pause_takes_effect_at_its_end() {
        let (irq, device, journal) = vector(IrqKind::Intx);
        raise(&device, 11);
        irq.take().unwrap();
        irq.unmask().unwrap();
        assert_eq!(journal.0.lock().unwrap().as_slice(), ["mask"]);
        irq.wait(Deadline::after(Duration::from_millis(60))).unwrap();
        assert_eq!(journal.0.lock().unwrap().as_slice(), ["mask", "unmask"]);
    }

    #[test]
    fn a_vector_that_its_owner_masked_stays_masked_after_the_pause() {
        let (irq, device, journal) = vector(IrqKind::MsiX);
        raise(&device, 11);
        irq.take().unwrap();
        irq.mask().unwrap();
        irq.wait(Deadline::after(Duration::from_millis(60))).unwrap();
        assert!(!journal.0.lock().unwrap().contains(&"unmask"));
    }
}
