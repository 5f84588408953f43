//! Split virtqueues. [virtio 2.7]

use ring3_spec::virtio::ring::passes;

use super::{HalfWords, Words};
use crate::Error;
use crate::order::{exchange, hand_over, take_back};

/// The driver's side of a split virtqueue: a table of descriptors, a ring of what is available, a
/// ring of what was used. Everything is reached as words of 64 bits, of which a ring's first holds
/// flags, index and the begin of its entries; `ring3_spec::virtio::ring` has their layout.
///
/// # Ordering
/// - [`publish`](Self::publish): all descriptors and entries come before the index (release), and
///   the index before the look at the device's flags (sequentially consistent).
/// - [`take`](Self::take): the device's index comes before the entry and before the data that it
///   announces (acquire).
/// - [`want_interrupts`](Self::want_interrupts): the flag comes before the look that follows it.
pub struct SplitRing<W> {
    pub(super) table: W,
    pub(super) available: W,
    pub(super) used: W,
    pub(super) mask: u16,
    /// The first word of the ring of what is available, as it shall be: its index runs free.
    pub(super) first: u64,
    /// Entries put there so far; runs free.
    pub(super) offered: u16,
    /// Each side says by a position when it wants to be told, and not by a flag.
    pub(super) events: bool,
    /// The next entry of the device's to look at; runs free.
    pub(super) seen: u16,
}

/// Flags, in the first word of either ring.
const FLAG: u64 = 1;

impl<W: Words> SplitRing<W> {
    /// A queue of `size` entries, a power of two up to 32768, over zeroed words: descriptors, what
    /// is available, what was used.
    pub fn new(table: W, available: W, used: W, size: u16) -> Result<Self, Error> {
        let entries = usize::from(size);
        // The used ring is read in whole words, the last of which lies half behind the last entry.
        let fits = table.count() >= 2 * entries
            && available.count() * 8 >= 6 + 2 * entries
            && used.count() > entries;
        if !size.is_power_of_two() || size > 1 << 15 || !fits {
            return Err(Error::Invalid(format!(
                "a virtqueue of {size} entries in memory that does not hold it"
            )));
        }
        Ok(Self {
            table,
            available,
            used,
            mask: size - 1,
            first: 0,
            offered: 0,
            events: false,
            seen: 0,
        })
    }

    /// The same, of which `events` says that each side says by a position when it wants to be told.
    /// [virtio 2.7.7.1, 2.7.10]
    pub fn with_events(self, events: bool) -> Self {
        Self { events, ..self }
    }

    /// Entries.
    pub fn size(&self) -> u16 {
        self.mask + 1
    }

    /// Writes a descriptor: the address, and the word with length, flags and the next one.
    #[inline]
    pub fn describe(&mut self, descriptor: u16, address: u64, rest: u64) {
        let first = usize::from(descriptor & self.mask) * 2;
        // SAFETY: `new` has seen that the words of each descriptor are there.
        unsafe { self.table.store_entry_unchecked(first, &[address, rest]) };
    }

    /// Offers the chain that begins at `descriptor`; the device sees it after
    /// [`publish`](Self::publish). Who has more chains under way than the queue has entries writes
    /// over the oldest.
    #[inline]
    pub fn offer(&mut self, descriptor: u16) {
        self.put(self.offered & self.mask, descriptor);
        self.offered = self.offered.wrapping_add(1);
    }

    /// Puts `value` into entry `entry` of what is available, or behind the last one. In the first
    /// word, the device sees it when that is stored.
    #[inline]
    fn put(&mut self, entry: u16, value: u16) {
        // Entries of 16 bits, behind two others in the first word.
        let place = usize::from(entry) + 2;
        let (word, shift) = (place / 4, place % 4 * 16);
        let put = |before: u64| before & !(0xffff << shift) | u64::from(value) << shift;
        if word == 0 {
            self.first = put(self.first);
        } else {
            let before = self.available.load(word);
            self.available.store(word, put(before));
        }
    }

    /// Offers a chain of one descriptor for each of `items`, as [`describe`](Self::describe) and
    /// [`offer`](Self::offer) do, up to the first for which `give` makes no address and bytes, or
    /// up to the end of the table. Descriptor `first` is the first, and `slots`, one for each, keep
    /// what is with the device: `give` gets that of the descriptor. Returns how many.
    #[inline(always)]
    pub fn offer_run<T, S>(
        &mut self,
        first: u16,
        flags: u16,
        items: &mut [T],
        slots: &mut [S],
        mut give: impl FnMut(&mut T, &mut S) -> Option<(u64, u32)>,
    ) -> usize {
        let first = first & self.mask;
        let run = items.len().min(usize::from(self.size() - first));
        let pairs = (&mut items[..run], slots.get_mut(usize::from(first)..).unwrap_or_default());
        let flags = u64::from(flags) << 32;
        let describe = |item: &mut T, slot: &mut S| {
            let (address, len) = give(item, slot)?;
            Some([address, u64::from(len) | flags])
        };
        // SAFETY: `new` has seen that the words of each descriptor are there, and the run ends with
        // the last.
        let given =
            unsafe { self.table.give_pairs_unchecked(usize::from(first) * 2, pairs, describe) };
        self.offer_all(first, given as u16);
        given
    }

