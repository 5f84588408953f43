//! The queue: the way of packets to the card and back.
//!
//! Providing writes a descriptor for each buffer and one tail for the batch; returning looks at descriptors that the card has written back. What is out
//! of the ordinary, pieces, offloads, errors, walks `offload.rs` and `receive.rs`.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ring3_class::net::{Checksum, Counters, Limits, Meta, Packet, Provided, Queue};
use ring3_device::dma::DmaBuffer;
use ring3_device::irq::Irq;
use ring3_device::ring::DescriptorRing;
use ring3_device::wait::{Source, WaitStats, Waiter, sooner};
use ring3_device::{Bar, Deadline, Error};
use ring3_spec::e1000::receive::{Extended, error, status};
use ring3_spec::e1000::transmit::{Legacy, command};

use super::nic::Shared;
use super::offload::MAX_BUFFER;
use super::recovery::Watch;
use crate::lifetime::lock;

/// Descriptors that the card fills: DD is bit 0 of the second word.
pub(super) type ReceiveRing = DescriptorRing<DmaBuffer, 2, 1, 0>;
/// Descriptors that the card sends: DD is bit 32 of the second word.
pub(super) type TransmitRing = DescriptorRing<DmaBuffer, 2, 1, 32>;

/// What a plain packet's descriptor says beside its length.
const PLAIN: u64 = Legacy(0).with_command(command::END | command::FCS | command::REPORT).0;
/// Bits of a written-back descriptor that are not those of a plain packet in one buffer: errors, a tag, or more buffers.
const UNUSUAL: u64 = error::FCS | error::TRANSPORT | error::IP | error::WIRE | status::VLAN | status::END;
/// Shortest packet that can have been received.
pub(super) const SHORTEST: u32 = 14;

/// The queue of a card. Its end is in `open.rs`, its misfortunes in `recovery.rs`.
pub(super) struct CardQueue {
    pub(super) bar: Bar,
    pub(super) receive_tail: u64,
    pub(super) transmit_tail: u64,
    pub(super) rx: Receiver,
    pub(super) tx: Transmitter,
    pub(super) limits: Limits,
    pub(super) counters: Counters,
    /// What went through the card before this queue was opened.
    pub(super) before: Counters,
    pub(super) wake_on_tx: bool,
    pub(super) watch: Watch,
    pub(super) waiter: Waiter,
    pub(super) shared: Arc<Shared>,
}

/// Buffers to receive into, and what has come.
pub(super) struct Receiver {
    pub(super) ring: ReceiveRing,
    /// The buffer of each slot.
    pub(super) slots: Vec<Packet>,
    pub(super) depth: u16,
    /// What the card takes a buffer to be.
    pub(super) buffer_bytes: u32,
    /// Buffers of a packet whose last has not come.
    pub(super) parts: Vec<Packet>,
    /// What comes up to the next end belongs to a packet that was too long.
    pub(super) skipping: bool,
    /// Packets in pieces, or with something to say, that have not been returned.
    pub(super) whole: VecDeque<Packet>,
}

/// Packets to send.
pub(super) struct Transmitter {
    pub(super) ring: TransmitRing,
    /// The buffer of each slot; none where a descriptor has no buffer of its own.
    pub(super) slots: Vec<Packet>,
    pub(super) depth: u16,
    /// Buffers that are with the card.
    pub(super) held: u16,
    /// Buffers that come back without having been sent.
    pub(super) back: VecDeque<Packet>,
    /// The context that the card has.
    pub(super) context: Option<[u64; 2]>,
    /// There was no link at the last look: packets are lost without the card.
    pub(super) linkless: bool,
}

impl Receiver {
    pub(super) fn held(&self) -> usize {
        self.ring.held() as usize + self.parts.len() + self.whole.len()
    }

    /// Hands a buffer to the card. There is room, as the ring is larger than the depth.
    #[inline]
    pub(super) fn push(&mut self, packet: &mut Packet) {
        if let Some(iova) = packet.iova()
            && let Some(slot) = self.ring.push(&[iova, 0])
        {
            self.slots[slot as usize] = mem::take(packet);
        }
    }
}

/// What the card has found of the checksums.
#[inline]
pub(super) fn checksum(status: u64) -> Checksum {
    if status & (status::TCP | status::UNCHECKED) == status::TCP { Checksum::Valid } else { Checksum::Unknown }
}

impl CardQueue {
    #[inline]
    pub(super) fn publish_received(&mut self) {
        if let Some(tail) = self.rx.ring.publish() {
            self.bar.write32(self.receive_tail, tail);
        }
    }

    /// One packet in one buffer that asks for nothing.
    #[inline]
    fn send_plain(&mut self, packet: &mut Packet) -> bool {
        if self.tx.held >= self.tx.depth {
            return false;
        }
        let Some(iova) = packet.iova() else { return false };
        let Some(slot) = self.tx.ring.push(&[iova, PLAIN | u64::from(packet.len)]) else { return false };
        self.tx.slots[slot as usize] = mem::take(packet);
        self.tx.held += 1;
        true
    }

    /// Takes descriptors without a buffer of their own that are back.
    #[cold]
    fn skip_empty(&mut self) {
        while self.tx.ring.ready() && self.tx.slots[self.tx.ring.oldest() as usize].buffer.is_none() {
            self.tx.ring.pop();
        }
    }

    /// Buffers that come back without having been sent.
    #[cold]
    fn return_unsent(&mut self, batch: &mut [Packet]) -> usize {
        let count = self.tx.back.len().min(batch.len());
        batch.iter_mut().zip(self.tx.back.drain(..count)).for_each(|(place, packet)| *place = packet);
        self.tx.held -= count as u16;
        count
    }

