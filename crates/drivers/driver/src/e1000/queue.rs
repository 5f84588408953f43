//! The queue: the way of packets to the card and back.
//!
//! Providing writes a descriptor for each buffer and one tail for the batch; returning looks at
//! descriptors that the card has written back. What is out of the ordinary, pieces, offloads,
//! errors, walks `offload.rs` and `receive.rs`.

use std::mem;
use std::sync::Arc;

use ring3_class::Saved;
use ring3_class::net::{Checksum, Counters, Limits, Meta, Packet, Provided, Queue, QueueSettings};
use ring3_device::wait::Waiter;
use ring3_device::{Bar, Error};
use ring3_spec::e1000::receive::status;

use super::nic::E1000Shared;
use super::offload::MAX_BUFFER;
use super::receiver::{Receiver, SHORTEST, UNUSUAL, checksum, written_back};
use super::recovery::HangDetector;
use super::transmitter::Transmitter;
use crate::lifetime::lock;
use crate::throttle::Adaptive;

/// Buffers of one doorbell, where the card is in no need of them: as many as the kernel's drivers
/// of these cards wait for.
const PROVIDED: u32 = 16;

/// A queue of a card. Its end is in `open.rs`, its misfortunes in `recovery.rs`, its change of
/// hands in `resume.rs`.
pub(super) struct CardQueue {
    pub(super) bar: Bar,
    /// Its number.
    pub(super) index: u32,
    /// The generation of the card that it belongs to.
    pub(super) generation: u32,
    pub(super) receive_tail: u64,
    pub(super) transmit_tail: u64,
    pub(super) rx: Receiver,
    pub(super) tx: Transmitter,
    pub(super) settings: QueueSettings,
    pub(super) limits: Limits,
    pub(super) counters: Counters,
    /// What went through queues of this number before this one was opened.
    pub(super) before: Counters,
    pub(super) wake_on_tx: bool,
    pub(super) watch: HangDetector,
    pub(super) waiter: Waiter,
    /// Chooses the throttle of its vector, if that is wanted.
    pub(super) adaptive: Option<Adaptive>,
    pub(super) shared: Arc<E1000Shared>,
}

impl CardQueue {
    #[inline]
    pub(super) fn publish_received(&mut self) {
        if let Some(tail) = self.rx.ring.publish() {
            self.bar.write32(self.receive_tail, tail);
        }
    }

    /// Publishes the packet counters to the card's shared totals.
    pub(super) fn publish_counters(&self) {
        let mut counters = self.before;
        counters += self.counters;
        if let Some(tally) = self.shared.tallies.get(self.index as usize) {
            tally.set(&counters);
        }
    }

    /// Whether the card was reset since, or given up, or the queue was detached.
    #[inline]
    pub(super) fn is_stale(&self) -> bool {
        self.shared.lifetime.generation() != self.generation
    }

    /// Takes what comes back one by one: among descriptors without a buffer, pieces of packets, and
    /// places that are not empty.
    #[cold]
    fn return_rare(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        let mut count = 0;
        for place in batch {
            let Some(packet) = self.tx.take_sent() else { break };
            self.counters.tx_packets += u64::from(!packet.meta.more());
            self.counters.tx_bytes += u64::from(packet.len);
            *place = Packet { meta: Meta::default(), ..packet };
            count += 1;
        }
        self.tx.held -= count as u16;
        if count > 0 {
            self.publish_counters();
        } else if self.is_stale() {
            self.check()?;
        }
        Ok(count)
    }

    /// One doorbell for a batch.
    #[inline]
    fn sent(&mut self, provided: Provided) -> Provided {
        if let Some(tail) = self.tx.ring.publish() {
            self.bar.write32(self.transmit_tail, tail);
        }
        provided
    }
}

impl Queue for CardQueue {
    fn depth(&self) -> (u16, u16) {
        (self.rx.depth, self.tx.depth)
    }

    fn outstanding(&self) -> (u16, u16) {
        (self.rx.outstanding() as u16, self.tx.held)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    #[inline]
    fn rx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let room =
            usize::from(self.rx.depth).saturating_sub(self.rx.outstanding()).min(batch.len());
        let mut provided = Provided::default();
        loop {
            let (limits, refused) = (&self.limits, &mut provided.refused);
            let rest = &mut batch[provided.count..room];
            let count = self.rx.ring.push_from(rest, &mut self.rx.slots, |packet, slot| {
                if let Err(why) = limits.check_buffer(packet) {
                    *refused = Some(why);
                    return None;
                }
                let iova = packet.iova()?;
                slot.swap_place(packet);
                Some([iova, 0])
            });
            provided.count += count;
            if count == 0 || provided.count == room {
                break;
            }
        }
        // Half of the buffers are enough for a card that has them: the next ones wait until the
        // doorbell is worth it.
        if let Some(tail) = self.rx.ring.publish_batch(PROVIDED, u32::from(self.rx.depth) / 2) {
            self.bar.write32(self.receive_tail, tail);
        }
        provided
    }

