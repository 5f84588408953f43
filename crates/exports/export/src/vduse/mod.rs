//! A disk or a card as a virtio device of the running kernel, by VDUSE.
//!
//! # Shape
//! A `QueueHandover` for each virtqueue stands between the two that share it: the thread that
//! answers the kernel (`messages`), which knows when a driver has set its queues up and when it
//! resets them, and the thread that serves the queue.
//!
//! # The way of a request
//! The kernel copies a write's bytes into its bounce memory, which is mapped here. The queue's
//! thread copies them on into a buffer of the device's arena, submits to the class queue, and rings
//! once per batch; a read goes the other way. Two copies where ublk has one: so ublk is the first
//! choice, and this is for kernels and machines without it.
//!
//! # Death
//! The device outlives its server, with its users waiting. Whoever is started with its name goes
//! on: what was in flight stands in a log ([`ring3_vduse::Inflight`]) and is done once more.

pub(crate) mod gate;
pub(crate) mod messages;

mod block;
pub mod devices;
mod name;
mod net;
mod refuse;

pub use block::VduseExport;
pub use net::{Card, start as start_card};
pub(crate) use net::{Link, VduseRing};
pub use ring3_vduse::is_name;

/// Fails if the kernel has no VDUSE, or not for this process; makes nothing.
pub fn check() -> Result<(), ring3_vduse::Error> {
    ring3_vduse::Control::open().map(drop)
}
