//! What the queue threads of a disk are told to do.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use crate::ublk::Error;

/// What a queue's thread is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueCommand {
    /// Pass requests to the driver.
    Serve,
    /// Fail requests, but for those that the driver has.
    Refuse,
    /// Begin nothing more, and end when the driver has ended what it has; at this time at the
    /// latest.
    Quiesce(Instant),
}

/// The present command, and a descriptor that is raised when it changes.
pub struct CommandChannel {
    changed: OwnedFd,
    command: Mutex<QueueCommand>,
}

impl CommandChannel {
    pub fn new() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { changed: event()?, command: Mutex::new(QueueCommand::Serve) }))
    }

    /// Gives `command` to all queues.
    pub fn send(&self, command: QueueCommand) {
        *self.command.lock().unwrap_or_else(PoisonError::into_inner) = command;
        self.wake();
    }

    /// Wakes queues that may sleep, which look at the present command again.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    pub fn present(&self) -> QueueCommand {
        *self.command.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for CommandChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }
}

/// A descriptor by which threads are woken.
pub fn event() -> Result<OwnedFd, Error> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    event.map_err(|source| Error::os("creating an eventfd for the queue threads", source))
}
