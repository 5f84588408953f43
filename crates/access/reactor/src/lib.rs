//! One thread that waits for many things, in one io_uring.
//!
//! # Shape
//! A [`Reactor`] waits for descriptors that become readable, for any number of timers, and for the
//! ends of its user's own io_uring commands. A [`Registration`] joins a
//! [`Source`](ring3_device::wait::Source), which is a device's queue or whatever else can be waited
//! for, to it: its interrupt is a descriptor, its next tick a timer. Nothing here knows what a
//! queue is for.
//!
//! # A turn
//! [`Reactor::step`] sends what was pushed and sleeps until something happens, in one system call;
//! [`Reactor::wait`] polls sources before, while that pays. Then [`Reactor::next_event`] until it
//! has no more. What happens meanwhile belongs to the next turn, so that a descriptor that is
//! raised without end, or a timer that is set anew at once, keeps nothing else from its turn.
//!
//! # In another loop
//! The [descriptor](Reactor::descriptor) of a [nested](Reactor::nested) one is readable when a turn
//! would bring events, timers included: a loop of another kind calls `step` with a time limit of
//! zero, takes the events, and sleeps on that.
//!
//! # Waiting
//! Without timers, and with nothing to happen, it sleeps and costs no CPU. The kernel has one timer
//! of a reactor's, for the earliest of all; the clock is read when that runs out, and around
//! polling.

mod buffers;
mod pool;
mod reactor;
mod registration;
mod timers;

pub use pool::Pool;
pub use reactor::{Event, LoopStats, Reactor, Token};
pub use registration::{Registered, Registration};
pub use timers::Timer;

/// The system calls of a reactor that runs, a TOML document.
pub const MANIFEST: &str = include_str!("manifest.toml");

#[cfg(doctest)]
#[doc = include_str!("../../../../docs/adr/0010-one-loop.md")]
struct OneLoop;
