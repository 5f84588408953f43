//! The driver `nvme` against a device that lies.
//!
//! The attacker is the device: a broken controller, or one with hostile firmware. A model stands
//! behind it, and the input changes what registers say, what the device has written to memory, its
//! messages, and its calls (`src/hostile.rs`). The driver attaches, is used, and is dropped.
//!
//! Promises: no panic; each request ends once, also when the device is lost; no address that is not
//! mapped is shown to the device; time and memory are bounded; with no event of the input, all goes
//! well.

use crate::disk;

/// Models of the device.
const SHAPES: &[&str] = &[
    "sim:nvme,size=4M",
    "sim:nvme,size=4M,block=4096,namespaces=3",
    "sim:nvme,size=4M,vectors=0,stride=2",
    "sim:nvme,size=4M,mdts=1,entries=16",
    "sim:nvme,size=4M,mpsmin=1,cache=off",
];

/// Runs one input.
pub fn run(data: &[u8]) {
    disk::drive(SHAPES, data);
}
