//! The requests of a queue that are in flight, each in a slot, and the command ids by which the
//! device names them. A device that has no room for an id names the slot.
//!
//! Command ids and slots are assigned in turn. The low bits of an id are the slot's number, the
//! high bits count the laps. An id is used again only after all others, so a completion that is
//! duplicate, late or spurious is detected. A slot that is still occupied is skipped.

use std::mem;

use ring3_class::block::{Completion, IoError, Request};

/// The most requests that a queue can have: leaves at least 5 bits for the lap.
pub(crate) const MAX_SLOTS: u16 = 1023;

/// All ids: half of the numbers that there are, without 0xffff, to which [NVMe 5.1.12.1.2] gives a
/// meaning of its own.
const IDS: u16 = 0x7fff;
/// In the place of an id: there is no request here.
const VACANT: u32 = u32::MAX;
/// In the place of an id: there never is one.
const NO_SLOT: u32 = u32::MAX - 1;
/// Added to the command id on a repetition. A multiple of 1024 keeps the slot number (low bits).
/// About a sixth of the id space keeps the ids of the original and of its five repetitions far
/// apart, so that a late completion of an earlier attempt is not taken for a later one's.
const REPEATED: u16 = 5 << 10;

/// One request in flight.
pub(crate) struct Slot {
    /// The command id under which the device knows it; none has [`VACANT`] or [`NO_SLOT`].
    id: u32,
    /// When it was handed to the device; see [`Timeouts`](super::Timeouts).
    pub(crate) epoch: u32,
    /// How often it was handed to the device.
    pub(crate) attempts: u8,
    /// The device was asked to end it.
    pub(crate) cancelled: bool,
    /// Which flush of its disk it is, if it is one; see
    /// [`WriteCache`](super::write_cache::WriteCache).
    pub(crate) flush: u64,
    /// What was asked for.
    pub(crate) request: Request,
}

/// All slots of a queue.
pub(crate) struct Slots {
    /// A power of two of them, so that each id has one; those behind the last are never vacant.
    slots: Box<[Slot]>,
    count: u16,
    /// The id whose turn it is.
    next: u16,
    in_flight: u16,
    /// Selects the slot's number in an id.
    mask: u32,
}

impl Slots {
    /// `count` (1 to [`MAX_SLOTS`]) vacant slots.
    pub(crate) fn new(count: u16) -> Self {
        let count = count.clamp(1, MAX_SLOTS);
        let id = |number| if number < count { VACANT } else { NO_SLOT };
        let slot = |number| Slot {
            id: id(number),
            epoch: 0,
            attempts: 0,
            cancelled: false,
            flush: 0,
            request: Request::flush(0),
        };
        let all = count.next_power_of_two();
        Self {
            slots: (0..all).map(slot).collect(),
            count,
            next: 0,
            in_flight: 0,
            mask: u32::from(all) - 1,
        }
    }

    /// None: what a queue has that was detached.
    pub(crate) fn none() -> Self {
        Self { slots: Box::default(), count: 0, next: 0, in_flight: 0, mask: 0 }
    }

    /// The id whose turn it is.
    pub(crate) fn next(&self) -> u16 {
        self.next
    }

    /// Gives the turn to `next`, which had it when the slots were saved.
    pub(crate) fn resume_at(&mut self, next: u16) {
        self.next = next & IDS;
    }

    /// What is in flight under the ids from `first` on, as far as ids tell.
    pub(crate) fn since(&self, first: u16) -> impl Iterator<Item = &Slot> {
        let new = (self.next.wrapping_sub(first) & IDS).min(self.count);
        (1..=new).rev().filter_map(move |before| {
            self.find(self.next.wrapping_sub(before) & IDS).and_then(|number| self.get(number))
        })
    }

    /// Puts what was in flight as `id` back; false if that is no id, or its slot is not vacant.
    pub(crate) fn restore(&mut self, id: u16, held: Slot) -> bool {
        let number = u32::from(id) & self.mask;
        let vacant =
            self.slots.get_mut(number as usize).filter(|slot| slot.is_vacant() && id <= IDS);
        let restored = vacant.map(|slot| *slot = Slot { id: id.into(), ..held }).is_some();
        self.in_flight += u16::from(restored);
        restored
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// How many hold a request.
    #[inline]
    pub(crate) fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// The slot whose turn it is, if it is vacant; see [`skip_busy_slot`](Self::skip_busy_slot).
    #[inline]
    pub(crate) fn free_slot(&mut self) -> Option<FreeSlot<'_>> {
        let id = self.next;
        let number = u32::from(id) & self.mask;
        let slot = self.slots.get_mut(number as usize).filter(|slot| slot.is_vacant())?;
        Some(FreeSlot {
            id,
            number: number as u16,
            slot,
            next: &mut self.next,
            in_flight: &mut self.in_flight,
        })
    }

