//! Received packets that are not one good buffer without a tag.

use std::mem;

use ring3_class::net::{Meta, Packet};
use ring3_device::Error;
use ring3_spec::e1000::receive::{Extended, error, status};

use super::queue::CardQueue;
use super::receiver::{SHORTEST, checksum, written_back};

/// Errors of the wire, with which nothing of a packet can be believed. A wrong checksum is left to
/// the packet's user.
const DAMAGED: u64 = error::FCS | error::WIRE;

impl CardQueue {
    /// Takes what has come, puts it together, and returns what is whole.
    #[cold]
    pub(super) fn return_unusual(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let mut trouble = None;
        while self.rx.whole.len() < batch.len()
            && trouble.is_none()
            && let Some((slot, word)) = self.rx.ring.pop()
        {
            let packet = mem::take(&mut self.rx.slots[slot as usize]);
            trouble = self.take_part(packet, slot, written_back(self.rx.legacy, word)).err();
        }
        self.publish_received();
        let count = self.rx.whole.len().min(batch.len());
        for (place, packet) in batch.iter_mut().zip(self.rx.whole.drain(..count)) {
            self.counters.rx_packets += u64::from(!packet.meta.more());
            self.counters.rx_bytes += u64::from(packet.len);
            *place = packet;
        }
        self.publish_counters();
        if count == 0 {
            self.check()?;
            if self.is_stale() {
                self.reinitialise_after_reset()?;
            }
        }
        match trouble {
            Some(error) if count == 0 => Err(error),
            _ => Ok(count),
        }
    }

    /// One buffer of a packet, and what the descriptor in `slot` says of it.
    fn take_part(&mut self, mut packet: Packet, slot: u32, word: Extended) -> Result<(), Error> {
        let length = word.length() as u32;
        let ends = word.status() & status::END != 0;
        if self.rx.skipping {
            self.rx.skipping = !ends;
            self.rx.push(&mut packet);
            return Ok(());
        }
        packet.len = length;
        packet.meta = Meta::default().with_more(true);
        self.rx.parts.push(packet);
        let total: u64 = self.rx.parts.iter().map(|part| u64::from(part.len)).sum();
        // Only the last buffer of a packet can be short, and no packet is longer than the card was
        // told.
        let is_possible =
            if ends { length <= self.rx.buffer_bytes } else { length == self.rx.buffer_bytes };
        if !is_possible || total > self.limits.max_frame().into() || ends && total < SHORTEST.into()
        {
            let parts = self.give_up_parts();
            // A frame may be longer than the MTU: others decide what they send.
            if is_possible && total >= SHORTEST.into() {
                self.rx.skipping = !ends;
                return Ok(());
            }
            return Err(Error::Protocol(format!(
                "a received packet of {total} bytes in {parts} buffers cannot be"
            )));
        }
        if !ends {
            return Ok(());
        }
        if word.status() & DAMAGED != 0 {
            self.give_up_parts();
            return Ok(());
        }
        self.finish(slot, word);
        Ok(())
    }

    /// The packet is whole: what is known about it stands in its first piece.
    fn finish(&mut self, slot: u32, word: Extended) {
        let hash = self.rx.hash(slot);
        let (what, good) = (word.status(), word.status() & (error::TRANSPORT | error::IP) == 0);
        if let Some(last) = self.rx.parts.last_mut() {
            last.meta.set_more(false);
        }
        if let Some(first) = self.rx.parts.first_mut() {
            first.meta =
                first.meta.with_checksum(if good { checksum(what) } else { Default::default() });
            first.meta =
                first.meta.with_vlan((what & status::VLAN != 0).then(|| word.vlan() as u16));
            first.meta = first.meta.with_hash(hash);
        }
        self.rx.whole.extend(self.rx.parts.drain(..));
    }

    /// Hands the buffers of a packet that is none to the card again; how many.
    fn give_up_parts(&mut self) -> usize {
        self.counters.rx_errors += 1;
        let mut parts = mem::take(&mut self.rx.parts);
        for part in &mut parts {
            self.rx.push(part);
        }
        let count = parts.len();
        parts.clear();
        self.rx.parts = parts;
        count
    }
}
