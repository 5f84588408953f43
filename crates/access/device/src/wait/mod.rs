//! Waiting for a device: by polling while that pays, else by interrupt.
//!
//! # Shape
//! A [`Waiter`] owns the interrupt of one queue. [`Waiter::wait`] is for a thread that waits for
//! this queue alone; [`Waiter::arm`] and [`Waiter::disarm`] are for an event loop that sleeps on
//! the descriptor together with others. A [`Budget`] says how long polling pays.
//!
//! # Waiting
//! The interrupt is masked while its owner polls and unmasked while it sleeps. Before a sleep:
//! unmask, poll once more, sleep. A completion that comes after the last poll raises an interrupt;
//! one that came before is found by it. A queue with nothing in flight sleeps and costs no CPU.
//!
//! The clock is read twice in a wait that polling or one interrupt ends: at its begin and at its
//! end. A completion that the first poll finds costs no clock read.
//!
//! While sleeping pays, the interrupt stays unmasked from one wait to the next: no register is
//! written per request, and a message costs at most one system call, the one that sleeps.
//!
//! # Trust
//! A lost interrupt is noticed at the deadline, so the caller's deadlines bound the delay
//! ([`WaitStats::lost`]). A storm is bounded by the [`StormLimit`](crate::irq::StormLimit) of the
//! interrupt.

mod budget;
mod source;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use budget::Budget;
pub use source::{Source, sooner};

use crate::irq::{Edges, Irq, IrqKind};
use crate::{Deadline, Error, clock, poll_until};

/// The longest polling in one wait that pays on hardware: a few times the cost of sleeping and
/// waking up.
pub const DEFAULT_POLL: Duration = Duration::from_micros(50);

/// How often the clock is read while polling: once in this many looks.
const LOOKS_PER_CLOCK: u32 = 16;

/// What waiting has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct WaitStats {
    /// Waits that found something at the first look.
    pub immediate: u64,
    /// Waits that polling ended.
    pub polled: u64,
    /// Waits that slept.
    pub slept: u64,
    /// Nanoseconds spent polling, whether it ended the wait or not.
    pub polling_ns: u64,
    /// Times the interrupt was opened to sleep.
    pub to_interrupt: u64,
    /// Times the interrupt was held back to poll.
    pub to_polling: u64,
    /// Interrupts after which there was nothing to find.
    pub spurious: u64,
    /// Completions that were found at the deadline without their interrupt.
    pub lost: u64,
    /// Completions that were found after the deadline, though their interrupt had come by then:
    /// nobody was woken in time.
    pub late: u64,
}

/// A wait that polling has not ended: when it began, and when the clock was last read.
#[derive(Clone, Copy, Debug)]
pub struct Polled {
    start: Instant,
    end: Instant,
}

/// Waits for one queue. Without an interrupt it polls at growing intervals.
pub struct Waiter {
    irq: Option<Arc<Irq>>,
    /// Made at the first sleep: an owner who sleeps in an event loop of its own needs none.
    edges: Option<Edges>,
    /// Messages have come whose count was not read.
    unread: bool,
    /// The interrupt is open.
    armed: bool,
    budget: Budget,
    stats: WaitStats,
}

impl Waiter {
    /// Waits by `irq`, which must belong to this queue alone, and polls at most `poll_limit` before
    /// each sleep. A queue that had it before may have held it back.
    pub fn new(irq: Option<Arc<Irq>>, poll_limit: Duration) -> Self {
        let armed = irq.as_ref().is_some_and(|irq| irq.is_wanted());
        Self {
            irq,
            edges: None,
            unread: false,
            armed,
            budget: Budget::new(poll_limit),
            stats: WaitStats::default(),
        }
    }

    /// The interrupt.
    pub fn irq(&self) -> Option<&Irq> {
        self.irq.as_deref()
    }

    /// Whether the interrupt is open, so that each completion raises it.
    #[inline]
    pub fn armed(&self) -> bool {
        self.armed
    }

    /// What waiting has cost so far.
    pub fn stats(&self) -> WaitStats {
        self.stats
    }

    /// Waits until `ready` holds: true, or false at the deadline. `ready` must be a cheap look that
    /// takes nothing.
    #[inline]
    pub fn wait(
        &mut self,
        deadline: Deadline,
        mut ready: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        match self.poll(deadline, &mut ready)? {
            None => Ok(true),
            Some(polled) => self.sleep(polled, deadline, ready),
        }
    }

    /// The first half of [`wait`](Self::wait), for who has something to do between polling and
    /// sleeping: polls while that pays. `None` if `ready` holds; otherwise what
    /// [`sleep`](Self::sleep) goes on with.
    #[inline]
    pub fn poll(
        &mut self,
        deadline: Deadline,
        mut ready: impl FnMut() -> bool,
    ) -> Result<Option<Polled>, Error> {
        if ready() {
            self.stats.immediate += 1;
            // Work comes faster than it is taken: interrupts would only disturb.
            self.hold_back()?;
            return Ok(None);
        }
        self.poll_slowly(deadline, &mut ready)
    }

