//! Where the thread that answers the kernel tells the one that serves a virtqueue where that is.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring3_vduse::{Begin, Vring};
use rustix::event::{EventfdFlags, eventfd};

/// A virtqueue that its driver has set up.
#[derive(Clone, Copy, Debug)]
pub struct ReadyVirtqueue {
    /// Where it is.
    pub vring: Vring,
    /// What driver and device have agreed upon.
    pub features: u64,
    /// Who has served it before.
    pub begin: Begin,
}

/// Of one virtqueue.
#[derive(Debug)]
pub struct QueueHandover {
    /// Raised when there is another word.
    changed: OwnedFd,
    /// Raised when the driver kicks.
    kicks: OwnedFd,
    state: Mutex<State>,
    heeded: Condvar,
}

#[derive(Debug, Default)]
struct State {
    opening: Option<ReadyVirtqueue>,
    /// Words that were given, and that were heeded.
    given: u64,
    heeded: u64,
    /// A thread serves the queue.
    served: bool,
    /// How far it had come.
    available: u16,
}

impl State {
    fn is_heeded(&self) -> bool {
        self.heeded >= self.given || !self.served
    }
}

impl QueueHandover {
    pub fn new() -> io::Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            changed: event()?,
            kicks: event()?,
            state: Mutex::default(),
            heeded: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where the queue is now, or that it is no more, because its driver has reset the device.
    /// False if a thread serves it that has not heeded this within `patience`: it may still be
    /// there.
    pub fn give(&self, opening: Option<ReadyVirtqueue>, patience: Duration) -> bool {
        let mut state = self.state();
        state.opening = opening;
        state.given += 1;
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
        let waiting = self.heeded.wait_timeout_while(state, patience, |state| !state.is_heeded());
        !waiting.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// The last word, which is [heeded](Self::heed) by its number.
    pub fn word(&self) -> (u64, Option<ReadyVirtqueue>) {
        let state = self.state();
        (state.given, state.opening)
    }

    /// Word `number` is heeded; the queue before it has come to `available`, if there was one.
    pub fn heed(&self, number: u64, available: Option<u16>) {
        let mut state = self.state();
        state.heeded = number;
        state.available = available.unwrap_or(state.available);
        self.heeded.notify_all();
    }

    /// Words are heeded from now on, the present one first.
    pub fn serve(&self) {
        self.state().served = true;
    }

    /// Nobody heeds words any more.
    pub fn end(&self) {
        self.state().served = false;
        self.heeded.notify_all();
    }

    /// How far the last queue had come.
    pub fn available(&self) -> u16 {
        self.state().available
    }

    /// Readable when there is another word.
    pub fn changed(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }

    /// Readable when the driver has kicked.
    pub fn kicks(&self) -> BorrowedFd<'_> {
        self.kicks.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn who_gives_a_word_waits_until_it_is_heeded() {
        let gate = Arc::new(QueueHandover::new().unwrap());
        gate.serve();
        let other = gate.clone();
        let heeding = thread::spawn(move || {
            while other.word().0 == 0 {
                thread::yield_now();
            }
            other.heed(1, Some(7));
        });
        assert!(gate.give(None, LONG));
        assert_eq!(gate.available(), 7);
        heeding.join().unwrap();
    }

    #[test]
    fn nobody_waits_for_a_thread_that_is_no_more_or_does_not_heed() {
        let gate = QueueHandover::new().unwrap();
        assert!(gate.give(None, LONG));
        gate.serve();
        assert!(!gate.give(None, Duration::from_millis(1)));
        gate.end();
        assert!(gate.give(None, LONG));
    }
}
