//! Rings whose entries come back in their places.

use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use std::sync::atomic::fence;

#[cfg(loom)]
use loom::sync::atomic::fence;

use super::{Words, check_size};
use crate::Error;

/// A ring whose entries of `N` words go to the device and come back in their places and in their order, as the descriptors of network cards
/// do: bit `BIT` of word `WORD` is clear when the entry goes, and set when it is back.
///
/// # Ordering
/// As of the other rings: [`publish`](Self::publish) releases, and the load of the word that says that an entry is back is followed by an acquire fence.
pub struct DescriptorRing<W, const N: usize, const WORD: usize, const BIT: u32> {
    words: W,
    /// Slots - 1.
    mask: u32,
    /// The oldest entry that is not back. All three indices run free.
    head: u32,
    /// Next entry to write.
    tail: u32,
    /// What the doorbell last said.
    committed: u32,
}

impl<W: Words, const N: usize, const WORD: usize, const BIT: u32> DescriptorRing<W, N, WORD, BIT> {
    /// A ring of `size` slots (a power of two of at least 2) over `words`; holds at most `size - 1` entries.
    pub fn new(words: W, size: u32) -> Result<Self, Error> {
        const { assert!(WORD < N && BIT < u64::BITS, "the bit lies within an entry") };
        check_size(&words, size, N)?;
        Ok(Self { words, mask: size - 1, head: 0, tail: 0, committed: 0 })
    }

    /// Slots, one more than entries that it can hold.
    pub fn size(&self) -> u32 {
        self.mask + 1
    }

    /// Entries that have gone or are about to, and are not back.
    #[inline]
    pub fn held(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Entries that still fit.
    #[inline]
    pub fn space(&self) -> u32 {
        self.mask - self.held()
    }

    /// The slot of the oldest entry that is not back.
    #[inline]
    pub fn oldest(&self) -> u32 {
        self.head & self.mask
    }

    /// Writes an entry, whose bit must be clear; returns its slot, or `None` if the ring is full.
    #[inline]
    pub fn push(&mut self, entry: &[u64; N]) -> Option<u32> {
        if self.held() == self.mask {
            return None;
        }
        let slot = self.tail & self.mask;
        // SAFETY: `new` has seen that the words of each slot are there.
        unsafe { self.words.store_entry_unchecked(slot as usize * N, entry) };
        self.tail = self.tail.wrapping_add(1);
        Some(slot)
    }

    /// Makes everything pushed visible; returns the tail slot for the doorbell, or `None` if nothing was pushed since.
    #[inline]
    pub fn publish(&mut self) -> Option<u32> {
        if self.committed == self.tail {
            return None;
        }
        fence(Ordering::Release);
        self.committed = self.tail;
        Some(self.tail & self.mask)
    }

    /// Whether the oldest entry is back: one load, no fence, for polling.
    #[inline]
    pub fn ready(&self) -> bool {
        // SAFETY: `new` has seen that the words of each slot are there.
        let word = unsafe { self.words.load_unchecked(self.oldest() as usize * N + WORD) };
        self.head != self.committed && word >> BIT & 1 == 1
    }

    /// Takes entries that are back, oldest first, for as long as `take` takes them by slot and word; one for each of `places` at most, and none
    /// from behind the end of the memory. Returns how many.
    #[inline(always)]
    pub fn pop_into<T>(&mut self, places: &mut [T], mut take: impl FnMut(u32, u64, &mut T) -> bool) -> usize {
        let mut slot = self.oldest();
        let run = self.committed.wrapping_sub(self.head).min(self.size() - slot) as usize;
        let first = slot as usize * N + WORD;
        let run = run.min(places.len());
        let accept = |word: u64, place: &mut T| {
            if word >> BIT & 1 == 0 {
                return false;
            }
            fence(Ordering::Acquire);
            let taken = take(slot, word, place);
            slot += u32::from(taken);
            taken
        };
        // SAFETY: `new` has seen that the words of each slot are there.
        let taken = unsafe { self.words.take_unchecked(first, N, &mut places[..run], accept) };
        self.head = self.head.wrapping_add(taken as u32);
        taken
    }

    /// Takes the oldest entry if it is back: its slot and its word.
    #[inline]
    pub fn pop(&mut self) -> Option<(u32, u64)> {
        let mut place = [None];
        self.pop_into(&mut place, |slot, word, place| {
            *place = Some((slot, word));
            true
        });
        place[0]
    }

    /// Takes the oldest entry, back or not, after the device was stopped: its slot.
    pub fn withdraw(&mut self) -> Option<u32> {
        let slot = self.oldest();
        (self.held() > 0).then(|| self.head = self.head.wrapping_add(1))?;
        Some(slot)
    }

    /// Empties the ring after a reset of the device, which starts again at slot 0.
    pub fn reset(&mut self) {
        for index in 0..self.size() as usize * N {
            self.words.store(index, 0);
        }
        (self.head, self.tail, self.committed) = (0, 0, 0);
    }

    /// The memory underneath.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// Gives the memory underneath up for good: the device may still reach it.
    pub fn abandon(&mut self) {
        self.words.abandon();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::dma::{Arena, DmaBuffer, Region};

    type Ring = DescriptorRing<DmaBuffer, 2, 1, 0>;

    fn ring() -> Ring {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000);
        Ring::new(arena.alloc(8 * 16, 128).unwrap(), 8).unwrap()
    }

    /// The device gives entry `slot` back.
    fn give_back(ring: &Ring, slot: usize) {
        ring.words().store(slot * 2 + 1, 0x10 | 1);
    }

    #[test]
    fn entries_come_back_in_order_and_only_what_was_published() {
        let mut ring = ring();
        assert_eq!((ring.push(&[7, 0]), ring.push(&[8, 0]), ring.publish(), ring.publish()), (Some(0), Some(1), Some(2), None));
        give_back(&ring, 1);
        assert!(!ring.ready() && ring.pop().is_none());
        give_back(&ring, 0);
        assert_eq!((ring.pop(), ring.pop(), ring.pop()), (Some((0, 0x11)), Some((1, 0x11)), None));
        // What the device writes where nothing was published means nothing.
        give_back(&ring, 2);
        assert!(!ring.ready() && ring.pop().is_none());
    }

    #[test]
    fn a_full_ring_has_one_slot_less_and_goes_round() {
        let mut ring = ring();
        for lap in 0..20u32 {
            let pushed = std::iter::from_fn(|| ring.push(&[1, 0])).count() as u32;
            assert_eq!((pushed, ring.space(), ring.held()), (7, 0, 7));
            ring.publish();
            (0..7).for_each(|i| give_back(&ring, ((lap * 7 + i) % 8) as usize));
            let mut places = [0; 16];
            let mut taken = 0;
            while ring.ready() {
                taken += ring.pop_into(&mut places, |slot, _, place| {
                    *place = slot;
                    true
                });
            }
            assert_eq!((taken, ring.held()), (7, 0));
        }
    }

    #[test]
    fn an_entry_that_is_not_taken_stays_and_a_withdrawn_one_does_not() {
        let mut ring = ring();
        ring.push(&[1, 0]);
        ring.publish();
        give_back(&ring, 0);
        assert_eq!(ring.pop_into(&mut [()], |_, _, ()| false), 0);
        assert!(ring.ready());
        assert_eq!((ring.withdraw(), ring.withdraw(), ring.held()), (Some(0), None, 0));
    }
}
