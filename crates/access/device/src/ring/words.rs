//! Words of memory that a driver and a device share, singly and in runs. Rings consist of them and
//! add the ordering.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(not(loom))]
use crate::dma::DmaBuffer;
use crate::order::take_back;

#[cfg(not(loom))]
impl DmaBuffer {
    /// Takes word `index` out and leaves zero, in one step: what a device writes at the same time
    /// is either taken or stays. Zero beyond the end.
    #[inline]
    pub fn take_word(&self, index: usize) -> u64 {
        word(self, index).map_or(0, |word| word.swap(0, Ordering::AcqRel))
    }
}

/// Entries of a run that are handled in a row, without counting between them.
#[cfg(not(loom))]
const BLOCK: usize = 4;

/// Where halves of words lie that belong together: the first key, how far the next is, and what is
/// read after the first key.
#[derive(Clone, Copy)]
pub struct HalfWords {
    /// The half that says whether there is something.
    pub key: usize,
    /// Halves from one to the next.
    pub step: usize,
    /// What is read after it.
    pub other: usize,
}

/// 64-bit words that a device can read and write at any time. All accesses are relaxed; the rings
/// add the fences.
pub trait Words {
    /// How many words there are.
    fn count(&self) -> usize;
    /// Reads word `index`; all ones beyond the end.
    fn load(&self, index: usize) -> u64;
    /// Writes word `index`; nothing beyond the end.
    fn store(&self, index: usize, value: u64);
    /// Writes the words from `first` on.
    #[inline]
    fn store_entry<const N: usize>(&self, first: usize, entry: &[u64; N]) {
        for (i, &word) in entry.iter().enumerate() {
            self.store(first + i, word);
        }
    }
    /// As [`load`](Words::load), without a look at the end.
    ///
    /// # Safety
    /// `index` was below [`count`](Words::count) at some time.
    #[inline]
    unsafe fn load_unchecked(&self, index: usize) -> u64 {
        self.load(index)
    }
    /// Writes some words of the entry of `N` that begins at `first`, each with its number in it,
    /// without a look at the end.
    ///
    /// # Safety
    /// The indices of the whole entry were below [`count`](Words::count) at some time.
    #[inline]
    unsafe fn store_some_unchecked<const N: usize, const K: usize>(
        &self,
        first: usize,
        words: [(usize, u64); K],
    ) {
        words.into_iter().for_each(|(word, value)| self.store(first + word % N, value));
    }
    /// As [`load`](Words::load) of `first` and of every `step`th word after it, without a look at
    /// the end: hands one for each of `places` to `take`, up to the first that it refuses; returns
    /// how many it took.
    ///
    /// # Safety
    /// All indices were below [`count`](Words::count) at some time.
    #[inline(always)]
    unsafe fn take_unchecked<T>(
        &self,
        first: usize,
        step: usize,
        places: &mut [T],
        mut take: impl FnMut(u64, &mut T) -> bool,
    ) -> usize {
        let mut taken = 0;
        for place in places {
            if !take(self.load(first + taken * step), place) {
                break;
            }
            taken += 1;
        }
        taken
    }
    /// Half `index` of the words: an even one is a word's lower half. Without a look at the end.
    ///
    /// # Safety
    /// `index / 2` was below [`count`](Words::count) at some time.
    #[inline]
    unsafe fn load_half_unchecked(&self, index: usize) -> u32 {
        (self.load(index / 2) >> (32 * (index % 2))) as u32
    }
    /// Reads halves of words without a look at the end: at the places `key`, one for each of
    /// `slots` and `places` together, hands each to `take`, up to the first that it refuses. With
    /// `OTHER`, what is at the place `other` is read after it and handed over, too; otherwise zero
    /// is. Returns how many it took.
    ///
    /// # Safety
    /// All indices, halved, were below [`count`](Words::count) at some time.
    #[inline(always)]
    unsafe fn take_halves_unchecked<const OTHER: bool, S, T>(
        &self,
        at: HalfWords,
        (slots, places): (&mut [S], &mut [T]),
        mut take: impl FnMut(u32, u32, &mut S, &mut T) -> bool,
    ) -> usize {
        let mut taken = 0;
        for (index, (slot, place)) in slots.iter_mut().zip(places).enumerate() {
            // SAFETY: the caller's.
            let key = unsafe { self.load_half_unchecked(at.key + index * at.step) };
            take_back();
            let other = if OTHER {
                // SAFETY: the caller's.
                unsafe { self.load_half_unchecked(at.other + index * at.step) }
            } else {
                0
            };
            if !take(key, other, slot, place) {
                break;
            }
            taken += 1;
        }
        taken
    }
    /// Writes an address and behind it two halves of a word, one entry behind the other and without
    /// a look at the end: what `give` makes of each of `items` and its slot, as many as both have,
    /// up to the first of which it makes none. The word's upper half is `upper`, and with each
    /// entry one more. Returns what it would be next, from which the caller knows how many there
    /// were.
    ///
    /// # Safety
    /// All indices were below [`count`](Words::count) at some time.
    #[inline(always)]
    unsafe fn give_numbered_unchecked<T, S>(
        &self,
        first: usize,
        mut upper: u32,
        (items, slots): (&mut [T], &mut [S]),
        mut give: impl FnMut(&mut T, &mut S) -> Option<(u64, u32)>,
    ) -> u32 {
        for (index, (item, slot)) in items.iter_mut().zip(slots).enumerate() {
            let Some((address, lower)) = give(item, slot) else { break };
            self.store_entry(
                first + 2 * index,
                &[address, u64::from(lower) | u64::from(upper) << 32],
            );
            upper = upper.wrapping_add(1);
        }
        upper
    }
    /// The same with one for each of `slots` and `places` together, as many as both have.
    ///
    /// # Safety
    /// All indices were below [`count`](Words::count) at some time.
    #[inline(always)]
    unsafe fn take_pairs_unchecked<S, T>(
        &self,
        first: usize,
        step: usize,
        (slots, places): (&mut [S], &mut [T]),
        mut take: impl FnMut(u64, &mut S, &mut T) -> bool,
    ) -> usize {
        let mut taken = 0;
        for (slot, place) in slots.iter_mut().zip(places) {
            if !take(self.load(first + taken * step), slot, place) {
                break;
            }
            taken += 1;
        }
        taken
    }
    /// As [`store_entry`](Words::store_entry) of one entry behind the other, without a look at the
    /// end: what `give` makes of each of `items` and its slot, as many as both have, up to the
    /// first of which it makes none; returns how many.
    ///
    /// # Safety
    /// All indices were below [`count`](Words::count) at some time.
    #[inline(always)]
    unsafe fn give_pairs_unchecked<const N: usize, T, S>(
        &self,
        first: usize,
        (items, slots): (&mut [T], &mut [S]),
        mut give: impl FnMut(&mut T, &mut S) -> Option<[u64; N]>,
    ) -> usize {
        let mut given = 0;
        for (item, slot) in items.iter_mut().zip(slots) {
            let Some(entry) = give(item, slot) else { break };
            self.store_entry(first + given * N, &entry);
            given += 1;
        }
        given
    }
    /// As [`store_entry`](Words::store_entry), without a look at the end.
    ///
    /// # Safety
    /// All indices were below [`count`](Words::count) at some time.
    #[inline]
    unsafe fn store_entry_unchecked<const N: usize>(&self, first: usize, entry: &[u64; N]) {
        self.store_entry(first, entry);
    }
    /// Gives the memory up for good: see [`DmaBuffer::abandon`](crate::dma::DmaBuffer::abandon).
    fn abandon(&mut self) {}
}

