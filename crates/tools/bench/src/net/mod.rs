//! `bench udp-echo`: UDP through a network card, its driver in different places.
//!
//! # Shape
//! A [`Peer`] stands at the other end of the card's cable and makes the load; it knows nothing of
//! the machine that is measured but what that asks of it over the cable itself ([`Ask`]). It is a
//! state machine without a clock or a wire of its own: [`peer`] runs it in a thread on a socket of
//! QEMU's, and [`Reflector`] is a card that is nothing but the peer, by which an export's own cost
//! is found.
//!
//! In the machine that is measured, a [`User`] does what the load is: over sockets of the kernel
//! ([`Sockets`]), or over the class API ([`Direct`]). [`measure`] ties a load, a user and what it
//! costs to one measurement.

mod circle;
mod connection;
mod direct;
mod filled;
mod forward;
mod frame;
pub mod hosted;
mod load;
pub mod loopback;
mod many;
mod measure;
mod peer;
mod ping;
mod reflector;
mod sink;
mod sockets;
mod streams;
mod talk;
mod tcp;
mod wire;

pub use circle::circle;
pub use direct::Direct;
pub use forward::{Forwarded, Forwarding, forward};
pub use frame::Host;
pub use load::{Kind, Load, SIZE, SWEEP, UnknownLoad};
pub use measure::{Method, measure, shares_of};
pub use peer::{Peer, ask_for, peer};
pub use ping::{Beside, PING_PLACEMENTS, Watched, measure_ping, watch};
pub use reflector::Reflector;
pub use sockets::Sockets;
pub use streams::streams;
pub use talk::{Ask, Tally};
pub use tcp::{Way, measure_stream};
pub use wire::Wire;

use std::time::Duration;

use crate::Error;

/// The placements in the order of their turns: the [usual](USUAL) ones, and the export with one
/// engine at any load, or by VDUSE.
pub const PLACEMENTS: [&str; 10] = [
    "kernel",
    "process",
    "export",
    "tap-null",
    "export-tap",
    "export-vhost",
    "export-vduse",
    "export-adaptive",
    "dpdk",
    "hosted",
];

/// Those of `bench tcp`.
pub const STREAM_PLACEMENTS: [&str; 11] = [
    "kernel",
    "export",
    "export-tap",
    "export-tap-ordinary",
    "export-tap-real-time",
    "export-vhost",
    "export-vduse",
    "export-uncoalesced",
    "tap-null",
    "vhost-null",
    "hosted",
];

/// So many of them are usual.
pub const STREAM_USUAL: usize = 10;

/// So many of them are usual.
pub const USUAL: usize = 4;

/// What a user has done of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Packets that it has echoed, received or sent.
    pub packets: u64,
    /// Packets that the peer had meant for it meanwhile, by the numbers on the first and the last
    /// that came.
    pub offered: u64,
}

/// Whoever is loaded.
pub trait User {
    /// Asks the peer and waits for its answer.
    fn ask(&mut self, ask: &Ask) -> Result<Tally, Error>;

    /// Does its part of `load` for `time` from the first packet on, at which `begin` is called, and
    /// `end` at the end.
    fn work(
        &mut self,
        load: &Load,
        time: Duration,
        begin: &mut dyn FnMut(),
        end: &mut dyn FnMut(),
    ) -> Result<Work, Error>;

    /// Waits for packets, of which none come, for `time`.
    fn idle(&mut self, time: Duration) -> Result<(), Error>;

    /// The same as [`work`](Self::work) until nothing has come for a while.
    fn drain(&mut self, load: &Load) -> Result<(), Error>;
}

/// Why a peer that was asked has not answered within `time`.
fn no_answer(time: Duration) -> Error {
    Error::Invalid(format!(
        "nobody at the other end of the cable answers within {} s",
        time.as_secs()
    ))
}
