//! Rings whose entries are returned in place.

use super::{DescriptorState, Words, check_size};
use crate::Error;
use crate::order::{hand_over, take_back};

/// A ring whose entries of `N` words go to the device and come back in their places and in their
/// order, as the descriptors of network cards do: one bit of word `WORD` is clear when the entry
/// goes, and set when it is back. Which bit that is, cards of one family do not agree on.
///
/// # Ordering
/// As of the other rings: [`publish`](Self::publish) releases, and the load of the word that says
/// that an entry is back is followed by an acquire fence.
pub struct DescriptorRing<W, const N: usize, const WORD: usize> {
    words: W,
    /// The bit of an entry that is back.
    back: u64,
    /// Slots - 1.
    mask: u32,
    /// The oldest entry that is not back. All three indices run free.
    head: u32,
    /// Next entry to write.
    tail: u32,
    /// What the doorbell last said.
    committed: u32,
}

impl<W: Words, const N: usize, const WORD: usize> DescriptorRing<W, N, WORD> {
    /// A ring of `size` slots (a power of two of at least 2) over `words`; holds at most `size - 1`
    /// entries. Bit `bit`, 0 to 63, says that one is back.
    pub fn new(words: W, size: u32, bit: u32) -> Result<Self, Error> {
        const { assert!(WORD < N, "the word lies within an entry") };
        check_size(&words, size, N)?;
        let back = 1u64
            .checked_shl(bit)
            .ok_or_else(|| Error::Invalid(format!("a word has no bit {bit}")))?;
        Ok(Self { words, back, mask: size - 1, head: 0, tail: 0, committed: 0 })
    }

    /// The ring over `words` that was as `state` says. That is input: [`Error::Invalid`] if no ring
    /// can be so.
    pub fn resume(words: W, state: DescriptorState, bit: u32) -> Result<Self, Error> {
        let DescriptorState { size, head, tail, committed } = state;
        let ring = Self::new(words, size, bit)?;
        let (held, published) = (tail.wrapping_sub(head), committed.wrapping_sub(head));
        if held > ring.mask || published > held {
            return Err(Error::Invalid(format!("no ring of descriptors is like this: {state:?}")));
        }
        Ok(Self { head, tail, committed, ..ring })
    }

    /// How far it is.
    pub fn state(&self) -> DescriptorState {
        DescriptorState {
            size: self.size(),
            head: self.head,
            tail: self.tail,
            committed: self.committed,
        }
    }

    /// The slots of the entries that are not back, oldest first.
    pub fn held_slots(&self) -> impl Iterator<Item = u32> + use<W, N, WORD> {
        let (head, mask) = (self.head, self.mask);
        (0..self.outstanding()).map(move |index| head.wrapping_add(index) & mask)
    }

    /// Slots, one more than entries that it can hold.
    pub fn size(&self) -> u32 {
        self.mask + 1
    }

    /// Entries that were pushed and that the device has not returned.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Entries that still fit.
    #[inline]
    pub fn space(&self) -> u32 {
        self.mask - self.outstanding()
    }

    /// The slot of the oldest entry that is not back.
    #[inline]
    pub fn oldest(&self) -> u32 {
        self.head & self.mask
    }

    /// Writes an entry, whose bit must be clear; returns its slot, or `None` if the ring is full.
    #[inline]
    pub fn push(&mut self, entry: &[u64; N]) -> Option<u32> {
        if self.outstanding() == self.mask {
            return None;
        }
        let slot = self.tail & self.mask;
        // SAFETY: `new` has seen that the words of each slot are there.
        unsafe { self.words.store_entry_unchecked(slot as usize * N, entry) };
        self.tail = self.tail.wrapping_add(1);
        Some(slot)
    }