    /// Offers the chains of one descriptor from `descriptor` on, `count` of them: four at a time
    /// where they fill a word.
    #[inline]
    fn offer_all(&mut self, mut descriptor: u16, mut count: u16) {
        const FOUR: u64 = 3 << 48 | 2 << 32 | 1 << 16;
        while count > 0 {
            let at = self.offered & self.mask;
            if at % 4 != 2 || count < 4 || self.size() - at < 4 {
                self.offer(descriptor);
                (descriptor, count) = (descriptor + 1, count - 1);
                continue;
            }
            // No sum is carried: descriptors have 15 bits.
            self.available.store(
                usize::from(at + 2) / 4,
                u64::from(descriptor) * 0x0001_0001_0001_0001 + FOUR,
            );
            self.offered = self.offered.wrapping_add(4);
            (descriptor, count) = (descriptor + 4, count - 4);
        }
    }

    /// Takes what the device has used, as [`take`](Self::take) does, for as long as each number is
    /// that after the one before, `first` to begin with, and as `take` takes it by its bytes (zero
    /// without `LEN`) and its slot; one for each of `places` at most, and none from behind the end
    /// of a table. Returns how many: none where the device's index is an error.
    #[inline(always)]
    pub fn take_run<const LEN: bool, T, S>(
        &mut self,
        first: u16,
        places: &mut [T],
        slots: &mut [S],
        mut take: impl FnMut(u32, &mut S, &mut T) -> bool,
    ) -> usize {
        let ready = ((self.used.load(0) >> 16) as u16).wrapping_sub(self.seen);
        if ready == 0 || ready > self.size() {
            return 0;
        }
        take_back();
        let (word, mut expected) = (self.seen & self.mask, u32::from(first));
        let run = places.len().min(ready.min(self.size() - word).into());
        let accept = |number: u32, len: u32, slot: &mut S, place: &mut T| {
            if number != expected {
                return false;
            }
            expected += 1;
            take(len, slot, place)
        };
        let pairs = (slots.get_mut(usize::from(first)..).unwrap_or_default(), &mut places[..run]);
        // An entry lies across two words: number, then bytes.
        let number = 2 * usize::from(word) + 1;
        let halves = HalfWords { key: number, step: 2, other: number + 1 };
        // SAFETY: `new` has seen that there is a word behind that of each entry.
        let taken =
            unsafe { self.used.take_halves_unchecked::<LEN, _, _>(halves, pairs, accept) } as u16;
        self.seen = self.seen.wrapping_add(taken);
        taken.into()
    }

    /// Makes everything offered visible; whether the device wants to be notified of it.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let (old, new) = ((self.first >> 16) as u16, self.offered);
        if old == new {
            return false;
        }
        hand_over();
        self.first = self.first & !0xffff_0000 | u64::from(self.offered) << 16;
        self.available.store(0, self.first);
        exchange();
        if !self.events {
            return self.used.load(0) & FLAG == 0;
        }
        // Behind the last of the entries, each of which lies across two words.
        passes((self.used.load(self.size().into()) >> 32) as u16, old, new)
    }

    /// Whether the device has used something that was not [taken](Self::take).
    #[inline]
    pub fn pending(&self) -> bool {
        (self.used.load(0) >> 16) as u16 != self.seen
    }

    /// What the device has used next: the number that it says, and the bytes that it says it has
    /// written. Both are input, and the number may be of nothing that was offered. An index that is
    /// further than the queue is long is an error, and nothing is taken.
    #[inline]
    pub fn take(&mut self) -> Result<Option<(u32, u32)>, Error> {
        let ready = ((self.used.load(0) >> 16) as u16).wrapping_sub(self.seen);
        if ready == 0 {
            return Ok(None);
        }
        if ready > self.size() {
            return Err(stray(ready, self.size()));
        }
        take_back();
        let word = usize::from(self.seen & self.mask);
        self.seen = self.seen.wrapping_add(1);
        // The entry lies across two words.
        Ok(Some(((self.used.load(word) >> 32) as u32, self.used.load(word + 1) as u32)))
    }

    /// Asks for interrupts, or does without them. The device may interrupt nevertheless. With
    /// positions it is asked for one, for what it uses next: who has taken that asks again.
    pub fn want_interrupts(&mut self, wanted: bool) {
        if self.events {
            // One that lies behind is reached after all others.
            let event = if wanted { self.seen } else { self.seen.wrapping_sub(1) };
            self.put(self.size(), event);
        } else {
            self.first = self.first & !FLAG | u64::from(!wanted);
        }
        self.available.store(0, self.first);
        exchange();
    }

    /// Gives the memory underneath up for good: the device may still reach it.
    pub fn abandon(&mut self) {
        [&mut self.table, &mut self.available, &mut self.used].into_iter().for_each(Words::abandon);
    }
}

