//! The requests of a queue that are in flight, each in a slot, and the command ids by which the device names them.
//!
//! An id is the slot's number with the slot's generation above it. The generation counts each use of the slot, so that a completion
//! that comes twice, late, or for nothing at all is recognised.

use std::mem;

use ring3_class::block::{Data, Request};

/// The most slots that a queue can have: leaves at least 6 bits for the generation.
pub(super) const MAX_SLOTS: u16 = 1023;

/// No command id is this: ids have 16 bits.
const VACANT: u32 = u32::MAX;
/// The end of the list of vacant slots.
const END: u16 = u16::MAX;

/// One request in flight.
pub(super) struct Slot {
    /// The command id under which the device knows it; `VACANT` if there is no request here.
    id: u32,
    /// The id that this slot will have next; keeps the generation.
    next_id: u16,
    /// The next vacant slot.
    link: u16,
    /// When it was handed to the device; see [`Patience`](super::patience::Patience).
    pub(super) epoch: u32,
    /// How often it was handed to the device.
    pub(super) attempts: u8,
    /// An abort was sent for it.
    pub(super) aborted: bool,
    /// What was asked for.
    pub(super) request: Request,
}

/// All slots of a queue.
pub(super) struct Slots {
    slots: Box<[Slot]>,
    vacant: u16,
    in_flight: u16,
    /// Selects the slot's number in an id.
    mask: u16,
}

impl Slots {
    /// `count` (1 to [`MAX_SLOTS`]) vacant slots.
    pub(super) fn new(count: u16) -> Self {
        let count = count.clamp(1, MAX_SLOTS);
        let slot = |i| Slot {
            id: VACANT,
            next_id: i,
            link: if i + 1 < count { i + 1 } else { END },
            epoch: 0,
            attempts: 0,
            aborted: false,
            request: Request::flush(0),
        };
        Self { slots: (0..count).map(slot).collect(), vacant: 0, in_flight: 0, mask: count.next_power_of_two() - 1 }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// How many hold a request.
    #[inline]
    pub(super) fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// The slot that [`fill`](Self::fill) will use, if one is vacant.
    #[inline]
    pub(super) fn vacant(&self) -> Option<u16> {
        (self.vacant != END).then_some(self.vacant)
    }

    /// Puts `request` into the vacant slot and returns its command id; `None` (and the request is dropped) if none is vacant.
    #[inline]
    pub(super) fn fill(&mut self, request: Request, epoch: u32) -> Option<u16> {
        let slot = self.slots.get_mut(usize::from(self.vacant))?;
        self.vacant = slot.link;
        self.in_flight += 1;
        slot.epoch = epoch;
        slot.attempts = 1;
        slot.aborted = false;
        slot.request = request;
        Some(slot.name(self.mask))
    }

    /// The number of the slot that is in flight as `id`; `None` if nothing is.
    #[inline]
    pub(super) fn find(&self, id: u16) -> Option<u16> {
        let number = id & self.mask;
        let slot = self.slots.get(usize::from(number))?;
        (slot.id == u32::from(id)).then_some(number)
    }

    /// Empties slot `number`; returns the token and the data.
    #[inline]
    pub(super) fn vacate(&mut self, number: u16) -> Option<(u64, Data)> {
        let slot = self.slots.get_mut(usize::from(number))?;
        if slot.id == VACANT {
            return None;
        }
        slot.id = VACANT;
        slot.link = mem::replace(&mut self.vacant, number);
        self.in_flight -= 1;
        Some((slot.request.token, mem::take(&mut slot.request.data)))
    }

    /// Gives the request in slot `number` a new command id, because it is handed to the device once more.
    pub(super) fn rename(&mut self, number: u16, epoch: u32) -> Option<u16> {
        let slot = self.slots.get_mut(usize::from(number)).filter(|slot| slot.id != VACANT)?;
        slot.epoch = epoch;
        slot.attempts = slot.attempts.saturating_add(1);
        slot.aborted = false;
        Some(slot.name(self.mask))
    }

    /// Slot `number`, if it holds a request.
    pub(super) fn get(&self, number: u16) -> Option<&Slot> {
        self.slots.get(usize::from(number)).filter(|slot| slot.id != VACANT)
    }

    /// Slot `number`, if it holds a request.
    pub(super) fn get_mut(&mut self, number: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(number)).filter(|slot| slot.id != VACANT)
    }

