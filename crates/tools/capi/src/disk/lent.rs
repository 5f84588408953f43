//! What a disk has beside its lanes when ring3d's threads use it: the program and they wake each
//! other.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

use ring3_class::Error;

use crate::signal::{Signal, descriptor};

/// A disk that ring3d takes.
pub(super) struct Lent {
    /// Raised for the program.
    called: OwnedFd,
    /// Whether it was, since the program has heard of it: no system call for each request.
    raised: AtomicBool,
    /// Raised when requests have ended.
    pub(super) ended: Signal,
    /// ring3d wants the program to end.
    stopped: AtomicBool,
    /// The program has lost its device.
    gone: AtomicBool,
}

impl Lent {
    pub(super) fn new() -> Result<Self, Error> {
        let (called, ended) = (descriptor()?, Signal::new()?);
        let flag = || AtomicBool::new(false);
        Ok(Self { called, raised: flag(), ended, stopped: flag(), gone: flag() })
    }

    /// Readable when the program has something to do.
    pub(super) fn fd(&self) -> i32 {
        self.called.as_raw_fd()
    }

    /// Has the program look.
    pub(super) fn call(&self) {
        // After what it shall see: the exchange orders both.
        if !self.raised.swap(true, Ordering::SeqCst) {
            // Full means that it is readable.
            let _ = rustix::io::write(&self.called, &1u64.to_ne_bytes());
        }
    }

    /// The program looks after this, so that it is called again for what comes later.
    pub(super) fn heard(&self) {
        if self.raised.load(Ordering::Relaxed) {
            let _ = rustix::io::read(&self.called, &mut [0; 8]);
            self.raised.swap(false, Ordering::SeqCst);
        }
    }

    /// Wakes the threads that wait for completed requests, once these are in the lane.
    pub(super) fn wake_waiters(&self) {
        // Orders the write to the lane before the check for sleeping threads.
        fence(Ordering::SeqCst);
        self.ended.raise();
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.call();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// The device is gone: requests that have failed by that are not their users' errors.
    pub(super) fn lose(&self) {
        self.gone.store(true, Ordering::Release);
        self.wake_waiters();
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}
