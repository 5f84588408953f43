//! Packed virtqueues. [virtio 2.8]

use super::{HalfWords, Words};
use crate::Error;
use crate::order::{exchange, hand_over, take_back};

/// The driver's side of a packed virtqueue: one ring of descriptors, which the device gives back
/// where they lie, and for each side a word that says whether it wants to be told.
/// `ring3_spec::virtio::ring` has their layout.
///
/// # Ordering
/// - [`publish`](Self::publish): the device looks at descriptors one after the other, so the flags
///   of the first one of a batch are withheld until all others are there (release); they come
///   before the look at the device's wish (sequentially consistent).
/// - [`take`](Self::take): id and flags come before the length and before the data that they
///   announce (acquire).
/// - [`want_interrupts`](Self::want_interrupts): the wish comes before the look that follows it.
///
/// # Trust
/// Which descriptors come back is what was [offered](Self::offer) by the id that the device names.
/// An id of nothing passes one descriptor over.
pub struct PackedRing<W> {
    pub(super) ring: W,
    pub(super) driver: W,
    pub(super) device: W,
    pub(super) size: u16,
    /// Where the next descriptor goes, and in which kind of lap.
    pub(super) next: Place,
    /// Where the next one comes back, and in which kind of lap.
    pub(super) seen: Place,
    /// The word with the flags of the first descriptor that was not published, and its index.
    pub(super) withheld: Option<(usize, u64)>,
    /// Descriptors of the chain that is being written.
    pub(super) begun: u16,
    /// Descriptors that the device has, or is about to.
    pub(super) held: u16,
    /// By id, how many descriptors its chain has; 0 for one that was not offered.
    pub(super) chains: Box<[u16]>,
}

/// A descriptor, and the lap's wrap counter. [virtio 2.8.1]
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) at: u16,
    pub(super) wrap: bool,
}

impl Place {
    #[inline]
    fn skip(&mut self, count: u16, size: u16) {
        // Neither is more than 32768.
        let at = self.at + count;
        (self.at, self.wrap) = if at >= size { (at - size, !self.wrap) } else { (at, self.wrap) };
    }
}

/// In the word with the flags: the driver's mark of the lap, and the device's. [virtio 2.8.1]
const AVAILABLE: u64 = 1 << (48 + 7);
const USED: u64 = 1 << (48 + 15);
/// Either side's wish: not to be told. [virtio 2.8.10]
const DISABLED: u64 = 1 << 16;
const WISH: u64 = 3 << 16;

impl<W: Words> PackedRing<W> {
    /// A queue of `size` descriptors, 1 to 32768, over zeroed words: descriptors, the driver's
    /// wish, the device's wish.
    pub fn new(ring: W, driver: W, device: W, size: u16) -> Result<Self, Error> {
        let fits =
            ring.count() >= 2 * usize::from(size) && driver.count() >= 1 && device.count() >= 1;
        if size == 0 || size > 1 << 15 || !fits {
            return Err(Error::Invalid(format!(
                "a packed virtqueue of {size} descriptors in memory that does not hold it"
            )));
        }
        let start = Place { at: 0, wrap: true };
        let chains = vec![0; size.into()].into();
        Ok(Self {
            ring,
            driver,
            device,
            size,
            next: start,
            seen: start,
            withheld: None,
            begun: 0,
            held: 0,
            chains,
        })
    }

    /// Descriptors.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Writes the next descriptor of chain `id`: its address, its bytes, and its flags without the
    /// marks of the lap. The device sees it after [`publish`](Self::publish). Who has more under
    /// way than the queue has descriptors writes over the oldest.
    #[inline]
    pub fn describe(&mut self, id: u16, address: u64, len: u32, flags: u16) {
        let mark = if self.next.wrap { AVAILABLE } else { USED };
        let word = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48 | mark;
        let first = usize::from(self.next.at) * 2;
        self.ring.store(first, address);
        if self.withheld.is_none() {
            self.withheld = Some((first + 1, word));
        } else {
            self.ring.store(first + 1, word);
        }
        self.next.skip(1, self.size);
        self.begun += 1;
    }

    /// The chain that was described is complete.
    #[inline]
    pub fn offer(&mut self, id: u16) {
        let begun = std::mem::take(&mut self.begun);
        if let Some(chain) = self.chains.get_mut(usize::from(id)) {
            *chain = begun;
            self.held += begun;
        }
    }