    #[inline]
    fn rx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        if self.rx.skipping || !self.rx.whole.is_empty() || !self.rx.parts.is_empty() {
            return self.return_unusual(batch);
        }
        let span = u64::from(self.rx.buffer_bytes.min(self.limits.max_frame()) - SHORTEST);
        let legacy = self.rx.legacy;
        let (first, mut bytes) = (self.rx.ring.oldest(), 0);
        let count = self.rx.ring.pop_into(batch, &mut self.rx.slots, |word, packet, place| {
            let word = written_back(legacy, word);
            let length = word.length();
            // One comparison for both ends.
            let is_possible = length.wrapping_sub(SHORTEST.into()) <= span;
            if word.status() & UNUSUAL != status::END || !is_possible || !place.take_buffer(packet)
            {
                return false;
            }
            bytes += length;
            place.len = length as u32;
            place.meta.forget_but_checksum(checksum(word.status()) == Checksum::Valid);
            true
        });
        self.counters.rx_packets += count as u64;
        self.counters.rx_bytes += bytes;
        if count == 0 {
            return if self.rx.ring.ready() || self.is_stale() {
                self.return_unusual(batch)
            } else {
                Ok(0)
            };
        }
        if self.rx.hashed {
            self.rx.tell_hashes(first, &mut batch[..count]);
        }
        if let Some(tally) = self.shared.tallies.get(self.index as usize) {
            let (before, counters) = (&self.before, &self.counters);
            tally.set_received(
                before.rx_packets + counters.rx_packets,
                before.rx_bytes + counters.rx_bytes,
            );
        }
        Ok(count)
    }

    #[inline]
    fn tx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let mut provided = Provided::default();
        let longest = MAX_BUFFER.min(self.limits.max_frame());
        loop {
            // Without a link, a packet is lost without the card.
            let sent = if self.tx.linkless {
                0
            } else {
                self.tx.send_plain(&mut batch[provided.count..], &self.limits, longest)
            };
            provided.count += sent;
            let rest = &mut batch[provided.count..];
            if rest.is_empty() || self.tx.is_full() {
                break;
            }
            if sent > 0 {
                // From the start of the memory on.
                continue;
            }
            // It asks for something of the card.
            let sent = match self.limits.check(rest) {
                Ok(pieces) => match self.send_unusual(&mut rest[..pieces]) {
                    Ok(sent) => sent,
                    Err(refused) => {
                        return self.sent(Provided { refused: Some(refused), ..provided });
                    }
                },
                Err(refused) => return self.sent(Provided { refused: Some(refused), ..provided }),
            };
            if sent == 0 {
                break;
            }
            provided.count += sent;
        }
        self.sent(provided)
    }

    #[inline]
    fn tx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        if !self.tx.back.is_empty() {
            return Ok(self.tx.return_unsent(batch));
        }
        let (mut count, mut bytes) = (0, 0);
        if self.tx.is_plain() {
            count = self.tx.ring.pop_into(batch, &mut self.tx.slots, |_, slot, place| {
                if place.buffer.is_some() {
                    return false;
                }
                place.swap_buffer(slot);
                place.meta.forget();
                bytes += u64::from(place.len);
                true
            });
        }
        self.counters.tx_packets += count as u64;
        self.counters.tx_bytes += bytes;
        self.tx.held -= count as u16;
        if count == 0 {
            return self.return_rare(batch);
        }
        if let Some(tally) = self.shared.tallies.get(self.index as usize) {
            let (before, counters) = (&self.before, &self.counters);
            tally.set_sent(
                before.tx_packets + counters.tx_packets,
                before.tx_bytes + counters.tx_bytes,
            );
        }
        Ok(count)
    }

    fn wake_on_tx(&mut self, wake: bool) {
        if wake == mem::replace(&mut self.wake_on_tx, wake) {
            return;
        }
        let mut card = lock(&self.shared.card);
        if let Some(Some(rings)) = card.rings.get_mut(self.index as usize) {
            rings.wake_on_tx = wake;
        }
        self.shared.vectors.wake_on_tx(card.registers(), self.index, wake);
    }

    fn detach(&mut self) -> Result<Saved, Error> {
        self.save_and_detach()
    }
}
