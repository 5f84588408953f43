//! Eventfds: what an interrupt is on this side.

use std::os::fd::{AsFd, OwnedFd};

use ring3_device::Error;
use rustix::event::EventfdFlags;

/// A new one, zero, non-blocking.
pub(crate) fn new() -> Result<OwnedFd, Error> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| Error::os("creating an eventfd", error))
}

/// Another descriptor of the same counter.
pub(crate) fn share(event: &OwnedFd) -> Result<OwnedFd, Error> {
    event.try_clone().map_err(|error| Error::os("duplicating an eventfd", error))
}

/// Adds one. A counter at its maximum stays there: it is readable already.
pub(crate) fn signal(event: impl AsFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Makes one of what it counts, if it counts anything.
pub(crate) fn collapse(event: impl AsFd) {
    if rustix::io::read(&event, &mut [0; 8]).is_ok() {
        signal(event);
    }
}

/// Sets it to zero.
pub(crate) fn clear(event: &OwnedFd) {
    let _ = rustix::io::read(event, &mut [0; 8]);
}