#[cfg(not(loom))]
impl Words for DmaBuffer {
    fn count(&self) -> usize {
        if self.iova().is_multiple_of(8) { self.len() / 8 } else { 0 }
    }

    #[inline]
    fn load(&self, index: usize) -> u64 {
        word(self, index).map_or(u64::MAX, |word| word.load(Ordering::Relaxed))
    }

    #[inline]
    fn store(&self, index: usize, value: u64) {
        if let Some(word) = word(self, index) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    fn store_entry<const N: usize>(&self, first: usize, values: &[u64; N]) {
        if let Some(words) = entry::<N>(self, first) {
            words
                .iter()
                .zip(values)
                .for_each(|(word, &value)| word.store(value, Ordering::Relaxed));
        }
    }

    #[inline]
    unsafe fn load_unchecked(&self, index: usize) -> u64 {
        // SAFETY: the caller's; an abandoned buffer is empty, but its memory stays where it is.
        unsafe { word_at(self, index) }.load(Ordering::Relaxed)
    }

    #[inline]
    unsafe fn store_some_unchecked<const N: usize, const K: usize>(
        &self,
        first: usize,
        words: [(usize, u64); K],
    ) {
        // SAFETY: as above.
        let entry = unsafe { entry_at::<N>(self, first) };
        words.into_iter().for_each(|(word, value)| entry[word % N].store(value, Ordering::Relaxed));
    }

    #[inline(always)]
    unsafe fn take_unchecked<T>(
        &self,
        first: usize,
        step: usize,
        places: &mut [T],
        mut take: impl FnMut(u64, &mut T) -> bool,
    ) -> usize {
        let mut word = self.as_ptr().cast::<u64>().wrapping_add(first);
        let (all, mut left) = (places.len(), places);
        while let Some((place, rest)) = left.split_first_mut() {
            // SAFETY: as in `word_at`.
            if !take(unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed), place) {
                return all - rest.len() - 1;
            }
            word = word.wrapping_add(step);
            left = rest;
        }
        all
    }

