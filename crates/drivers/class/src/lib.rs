//! Classes: the interface of a device to its users, independent of its driver.
//!
//! A class separates the drivers below from exports and applications above: both sides know only
//! the class.
#![forbid(unsafe_code)]

pub mod block;
pub mod net;
mod saved;

pub use saved::Saved;

/// The words of the device layer that users of a class need: where data lies, how long to wait,
/// what went wrong. An export names this crate alone.
pub use ring3_device::{Deadline, Error, dma, irq, poll_until, ring, wait};