    /// Offers a chain of one descriptor for each of `items`, as [`describe`](Self::describe) and
    /// [`offer`](Self::offer) do, up to the first for which `give` makes no address and bytes, or
    /// up to the end of the memory. The first has the id `first`, each has that after the one
    /// before. `slots`, one for each id, keep what is with the device: `give` gets that of the id.
    /// Returns how many.
    #[inline(always)]
    pub fn offer_run<T, S>(
        &mut self,
        first: u16,
        flags: u16,
        items: &mut [T],
        slots: &mut [S],
        mut give: impl FnMut(&mut T, &mut S) -> Option<(u64, u32)>,
    ) -> usize {
        let run = items.len().min(usize::from(self.size - self.next.at));
        let (mut items, mut slots) =
            (&mut items[..run], slots.get_mut(usize::from(first)..).unwrap_or_default());
        let mark = if self.next.wrap { AVAILABLE } else { USED };
        // Flags and id. The id is never carried, as the last is below 32768.
        let start = u32::from(flags) << 16 | (mark >> 32) as u32 | u32::from(first);
        let (mut at, mut upper) = (usize::from(self.next.at) * 2, start);
        if self.withheld.is_none() {
            let (Some((item, behind)), Some((slot, others))) =
                (items.split_first_mut(), slots.split_first_mut())
            else {
                return 0;
            };
            let Some((address, len)) = give(item, slot) else { return 0 };
            // Its word stays as it was, which is not of this lap.
            self.ring.store(at, address);
            self.withheld = Some((at + 1, u64::from(upper) << 32 | u64::from(len)));
            (items, slots, at, upper) = (behind, others, at + 2, upper.wrapping_add(1));
        }
        // SAFETY: `new` has seen that the words of each descriptor are there, and the run ends with
        // the last.
        upper = unsafe { self.ring.give_numbered_unchecked(at, upper, (items, slots), give) };
        let given = upper.wrapping_sub(start) as u16;
        self.next.skip(given, self.size);
        self.held += given;
        given.into()
    }

    /// Takes what the device has used, as [`take`](Self::take) does, for as long as each chain was
    /// of one descriptor and has the id after the one before, `first` to begin with, and as `take`
    /// takes it by its bytes (zero without `LEN`) and its slot; one for each of `places` at most,
    /// and none from behind the end of the memory. Returns how many. The caller knows that all are
    /// of one descriptor.
    #[inline(always)]
    pub fn take_run<const LEN: bool, T, S>(
        &mut self,
        first: u16,
        places: &mut [T],
        slots: &mut [S],
        mut take: impl FnMut(u32, &mut S, &mut T) -> bool,
    ) -> usize {
        let run = places.len().min(usize::from(self.held.min(self.size - self.seen.at)));
        let at = usize::from(self.seen.at) * 2 + 1;
        // What else its flags say, that something was written to it, is the same for a whole run;
        // where it is not, that is another one.
        let others = self.ring.load(at) >> 32 & !((AVAILABLE | USED) >> 32 | 0xffff);
        let marks = if self.seen.wrap { AVAILABLE | USED } else { 0 };
        let mut expected = (marks >> 32 | others) as u32 | u32::from(first);
        let accept = |key: u32, len: u32, slot: &mut S, place: &mut T| {
            if key != expected {
                return false;
            }
            expected = expected.wrapping_add(1);
            take(len, slot, place)
        };
        let pairs = (slots.get_mut(usize::from(first)..).unwrap_or_default(), &mut places[..run]);
        let halves = HalfWords { key: 2 * at + 1, step: 4, other: 2 * at };
        // SAFETY: `new` has seen that the words of each descriptor are there, and the run ends with
        // the last.
        let taken =
            unsafe { self.ring.take_halves_unchecked::<LEN, _, _>(halves, pairs, accept) } as u16;
        self.seen.skip(taken, self.size);
        self.held -= taken;
        taken.into()
    }