    #[inline(always)]
    unsafe fn take_pairs_unchecked<S, T>(
        &self,
        first: usize,
        step: usize,
        (slots, places): (&mut [S], &mut [T]),
        mut take: impl FnMut(u64, &mut S, &mut T) -> bool,
    ) -> usize {
        let mut word = self.as_ptr().cast::<u64>().wrapping_add(first);
        let count = slots.len().min(places.len());
        let (slots, last_slots) = slots[..count].as_chunks_mut::<BLOCK>();
        let (places, last_places) = places[..count].as_chunks_mut::<BLOCK>();
        let mut taken = 0;
        for (slots, places) in slots.iter_mut().zip(places) {
            for (ahead, (slot, place)) in slots.iter_mut().zip(places).enumerate() {
                let word = word.wrapping_add(ahead * step);
                // SAFETY: as in `word_at`.
                if !take(unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed), slot, place)
                {
                    return taken + ahead;
                }
            }
            word = word.wrapping_add(BLOCK * step);
            taken += BLOCK;
        }
        for (slot, place) in last_slots.iter_mut().zip(last_places) {
            // SAFETY: as in `word_at`.
            if !take(unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Relaxed), slot, place) {
                break;
            }
            word = word.wrapping_add(step);
            taken += 1;
        }
        taken
    }

    #[inline(always)]
    unsafe fn take_halves_unchecked<const OTHER: bool, S, T>(
        &self,
        at: HalfWords,
        (slots, places): (&mut [S], &mut [T]),
        mut take: impl FnMut(u32, u32, &mut S, &mut T) -> bool,
    ) -> usize {
        let mut key = self.as_ptr().cast::<u32>().wrapping_add(at.key);
        let beside = at.other.wrapping_sub(at.key);
        let count = slots.len().min(places.len());
        let (slots, last_slots) = slots[..count].as_chunks_mut::<BLOCK>();
        let (places, last_places) = places[..count].as_chunks_mut::<BLOCK>();
        // SAFETY: as in `word_at`; a half is aligned where its word is.
        let load = |at: *mut u32| unsafe { AtomicU32::from_ptr(at) }.load(Ordering::Relaxed);
        let mut look = |at: *mut u32, slot: &mut S, place: &mut T| {
            let key = load(at);
            take_back();
            take(key, if OTHER { load(at.wrapping_add(beside)) } else { 0 }, slot, place)
        };
        let mut taken = 0;
        for (slots, places) in slots.iter_mut().zip(places) {
            for (ahead, (slot, place)) in slots.iter_mut().zip(places).enumerate() {
                if !look(key.wrapping_add(ahead * at.step), slot, place) {
                    return taken + ahead;
                }
            }
            key = key.wrapping_add(BLOCK * at.step);
            taken += BLOCK;
        }
        for (slot, place) in last_slots.iter_mut().zip(last_places) {
            if !look(key, slot, place) {
                break;
            }
            key = key.wrapping_add(at.step);
            taken += 1;
        }
        taken
    }

    #[inline(always)]
    unsafe fn give_numbered_unchecked<T, S>(
        &self,
        first: usize,
        mut upper: u32,
        (items, slots): (&mut [T], &mut [S]),
        mut give: impl FnMut(&mut T, &mut S) -> Option<(u64, u32)>,
    ) -> u32 {
        let mut word = self.as_ptr().cast::<u64>().wrapping_add(first);
        let count = items.len().min(slots.len());
        let (items, last_items) = items[..count].as_chunks_mut::<BLOCK>();
        let (slots, last_slots) = slots[..count].as_chunks_mut::<BLOCK>();
        let store = |at: *mut u64, address, lower, upper| {
            // SAFETY: as in `word_at`.
            unsafe { AtomicU64::from_ptr(at) }.store(address, Ordering::Relaxed);
            for (half, value) in [(2, lower), (3, upper)] {
                // SAFETY: as above; a half is aligned where its word is.
                unsafe { AtomicU32::from_ptr(at.cast::<u32>().wrapping_add(half)) }
                    .store(value, Ordering::Relaxed);
            }
        };
        for (items, slots) in items.iter_mut().zip(slots) {
            for (ahead, (item, slot)) in items.iter_mut().zip(slots).enumerate() {
                let Some((address, lower)) = give(item, slot) else { return upper };
                store(word.wrapping_add(2 * ahead), address, lower, upper);
                upper = upper.wrapping_add(1);
            }
            word = word.wrapping_add(2 * BLOCK);
        }
        for (item, slot) in last_items.iter_mut().zip(last_slots) {
            let Some((address, lower)) = give(item, slot) else { break };
            store(word, address, lower, upper);
            word = word.wrapping_add(2);
            upper = upper.wrapping_add(1);
        }
        upper
    }

    #[inline(always)]
    unsafe fn give_pairs_unchecked<const N: usize, T, S>(
        &self,
        first: usize,
        (items, slots): (&mut [T], &mut [S]),
        mut give: impl FnMut(&mut T, &mut S) -> Option<[u64; N]>,
    ) -> usize {
        let mut word = self.as_ptr().cast::<u64>().wrapping_add(first);
        let count = items.len().min(slots.len());
        let (items, last_items) = items[..count].as_chunks_mut::<BLOCK>();
        let (slots, last_slots) = slots[..count].as_chunks_mut::<BLOCK>();
        let store = |at: *mut u64, value| {
            // SAFETY: as in `word_at`.
            unsafe { AtomicU64::from_ptr(at) }.store(value, Ordering::Relaxed)
        };
        let mut given = 0;
        for (items, slots) in items.iter_mut().zip(slots) {
            for (ahead, (item, slot)) in items.iter_mut().zip(slots).enumerate() {
                let Some(entry) = give(item, slot) else { return given + ahead };
                (0..N).for_each(|i| store(word.wrapping_add(ahead * N + i), entry[i]));
            }
            word = word.wrapping_add(BLOCK * N);
            given += BLOCK;
        }
        for (item, slot) in last_items.iter_mut().zip(last_slots) {
            let Some(entry) = give(item, slot) else { break };
            (0..N).for_each(|i| store(word.wrapping_add(i), entry[i]));
            word = word.wrapping_add(N);
            given += 1;
        }
        given
    }

    #[inline]
    unsafe fn store_entry_unchecked<const N: usize>(&self, first: usize, values: &[u64; N]) {
        // SAFETY: as above.
        let words = unsafe { entry_at::<N>(self, first) };
        words.iter().zip(values).for_each(|(word, &value)| word.store(value, Ordering::Relaxed));
    }

    fn abandon(&mut self) {
        Self::abandon(self);
    }
}