    /// Writes an entry for each of `items`, up to the first of which `give` makes none, or as many
    /// as fit, and none from behind the end of the memory; its bit must be clear. `slots`, one for
    /// each of the ring's, keep what is with the device: `give` gets that of the entry. Returns how
    /// many.
    #[inline(always)]
    pub fn push_from<T, S>(
        &mut self,
        items: &mut [T],
        slots: &mut [S],
        give: impl FnMut(&mut T, &mut S) -> Option<[u64; N]>,
    ) -> usize {
        let slot = (self.tail & self.mask) as usize;
        let run = self.space().min(self.size() - slot as u32) as usize;
        let run = run.min(items.len());
        let pairs = (&mut items[..run], slots.get_mut(slot..).unwrap_or_default());
        // SAFETY: `new` has seen that the words of each slot are there.
        let given = unsafe { self.words.give_pairs_unchecked(slot * N, pairs, give) };
        self.tail = self.tail.wrapping_add(given as u32);
        given
    }

    /// Makes everything pushed visible; returns the tail slot for the doorbell, or `None` if
    /// nothing was pushed since.
    #[inline]
    pub fn publish(&mut self) -> Option<u32> {
        if self.committed == self.tail {
            return None;
        }
        hand_over();
        self.committed = self.tail;
        Some(self.tail & self.mask)
    }

    /// The same, but only once `batch` entries have been pushed since, or the device has fewer than
    /// `enough`: a doorbell is for many entries where the device is in no need of them. What stays
    /// unpublished is so until the next call at the latest that finds either.
    #[inline]
    pub fn publish_batch(&mut self, batch: u32, enough: u32) -> Option<u32> {
        let (pushed, published) =
            (self.tail.wrapping_sub(self.committed), self.committed.wrapping_sub(self.head));
        if pushed < batch && published >= enough { None } else { self.publish() }
    }

    /// Whether the oldest entry is back: one load, no fence, for polling.
    #[inline]
    pub fn ready(&self) -> bool {
        self.is_back(0)
    }

    /// Whether the entry `ahead` places behind the oldest is back. Devices that say nothing of some
    /// entries have done with them when a later one is back.
    #[inline]
    pub fn is_back(&self, ahead: u32) -> bool {
        let slot = self.head.wrapping_add(ahead) & self.mask;
        // SAFETY: `new` has seen that the words of each slot are there.
        let word = unsafe { self.words.load_unchecked(slot as usize * N + WORD) };
        self.committed.wrapping_sub(self.head) > ahead && word & self.back != 0
    }

    /// Takes entries that are back, oldest first, for as long as `take` takes them by word and
    /// slot, which is one of `slots`, one for each of the ring's; one for each of `places` at most,
    /// and none from behind the end of the memory. Returns how many.
    #[inline(always)]
    pub fn pop_into<T, S>(
        &mut self,
        places: &mut [T],
        slots: &mut [S],
        mut take: impl FnMut(u64, &mut S, &mut T) -> bool,
    ) -> usize {
        let slot = self.oldest();
        let run = self.committed.wrapping_sub(self.head).min(self.size() - slot) as usize;
        let first = slot as usize * N + WORD;
        let run = run.min(places.len());
        let back = self.back;
        let accept = |word: u64, slot: &mut S, place: &mut T| {
            if word & back == 0 {
                return false;
            }
            take_back();
            take(word, slot, place)
        };
        let pairs = (slots.get_mut(slot as usize..).unwrap_or_default(), &mut places[..run]);
        // SAFETY: `new` has seen that the words of each slot are there.
        let taken = unsafe { self.words.take_pairs_unchecked(first, N, pairs, accept) };
        self.head = self.head.wrapping_add(taken as u32);
        taken
    }

    /// Takes the oldest entry if it is back: its slot and its word.
    #[inline]
    pub fn pop(&mut self) -> Option<(u32, u64)> {
        let slot = self.oldest();
        // SAFETY: `new` has seen that the words of each slot are there.
        let word = unsafe { self.words.load_unchecked(slot as usize * N + WORD) };
        if self.committed == self.head || word & self.back == 0 {
            return None;
        }
        take_back();
        self.head = self.head.wrapping_add(1);
        Some((slot, word))
    }

