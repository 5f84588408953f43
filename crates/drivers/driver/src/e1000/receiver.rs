//! Buffers to receive into, and what the card says of each.

use std::collections::VecDeque;

use ring3_class::net::{Checksum, Packet};
use ring3_device::dma::DmaBuffer;
use ring3_device::ring::{DescriptorRing, Words};
use ring3_spec::e1000::advanced::Flow;
use ring3_spec::e1000::receive::{Extended, error, status};

use super::variant::Family;

/// Descriptors that the card fills; the second word says what has come.
pub(super) type ReceiveRing = DescriptorRing<DmaBuffer, 2, 1>;

/// Bits of a written-back descriptor that are not those of a plain packet in one buffer: errors, a
/// tag, or more buffers.
pub(super) const UNUSUAL: u64 =
    error::FCS | error::TRANSPORT | error::IP | error::WIRE | status::VLAN | status::END;
/// Shortest packet that can have been received.
pub(super) const SHORTEST: u32 = 14;

/// Buffers to receive into, and what has come.
pub(super) struct Receiver {
    pub(super) ring: ReceiveRing,
    /// The buffer of each slot.
    pub(super) slots: Vec<Packet>,
    pub(super) depth: u16,
    /// What the card takes a buffer to be.
    pub(super) buffer_bytes: u32,
    /// Descriptors have the legacy form.
    pub(super) legacy: bool,
    /// They say by which hash a packet came to its queue: the card spreads them.
    pub(super) hashed: bool,
    /// Buffers of a packet whose last has not come.
    pub(super) parts: Vec<Packet>,
    /// What comes up to the next end belongs to a packet that was too long.
    pub(super) skipping: bool,
    /// Packets in pieces, or with something to say, that have not been returned.
    pub(super) whole: VecDeque<Packet>,
}

impl Receiver {
    pub(super) fn new(ring: ReceiveRing, family: Family, depth: u16, buffer_bytes: u32) -> Self {
        let slots = (0..ring.size()).map(|_| Packet::default()).collect();
        let (legacy, parts, whole) = (family == Family::I8254x, Vec::new(), VecDeque::new());
        Self {
            ring,
            slots,
            depth,
            buffer_bytes,
            legacy,
            hashed: false,
            parts,
            skipping: false,
            whole,
        }
    }

    pub(super) fn outstanding(&self) -> usize {
        self.ring.outstanding() as usize + self.parts.len() + self.whole.len()
    }

    /// The hash of the packet whose descriptor was the one in `slot`, if it has one. A descriptor
    /// stays as the card has written it until the next buffer is provided.
    pub(super) fn hash(&self, slot: u32) -> Option<u32> {
        let flow = Flow(self.ring.words().load(slot as usize * 2));
        (self.hashed && flow.hashed() != 0).then(|| flow.hash() as u32)
    }

    /// Tells the `packets` in descriptors from the one in slot `first` on their hashes.
    #[cold]
    pub(super) fn tell_hashes(&self, first: u32, packets: &mut [Packet]) {
        for (slot, packet) in (first..).zip(packets) {
            packet.meta = packet.meta.with_hash(self.hash(slot & (self.ring.size() - 1)));
        }
    }

    /// Hands a buffer to the card. There is room, as the ring is larger than the depth.
    #[inline]
    pub(super) fn push(&mut self, packet: &mut Packet) {
        if let Some(iova) = packet.iova()
            && let Some(slot) = self.ring.push(&[iova, 0])
        {
            // It is empty, as all are that the card does not have.
            let _ = self.slots[slot as usize].take_buffer(packet);
        }
    }
}

/// What a descriptor says, in the form that most cards have. [82574 7.1.3, 7.1.4; 8254x 3.2.3;
/// 82576 7.1.5]
#[inline]
pub(super) fn written_back(legacy: bool, word: u64) -> Extended {
    if !legacy {
        return Extended(word);
    }
    let (status, errors) = (word >> 32 & 0xff, word >> 40 & 0xff);
    Extended(status | errors << 24 | (word & 0xffff) << 32 | word & 0xffff << 48)
}

/// What the card has found of the checksums.
#[inline]
pub(super) fn checksum(status: u64) -> Checksum {
    if status & (status::TCP | status::UNCHECKED) == status::TCP {
        Checksum::Valid
    } else {
        Checksum::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_spec::e1000::receive::Legacy;

    #[test]
    fn a_legacy_descriptor_says_the_same_as_an_extended_one() {
        let said = status::DONE | status::END | status::TCP | status::VLAN;
        let legacy =
            Legacy(0).with_length(0x1234).with_vlan(0x2064).with_status(said).with_checksum(0xffff);
        let word = written_back(true, legacy.with_errors((error::TRANSPORT | error::WIRE) >> 24).0);
        assert_eq!(word.status(), said | error::TRANSPORT | error::WIRE);
        assert_eq!((word.length(), word.vlan()), (0x1234, 0x2064));
        assert_eq!(written_back(false, word.0), word);
    }
}