/// `N` words with one check for all.
#[cfg(not(loom))]
#[inline]
fn entry<const N: usize>(buffer: &DmaBuffer, first: usize) -> Option<&[AtomicU64; N]> {
    let end = first.checked_add(N)?;
    if end > buffer.len() / 8 || !buffer.iova().is_multiple_of(8) {
        return None;
    }
    // SAFETY: both were checked.
    Some(unsafe { entry_at(buffer, first) })
}

/// # Safety
/// As of [`word_at`], for all `N`.
#[cfg(not(loom))]
#[inline]
unsafe fn entry_at<const N: usize>(buffer: &DmaBuffer, first: usize) -> &[AtomicU64; N] {
    // SAFETY: the words lie within the buffer.
    let words = unsafe { buffer.as_ptr().cast::<[AtomicU64; N]>().byte_add(first * 8) };
    // SAFETY: aligned, alive and accessed atomically only, as in `word_at`; `AtomicU64` has the
    // layout of `u64`.
    unsafe { &*words }
}

#[cfg(not(loom))]
#[inline]
fn word(buffer: &DmaBuffer, index: usize) -> Option<&AtomicU64> {
    if index >= buffer.len() / 8 || !buffer.iova().is_multiple_of(8) {
        return None;
    }
    // SAFETY: both were checked.
    Some(unsafe { word_at(buffer, index) })
}

/// # Safety
/// Word `index` lies within the buffer, whose device address is a multiple of 8.
#[cfg(not(loom))]
#[inline]
unsafe fn word_at(buffer: &DmaBuffer, index: usize) -> &AtomicU64 {
    // SAFETY: the word lies within the buffer.
    let word = unsafe { buffer.as_ptr().cast::<u64>().add(index) };
    // SAFETY: it is aligned (arena memory is page-aligned, and so is the offset by the device
    // address), lives as long as the buffer, and is only ever accessed atomically.
    unsafe { AtomicU64::from_ptr(word) }
}