    /// Takes the oldest entry, back or not: its slot. For a device that was stopped, or that is
    /// known to have done with it.
    pub fn withdraw(&mut self) -> Option<u32> {
        let slot = self.oldest();
        (self.outstanding() > 0).then(|| self.head = self.head.wrapping_add(1))?;
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

    /// The memory underneath, to leave it to somebody else.
    pub fn words_mut(&mut self) -> &mut W {
        &mut self.words
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

    type Ring = DescriptorRing<DmaBuffer, 2, 1>;

    fn ring() -> Ring {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000);
        Ring::new(arena.alloc(8 * 16, 128).unwrap(), 8, 0).unwrap()
    }

    /// The device gives entry `slot` back.
    fn give_back(ring: &Ring, slot: usize) {
        ring.words().store(slot * 2 + 1, 0x10 | 1);
    }

    #[test]
    fn entries_come_back_in_order_and_only_what_was_published() {
        let mut ring = ring();
        assert_eq!(
            (ring.push(&[7, 0]), ring.push(&[8, 0]), ring.publish(), ring.publish()),
            (Some(0), Some(1), Some(2), None)
        );
        give_back(&ring, 1);
        assert!(!ring.ready() && ring.pop().is_none());
        give_back(&ring, 0);
        assert_eq!((ring.pop(), ring.pop(), ring.pop()), (Some((0, 0x11)), Some((1, 0x11)), None));
        // What the device writes where nothing was published means nothing.
        give_back(&ring, 2);
        assert!(!ring.ready() && ring.pop().is_none());
    }

    #[test]
    fn a_doorbell_waits_for_a_batch_only_while_the_device_has_enough() {
        let mut ring = ring();
        let push = |ring: &mut Ring| {
            ring.push(&[1, 0]).unwrap();
            ring.publish_batch(2, 3)
        };
        // Too few: each one at once.
        assert_eq!([0; 3].map(|_| push(&mut ring)), [Some(1), Some(2), Some(3)]);
        // Enough: the fourth waits for the fifth.
        assert_eq!([0; 2].map(|_| push(&mut ring)), [None, Some(5)]);
        // One waits, and three come back: two are less than enough.
        assert_eq!(push(&mut ring), None);
        (0..3).for_each(|slot| give_back(&ring, slot));
        (0..3).for_each(|_| assert!(ring.pop().is_some()));
        assert_eq!((ring.publish_batch(2, 3), ring.publish_batch(2, 3)), (Some(6), None));
    }

    #[test]
    fn a_full_ring_has_one_slot_less_and_goes_round() {
        let mut ring = ring();
        for lap in 0..20u32 {
            let pushed = std::iter::from_fn(|| ring.push(&[1, 0])).count() as u32;
            assert_eq!((pushed, ring.space(), ring.outstanding()), (7, 0, 7));
            ring.publish();
            (0..7).for_each(|i| give_back(&ring, ((lap * 7 + i) % 8) as usize));
            let (mut places, mut slots, mut taken) = ([0; 16], [0, 1, 2, 3, 4, 5, 6, 7], 0);
            while ring.ready() {
                let oldest = ring.oldest();
                let run = ring.pop_into(&mut places, &mut slots, |_, slot, place| {
                    *place = *slot;
                    true
                });
                assert!(places[..run].iter().copied().eq(oldest..oldest + run as u32));
                taken += run;
            }
            assert_eq!((taken, ring.outstanding()), (7, 0));
        }
    }

    #[test]
    fn an_entry_that_is_not_taken_stays_and_a_withdrawn_one_does_not() {
        let mut ring = ring();
        ring.push(&[1, 0]);
        ring.publish();
        give_back(&ring, 0);
        assert_eq!(ring.pop_into(&mut [()], &mut [(); 8], |_, (), ()| false), 0);
        assert!(ring.ready());
        assert_eq!((ring.withdraw(), ring.withdraw(), ring.outstanding()), (Some(0), None, 0));
    }

    #[test]
    fn many_are_pushed_up_to_the_first_that_is_refused_or_does_not_fit_or_lies_behind_the_end_of_the_memory()
     {
        let (mut ring, mut slots) = (ring(), [0; 8]);
        let give = |item: &mut u64, slot: &mut u64| {
            *slot = *item;
            (*item != 99).then_some([*item, 0])
        };
        assert_eq!(ring.push_from(&mut [1, 2, 3, 4, 5, 99, 7], &mut slots, give), 5);
        assert_eq!(ring.publish(), Some(5));
        (0..5).for_each(|slot| give_back(&ring, slot));
        assert_eq!(std::iter::from_fn(|| ring.pop()).count(), 5);
        let mut items = [10, 11, 12, 13, 14, 15, 16, 17, 18];
        assert_eq!(
            (
                ring.push_from(&mut items, &mut slots, give),
                ring.push_from(&mut items[3..], &mut slots, give)
            ),
            (3, 4)
        );
        assert_eq!(
            (slots, ring.space(), ring.push_from(&mut [19], &mut slots, give)),
            ([13, 14, 15, 16, 5, 10, 11, 12], 0, 0)
        );
        assert_eq!([5, 6, 7, 0, 3].map(|slot| ring.words().load(2 * slot)), [10, 11, 12, 13, 16]);
        assert_eq!(ring.push_from(&mut [], &mut slots, give), 0);
    }

    #[test]
    fn a_run_of_any_length_ends_with_the_first_that_is_refused_wherever_that_is() {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000);
        for (count, refused) in
            (0..14).flat_map(|count| (0..=count).map(move |refused| (count, refused)))
        {
            let mut ring = Ring::new(arena.alloc(16 * 16, 128).unwrap(), 16, 0).unwrap();
            let (mut slots, mut items) = ([0; 16], (0..count as u64).collect::<Vec<_>>());
            let give = |item: &mut u64, slot: &mut u64| {
                (*item != refused as u64).then(|| *slot = *item + 1)?;
                Some([*item, 0])
            };
            assert_eq!(ring.push_from(&mut items, &mut slots, give), refused);
            assert!(
                (0..refused)
                    .all(|at| (ring.words().load(2 * at), slots[at]) == (at as u64, at as u64 + 1))
            );
            ring.publish();
            (0..refused).for_each(|slot| give_back(&ring, slot));
            for stop in 0..=refused {
                let (mut places, mut taken) = (vec![0; refused], 0);
                ring.head = 0;
                taken += ring.pop_into(&mut places, &mut slots, |_, slot, place| {
                    *place = *slot;
                    *slot <= stop as u64
                });
                assert_eq!(
                    (taken, &places[..stop]),
                    (stop, &(1..=stop as u64).collect::<Vec<_>>()[..]),
                    "{count} {refused}"
                );
            }
        }
    }

