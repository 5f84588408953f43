//! The driver `ahci` against a device that lies.
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
    "sim:ahci,size=4M,ports=1",
    "sim:ahci,size=4M,ports=4,disks=2",
    "sim:ahci,size=4M,ports=1,ncq=off",
    "sim:ahci,size=4M,ports=1,msi=off,lba48=off",
    "sim:ahci,size=4M,ports=1,block=4096,depth=12",
];

/// Runs one input.
pub fn run(data: &[u8]) {
    disk::drive(SHAPES, data);
}
