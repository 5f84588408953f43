//! Drivers of virtio devices over PCI: what they have in common, the network card and the disk.
//!
//! Written against `[virtio]`, as `ring3_spec::virtio` names it; modern devices only.
//!
//! # Shape
//! `structures` finds a device's registers by its capabilities; `transport` resets it, agrees on
//! features and makes queues; `virtqueue` is one of these, split or packed.
//! # Trust    A device's capabilities, features, and whatever it writes into a ring are input.

pub mod blk;
pub mod net;
mod saved;
mod structures;
mod transport;
mod vectors;
mod virtqueue;

/// How virtqueues lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Packed where the device offers that, else split.
    #[default]
    Auto,
    /// Split, whatever the device offers.
    Split,
}
