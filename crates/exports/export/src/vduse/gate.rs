//! How the thread that answers the kernel tells the thread of a virtqueue where the queue is.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
    /// Raised when the queue has changed.
    changed: OwnedFd,
    /// Raised when the driver kicks.
    kicks: OwnedFd,
    state: Mutex<State>,
    acknowledgement: Condvar,
}

#[derive(Debug, Default)]
struct State {
    opening: Option<ReadyVirtqueue>,
    /// The last change that was announced, and the last that was acknowledged.
    announced: u64,
    acknowledged: u64,
    /// A thread serves the queue.
    served: bool,
    /// How far it had come.
    available: u16,
}

impl State {
    fn is_acknowledged(&self) -> bool {
        self.acknowledged >= self.announced || !self.served
    }
}

impl QueueHandover {
    pub fn new() -> io::Result<Self> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            changed: event()?,
            kicks: event()?,
            state: Mutex::default(),
            acknowledgement: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where the queue is now, or that it is no more, because its driver has reset the device.
    /// False if a thread serves it that has not acknowledged this within `limit`: it may still be
    /// there.
    pub fn announce(&self, opening: Option<ReadyVirtqueue>, limit: Duration) -> bool {
        let mut state = self.state();
        state.opening = opening;
        state.announced += 1;
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
        let waiting =
            self.acknowledgement.wait_timeout_while(state, limit, |state| !state.is_acknowledged());
        !waiting.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// The last change, which is [acknowledged](Self::acknowledge) by its number, and where the
    /// queue is since.
    pub fn change(&self) -> (u64, Option<ReadyVirtqueue>) {
        let state = self.state();
        (state.announced, state.opening)
    }

    /// Change `number` has been applied; the queue before it had come to `available`, if there was
    /// one.
    pub fn acknowledge(&self, number: u64, available: Option<u16>) {
        let mut state = self.state();
        state.acknowledged = number;
        state.available = available.unwrap_or(state.available);
        self.acknowledgement.notify_all();
    }

    /// Changes are acknowledged from now on, the present one first, until the guard is dropped.
    pub fn serve(self: &Arc<Self>) -> Served {
        self.state().served = true;
        Served(self.clone())
    }

    /// How far the last queue had come.
    pub fn available(&self) -> u16 {
        self.state().available
    }

    /// Readable when the queue has changed.
    pub fn changed(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }

    /// Readable when the driver has kicked.
    pub fn kicks(&self) -> BorrowedFd<'_> {
        self.kicks.as_fd()
    }
}

/// A thread serves the queue as long as it has this.
#[derive(Debug)]
pub struct Served(Arc<QueueHandover>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.state().served = false;
        self.0.acknowledgement.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_change_is_waited_for_until_it_is_acknowledged() {
        let gate = Arc::new(QueueHandover::new().unwrap());
        let _served = gate.serve();
        let other = gate.clone();
        let serving = thread::spawn(move || {
            while other.change().0 == 0 {
                thread::yield_now();
            }
            other.acknowledge(1, Some(7));
        });
        assert!(gate.announce(None, LONG));
        assert_eq!(gate.available(), 7);
        serving.join().unwrap();
    }

    #[test]
    fn a_thread_that_has_ended_or_does_not_acknowledge_is_not_waited_for() {
        let gate = Arc::new(QueueHandover::new().unwrap());
        assert!(gate.announce(None, LONG));
        let served = gate.serve();
        assert!(!gate.announce(None, Duration::from_millis(1)));
        drop(served);
        assert!(gate.announce(None, LONG));
    }
}
