//! The requests of a queue, each in the command slot whose number is its tag.

use std::mem;

use ring3_class::block::{Completion, IoError, Request};

/// One request.
pub(super) struct AhciSlot {
    /// What was asked for.
    pub(super) request: Request,
    /// When it was handed to the device; see [`Timeouts`](crate::disk::Timeouts).
    pub(super) epoch: u32,
    /// How often it was handed to the device and failed.
    pub(super) failures: u8,
    /// It is repeated by itself, not among others.
    pub(super) alone: bool,
}

/// All slots of a queue, at most 32.
pub(super) struct Slots {
    slots: Box<[AhciSlot]>,
    /// A bit for each vacant slot.
    vacant: u32,
    /// Where to look first: slots are used in turn, so that a late frame seldom names a tag that is
    /// in use again.
    next: u8,
}

/// A bit for each of `count` slots.
fn all(count: u8) -> u32 {
    u32::MAX >> (32 - u32::from(count.clamp(1, 32)))
}

impl Slots {
    /// `count` (1 to 32) vacant slots.
    pub(super) fn new(count: u8) -> Self {
        let slot = |_| AhciSlot { request: Request::flush(0), epoch: 0, failures: 0, alone: false };
        Self { slots: (0..count.clamp(1, 32)).map(slot).collect(), vacant: all(count), next: 0 }
    }

    /// None: what a queue has that was detached.
    pub(super) fn none() -> Self {
        Self { slots: Box::default(), vacant: 0, next: 0 }
    }

    /// Where to look first.
    pub(super) fn next(&self) -> u8 {
        self.next
    }

    /// Looks at `next` first, as when they were saved.
    pub(super) fn resume_at(&mut self, next: u8) {
        self.next = next;
    }

    /// Puts `held` back into slot `number`; false if there is none, or it is not vacant.
    pub(super) fn restore(&mut self, number: u8, held: AhciSlot) -> bool {
        let vacant = self.vacant.unbounded_shr(number.into()) & 1 == 1;
        let restored = self
            .slots
            .get_mut(usize::from(number))
            .filter(|_| vacant)
            .map(|slot| *slot = held)
            .is_some();
        self.vacant &= !(u32::from(restored).unbounded_shl(number.into()));
        restored
    }

    /// How many there are.
    pub(super) fn count(&self) -> u8 {
        self.slots.len() as u8
    }

    /// How many hold a request.
    #[inline]
    pub(super) fn in_flight(&self) -> u8 {
        self.count() - self.vacant.count_ones() as u8
    }

    /// A bit for each slot that holds a request.
    pub(super) fn occupied(&self) -> u32 {
        if self.slots.is_empty() { 0 } else { all(self.count()) & !self.vacant }
    }

    /// The number of a vacant slot, if there is one.
    #[inline]
    pub(super) fn free_slot(&self) -> Option<u8> {
        let ahead = self.vacant & u32::MAX.unbounded_shl(self.next.into());
        let candidates = if ahead != 0 { ahead } else { self.vacant };
        (candidates != 0).then(|| candidates.trailing_zeros() as u8)
    }

    /// Fills vacant slot `number` with `request`, which is handed to the device in `epoch`.
    #[inline]
    pub(super) fn fill(&mut self, number: u8, request: Request, epoch: u32) {
        let Some(slot) = self.slots.get_mut(usize::from(number)) else { return };
        self.vacant &= !(1 << number);
        self.next = number + 1;
        (slot.epoch, slot.failures, slot.alone) = (epoch, 0, false);
        // What was here has been taken out by `end`: there is nothing to drop.
        mem::forget(mem::replace(&mut slot.request, request));
    }

    /// Vacates slot `number`, if it holds a request; the end of that request, with its data.
    #[inline]
    pub(super) fn end(&mut self, number: u8, result: Result<(), IoError>) -> Option<Completion> {
        let request = self.free(number)?;
        Some(Completion { token: request.token, result, data: mem::take(&mut request.data) })
    }

    /// Vacates slot `number`, if it holds a request, and lends that, so that it can be completed.
    #[inline]
    pub(super) fn free(&mut self, number: u8) -> Option<&mut Request> {
        let slot = self
            .slots
            .get_mut(usize::from(number))
            .filter(|_| self.vacant >> (number & 31) & 1 == 0)?;
        self.vacant |= 1 << number;
        Some(&mut slot.request)
    }

    /// Slot `number`.
    #[inline]
    pub(super) fn get(&self, number: u8) -> Option<&AhciSlot> {
        self.slots.get(usize::from(number))
    }

    /// Slot `number`.
    #[inline]
    pub(super) fn get_mut(&mut self, number: u8) -> Option<&mut AhciSlot> {
        self.slots.get_mut(usize::from(number))
    }
}

/// The numbers of the bits that are set in `mask`, ascending.
#[inline]
pub(super) fn bits(mut mask: u32) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let number = mask.trailing_zeros() as u8;
        mask &= mask.wrapping_sub(1);
        (number < 32).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slots_are_used_in_turn() {
        let mut slots = Slots::new(3);
        for expected in [0, 1, 2, 0] {
            let number = slots.free_slot().unwrap();
            assert_eq!(number, expected);
            slots.fill(number, Request::flush(9), 0);
            assert_eq!(slots.end(number, Ok(())).unwrap().token, 9);
        }
    }

    #[test]
    fn a_slot_that_holds_nothing_ends_nothing() {
        let mut slots = Slots::new(32);
        assert!((0..=255).all(|number| slots.end(number, Ok(())).is_none()));
    }

    #[test]
    fn bits_are_listed_from_the_lowest() {
        assert_eq!(bits(0x8000_0005).collect::<Vec<_>>(), [0, 2, 31]);
    }

    proptest! {
        #[test]
        fn every_request_comes_out_once(count in 1u8..=32, steps in prop::collection::vec(any::<u8>(), 1..500)) {
            let mut slots = Slots::new(count);
            let mut held: Vec<(u8, u64)> = Vec::new();
            for (token, step) in steps.into_iter().enumerate() {
                if step % 3 == 0 && !held.is_empty() {
                    let (number, token) = held.swap_remove(usize::from(step) % held.len());
                    prop_assert_eq!(slots.end(number, Ok(())).unwrap().token, token);
                } else if let Some(number) = slots.free_slot() {
                    prop_assert!(number < count && held.iter().all(|&(other, _)| other != number));
                    slots.fill(number, Request::flush(token as u64), 0);
                    held.push((number, token as u64));
                } else {
                    prop_assert_eq!(held.len(), usize::from(count));
                }
                prop_assert_eq!(usize::from(slots.in_flight()), held.len());
                prop_assert_eq!(slots.occupied().count_ones() as usize, held.len());
            }
        }
    }
}
