//! The driver `e1000` against a device that lies.
//!
//! The attacker is the device: a broken controller, or one with hostile firmware. A model stands
//! behind it, and the input changes what registers say, what the device has written to memory, its
//! messages, and its calls (`src/hostile.rs`). The driver attaches, is used, and is dropped.
//!
//! Promises: no panic; each buffer comes back once and has the bytes that it says; no address that
//! is not mapped is shown to the device; time and memory are bounded; with no event of the input,
//! all goes well.

use crate::card;

/// Models of the device.
const SHAPES: &[&str] = &[
    "sim:e1000,wire=mirror",
    "sim:e1000,wire=mirror,vectors=0",
    "sim:e1000,link=off",
    "sim:e1000,wire=mirror,nvm=bad",
];

/// Runs one input.
pub fn run(data: &[u8]) {
    card::drive(SHAPES, data);
}
