//! The protocol between the holder of a device and the process that drives it, and nothing of
//! either.
//!
//! # Shape
//! A lease is one end of a connected socket (SOCK_SEQPACKET), so that it goes to a process by
//! inheritance or by SCM_RIGHTS like any descriptor. The driver's half asks ([`Request`]) and the
//! holder answers ([`Answer`]), one after the other; each message is a JSON object in one packet,
//! and descriptors travel beside it. The first request is [`Request::Hello`], whose answer says
//! everything about the device ([`DeviceDescription`]). [`Quiesce`] is what a driver's manifest
//! says of its fence, as data, so that the holder links no driver.
//!
//! # Trust
//! What the other end sent is input: a packet is bounded, must be a message as a whole, and comes
//! within a time, or the lease ends. What it means is checked by whoever acts on it.
//!
//! # Versions
//! Both ends say [`VERSION`] first, and another one is refused with both numbers. Fields may be
//! added to a message as long as old ends may ignore them.
#![forbid(unsafe_code)]

mod channel;
mod closer;
mod message;
mod quiesce;

pub use channel::{Channel, MAX_FDS, MAX_LEN};
pub use closer::{DeferredCloser, MOST as MOST_CLOSING};
pub use message::{
    Answer, DeviceDescription, Function, Kind, LeasedBar, Memory, Msix, Refusal, Request, VERSION,
    Vectors, Window,
};
pub use quiesce::{BitCondition, DeviceTimeout, MAX_OWN_LIMIT_MS, Quiesce, RegisterCheck, Step};
