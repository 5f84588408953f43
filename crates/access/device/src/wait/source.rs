//! The trait of everything that a thread can wait for.

use std::time::Instant;

use super::WaitStats;
use crate::irq::Irq;
use crate::{Deadline, Error};

/// Something that a thread waits for alone ([`wait`](Source::wait)), or an event loop together with
/// others: a queue of a disk or of a network card, a ring that the kernel or another process fills,
/// the timers of a driver that was written for a kernel.
///
/// # In a loop
/// Poll by [`pending`](Source::pending) while that pays. Before a sleep: [`arm`](Source::arm), and
/// sleep on [`irq`](Source::irq) if that says true, until the time that [`tick`](Source::tick) has
/// named. Back from it, [`disarm`](Source::disarm) if you poll next.
pub trait Source {
    /// What is raised when there is something to take; `None` if only a look tells.
    fn irq(&self) -> Option<&Irq>;

    /// Whether there is something to take: a cheap look that takes nothing.
    fn pending(&self) -> bool;

    /// Prepares to sleep on [`irq`](Source::irq): true if it is armed and nothing is pending, so
    /// that sleeping is safe; false if there is something to take now, or no interrupt to sleep on.
    fn arm(&mut self) -> Result<bool, Error>;

    /// Back from sleep: the interrupt is held back again while the owner polls.
    fn disarm(&mut self) -> Result<(), Error>;

    /// Lets time pass: finds what has taken too long or came without its interrupt, and goes on
    /// with what waits for a time. Cheap, and may be called at any time; `now` is the present.
    ///
    /// Returns when it wants to be called next. `None`: not before it is given something to do, and
    /// who gives it something calls it anew.
    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error>;

    /// Waits alone until something is [`pending`](Source::pending), first by polling, then by
    /// interrupt. False at the deadline.
    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error>;

    /// What waiting has cost so far: polls, sleeps, and how often it went from one to the other.
    fn wait_stats(&self) -> WaitStats {
        WaitStats::default()
    }
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn irq(&self) -> Option<&Irq> {
        (**self).irq()
    }
    #[inline]
    fn pending(&self) -> bool {
        (**self).pending()
    }
    fn arm(&mut self) -> Result<bool, Error> {
        (**self).arm()
    }
    fn disarm(&mut self) -> Result<(), Error> {
        (**self).disarm()
    }
    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        (**self).tick(now)
    }
    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        (**self).wait(deadline)
    }
    fn wait_stats(&self) -> WaitStats {
        (**self).wait_stats()
    }
}

/// The sooner of two times, of which either may be none.
#[must_use]
pub fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
