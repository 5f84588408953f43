//! vhost-net: the kernel's worker moves packets between the TAP and the card's own buffers, and
//! this process plays the driver of a virtio card for it. [linux/vhost.h; virtio 5.1]
//!
//! # Shape
//! A [`Device`](device::Device) is the kernel's worker, one for each queue. A [`Ring`](ring::Ring)
//! is a split virtqueue, the same as a virtio driver's, with the packets that the worker has.
//! [`Vhost`] is both, running; its end gives every packet back.
//!
//! # The way of a packet
//! The worker is told where the card's memory lies, so that it copies between the kernel's packet
//! and the buffer of the card itself: nothing else is copied. The same header goes before each
//! packet as by `read` and `write`.
//!
//! # Waiting
//! As for a card: while the thread polls, the worker is asked not to signal; before a sleep it is
//! asked to.
//!
//! # Loss
//! What the kernel does not take is lost within the worker, which tells nobody.
//!
//! # Trust
//! The worker is the kernel. What it says of a ring is checked as what a card says, so that a
//! defect there is an error here.

mod device;
mod engine;
mod in_flight;
mod receive;
mod ring;
mod send;
mod workers;

pub use engine::Vhost;
pub use in_flight::VhostInFlight;
pub use ring::SIZE;
pub use workers::Workers;