    #[test]
    fn an_entry_of_which_the_device_says_nothing_is_done_when_the_next_one_is() {
        let mut ring = ring();
        ring.push(&[1, 0]);
        ring.push(&[2, 0]);
        give_back(&ring, 1);
        assert!(!ring.is_back(1), "it was not published");
        ring.publish();
        assert!(!ring.ready() && ring.is_back(1) && !ring.is_back(2));
        assert_eq!((ring.withdraw(), ring.pop()), (Some(0), Some((1, 0x11))));
    }

    #[test]
    fn a_ring_goes_on_where_it_was_and_one_that_cannot_be_is_refused() {
        let memory =
            || Arena::new(Region::new(1 << 16).unwrap(), 0x10_0000).alloc(8 * 16, 128).unwrap();
        let mut before = ring();
        assert!((0..3).all(|number| before.push(&[number, 0]).is_some()));
        before.publish();
        give_back(&before, 0);
        before.pop();
        before.push(&[3, 0]);
        assert_eq!(before.held_slots().collect::<Vec<_>>(), [1, 2, 3]);
        let mut after = Ring::resume(memory(), before.state(), 0).unwrap();
        assert_eq!(
            (after.outstanding(), after.oldest(), after.publish(), after.push(&[4, 0])),
            (3, 1, Some(4), Some(4))
        );
        let DescriptorState { head, .. } = before.state();
        for wrong in [
            DescriptorState { tail: head.wrapping_add(8), ..before.state() },
            DescriptorState { committed: head.wrapping_sub(1), ..before.state() },
            DescriptorState { size: 7, ..before.state() },
            DescriptorState { size: 1 << 20, ..before.state() },
        ] {
            assert!(Ring::resume(memory(), wrong, 0).is_err(), "{wrong:?}");
        }
    }
}
