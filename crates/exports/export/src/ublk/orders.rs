//! What the queues of a disk are told while they serve.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use super::Error;

/// What a queue is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Requests are done.
    Serve,
    /// Requests fail, but for those that the disk is at.
    Refuse,
    /// What the disk is at ends until then, and nothing else is begun: another server gets it.
    Leave(Instant),
}

/// The present order, and a descriptor that is raised when it changes.
pub struct Orders {
    changed: OwnedFd,
    order: Mutex<Order>,
}

impl Orders {
    pub fn new() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { changed: event()?, order: Mutex::new(Order::Serve) }))
    }

    /// Gives `order` to all queues.
    pub fn give(&self, order: Order) {
        *self.order.lock().unwrap_or_else(PoisonError::into_inner) = order;
        self.repeat();
    }

    /// Gives the present one again, to queues that may sleep and are to look around.
    pub fn repeat(&self) {
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    pub fn present(&self) -> Order {
        *self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Orders {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }
}

/// A descriptor by which threads are woken.
pub fn event() -> Result<OwnedFd, Error> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    event.map_err(|source| Error::os("creating an eventfd for the queue threads", source))
}
