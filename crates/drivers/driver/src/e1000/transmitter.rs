//! Packets to send: the plain ones, and what comes back.

use std::collections::VecDeque;
use std::mem;

use ring3_class::net::{Limits, Packet};
use ring3_device::dma::DmaBuffer;
use ring3_device::ring::DescriptorRing;
use ring3_spec::e1000::advanced;
use ring3_spec::e1000::transmit::{Legacy, command};

use super::offload::PAGE;
use super::variant::Family;

/// Descriptors that the card sends.
pub(super) type TransmitRing = DescriptorRing<DmaBuffer, 2, 1>;
/// DD in the second word of a descriptor that was sent, of whatever form.
pub(super) const SENT_BIT: u32 = 32;

/// The token of an empty slot whose descriptor the card does not write back.
pub(super) const SILENT: u32 = u32::MAX;

/// Packets to send.
pub(super) struct Transmitter {
    pub(super) ring: TransmitRing,
    /// The buffer of each slot; none where a descriptor has no buffer of its own.
    pub(super) slots: Vec<Packet>,
    pub(super) depth: u16,
    /// Buffers that are with the card.
    pub(super) held: u16,
    /// Descriptors without a buffer of their own that are with the card.
    pub(super) empty: u32,
    /// Pieces that are not the last of their packet and are with the card.
    pub(super) pieces: u32,
    /// Descriptors have the advanced form.
    pub(super) advanced: bool,
    /// What a plain packet's descriptor says beside its length.
    plain: u64,
    /// Buffers that come back without having been sent.
    pub(super) back: VecDeque<Packet>,
    /// The context that the card has.
    pub(super) context: Option<[u64; 2]>,
    /// There was no link at the last look: packets are lost without the card.
    pub(super) linkless: bool,
}

impl Transmitter {
    pub(super) fn new(ring: TransmitRing, family: Family, depth: u16) -> Self {
        let slots = (0..ring.size()).map(|_| Packet::default()).collect();
        let (advanced, back) = (family == Family::I82576, VecDeque::new());
        let plain = plain(advanced);
        Self {
            ring,
            slots,
            depth,
            held: 0,
            empty: 0,
            pieces: 0,
            advanced,
            plain,
            back,
            context: None,
            linkless: false,
        }
    }

    /// Sends packets of `batch` up to the first that is not one buffer of `longest` bytes at most,
    /// or asks for something, or has no room; how many. `longest` is no more than `limits` allow.
    #[inline]
    pub(super) fn send_plain(
        &mut self,
        batch: &mut [Packet],
        limits: &Limits,
        longest: u32,
    ) -> usize {
        let (what, room) =
            (self.plain, usize::from(self.depth.saturating_sub(self.held)).min(batch.len()));
        let advanced = self.advanced;
        let sent = self.ring.push_from(&mut batch[..room], &mut self.slots, |packet, slot| {
            if !limits.is_plain_within(packet, longest) {
                return None;
            }
            let (iova, length) = (packet.iova()?, u64::from(packet.len));
            // Of two pages, which may lie apart, each gets a descriptor.
            if iova % PAGE + length > PAGE {
                return None;
            }
            slot.swap_buffer(packet);
            Some([iova, what | if advanced { length * LENGTHS } else { length }])
        });
        self.held += sent as u16;
        sent
    }

    /// Whether not even a plain packet has room.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.held >= self.depth || self.ring.space() == 0
    }

    /// Hands a descriptor over that has no buffer of its own; with `silent`, the card will not
    /// write it back.
    pub(super) fn push_empty(&mut self, descriptor: &[u64; 2], silent: bool) {
        if let Some(slot) = self.ring.push(descriptor) {
            self.slots[slot as usize] =
                Packet { token: if silent { SILENT } else { 0 }, ..Packet::default() };
            self.empty += 1;
        }
    }

    /// Whether each descriptor that is with the card is a whole packet.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.empty | self.pieces == 0
    }

    /// Hands a descriptor over with the buffer of `piece`. There is room.
    pub(super) fn push_piece(&mut self, descriptor: &[u64; 2], piece: &mut Packet) {
        if let Some(slot) = self.ring.push(descriptor) {
            self.pieces += u32::from(piece.meta.more());
            self.slots[slot as usize] = mem::take(piece);
        }
    }

    /// Takes the oldest packet or piece that was sent, with what was known of it.
    pub(super) fn take_sent(&mut self) -> Option<Packet> {
        let (slot, _) = self.goes_on().then(|| self.ring.pop())??;
        let packet = mem::take(&mut self.slots[slot as usize]);
        self.pieces -= u32::from(packet.meta.more());
        Some(packet)
    }

    /// Whether the oldest descriptor is done.
    #[inline]
    pub(super) fn ready(&self) -> bool {
        self.is_buffer_done() || self.empty > 0 && self.is_empty_done()
    }

    /// Whether there is more to take, behind descriptors without a buffer or from the start of the
    /// memory on.
    #[inline]
    fn goes_on(&mut self) -> bool {
        if self.empty > 0 {
            self.skip_empty();
        }
        // Behind those that were skipped may be another one, which is done since.
        self.is_buffer_done()
    }

    #[inline]
    fn is_buffer_done(&self) -> bool {
        self.ring.ready() && self.slots[self.ring.oldest() as usize].buffer.is_some()
    }

    /// Whether the oldest descriptor has no buffer of its own, and is done. One that is not written
    /// back is done when the next one is.
    #[cold]
    fn is_empty_done(&self) -> bool {
        let slot = &self.slots[self.ring.oldest() as usize];
        self.ring.outstanding() > 0
            && slot.buffer.is_none()
            && self.ring.is_back(u32::from(slot.token == SILENT))
    }

    /// Takes descriptors without a buffer of their own that are done.
    #[cold]
    fn skip_empty(&mut self) {
        while self.empty > 0 && self.is_empty_done() {
            if let Some(slot) = self.ring.withdraw() {
                self.slots[slot as usize] = Packet::default();
            }
            self.empty -= 1;
        }
    }

    /// Buffers that come back without having been sent.
    #[cold]
    pub(super) fn return_unsent(&mut self, batch: &mut [Packet]) -> usize {
        let count = self.back.len().min(batch.len());
        batch.iter_mut().zip(self.back.drain(..count)).for_each(|(place, packet)| *place = packet);
        self.held -= count as u16;
        count
    }
}

