//! A [`Nic`](ring3_class::net::Nic) as an interface of the kernel: one TAP, and threads that move
//! packets between it and the card.
//!
//! # Shape
//! An [`Interface`] is the kernel's half: a name, and a descriptor for each queue. An [`TapExport`]
//! is that and the serving half: a thread for each queue, and one for what is not packets: link,
//! address, MTU, filters.
//!
//! What users want of the interface, and how the link is, goes by a [`ControlPlane`]: of the kernel
//! itself, or of the process that holds the interface while drivers come and go.
//!
//! # The way of a packet
//! To the card: `read` copies it from the kernel into a buffer of the card's arena, where it stays
//! until it was sent. From the card: it lies in such a buffer, and `write` copies it to the kernel.
//! That copy is the only one. A header of 12 bytes goes before it, in the buffer's headroom, with
//! what is known of checksum and segmentation: what the card does is not done by the kernel, both
//! ways. Nothing is allocated, mapped or locked for a packet. TCP that was received in many frames
//! is put together before, by reference: one call writes the pieces.
//!
//! So it goes by calls at low load. At high load the kernel's own worker, vhost-net, moves packets
//! between the same buffers and the same TAP, with the same header: see `vhost`, and `load` for
//! when.
//!
//! # Waiting
//! Each queue's thread polls the card as long as that has paid lately, and then sleeps in an
//! io_uring that watches interrupt and TAP.
//!
//! # Loss
//! What the kernel does not take (the interface is down) and what the card cannot send is lost and
//! counted. What the card has no room for stays with the kernel, and what a virtqueue has no room
//! for stays with the card.
//!
//! # Trust
//! The kernel is trusted, and what it says of a packet is checked as whatever any user of a card
//! says. What a card says was checked by its driver.

mod coalesce;
mod control;
mod error;
mod ethtool;
mod eventfd;
mod export;
mod header;
mod interface;
mod layout;
mod load;
mod netlink;
mod place;
mod plane;
mod port;
mod priority;
mod queue;
mod receive;
mod send;
mod settings;
mod stats;
mod vhost;
mod worker;

pub use error::Error;
pub use export::{Options, TapExport, arena_bytes};
pub use interface::{ANY, Interface, Shape, is_name};
pub(crate) use layout::cuts;
pub use load::{Engine, Limits};
pub use netlink::{Changes, InterfaceCounters, Netlink, RequestedSettings};
pub use place::NamespaceSockets;
pub(crate) use plane::Rtnetlink;
pub use plane::{ControlPlane, Relay};
pub use priority::Priority;
pub use settings::{EngineSettings, TapThreadOptions};
pub use stats::Stats;
pub use vhost::Workers;
