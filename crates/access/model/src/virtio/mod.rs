//! virtio devices over PCI as models: a network [card](net) and a [disk](blk), with split or packed
//! virtqueues.
//!
//! # References
//! - `[virtio]` Virtual I/O Device (VIRTIO) Version 1.2, OASIS Committee Specification 01, 1 July
//!   2022

pub mod blk;
mod function;
pub mod net;
mod queue;
