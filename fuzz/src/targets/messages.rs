//! Messages of ring3d: with its users, with driver processes, of leases, and of shared disks and
//! cards; and the sockets that they come by.
//!
//! The attackers are a user of the control socket, a driver process that its device has taken over,
//! and a client of a shared disk. The input is a message, of one of the kinds, as bytes.
//!
//! Promises: no panic; what was read is written and read again as the same; what is longer than a
//! message is an error; memory is bounded by a multiple of the message.

use std::fmt::Debug;
use std::time::Duration;

use crate::{Input, memory};
use ring3_broker::protocol;
use ring3_control::{admin, drive};
use ring3_lease::{Answer, Channel, DeferredCloser, Request};
use rustix::net::{SendFlags, send};
use serde::Serialize;
use serde::de::DeserializeOwned;

const SOON: Duration = Duration::from_millis(100);
/// Bytes of memory: a message has 64 KiB, and each of its values is larger in memory.
const MEMORY: usize = 8 << 20;

/// Sends `bytes` as a packet, and reads it as an `M`.
fn message<M: Serialize + DeserializeOwned + Debug>(bytes: &[u8], stranger: bool) {
    let (ours, theirs) = Channel::pair().unwrap();
    if send(&ours, bytes, SendFlags::NOSIGNAL).is_err() {
        return;
    }
    let closer = DeferredCloser::default();
    let read = memory::bounded(MEMORY, || {
        if stranger {
            let channel = Channel::of_stranger(theirs, SOON, &closer).unwrap();
            channel.receive_untrusted::<M>().map(|read| read.map(|(message, _)| message))
        } else {
            let channel = Channel::new(theirs, SOON, true).unwrap();
            channel.receive::<M>().map(|read| read.map(|(message, _)| message))
        }
    });
    let Ok(Some(message)) = read else { return };
    let written = serde_json::to_vec(&message).unwrap();
    let again: M = serde_json::from_slice(&written).expect("what was written cannot be read");
    assert_eq!(format!("{message:?}"), format!("{again:?}"));
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.u8();
    let (bytes, stranger) = (input.rest(), kind & 0x80 != 0);
    match kind % 9 {
        0 => message::<admin::Command>(bytes, stranger),
        1 => message::<admin::Reply>(bytes, stranger),
        2 => message::<drive::DriverCommand>(bytes, stranger),
        3 => message::<drive::DriverMessage>(bytes, stranger),
        4 => message::<drive::Prepare>(bytes, stranger),
        5 => message::<Request>(bytes, stranger),
        6 => message::<Answer>(bytes, stranger),
        7 => message::<protocol::ClientRequest>(bytes, stranger),
        _ => message::<protocol::Answer>(bytes, stranger),
    }
}
