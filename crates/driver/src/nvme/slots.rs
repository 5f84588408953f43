//! The requests of a queue that are in flight, each in a slot, and the command ids by which the device names them.
//!
//! An id is the slot's number with the slot's generation above it. The generation counts each use of the slot, so that a completion
//! that comes twice, late, or for nothing at all is recognised.

use std::mem;

use ring3_class::block::{Completion, IoError, Request};

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
    /// The command id that this slot will have next; keeps the generation.
    next_id: u16,
    /// The next vacant slot.
    link: u16,
    /// When it was handed to the device; see [`Patience`](crate::patience::Patience).
    pub(super) epoch: u32,
    /// How often it was handed to the device.
    pub(super) attempts: u8,
    /// An abort was sent for it.
    pub(super) aborted: bool,
    /// Which flush of its namespace it is, if it is one; see [`WriteCache`](super::cache::WriteCache).
    pub(super) flush: u64,
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
            flush: 0,
            request: Request::flush(0),
        };
        // No slot has the number of the mask, so no id is all ones: [NVMe 5.1.12.1.2] gives that a meaning of its own.
        let mask = (count + 1).next_power_of_two() - 1;
        Self { slots: (0..count).map(slot).collect(), vacant: 0, in_flight: 0, mask }
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

    /// A vacant slot, if there is one.
    #[inline]
    pub(super) fn vacancy(&mut self) -> Option<Vacancy<'_>> {
        let number = self.vacant;
        let slot = self.slots.get_mut(usize::from(number))?;
        Some(Vacancy { number, slot, vacant: &mut self.vacant, in_flight: &mut self.in_flight, mask: self.mask })
    }

    /// The number of the slot that is in flight as `id`; `None` if nothing is.
    #[inline]
    pub(super) fn find(&self, id: u16) -> Option<u16> {
        let number = id & self.mask;
        let slot = self.slots.get(usize::from(number))?;
        (slot.id == u32::from(id)).then_some(number)
    }

    /// Vacates the slot that is in flight as `id`, and lends it so that its request can be completed.
    #[inline]
    pub(super) fn vacate_by_id(&mut self, id: u16) -> Option<&mut Slot> {
        let number = id & self.mask;
        let slot = self.slots.get_mut(usize::from(number)).filter(|slot| slot.id == u32::from(id))?;
        slot.id = VACANT;
        slot.link = mem::replace(&mut self.vacant, number);
        self.in_flight -= 1;
        Some(slot)
    }

    /// Vacates slot `number`, if it holds a request, and lends it.
    pub(super) fn vacate(&mut self, number: u16) -> Option<&mut Slot> {
        let id = self.get(number)?.id();
        self.vacate_by_id(id)
    }

    /// Gives the request in slot `number` a new command id, because it is handed to the device once more.
    pub(super) fn rename(&mut self, number: u16, epoch: u32) -> Option<u16> {
        let slot = self.slots.get_mut(usize::from(number)).filter(|slot| slot.id != VACANT)?;
        slot.epoch = epoch;
        slot.attempts = slot.attempts.saturating_add(1);
        slot.aborted = false;
        Some(slot.take_id(self.mask))
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

/// A vacant slot, and what changes when it is filled.
pub(super) struct Vacancy<'a> {
    number: u16,
    slot: &'a mut Slot,
    vacant: &'a mut u16,
    in_flight: &'a mut u16,
    mask: u16,
}

impl Vacancy<'_> {
    /// Which slot it is.
    #[inline]
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// The command id that its request will have.
    #[inline]
    pub(super) fn id(&self) -> u16 {
        self.slot.next_id
    }

    /// Fills it with `request`, which is handed to the device in `epoch`.
    #[inline]
    pub(super) fn fill(self, request: Request, epoch: u32) {
        let slot = self.slot;
        *self.vacant = slot.link;
        *self.in_flight += 1;
        (slot.epoch, slot.attempts, slot.aborted) = (epoch, 1, false);
        slot.take_id(self.mask);
        // What was here has been taken out by `complete`: there is nothing to drop.
        mem::forget(mem::replace(&mut slot.request, request));
    }
}

impl Slot {
    /// The command id under which the device knows it.
    pub(super) fn id(&self) -> u16 {
        self.id as u16
    }

    /// The end of the request that was here; its data goes with it.
    #[inline]
    pub(super) fn complete(&mut self, result: Result<(), IoError>) -> Completion {
        Completion { token: self.request.token, result, data: mem::take(&mut self.request.data) }
    }

    #[inline]
    fn take_id(&mut self, mask: u16) -> u16 {
        self.id = self.next_id.into();
        self.next_id = self.next_id.wrapping_add(mask + 1);
        self.id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(slots: &mut Slots, token: u64) -> u16 {
        let vacancy = slots.vacancy().unwrap();
        let id = vacancy.id();
        vacancy.fill(Request::flush(token), 0);
        id
    }

    #[test]
    fn a_completion_that_comes_twice_finds_nothing() {
        let mut slots = Slots::new(4);
        let id = filled(&mut slots, 7);
        assert_eq!(slots.vacate_by_id(id).unwrap().complete(Ok(())).token, 7);
        assert!(slots.vacate_by_id(id).is_none());
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
        assert!(slots.vacancy().is_none());
        assert_eq!(slots.in_flight(), 2);
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
                    prop_assert_eq!(slots.vacate_by_id(id).unwrap().complete(Ok(())).token, token);
                } else if slots.vacancy().is_some() {
                    let id = filled(&mut slots, token as u64);
                    prop_assert!(id != u16::MAX && held.iter().all(|&(other, _)| other != id));
                    held.push((id, token as u64));
                }
                prop_assert_eq!(usize::from(slots.in_flight()), held.len());
            }
        }
    }
}
