//! What a card and its queues leave behind, as it is written down.
//!
//! Fields are only ever added, each with a default, so that a later version reads what an earlier
//! one has left. All of it is input to whoever reads it.

use ring3_class::net::{Counters, Filter, Mac, Packet, QueueSettings, SavedPacket};
use ring3_device::Error;
use ring3_device::dma::{Claims, DmaBuffer, Span};
use ring3_device::ring::{DescriptorRing, DescriptorState};
use serde::{Deserialize, Serialize};

use super::options::Options;

/// What a card's state is called, and the version of its form.
pub(super) const CARD: (&str, u32) = ("e1000 card", 1);
/// The same of a queue.
pub(super) const QUEUE: (&str, u32) = ("e1000 queue", 1);

/// A card, but for the registers, which say the rest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedCard {
    /// Its model, and the address that it was made with: by these another card is told apart.
    pub(super) model: String,
    pub(super) mac: Mac,
    /// The address in its NVM, if its port has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) nvm: Option<Mac>,
    pub(super) options: Options,
    pub(super) filter: Filter,
    /// Interrupts that are enabled.
    pub(super) vectors: u16,
    pub(super) generation: u32,
    /// Among how many queues it spreads.
    pub(super) spread: u32,
    pub(super) missed: u64,
    /// What went through queues of each number.
    pub(super) tallies: Vec<Counters>,
    /// The queues that were detached.
    pub(super) queues: Vec<SavedRings>,
}

/// A queue that was detached, as its card knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedRings {
    pub(super) index: u32,
    /// Device address and descriptors.
    pub(super) receive: (u64, u32),
    pub(super) transmit: (u64, u32),
    pub(super) buffer_bytes: u32,
    pub(super) max_frame: u32,
    pub(super) wake_on_tx: bool,
}

/// A queue.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedQueue {
    pub(super) mac: Mac,
    pub(super) index: u32,
    pub(super) generation: u32,
    pub(super) settings: QueueSettings,
    pub(super) receive: SavedRing,
    pub(super) transmit: SavedRing,
    /// Buffers of a packet whose last has not come.
    pub(super) parts: Vec<SavedPacket>,
    /// Packets that have come and were not returned.
    pub(super) whole: Vec<SavedPacket>,
    pub(super) skipping: bool,
    /// Buffers that come back without having been sent.
    pub(super) back: Vec<SavedPacket>,
    pub(super) context: Option<[u64; 2]>,
    pub(super) linkless: bool,
    pub(super) wake_on_tx: bool,
    pub(super) counters: Counters,
    pub(super) before: Counters,
}

/// A ring and the buffers that the card has by it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedRing {
    pub(super) memory: Span,
    pub(super) state: DescriptorState,
    pub(super) held: Vec<SavedSlot>,
    /// Slots without a buffer whose descriptors are not written back.
    #[serde(default)]
    pub(super) silent: Vec<u32>,
}

/// A buffer and its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedSlot {
    pub(super) slot: u32,
    pub(super) packet: SavedPacket,
}

impl SavedRing {
    /// Of a ring whose slots have these buffers.
    pub(super) fn of(
        ring: &DescriptorRing<DmaBuffer, 2, 1>,
        slots: &[Packet],
        silent: u32,
    ) -> Result<Self, Error> {
        let mut saved = Self {
            memory: ring.words().span(),
            state: ring.state(),
            held: Vec::new(),
            silent: Vec::new(),
        };
        for slot in ring.held_slots() {
            let packet = &slots[slot as usize];
            if packet.buffer.is_some() {
                saved.held.push(SavedSlot { slot, packet: packet.save()? });
            } else if packet.token == silent {
                saved.silent.push(slot);
            }
        }
        Ok(saved)
    }

    /// The ring, and the buffers of its slots; `bit` says that a descriptor is back.
    pub(super) fn claim(
        &self,
        claims: &mut Claims,
        bit: u32,
        silent: u32,
    ) -> Result<(DescriptorRing<DmaBuffer, 2, 1>, Vec<Packet>), Error> {
        let ring = DescriptorRing::resume(claims.claim(self.memory)?, self.state, bit)?;
        let mut slots: Vec<Packet> = (0..ring.size()).map(|_| Packet::default()).collect();
        let mut is_held = vec![false; slots.len()];
        ring.held_slots().for_each(|slot| is_held[slot as usize] = true);
        let mut take = |slot: u32| {
            let free = is_held.get_mut(slot as usize).filter(|held| **held);
            free.map(|held| *held = false).ok_or_else(|| {
                Error::Invalid(format!(
                    "the saved queue has slot {slot} twice or in vain: open the card anew"
                ))
            })
        };
        for &SavedSlot { slot, packet } in &self.held {
            take(slot)?;
            slots[slot as usize] = packet.claim(claims)?;
        }
        for &slot in &self.silent {
            take(slot)?;
            slots[slot as usize].token = silent;
        }
        Ok((ring, slots))
    }
}

/// Buffers that are in no ring, with their bytes.
pub(super) fn claim_all(saved: &[SavedPacket], claims: &mut Claims) -> Result<Vec<Packet>, Error> {
    saved.iter().map(|packet| packet.claim(claims)).collect()
}

#[cfg(test)]
mod tests {
    use ring3_class::Saved;

    use super::*;

    #[test]
    fn what_the_first_version_has_left_is_still_read() {
        let read = |text| serde_json::from_str::<Saved>(text).unwrap();
        let card: SavedCard =
            read(include_str!("../../tests/saved/e1000_card.json")).read(CARD.0, CARD.1).unwrap();
        assert_eq!(
            (card.model.as_str(), card.vectors, card.spread, card.queues.len()),
            ("82574L", 2, 1, 1)
        );
        let queue: SavedQueue = read(include_str!("../../tests/saved/e1000_queue.json"))
            .read(QUEUE.0, QUEUE.1)
            .unwrap();
        assert_eq!(
            (
                queue.receive.held.len(),
                queue.transmit.held.len(),
                queue.transmit.held[0].packet.token
            ),
            (16, 1, 5)
        );
        assert_eq!((card.queues[0].index, card.mac), (queue.index, queue.mac));
    }
}