#[cold]
fn stray(ready: u16, size: u16) -> Error {
    Error::Protocol(format!("a virtqueue of {size} entries has {ready} that were used"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::dma::{Arena, DmaBuffer, Region};
    use proptest::prelude::*;

    fn ring(size: u16) -> SplitRing<DmaBuffer> {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x1000);
        let words = |bytes: usize| arena.alloc(bytes, 16).unwrap();
        let entries = usize::from(size);
        SplitRing::new(
            words(16 * entries),
            words((6 + 2 * entries).next_multiple_of(8)),
            words((6 + 8 * entries).next_multiple_of(8)),
            size,
        )
        .unwrap()
    }

    fn bytes<const N: usize>(words: &DmaBuffer, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        words.read(at, &mut bytes).unwrap();
        bytes
    }

    /// What a device does: the next entry of the used ring.
    fn used(ring: &SplitRing<DmaBuffer>, index: u16, id: u32, len: u32) {
        let at = 4 + 8 * usize::from(index & ring.mask);
        ring.used.write(at, &[id.to_le_bytes(), len.to_le_bytes()].concat()).unwrap();
        ring.used.write(2, &index.wrapping_add(1).to_le_bytes()).unwrap();
    }

    #[test]
    fn entries_lie_where_the_specification_has_them_over_laps() {
        let mut ring = ring(4);
        for lap in 0..10u16 {
            ring.describe(lap % 4, 0x1122_3344_5566_7788, 0x0003_0002_0000_0040);
            ring.offer(lap % 4);
            assert!(ring.publish() && !ring.publish());
            assert_eq!(bytes(&ring.available, 2), (lap + 1).to_le_bytes());
            assert_eq!(
                bytes(&ring.available, 4 + 2 * usize::from(lap % 4)),
                (lap % 4).to_le_bytes()
            );
            assert!(!ring.pending() && ring.take().unwrap().is_none());
            used(&ring, lap, u32::from(lap % 4), 7 + u32::from(lap));
            assert!(ring.pending());
            assert_eq!(ring.take().unwrap(), Some((u32::from(lap % 4), 7 + u32::from(lap))));
        }
        assert_eq!(bytes(&ring.table, 0), 0x1122_3344_5566_7788u64.to_le_bytes());
        assert_eq!(bytes::<8>(&ring.table, 8), [0x40, 0, 0, 0, 2, 0, 3, 0]);
    }

    #[test]
    fn who_says_where_it_wants_to_be_told_is_told_there_and_nowhere_else() {
        for size in [1, 2, 4, 8] {
            let mut ring = ring(size).with_events(true);
            let mut offer = |event: u16| {
                ring.used.write(4 + 8 * usize::from(size), &event.to_le_bytes()).unwrap();
                ring.offer(0);
                ring.publish()
            };
            assert_eq!(
                [offer(0), offer(0), offer(5), offer(3), offer(0xffff)],
                [true, false, false, true, false],
                "{size}"
            );
            let asked = |ring: &SplitRing<DmaBuffer>| {
                u16::from_le_bytes(bytes(&ring.available, 4 + 2 * usize::from(size)))
            };
            for lap in 0..5 {
                ring.want_interrupts(true);
                assert_eq!((asked(&ring), bytes::<2>(&ring.available, 0)), (lap, [0, 0]), "{size}");
                used(&ring, lap, 0, 0);
                assert!(ring.pending() && ring.take().unwrap().is_some());
                ring.want_interrupts(false);
                assert_eq!(asked(&ring), lap);
            }
            let entries: Vec<u16> = (0..size)
                .map(|at| u16::from_le_bytes(bytes(&ring.available, 4 + 2 * usize::from(at))))
                .collect();
            assert!(entries.iter().all(|entry| *entry == 0), "{size}: an entry was written over");
        }
    }

    #[test]
    fn indices_wrap_where_16_bits_do() {
        let mut ring = ring(2);
        for lap in 0..=u16::MAX {
            ring.offer(lap & 1);
            ring.publish();
            used(&ring, lap, 1, 0);
            assert_eq!(ring.take().unwrap(), Some((1, 0)));
        }
        assert_eq!(bytes(&ring.available, 2), [0, 0]);
    }

    #[test]
    fn a_device_that_wants_no_notification_gets_none_and_interrupts_are_asked_for() {
        let mut ring = ring(4);
        ring.used.write(0, &[1]).unwrap();
        ring.offer(0);
        assert!(!ring.publish());
        ring.want_interrupts(false);
        assert_eq!(bytes(&ring.available, 0), [1, 0, 1, 0]);
        ring.want_interrupts(true);
        assert_eq!(bytes(&ring.available, 0), [0, 0, 1, 0]);
    }

    #[test]
    fn an_index_beyond_the_queue_is_an_error_and_nothing_is_taken() {
        let mut ring = ring(4);
        ring.used.write(2, &9u16.to_le_bytes()).unwrap();
        assert!(matches!(ring.take(), Err(Error::Protocol(_))));
        assert_eq!(ring.take_run::<true, _, _>(0, &mut [()], &mut [0; 4], |_, _, ()| true), 0);
        ring.used.write(2, &[0, 0]).unwrap();
        assert_eq!(ring.take().unwrap(), None);
    }

    proptest! {
        #[test]
        fn whatever_lies_in_the_devices_ring_nothing_panics_and_no_more_comes_than_the_queue_has(
            garbage in prop::collection::vec(any::<u64>(), 5), looks in 1usize..20,
        ) {
            let mut ring = ring(4);
            garbage.iter().enumerate().for_each(|(at, &word)| ring.used.store(at, word));
            let taken = (0..looks).filter(|_| matches!(ring.take(), Ok(Some(_)))).count();
            prop_assert!(taken <= 4);
        }
    }

    #[test]
    fn runs_are_offered_and_come_back_over_many_laps_up_to_the_first_that_is_out_of_turn() {
        let (mut ring, mut slots) = (ring(8), [0; 8]);
        let (mut next, mut index) = (0_u16, 0_u16);
        for lap in 0..40_u64 {
            let count = 1 + lap as usize % 7;
            let mut items: Vec<u64> = (0..count as u64).map(|item| lap * 10 + item).collect();
            let (oldest, mut given) = (next, 0);
            while given < count {
                let give = |item: &mut u64, slot: &mut u64| {
                    *slot = *item;
                    Some((*item << 12, 64))
                };
                let run = ring.offer_run(next, 2, &mut items[given..], &mut slots, give);
                assert_eq!(
                    (run, ring.table.load(2 * usize::from(next))),
                    ((count - given).min(8 - usize::from(next)), items[given] << 12)
                );
                (given, next) = (given + run, (next + run as u16) % 8);
            }
            assert!(ring.publish());
            for ahead in 0..count as u16 {
                let entry = 4 + 2 * usize::from(index.wrapping_add(ahead) % 8);
                assert_eq!(u16::from_le_bytes(bytes(&ring.available, entry)), (oldest + ahead) % 8);
                used(
                    &ring,
                    index.wrapping_add(ahead),
                    u32::from((oldest + ahead) % 8),
                    ahead.into(),
                );
            }
            index += count as u16;
            let mut back = Vec::new();
            while back.len() < count {
                let oldest = (oldest + back.len() as u16) % 8;
                let take = |len, slot: &mut u64, _: &mut ()| {
                    back.push((*slot, len));
                    true
                };
                assert!(ring.take_run::<true, _, _>(oldest, &mut [(); 8], &mut slots, take) > 0);
            }
            assert_eq!(back, items.into_iter().zip(0..).collect::<Vec<_>>());
            assert!(!ring.pending());
        }
        ring.offer(next);
        ring.publish();
        used(&ring, index, (u32::from(next) + 1) % 8, 0);
        assert_eq!(ring.take_run::<true, _, _>(next, &mut [()], &mut slots, |_, _, ()| true), 0);
        assert_eq!(ring.take().unwrap(), Some(((u32::from(next) + 1) % 8, 0)));
        ring.used.write(2, &(index + 100).to_le_bytes()).unwrap();
        assert_eq!(ring.take_run::<true, _, _>(next, &mut [()], &mut slots, |_, _, ()| true), 0);
    }

    #[test]
    fn memory_that_is_too_small_is_refused() {
        let arena = Arena::new(Region::new(1 << 16).unwrap(), 0x1000);
        let words = |bytes: usize| arena.alloc(bytes, 16).unwrap();
        assert!(SplitRing::new(words(64), words(16), words(40), 4).is_ok());
        assert!(SplitRing::new(words(63), words(16), words(40), 4).is_err());
        assert!(SplitRing::new(words(64), words(8), words(40), 4).is_err());
        assert!(SplitRing::new(words(64), words(16), words(32), 4).is_err());
        assert!(SplitRing::new(words(64), words(16), words(40), 3).is_err());
    }
}
