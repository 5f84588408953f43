//! Drivers of virtio devices over PCI: what they have in common, and the network card.
//!
//! Written against `[virtio]`, as `ring3_spec::virtio` names it; modern devices only, with split virtqueues.
//!
//! # Trust
//! A device's capabilities, features, and whatever it writes into a ring are input.

pub mod net;
mod transport;
