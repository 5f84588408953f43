//! The requests of a queue that are in flight, each in a slot.
//!
//! A device names a request by its first descriptor, which has no room for more than the slot's
//! number. So slots are used in turn, that a late word about one finds it vacant as long as can be.

use std::collections::VecDeque;
use std::mem;

use ring3_class::block::{Completion, IoError, Request};

/// One request.
pub(super) struct VirtioBlkSlot {
    pub(super) request: Request,
    /// When it was handed to the device; see [`Timeouts`](crate::timeouts::Timeouts).
    pub(super) epoch: u32,
    /// How often it was handed to the device.
    pub(super) attempts: u8,
    /// Which flush of its disk it is, if it is one; see
    /// [`WriteCache`](crate::write_cache::WriteCache).
    pub(super) flush: u64,
    /// Bytes that the device may write for it, its status included.
    pub(super) writable: u32,
    pub(super) held: bool,
}

/// All slots of a queue.
pub(super) struct Slots {
    slots: Box<[VirtioBlkSlot]>,
    /// Vacant ones, the one that was vacated first at the front.
    vacant: VecDeque<u16>,
}

impl Slots {
    /// `count` vacant slots.
    pub(super) fn new(count: u16) -> Self {
        let slot = |_| VirtioBlkSlot {
            request: Request::flush(0),
            epoch: 0,
            attempts: 0,
            flush: 0,
            writable: 0,
            held: false,
        };
        Self { slots: (0..count).map(slot).collect(), vacant: (0..count).collect() }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// How many hold a request.
    pub(super) fn in_flight(&self) -> u16 {
        (self.slots.len() - self.vacant.len()) as u16
    }

    /// The slot that [`fill`](Self::fill) will fill, if there is a vacant one.
    #[inline]
    pub(super) fn free_slot(&self) -> Option<u16> {
        self.vacant.front().copied()
    }

    /// Fills the [free_slot](Self::free_slot) with `request`, which is handed to the device in
    /// `epoch`.
    #[inline]
    pub(super) fn fill(&mut self, request: Request, epoch: u32, writable: u32, flush: u64) {
        let Some(slot) =
            self.vacant.pop_front().and_then(|number| self.slots.get_mut(usize::from(number)))
        else {
            return;
        };
        (slot.epoch, slot.attempts, slot.flush, slot.writable, slot.held) =
            (epoch, 1, flush, writable, true);
        // What was here has been taken out: there is nothing to drop.
        mem::forget(mem::replace(&mut slot.request, request));
    }

    /// Slot `number`, if it holds a request.
    #[inline]
    pub(super) fn get(&self, number: u16) -> Option<&VirtioBlkSlot> {
        self.slots.get(usize::from(number)).filter(|slot| slot.held)
    }

    /// Slot `number`, if it holds a request.
    pub(super) fn get_mut(&mut self, number: u16) -> Option<&mut VirtioBlkSlot> {
        self.slots.get_mut(usize::from(number)).filter(|slot| slot.held)
    }

    /// Vacates slot `number`, if it holds a request; the end of that, with its data.
    #[inline]
    pub(super) fn end(&mut self, number: u16, result: Result<(), IoError>) -> Option<Completion> {
        let slot = self.slots.get_mut(usize::from(number)).filter(|slot| slot.held)?;
        slot.held = false;
        self.vacant.push_back(number);
        Some(Completion {
            token: slot.request.token,
            result,
            data: mem::take(&mut slot.request.data),
        })
    }

    /// Fills slot `number`, which is vacant, with `slot`; false if it is not.
    pub(super) fn restore(&mut self, number: u16, slot: VirtioBlkSlot) -> bool {
        let Some(at) = self.vacant.iter().position(|&vacant| vacant == number) else {
            return false;
        };
        self.vacant.remove(at);
        if let Some(place) = self.slots.get_mut(usize::from(number)) {
            *place = VirtioBlkSlot { held: true, ..slot };
        }
        true
    }

    /// The numbers of all that hold a request.
    pub(super) fn occupied(&self) -> impl Iterator<Item = u16> {
        (0..self.count()).filter(|&number| self.get(number).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_once_and_its_slot_is_the_last_to_be_used_again() {
        let mut slots = Slots::new(3);
        slots.fill(Request::flush(7), 0, 1, 0);
        assert_eq!(slots.end(0, Ok(())).unwrap().token, 7);
        assert!(slots.end(0, Ok(())).is_none() && slots.get(0).is_none());
        let order: Vec<_> = (0..3)
            .map(|token| {
                let slot = slots.free_slot().unwrap();
                slots.fill(Request::flush(token), 0, 1, 0);
                slot
            })
            .collect();
        assert_eq!((order, slots.free_slot(), slots.in_flight()), (vec![1, 2, 0], None, 3));
        assert!(slots.end(3, Ok(())).is_none());
    }
}