    /// Gives the turn to a vacant slot, if there is one.
    #[cold]
    pub(crate) fn skip_busy_slot(&mut self) {
        while self.in_flight < self.count() && self.free_slot().is_none() {
            self.next = (self.next + 1) & IDS;
        }
    }

    /// The number of the slot that is in flight as `id`; `None` if nothing is.
    #[inline]
    pub(crate) fn find(&self, id: u16) -> Option<u16> {
        let number = u32::from(id) & self.mask;
        let slot = self.slots.get(number as usize)?;
        (slot.id == u32::from(id)).then_some(number as u16)
    }

    /// The slots that are in flight, by id. Who [vacates](Slot::vacate) such says [how
    /// many](Self::vacated).
    #[inline]
    pub(crate) fn by_id(&mut self) -> ById<'_> {
        ById { slots: &mut self.slots, mask: self.mask }
    }

    /// So many slots were vacated.
    #[inline]
    pub(crate) fn freed(&mut self, count: usize) {
        self.in_flight -= count as u16;
    }

    /// Vacates slot `number`, if it holds a request, and lends it so that its request can be
    /// completed.
    pub(crate) fn free(&mut self, number: u16) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(number)).filter(|slot| slot.is_held())?;
        slot.free();
        self.in_flight -= 1;
        Some(slot)
    }

    /// Gives the request in slot `number` a new command id, because it is handed to the device once
    /// more; `is_attempt` says that this counts.
    pub(crate) fn rename(&mut self, number: u16, epoch: u32, is_attempt: bool) -> Option<&Slot> {
        let slot = self.get_mut(number)?;
        slot.epoch = epoch;
        slot.attempts = slot.attempts.saturating_add(is_attempt.into());
        slot.cancelled = false;
        slot.id = (slot.id().wrapping_add(REPEATED) & IDS).into();
        Some(slot)
    }

    /// Slot `number`, if it holds a request.
    pub(crate) fn get(&self, number: u16) -> Option<&Slot> {
        self.slots.get(usize::from(number)).filter(|slot| slot.is_held())
    }

    /// Slot `number`, if it holds a request.
    pub(crate) fn get_mut(&mut self, number: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(number)).filter(|slot| slot.is_held())
    }

    /// The numbers of all slots that hold a request.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = u16> {
        (0..self.count()).filter(|&number| self.get(number).is_some())
    }
}

/// The slots of a queue, for who looks many up.
pub(crate) struct ById<'a> {
    slots: &'a mut [Slot],
    mask: u32,
}

impl ById<'_> {
    /// The one that is in flight as `id`.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: u16) -> Option<&mut Slot> {
        let number = u32::from(id) & self.mask;
        self.slots.get_mut(number as usize).filter(|slot| slot.id == u32::from(id))
    }
}

/// A vacant slot, and what changes when it is filled.
pub(crate) struct FreeSlot<'a> {
    id: u16,
    number: u16,
    slot: &'a mut Slot,
    next: &'a mut u16,
    in_flight: &'a mut u16,
}

impl FreeSlot<'_> {
    /// Which slot it is.
    #[inline]
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// The command id that its request will have.
    #[inline]
    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    /// Fills it with `request`, which is handed to the device in `epoch`.
    #[inline]
    pub(crate) fn fill(self, request: Request, epoch: u32) {
        let slot = self.slot;
        *self.next = (self.id + 1) & IDS;
        *self.in_flight += 1;
        (slot.epoch, slot.attempts, slot.cancelled) = (epoch, 1, false);
        slot.id = self.id.into();
        // What was here has been taken out by `complete`: there is nothing to drop.
        mem::forget(mem::replace(&mut slot.request, request));
    }
}

impl Slot {
    /// `request`, as it was in flight in another process.
    pub(crate) fn of(
        request: Request,
        epoch: u32,
        (attempts, cancelled): (u8, bool),
        flush: u64,
    ) -> Self {
        Self { id: VACANT, epoch, attempts, cancelled, flush, request }
    }

    /// No completion finds it from now on; its request is there to be completed.
    #[inline]
    pub(crate) fn free(&mut self) {
        self.id = VACANT;
    }

    /// The command id under which the device knows it.
    pub(crate) fn id(&self) -> u16 {
        self.id as u16
    }

    /// The end of the request that was here; its data goes with it.
    #[inline]
    pub(crate) fn complete(&mut self, result: Result<(), IoError>) -> Completion {
        Completion { token: self.request.token, result, data: mem::take(&mut self.request.data) }
    }

    fn is_vacant(&self) -> bool {
        self.id == VACANT
    }

