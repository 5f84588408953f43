//! Received TCP put together: segments of one batch that follow each other go to the kernel as one
//! packet, which says how it was cut.
//!
//! # What is put together
//! Segments of one flow, each beginning where the one before has ended, whose headers are the same
//! but for what counts (lengths, sums, IPv4's identification, which must rise by one, and PSH of
//! the last). A kernel that cuts the packet again, to forward it, makes what has come, byte for
//! byte. Everything else goes as it came.
//!
//! # Order
//! Packets of a flow stay in order. A packet of TCP whose flow cannot be told (a fragment, a header
//! with options) ends all trains; other protocols pass them.
//!
//! # Waiting
//! None: a train ends with its batch at the latest.
//!
//! # Trust
//! A header is read once, and what is written afterwards is made of what was read: a card that
//! changes bytes meanwhile changes what it could have sent anyway.

mod segment;
#[cfg(test)]
mod tests;
mod trains;

pub use trains::{CoalesceBatch, CoalescedPacket};