    pub(super) fn tell(&self) {
        let mut counters = self.before;
        counters += self.counters;
        self.shared.tally.set(&counters);
    }

    fn is_over(&self) -> bool {
        self.shared.lifetime.generation() == crate::lifetime::OVER
    }
}

impl Queue for CardQueue {
    fn depth(&self) -> (u16, u16) {
        (self.rx.depth, self.tx.depth)
    }

    fn held(&self) -> (u16, u16) {
        (self.rx.held() as u16, self.tx.held)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    #[inline]
    fn rx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let room = usize::from(self.rx.depth).saturating_sub(self.rx.held());
        let mut provided = Provided::default();
        for packet in batch.iter_mut().take(room) {
            if let Err(refused) = self.limits.check_buffer(packet) {
                provided.refused = Some(refused);
                break;
            }
            self.rx.push(packet);
            provided.count += 1;
        }
        self.publish_received();
        provided
    }

    #[inline]
    fn rx_return(&mut self, batch: &mut [Packet]) -> Result<usize, Error> {
        if self.rx.skipping || !self.rx.whole.is_empty() || !self.rx.parts.is_empty() {
            return self.return_unusual(batch);
        }
        let (slots, longest) = (&mut self.rx.slots, self.rx.buffer_bytes.min(self.limits.max_frame()));
        let mut bytes = 0;
        let count = self.rx.ring.pop_into(batch, |slot, word, place| {
            let (word, packet) = (Extended(word), &mut slots[slot as usize]);
            let length = word.length() as u32;
            if word.status() & UNUSUAL != status::END || length < SHORTEST || length > longest {
                return false;
            }
            packet.len = length;
            packet.meta = Meta { checksum: checksum(word.status()), ..Meta::default() };
            bytes += u64::from(length);
            *place = mem::take(packet);
            true
        });
        self.counters.rx_packets += count as u64;
        self.counters.rx_bytes += bytes;
        if count == 0 {
            return if self.rx.ring.ready() || self.is_over() { self.return_unusual(batch) } else { Ok(0) };
        }
        self.tell();
        Ok(count)
    }

    #[inline]
    fn tx_provide(&mut self, batch: &mut [Packet]) -> Provided {
        let mut provided = Provided::default();
        while provided.count < batch.len() {
            let rest = &mut batch[provided.count..];
            let sent = match self.limits.check(rest) {
                Ok(1) if rest[0].meta == Meta::default() && rest[0].len <= MAX_BUFFER && !self.tx.linkless => {
                    usize::from(self.send_plain(&mut rest[0]))
                }
                Ok(pieces) => match self.send_unusual(&mut rest[..pieces]) {
                    Ok(sent) => sent,
                    Err(refused) => return self.sent(Provided { refused: Some(refused), ..provided }),
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
            return Ok(self.return_unsent(batch));
        }
        let (mut packets, mut bytes) = (0, 0);
        let mut count = 0;
        loop {
            let slots = &mut self.tx.slots;
            count += self.tx.ring.pop_into(&mut batch[count..], |slot, _, place| {
                let packet = &mut slots[slot as usize];
                if packet.buffer.is_none() {
                    return false;
                }
                packets += u64::from(!packet.meta.more);
                bytes += u64::from(packet.len);
                *place = mem::take(packet);
                true
            });
            if count == batch.len() || !self.tx.ring.ready() {
                break;
            }
            self.skip_empty();
        }
        self.tx.held -= count as u16;
        self.counters.tx_packets += packets;
        self.counters.tx_bytes += bytes;
        if count > 0 {
            self.tell();
        } else if self.is_over() {
            self.shared.lifetime.check()?;
        }
        Ok(count)
    }

    fn wake_on_tx(&mut self, wake: bool) {
        if wake == mem::replace(&mut self.wake_on_tx, wake) {
            return;
        }
        let mut card = lock(&self.shared.card);
        if let Some(rings) = &mut card.rings {
            rings.wake_on_tx = wake;
        }
        self.shared.vectors.wake_on_tx(card.registers(), wake);
    }
}

impl CardQueue {
    /// One doorbell for a batch.
    #[inline]
    fn sent(&mut self, provided: Provided) -> Provided {
        if let Some(tail) = self.tx.ring.publish() {
            self.bar.write32(self.transmit_tail, tail);
        }
        provided
    }
}

/// Whether there is something to take.
#[inline]
fn is_pending(rx: &Receiver, tx: &Transmitter, wake_on_tx: bool) -> bool {
    rx.ring.ready() || !rx.whole.is_empty() || wake_on_tx && (tx.ring.ready() || !tx.back.is_empty())
}

impl Source for CardQueue {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    #[inline]
    fn pending(&self) -> bool {
        is_pending(&self.rx, &self.tx, self.wake_on_tx) || self.is_over()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        if self.pending() {
            return Ok(false);
        }
        let (rx, tx, wake) = (&self.rx, &self.tx, self.wake_on_tx);
        self.waiter.arm(|| is_pending(rx, tx, wake))
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        let rearmed = self.waiter.tick(now)?;
        let look = self.look(now)?;
        Ok(sooner(rearmed, Some(look)))
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.pending() {
            return Ok(true);
        }
        let (rx, tx, wake) = (&self.rx, &self.tx, self.wake_on_tx);
        self.waiter.wait(deadline, || is_pending(rx, tx, wake))
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}
