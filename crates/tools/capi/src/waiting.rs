//! How a program waits for a queue: alone, or in a loop of its own.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use ring3_class::wait::Source;
use ring3_class::{Deadline, Error};

use crate::error::{fail, failed};

/// The descriptor of `source`'s interrupt.
pub(crate) fn descriptor(source: &dyn Source) -> c_int {
    match source.irq() {
        Some(irq) => irq.as_fd().as_raw_fd(),
        None => fail(libc::ENOENT, "the queue has no interrupt: it is polled".into()),
    }
}

/// Waits until `source` has something, `timeout_ms` at most, and ticks it: 1, or 0 at the end of
/// that time.
pub(crate) fn wait(source: &mut dyn Source, timeout_ms: u32) -> c_int {
    let deadline = Deadline::after(Duration::from_millis(timeout_ms.into()));
    match wait_until(source, deadline) {
        Ok(found) => found.into(),
        Err(error) => failed(&error),
    }
}

fn wait_until(source: &mut dyn Source, deadline: Deadline) -> Result<bool, Error> {
    if source.pending() {
        return Ok(true);
    }
    loop {
        let due = source.tick(Instant::now())?;
        if source.wait(deadline.sooner(due))? {
            return Ok(true);
        }
        if deadline.expired() {
            return Ok(false);
        }
    }
}

/// The program's sleeps for one queue.
#[derive(Default)]
pub(crate) struct Sleep {
    /// The program may have slept since the interrupt was opened, so that its count is unread.
    slept: bool,
}

impl Sleep {
    /// Prepares one: 1 and how many milliseconds it may last (-1: no end), or 0 if there is
    /// something to take. From a source that is not `expected` to have anything nothing wakes.
    ///
    /// # Safety
    /// `timeout_ms` points to a number.
    pub(crate) unsafe fn arm(
        &mut self,
        source: &mut dyn Source,
        expected: bool,
        timeout_ms: *mut c_int,
    ) -> c_int {
        match self.prepare(source, expected) {
            Ok(Some(left)) => {
                // Rounded up: a sleep that ends before the time is over would be repeated.
                let left = left.map_or(-1, |left| {
                    c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
                });
                // SAFETY: the caller's.
                unsafe { timeout_ms.write(left) };
                1
            }
            Ok(None) => 0,
            Err(error) => failed(&error),
        }
    }

    /// How long a sleep may last; `None` if the program must not sleep.
    fn prepare(
        &mut self,
        source: &mut dyn Source,
        expected: bool,
    ) -> Result<Option<Option<Duration>>, Error> {
        if std::mem::take(&mut self.slept) {
            source.disarm()?;
        }
        let now = Instant::now();
        let due = source.tick(now)?;
        if expected && !source.arm()? {
            return Ok(None);
        }
        self.slept = true;
        Ok(Some(due.map(|due| due.saturating_duration_since(now))))
    }
}
