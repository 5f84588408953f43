//! Where a queue's thread spends its time: polling while that pays, else asleep in its io_uring.

use std::io;
use std::time::{Duration, Instant};

use super::Server;

/// The shortest and the longest sleep of a queue without an interrupt while something is in flight.
pub(super) const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// Between two looks at the clock while polling.
const POLLS_PER_CLOCK: u32 = 8;

/// Between two looks while polling: about a tenth of a microsecond on hardware. A look costs more than a pause, and looking without
/// a pause takes the processor from its other thread, or from the device where that is emulated.
const PAUSES_PER_POLL: u32 = 4;

impl Server<'_> {
    /// Sends what was pushed, and returns when there may be something to do.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        if self.in_flight() == 0 && self.backlog.is_empty() {
            self.counters.calls.add(1);
            self.counters.sleeps.add(1);
            return self.ring.sleep();
        }
        if !std::mem::replace(&mut self.timing, true) {
            self.ring.timer()?;
        }
        if self.ring.has_events() {
            self.counters.calls.add(1);
            return self.ring.flush();
        }
        let limit = self.budget.poll_for();
        if !limit.is_zero() && self.poll(limit)? {
            return Ok(());
        }
        self.budget.slept();
        self.sleep()
    }

    /// Looks for completions and events for at most `limit`; true if there are some.
    fn poll(&mut self, limit: Duration) -> io::Result<bool> {
        if self.watching && self.budget.pays() {
            // Each interrupt would cost a system call that brings nothing.
            self.watching = false;
            self.ring.unwatch()?;
            if let Err(error) = self.class.disarm() {
                tracing::warn!(%error, "the interrupt cannot be held back");
            }
        }
        if self.ring.has_unsent() {
            self.counters.calls.add(1);
            self.ring.flush()?;
        }
        let start = Instant::now();
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                if self.reap()? {
                    self.budget.observe(start.elapsed(), true);
                    self.counters.polls_hit.add(1);
                    return Ok(true);
                }
                if self.ring.has_events() {
                    return Ok(true);
                }
                for _ in 0..PAUSES_PER_POLL {
                    std::hint::spin_loop();
                }
            }
            if start.elapsed() >= limit {
                self.counters.polls_missed.add(1);
                return Ok(false);
            }
        }
    }

    /// Sleeps until the interrupt or the kernel has something.
    fn sleep(&mut self) -> io::Result<()> {
        if self.class.irq().is_none() {
            return self.nap();
        }
        if !std::mem::replace(&mut self.watching, true) {
            self.ring.watch()?;
        }
        match self.class.arm() {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                tracing::warn!(%error, "the interrupt cannot be armed");
                return self.nap();
            }
        }
        self.counters.calls.add(1);
        self.counters.sleeps.add(1);
        self.ring.sleep()
    }

    /// Sleeps for a while only: there is no interrupt to wake up by.
    fn nap(&mut self) -> io::Result<()> {
        self.counters.calls.add(1);
        self.counters.sleeps.add(1);
        let nap = self.nap;
        self.nap = (nap * 2).min(NAPS.1);
        self.ring.nap(nap)
    }
}
