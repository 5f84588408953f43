//! One disk, or one network card, for several processes, through rings in memory that they share
//! with the driver's process.
//!
//! # Shape
//! The process that drives a disk has a [`server::DiskServer`]: sockets, one for each
//! [`Access`](server::Access) that somebody is granted, and one thread that serves all clients with
//! one queue of the driver. A client is a [`client::RemoteDisk`], which is a disk as any other: it
//! asks over its socket ([`protocol`]), gets memory that it shares with the server alone, and for
//! each queue a pair of rings there ([`memory`], [`wire`]). No system call is made per request
//! while both sides are busy. Of a card, it is a [`server::card::CardServer`], which has a switch,
//! a [`client::RemoteCard`], and [`frame`].
//!
//! # Trust
//! The server believes nothing that a client says or writes. Messages are bounded and read whole;
//! indices of rings cannot leave them; what stands in an entry is read once, and spans become
//! device addresses of the client's own memory or of none. The memory is the server's and sealed,
//! so that a client cannot take it away. A client that breaks the protocol is cut off, and the log
//! says why; what it has in flight ends as anyone's, and its memory is taken from the device after
//! that. A client does not believe the server either, as far as its own memory goes.
//!
//! # Memory of a client's own
//! A client may lend the server [memory](region) that it has made itself, the same that it lends to
//! who exports a disk as a block device: there it has no rings, but opens that.
//!
//! # Waiting
//! Nobody waits for a client: a message that it does not take, and a wake-up that it does not read,
//! are its loss.
#![forbid(unsafe_code)]

pub mod client;
pub mod frame;
pub mod memory;
pub mod protocol;
pub mod region;
pub mod server;
pub mod wire;
