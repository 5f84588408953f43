//! What a sender has of vhost-net's.

use ring3_class::net::Packet;

use super::ring::SIZE;

/// What is with vhost-net and comes from it.
#[derive(Default)]
pub struct VhostInFlight {
    /// Its buffers that wait to be lent.
    pub free: Vec<Packet>,
    /// The pieces of a packet whose others have not come.
    pub begun: Vec<Packet>,
    /// How many it has.
    pub awaited: usize,
    /// It runs.
    pub on: bool,
}

impl VhostInFlight {
    /// A buffer is back from the card. Those of a worker that has ended are given up.
    #[inline]
    pub fn put_back(&mut self, packet: Packet) {
        if self.on && self.free.len() < SIZE.into() {
            self.free.push(packet);
        }
    }
}