    fn is_held(&self) -> bool {
        self.id <= IDS.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(slots: &mut Slots, token: u64) -> u16 {
        slots.skip_busy_slot();
        let free_slot = slots.free_slot().unwrap();
        let id = free_slot.id();
        free_slot.fill(Request::flush(token), 0);
        id
    }

    fn vacate_by_id(slots: &mut Slots, id: u16) -> Option<&mut Slot> {
        let number = slots.find(id)?;
        slots.free(number)
    }

    #[test]
    fn a_completion_that_comes_twice_finds_nothing() {
        let mut slots = Slots::new(4);
        let id = filled(&mut slots, 7);
        assert_eq!(vacate_by_id(&mut slots, id).unwrap().complete(Ok(())).token, 7);
        assert!(vacate_by_id(&mut slots, id).is_none());
        assert_eq!(slots.find(id), None);
    }

    #[test]
    fn an_old_id_does_not_find_the_request_that_uses_its_slot_now() {
        let mut slots = Slots::new(1);
        let old = filled(&mut slots, 1);
        slots.free(0);
        let new = filled(&mut slots, 2);
        assert_eq!((slots.find(old), slots.find(new)), (None, Some(0)));
    }

    #[test]
    fn a_request_that_is_repeated_is_not_found_by_its_first_id() {
        let mut slots = Slots::new(2);
        let first = filled(&mut slots, 1);
        let second = slots.rename(0, 5, true).unwrap().id();
        assert_eq!((slots.find(first), slots.find(second)), (None, Some(0)));
        assert_eq!(slots.get(0).map(|slot| (slot.attempts, slot.epoch)), Some((2, 5)));
    }

    #[test]
    fn what_was_filled_since_an_id_is_found_if_it_is_still_in_flight() {
        let mut slots = Slots::new(4);
        filled(&mut slots, 1);
        let first = slots.next();
        for token in 2..=4 {
            filled(&mut slots, token);
        }
        slots.free(2);
        let found = |slots: &Slots, first| -> Vec<u64> {
            slots.since(first).map(|slot| slot.request.token).collect()
        };
        assert_eq!(found(&slots, first), [2, 4]);
        assert!(found(&slots, slots.next()).is_empty());
    }

    #[test]
    fn a_full_table_has_no_vacant_slot() {
        let mut slots = Slots::new(2);
        filled(&mut slots, 1);
        filled(&mut slots, 2);
        slots.skip_busy_slot();
        assert!(slots.free_slot().is_none());
        assert_eq!(slots.in_flight(), 2);
    }

    #[test]
    fn ids_of_nothing_find_nothing() {
        let slots = Slots::new(MAX_SLOTS);
        assert!((0..=u16::MAX).all(|id| slots.find(id).is_none()));
    }

    #[test]
    fn an_id_comes_again_only_after_all_others() {
        for count in [1, 32, MAX_SLOTS] {
            let mut slots = Slots::new(count);
            let laps = (u32::from(IDS) + 1) / u32::from(count).next_power_of_two();
            let mut seen = std::collections::HashSet::new();
            for _ in 0..laps * u32::from(count) {
                let id = filled(&mut slots, 0);
                assert!(seen.insert(id));
                vacate_by_id(&mut slots, id);
            }
        }
    }

    #[test]
    fn a_slot_whose_request_is_still_in_flight_is_passed_over() {
        let mut slots = Slots::new(3);
        let slow = filled(&mut slots, 0);
        for token in 1..100 {
            let id = filled(&mut slots, token);
            assert_eq!(vacate_by_id(&mut slots, id).map(|slot| slot.request.token), Some(token));
        }
        assert!(vacate_by_id(&mut slots, slow).is_some());
    }

    #[test]
    fn a_repetition_has_no_id_that_its_slot_has_had_or_will_have_for_long() {
        for count in [1, 32, MAX_SLOTS] {
            let mut slots = Slots::new(count);
            let first = filled(&mut slots, 0);
            let ids: Vec<_> = [first]
                .into_iter()
                .chain((0..5).map(|_| slots.rename(0, 0, true).unwrap().id()))
                .collect();
            for (at, &id) in ids.iter().enumerate() {
                // The next use of a slot is a lap further.
                let far = |other: u16| {
                    (id.wrapping_sub(other) & IDS).min(other.wrapping_sub(id) & IDS) >= 5 << 10
                };
                assert!(ids[..at].iter().all(|&other| far(other)), "{ids:?}");
            }
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
                    let completed = vacate_by_id(&mut slots, id).unwrap().complete(Ok(()));
                    prop_assert_eq!(completed.token, token);
                } else if held.len() < count.into() {
                    let id = filled(&mut slots, token as u64);
                    prop_assert!(id != u16::MAX && held.iter().all(|&(other, _)| other != id));
                    held.push((id, token as u64));
                }
                prop_assert_eq!(usize::from(slots.in_flight()), held.len());
            }
        }
    }
}
