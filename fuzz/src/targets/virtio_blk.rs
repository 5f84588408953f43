//! The driver `virtio-blk` against a device that lies.
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
    "sim:virtio-blk,size=4M",
    "sim:virtio-blk,size=4M,packed=on",
    "sim:virtio-blk,size=4M,structures=apart,vectors=0,packed=on",
    "sim:virtio-blk,size=4M,indirect=off,segments=4,entries=32",
    "sim:virtio-blk,size=4M,block=4096,queues=1,vectors=1",
];

/// Runs one input.
pub fn run(data: &[u8]) {
    disk::drive(SHAPES, data);
}
