//! Between the program's thread and one of the library's: who sleeps is woken, and who does not
//! costs no system call.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ring3_class::Error;
use ring3_class::irq::{Irq, IrqKind};
use ring3_class::wait::{DEFAULT_POLL, Waiter};
use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that is readable once somebody has written to it.
pub(crate) fn descriptor() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
        .map_err(|error| Error::os("creating an eventfd", error))
}

/// A number that one thread sets and another waits for.
pub(crate) struct Signal {
    number: AtomicUsize,
    /// Somebody sleeps, or is about to: nobody else has to be woken.
    armed: AtomicBool,
    irq: Arc<Irq>,
    fd: OwnedFd,
}

impl Signal {
    pub(crate) fn new() -> Result<Self, Error> {
        let fd = descriptor()?;
        let theirs = fd.try_clone().map_err(|error| Error::os("duplicating an eventfd", error))?;
        Ok(Self {
            number: AtomicUsize::new(0),
            armed: AtomicBool::new(false),
            irq: Arc::new(Irq::new(theirs, IrqKind::Msi, 0, None)),
            fd,
        })
    }

    /// Sets it; wakes whoever waits if it was 0, since nobody sleeps while it is not.
    pub(crate) fn set(&self, number: usize) {
        if self.number.swap(number, Ordering::SeqCst) == 0 && number > 0 {
            self.raise();
        }
    }

    /// Wakes whoever has said that he sleeps: he looks once more after that, so that one of both
    /// sees the other.
    pub(crate) fn raise(&self) {
        if self.armed.load(Ordering::SeqCst) {
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Says whether somebody sleeps. Who does looks after he has said so.
    pub(crate) fn arm(&self, armed: bool) {
        self.armed.store(armed, Ordering::SeqCst);
    }

    pub(crate) fn get(&self) -> usize {
        self.number.load(Ordering::SeqCst)
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter::new(Some(self.irq.clone()), DEFAULT_POLL)
    }
}