/// A length, which stands at the start of a legacy descriptor's word, in both of its places in an
/// advanced one's. [82576 7.2.2.3]
const LENGTHS: u64 = 1 | 1 << 46;

/// [82574 7.2.10; 82576 7.2.2.3]
fn plain(advanced: bool) -> u64 {
    let asked = command::END | command::FCS | command::REPORT;
    if !advanced {
        return Legacy(0).with_command(asked).0;
    }
    advanced::Data(0).with_kind(advanced::Data::TYPE).with_command(asked | command::EXTENDED).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_class::net::{Cable, Nic, QueueSettings};
    use ring3_device::dma::{Arena, Region};
    use ring3_device::ring::Words;

    const DONE: u64 = 1 << SENT_BIT;

    /// A context that is not written back, and a packet behind it.
    fn with_context() -> (Arena, Transmitter) {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000);
        let ring = TransmitRing::new(arena.alloc(8 * 16, 128).unwrap(), 8, SENT_BIT).unwrap();
        let mut tx = Transmitter::new(ring, Family::I82576, 4);
        tx.push_empty(&[0, 0], true);
        let (_cable, card, _) = Cable::new(1 << 20).unwrap();
        let limits = Limits::new(card.info(), &QueueSettings::default(), 4);
        let packet =
            Packet { len: 60, ..Packet::new(arena.alloc(2048, 64).unwrap(), card.info().headroom) };
        assert_eq!(tx.send_plain(&mut [packet], &limits, 1514), 1);
        tx.ring.publish();
        (arena, tx)
    }

    #[test]
    fn a_context_is_done_when_the_packet_behind_it_is() {
        let (_arena, mut tx) = with_context();
        assert!(!tx.ready() && !tx.goes_on());
        tx.ring.words().store(3, DONE);
        assert!(tx.ready() && tx.goes_on() && tx.empty == 0 && tx.ready());
        assert_eq!(tx.ring.oldest(), 1);
    }

    #[test]
    fn a_context_that_the_card_says_is_done_although_it_never_does_changes_nothing() {
        let (_arena, mut tx) = with_context();
        tx.ring.words().store(1, u64::MAX);
        assert!(!tx.ready() && !tx.goes_on());
        assert_eq!((tx.empty, tx.held), (1, 1));
    }

    #[test]
    fn a_descriptor_without_a_buffer_that_is_done_behind_one_that_was_skipped_is_no_packet() {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000);
        let ring = TransmitRing::new(arena.alloc(8 * 16, 128).unwrap(), 8, SENT_BIT).unwrap();
        let mut tx = Transmitter::new(ring, Family::I82576, 4);
        tx.push_empty(&[0, 0], false);
        tx.push_empty(&[0, 0], true);
        tx.ring.publish();
        // The second one is none that the card writes back: it may look done while it is not, as
        // one may become so between two looks.
        tx.ring.words().store(1, DONE);
        tx.ring.words().store(3, DONE);
        assert!(tx.take_sent().is_none());
        assert_eq!((tx.empty, tx.ring.oldest()), (1, 1));
    }

    #[test]
    fn an_advanced_descriptor_says_its_length_twice() {
        let data = advanced::Data(plain(true) | (1514 * LENGTHS));
        assert_eq!((data.length(), data.payload(), data.kind(), data.done()), (1514, 1514, 3, 0));
        assert_eq!(Legacy(plain(false) | 1514), Legacy(plain(false)).with_length(1514));
    }
}
