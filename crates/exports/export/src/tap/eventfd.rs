//! Descriptors by which threads are woken.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

/// A descriptor that can be rung.
pub fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes it readable. That it was rung before is as good.
pub fn ring(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