    /// Makes everything offered visible; whether the device wants to be notified of it.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let Some((index, word)) = self.withheld.take() else { return false };
        hand_over();
        self.ring.store(index, word);
        exchange();
        self.device.load(0) & WISH != DISABLED
    }

    /// The word with the flags of the next descriptor that comes back, if it has.
    #[inline]
    fn back(&self) -> Option<u64> {
        if self.held == 0 {
            return None;
        }
        let word = self.ring.load(usize::from(self.seen.at) * 2 + 1);
        let marks = if self.seen.wrap { AVAILABLE | USED } else { 0 };
        (word & (AVAILABLE | USED) == marks).then_some(word)
    }

    /// Whether the device has used something that was not [taken](Self::take).
    #[inline]
    pub fn pending(&self) -> bool {
        self.back().is_some()
    }

    /// What the device has used next: the id that it says, and the bytes that it says it has
    /// written. Both are input.
    #[inline]
    pub fn take(&mut self) -> Option<(u16, u32)> {
        let word = self.back()?;
        take_back();
        let id = (word >> 32) as u16;
        let count = self.chains.get_mut(usize::from(id)).map_or(0, std::mem::take).max(1);
        self.seen.skip(count, self.size);
        self.held = self.held.saturating_sub(count);
        Some((id, word as u32))
    }

    /// Asks for interrupts, or does without them. The device may interrupt nevertheless.
    pub fn want_interrupts(&mut self, wanted: bool) {
        self.driver.store(0, if wanted { 0 } else { DISABLED });
        exchange();
    }

    /// Gives the memory underneath up for good: the device may still reach it.
    pub fn abandon(&mut self) {
        [&mut self.ring, &mut self.driver, &mut self.device].into_iter().for_each(Words::abandon);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::dma::{Arena, DmaBuffer, Region};
    use proptest::prelude::*;

    fn ring(size: u16) -> PackedRing<DmaBuffer> {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x1000);
        let words = |bytes: usize| arena.alloc(bytes, 16).unwrap();
        PackedRing::new(words(16 * usize::from(size)), words(8), words(8), size).unwrap()
    }

    fn bytes<const N: usize>(words: &DmaBuffer, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        words.read(at, &mut bytes).unwrap();
        bytes
    }

    /// What a device does: the descriptor where its next chain began, with `id` and `len`, marked
    /// as used in that lap.
    fn use_at(ring: &PackedRing<DmaBuffer>, at: u16, wrap: bool, id: u16, len: u32) {
        let flags = if wrap { AVAILABLE | USED } else { 0 };
        ring.ring.store(usize::from(at) * 2 + 1, u64::from(len) | u64::from(id) << 32 | flags);
    }

    fn is_available(ring: &PackedRing<DmaBuffer>, at: u16, wrap: bool) -> bool {
        let flags = u16::from_le_bytes(bytes(&ring.ring, usize::from(at) * 16 + 14));
        (flags & 0x80 != 0) == wrap && (flags & 0x8000 != 0) != wrap
    }

    #[test]
    fn descriptors_lie_where_the_specification_has_them_and_carry_the_marks_of_their_lap() {
        let mut ring = ring(2);
        for (wrap, flags) in [(true, [0x82, 0]), (false, [2, 0x80]), (true, [0x82, 0])] {
            for at in 0..2 {
                ring.describe(1, 0x1122_3344_5566_7788, 0x40, 2);
                ring.offer(1);
                assert!(ring.publish() && !ring.publish());
                let place = usize::from(at) * 16;
                assert_eq!(bytes(&ring.ring, place), 0x1122_3344_5566_7788u64.to_le_bytes());
                assert_eq!(bytes::<8>(&ring.ring, place + 8)[..6], [0x40, 0, 0, 0, 1, 0]);
                assert_eq!(bytes(&ring.ring, place + 14), flags);
                assert!(!ring.pending() && ring.take().is_none());
                use_at(&ring, at, wrap, 1, 7);
                assert_eq!(ring.take(), Some((1, 7)));
            }
        }
    }

    #[test]
    fn the_device_sees_nothing_of_a_batch_before_all_of_it_is_there() {
        let mut ring = ring(4);
        for (id, pieces) in [(0, 2), (2, 1)] {
            (0..pieces).for_each(|_| ring.describe(id, 0, 0, 0));
            ring.offer(id);
        }
        assert!(
            !is_available(&ring, 0, true)
                && is_available(&ring, 1, true)
                && is_available(&ring, 2, true)
        );
        ring.publish();
        assert!(is_available(&ring, 0, true));
    }

    #[test]
    fn a_device_that_wants_no_notification_gets_none_and_interrupts_are_asked_for() {
        let mut ring = ring(4);
        ring.device.write(2, &[1]).unwrap();
        ring.describe(0, 0, 0, 0);
        ring.offer(0);
        assert!(!ring.publish());
        ring.want_interrupts(false);
        assert_eq!(bytes(&ring.driver, 0), [0, 0, 1, 0]);
        ring.want_interrupts(true);
        assert_eq!(bytes(&ring.driver, 0), [0; 4]);
    }

    #[test]
    fn an_id_of_nothing_passes_one_descriptor_over_and_nothing_is_pending_where_nothing_was_offered()
     {
        let mut ring = ring(4);
        use_at(&ring, 0, true, 0, 0);
        assert!(!ring.pending() && ring.take().is_none());
        ring.ring.fill(0);
        for id in 0..2 {
            ring.describe(id, 0, 0, 0);
            ring.offer(id);
        }
        ring.publish();
        use_at(&ring, 0, true, 0x7777, 0);
        use_at(&ring, 1, true, 1, 5);
        assert_eq!(
            [ring.take(), ring.take(), ring.take()],
            [Some((0x7777, 0)), Some((1, 5)), None]
        );
    }

    #[test]
    fn runs_are_offered_and_come_back_over_many_laps_up_to_the_first_that_is_out_of_turn() {
        let (mut ring, mut slots, mut first) = (ring(4), [0; 4], 0);
        let mut device = Place { at: 0, wrap: true };
        for lap in 0..20 {
            let (mut items, mut given) = ([lap + 1, lap + 2, lap + 3], 0);
            while given < items.len() {
                let give = |item: &mut u64, slot: &mut u64| {
                    *slot = *item;
                    Some((*item << 12, 64))
                };
                let at = usize::from(ring.next.at);
                let run = ring.offer_run(first, 2, &mut items[given..], &mut slots, give);
                assert_eq!(
                    (run, ring.ring.load(2 * at)),
                    ((3 - given).min(4 - at), (lap + 1 + given as u64) << 12)
                );
                (given, first) = (given + run, (first + run as u16) % 4);
            }
            assert!(
                !is_available(&ring, device.at, device.wrap)
                    && ring.publish()
                    && is_available(&ring, device.at, device.wrap)
            );
            (0..3).for_each(|ahead| {
                assert_eq!(
                    bytes(&ring.ring, usize::from((device.at + ahead) % 4) * 16 + 8),
                    [64, 0, 0, 0, ((device.at + ahead) % 4) as u8, 0]
                )
            });
            let (oldest, begin) = (device.at, device);
            for len in 0..3 {
                use_at(&ring, device.at, device.wrap, device.at, len);
                device.skip(1, 4);
            }
            if lap == 19 {
                use_at(&ring, begin.at, begin.wrap, (oldest + 1) % 4, 0);
                assert_eq!(
                    ring.take_run::<false, _, _>(oldest, &mut [(); 3], &mut slots, |_, _, ()| true),
                    0
                );
                assert_eq!(ring.take(), Some(((oldest + 1) % 4, 0)));
                return;
            }
            let mut back = Vec::new();
            while back.len() < 3 {
                let oldest = (oldest + back.len() as u16) % 4;
                let take = |len, slot: &mut u64, _: &mut ()| {
                    back.push((*slot, len));
                    true
                };
                assert!(ring.take_run::<true, _, _>(oldest, &mut [(); 3], &mut slots, take) > 0);
            }
            assert_eq!(back, [(lap + 1, 0), (lap + 2, 1), (lap + 3, 2)]);
            assert!(!ring.pending() && ring.take().is_none());
        }
    }

    #[test]
    fn memory_that_is_too_small_is_refused() {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x1000);
        let words = |bytes: usize| arena.alloc(bytes, 16).unwrap();
        assert!(PackedRing::new(words(48), words(8), words(8), 3).is_ok());
        assert!(PackedRing::new(words(47), words(8), words(8), 3).is_err());
        assert!(PackedRing::new(words(48), words(4), words(8), 3).is_err());
        assert!(PackedRing::new(words(48), words(8), words(8), 0).is_err());
    }

    proptest! {
        /// A device that takes chains in order and gives them back in any.
        #[test]
        fn chains_of_any_length_come_back_as_they_are_used_over_many_laps(
            size in 1u16..10,
            steps in prop::collection::vec(
                (1u16..4, any::<bool>(), any::<prop::sample::Index>()), 1..200,
            ),
        ) {
            let mut ring = ring(size);
            let (mut free, mut out) = ((0..size).collect::<Vec<_>>(), Vec::new());
            let mut device = Place { at: 0, wrap: true };
            for (pieces, give_back, which) in steps {
                let room = size - out.iter().map(|&(_, pieces)| pieces).sum::<u16>();
                if !give_back && pieces <= room {
                    let id = free.pop().unwrap();
                    (0..pieces).for_each(|_| ring.describe(id, 0, 0, 0));
                    ring.offer(id);
                    ring.publish();
                    out.push((id, pieces));
                } else if !out.is_empty() {
                    let (id, pieces) = out.remove(which.index(out.len()));
                    use_at(&ring, device.at, device.wrap, id, u32::from(pieces));
                    device.skip(pieces, size);
                    prop_assert_eq!(ring.take(), Some((id, u32::from(pieces))));
                    free.push(id);
                }
                prop_assert!(!ring.pending());
            }
        }

        #[test]
        fn whatever_lies_in_the_memory_a_ring_neither_panics_nor_gives_more_back_than_it_has(
            garbage in prop::collection::vec(any::<u64>(), 16), chains in 1u16..8,
        ) {
            let mut ring = ring(8);
            for id in 0..chains {
                ring.describe(id, 0, 0, 0);
                ring.offer(id);
            }
            ring.publish();
            garbage.iter().enumerate().for_each(|(at, &word)| ring.ring.store(at, word));
            let taken = std::iter::from_fn(|| ring.take()).take(100).count();
            prop_assert!(taken <= chains.into());
        }
    }
}