    #[cold]
    fn poll_slowly(
        &mut self,
        deadline: Deadline,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Polled>, Error> {
        let start = clock::now();
        let limit = self.budget.poll_for().min(deadline.remaining_at(start));
        if limit.is_zero() {
            return Ok(Some(Polled { start, end: start }));
        }
        self.hold_back()?;
        let (found, end) = poll_for(start, limit, ready);
        self.stats.polling_ns += (end - start).as_nanos() as u64;
        if !found {
            return Ok(Some(Polled { start, end }));
        }
        self.stats.polled += 1;
        self.budget.observe(end - start, true);
        Ok(None)
    }

    /// The second half: sleeps until `ready` holds, or the deadline passes, which is false.
    pub fn sleep(
        &mut self,
        polled: Polled,
        deadline: Deadline,
        mut ready: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        self.stats.slept += 1;
        let found = match self.irq.clone() {
            Some(irq) => self.sleep_by_interrupt(irq, deadline, polled.end, &mut ready)?,
            None => look_until(deadline, &mut ready)?,
        };
        let end = clock::now();
        self.budget.observe(end - polled.start, false);
        if self.irq.is_some() && deadline.remaining_at(end).is_zero() {
            self.stats.lost += u64::from(found == Some(false));
            self.stats.late += u64::from(found == Some(true));
        }
        Ok(found.is_some())
    }

    /// Whether the interrupt had come when something was found; `None` at the deadline. The clock
    /// was last read at `now`.
    fn sleep_by_interrupt(
        &mut self,
        irq: Arc<Irq>,
        deadline: Deadline,
        now: Instant,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<Option<bool>, Error> {
        self.edges = self.edges.take().or_else(|| Edges::of(&irq));
        if self.edges.is_some() {
            return self.sleep_for_edges(&irq, deadline, now, ready);
        }
        let mut left = deadline.remaining_at(now);
        loop {
            if self.armed || !irq.can_mask() {
                // What has been signalled so far is covered by the look in `arm`; left there, it
                // would end the sleep at once.
                self.drain()?;
            }
            if self.arm(&mut *ready)? {
                irq.sleep(left)?;
            }
            let fired = self.drain()?;
            if ready() {
                return Ok(Some(fired));
            }
            self.stats.spurious += u64::from(fired);
            left = deadline.remaining();
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// The same for a message: one system call, if the message is for what is waited for.
    fn sleep_for_edges(
        &mut self,
        irq: &Irq,
        deadline: Deadline,
        now: Instant,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<Option<bool>, Error> {
        let (mut for_nothing, mut left) = (0, deadline.remaining_at(now));
        loop {
            let mut fired = false;
            if self.arm(&mut *ready)?
                && let Some(edges) = &self.edges
            {
                fired = edges.sleep(irq, left)?;
            }
            if ready() {
                self.unread |= fired;
                return Ok(Some(fired));
            }
            if fired {
                self.stats.spurious += 1;
                for_nothing += 1;
                // One may be the message of what was found without sleeping. Of more, the count
                // tells whether it is a storm.
                if for_nothing > 1 {
                    self.count(irq)?;
                }
            }
            left = deadline.remaining();
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Reads the count. The first time after messages that had something to find, it says nothing
    /// of a storm.
    fn count(&mut self, irq: &Irq) -> Result<(), Error> {
        match std::mem::take(&mut self.unread) {
            true => irq.take_unnoted().map(drop),
            false => irq.take().map(drop),
        }
    }

    /// Prepares to sleep on [`irq`](Self::irq): true if the interrupt is open and nothing is
    /// `ready`, so that sleeping is safe.
    ///
    /// Without an interrupt there is nothing to sleep on: false. The count of messages is left
    /// unread, which saves a system call where the descriptor is watched for edges; who waits for
    /// its level calls [`disarm`](Self::disarm) after each sleep.
    pub fn arm(&mut self, mut ready: impl FnMut() -> bool) -> Result<bool, Error> {
        let Some(irq) = self.irq.clone() else { return Ok(false) };
        if self.armed && irq.kind() == IrqKind::Intx {
            // The pin closes when it fires, and only its count tells that it did.
            self.drain()?;
        }
        if !self.armed {
            irq.unmask()?;
            self.armed = true;
            self.stats.to_interrupt += 1;
        }
        Ok(!ready())
    }

    /// Back from a sleep after which the owner polls: holds the interrupt back. Who will sleep
    /// again at once need not call it.
    pub fn disarm(&mut self) -> Result<(), Error> {
        self.drain()?;
        self.hold_back()
    }

    /// Ends the pause after a storm of interrupts when it has run down; call it from the queue's
    /// `tick`. When that is, if there is one.
    pub fn tick(&self, now: Instant) -> Result<Option<Instant>, Error> {
        let Some(irq) = &self.irq else { return Ok(None) };
        irq.rearm()?;
        Ok(irq.storm_pause().map(|left| now + left))
    }

    /// Takes what the interrupt has signalled; true if it fired. The pin is masked by that and must
    /// be opened again.
    fn drain(&mut self) -> Result<bool, Error> {
        let Some(irq) = &self.irq else { return Ok(false) };
        let fired = irq.take()? > 0;
        if fired && irq.kind() == IrqKind::Intx {
            self.armed = false;
        }
        Ok(fired)
    }

    #[inline]
    fn hold_back(&mut self) -> Result<(), Error> {
        if !self.armed {
            return Ok(());
        }
        self.armed = false;
        self.stats.to_polling += 1;
        self.irq.as_ref().map_or(Ok(()), |irq| irq.mask())
    }
}

/// The sleep of a queue without an interrupt.
fn look_until(deadline: Deadline, ready: &mut dyn FnMut() -> bool) -> Result<Option<bool>, Error> {
    match poll_until(deadline, "a completion", || Ok(ready().then_some(()))) {
        Ok(()) => Ok(Some(false)),
        Err(Error::Timeout { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Looks until `ready` holds or `limit` after `start` has passed; whether it holds, and when that
/// was found.
pub fn poll_for(
    start: Instant,
    limit: Duration,
    ready: &mut dyn FnMut() -> bool,
) -> (bool, Instant) {
    loop {
        for _ in 0..LOOKS_PER_CLOCK {
            if ready() {
                return (true, clock::now());
            }
            std::hint::spin_loop();
        }
        let now = clock::now();
        if now - start >= limit {
            return (ready(), now);
        }
    }
}

#[cfg(test)]
mod tests;