    /// The numbers of all slots that hold a request.
    pub(super) fn occupied(&self) -> impl Iterator<Item = u16> {
        (0..self.count()).filter(|&number| self.get(number).is_some())
    }
}

impl Slot {
    /// The command id under which the device knows it.
    pub(super) fn id(&self) -> u16 {
        self.id as u16
    }

    /// Takes the next generation. All ones is no id: [NVMe 5.1.12.1.2] gives it a meaning of its own in the error log.
    #[inline]
    fn name(&mut self, mask: u16) -> u16 {
        let id = self.next_id;
        self.id = id.into();
        let next = id.wrapping_add(mask + 1);
        self.next_id = if next | mask == u16::MAX { id & mask } else { next };
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(slots: &mut Slots, token: u64) -> u16 {
        slots.fill(Request::flush(token), 0).unwrap()
    }

    #[test]
    fn a_completion_that_comes_twice_finds_nothing() {
        let mut slots = Slots::new(4);
        let id = filled(&mut slots, 7);
        let number = slots.find(id).unwrap();
        assert_eq!(slots.vacate(number).unwrap().0, 7);
        assert_eq!(slots.find(id), None);
    }

    #[test]
    fn an_old_id_does_not_find_the_request_that_uses_its_slot_now() {
        let mut slots = Slots::new(1);
        let old = filled(&mut slots, 1);
        slots.vacate(0);
        let new = filled(&mut slots, 2);
        assert_eq!((slots.find(old), slots.find(new)), (None, Some(0)));
    }

    #[test]
    fn a_request_that_is_repeated_is_not_found_by_its_first_id() {
        let mut slots = Slots::new(2);
        let first = filled(&mut slots, 1);
        let second = slots.rename(0, 5).unwrap();
        assert_eq!((slots.find(first), slots.find(second)), (None, Some(0)));
        assert_eq!(slots.get(0).map(|slot| (slot.attempts, slot.epoch)), Some((2, 5)));
    }

    #[test]
    fn a_full_table_has_no_vacant_slot() {
        let mut slots = Slots::new(2);
        filled(&mut slots, 1);
        filled(&mut slots, 2);
        assert_eq!((slots.vacant(), slots.in_flight()), (None, 2));
        assert_eq!(slots.fill(Request::flush(3), 0), None);
    }

    #[test]
    fn ids_of_nothing_find_nothing() {
        let slots = Slots::new(MAX_SLOTS);
        assert!((0..=u16::MAX).all(|id| slots.find(id).is_none()));
    }

    #[test]
    fn an_id_comes_again_only_after_all_generations() {
        let mut slots = Slots::new(MAX_SLOTS);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..63 {
            assert!(seen.insert(filled(&mut slots, 0)));
            slots.vacate(0);
        }
    }

    proptest! {
        #[test]
        fn ids_in_flight_are_distinct_and_never_all_ones(count in 1u16..=MAX_SLOTS, steps in prop::collection::vec(any::<u16>(), 1..2000)) {
            let mut slots = Slots::new(count);
            let mut held: Vec<(u16, u64)> = Vec::new();
            for (token, step) in steps.into_iter().enumerate() {
                if step % 3 == 0 && !held.is_empty() {
                    let (id, token) = held.swap_remove(usize::from(step) % held.len());
                    let number = slots.find(id).unwrap();
                    prop_assert_eq!(slots.vacate(number).unwrap().0, token);
                } else if let Some(id) = slots.fill(Request::flush(token as u64), 0) {
                    prop_assert!(id != u16::MAX && held.iter().all(|&(other, _)| other != id));
                    held.push((id, token as u64));
                }
                prop_assert_eq!(usize::from(slots.in_flight()), held.len());
            }
        }
    }
}
