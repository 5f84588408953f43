//! Rings that a driver and a device share, and the only place where their memory ordering is decided.
//!
//! # Shape
//! [`SubmissionRing`] is written here and read by the device; [`CompletionRing`] is written by the device and read here. Entries are
//! arrays of 64-bit words in memory that both reach. The doorbells are the driver's: a ring says what to write, not where.
//!
//! # Ordering
//! Words are relaxed atomics. Three fences order them:
//! - [`SubmissionRing::publish`]: all entry stores come before the doorbell store that the caller makes next (release).
//! - [`CompletionRing::publish`]: all entry loads come before the doorbell store that gives their slots back (release).
//! - [`CompletionRing::pop`]: the load of the word with the phase bit comes before the loads of the rest of the entry, and before
//!   whatever the caller reads of the data that it announces (acquire).
//!
//! On x86-64 a release fence is enough before a doorbell in uncached memory, because stores leave in program order. Another
//! architecture needs its device-store barrier in `publish`; nothing else would change.
//!
//! # Indices
//! They run free: `tail - head` is what is outstanding, and equals the capacity when the ring is full. Slots are indices modulo
//! the size. One slot stays empty, so that head = tail means empty to the device, too.

#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};

use crate::Error;
#[cfg(not(loom))]
use crate::dma::DmaBuffer;

/// 64-bit words that a device can read and write at any time. All accesses are relaxed; the rings add the fences.
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
}

#[cfg(not(loom))]
impl Words for DmaBuffer {
    fn count(&self) -> usize {
        self.len() / 8
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
    fn store_entry<const N: usize>(&self, first: usize, entry: &[u64; N]) {
        // One check for all words of the entry: this is most of what submitting a request costs.
        let end = first.checked_add(N).is_some_and(|end| end <= self.len() / 8);
        if !end || !self.iova().is_multiple_of(8) {
            return;
        }
        let base = self.as_ptr().cast::<u64>();
        for (i, &value) in entry.iter().enumerate() {
            // SAFETY: `first + i` lies within the buffer, as checked above.
            let word = unsafe { base.add(first + i) };
            // SAFETY: aligned, alive and accessed atomically only, as in `word`.
            unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(not(loom))]
#[inline]
fn word(buffer: &DmaBuffer, index: usize) -> Option<&AtomicU64> {
    if index >= buffer.len() / 8 || !buffer.iova().is_multiple_of(8) {
        return None;
    }
    // SAFETY: the word lies within the buffer.
    let word = unsafe { buffer.as_ptr().cast::<u64>().add(index) };
    // SAFETY: it is aligned (arena memory is page-aligned, and so is the offset by the check on the device address), lives as
    // long as the buffer, and is only ever accessed atomically or by byte copies.
    Some(unsafe { AtomicU64::from_ptr(word) })
}

/// A ring whose entries of `N` words we write and the device reads, as an NVMe submission queue.
pub struct SubmissionRing<W, const N: usize> {
    words: W,
    size: u32,
    /// First entry that the device has not taken.
    head: u32,
    /// Next entry to write.
    tail: u32,
    /// What the doorbell last said.
    committed: u32,
}

impl<W: Words, const N: usize> SubmissionRing<W, N> {
    /// A ring of `size` slots over `words`; holds at most `size - 1` entries. `size` is a power of two of at least 2, so that
    /// free-running indices wrap where slots do.
    pub fn new(words: W, size: u32) -> Result<Self, Error> {
        check_size(&words, size, N)?;
        Ok(Self { words, size, head: 0, tail: 0, committed: 0 })
    }

    /// Slots, one more than entries that it can hold.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Entries that still fit.
    #[inline]
    pub fn space(&self) -> u32 {
        self.size - 1 - self.tail.wrapping_sub(self.head)
    }

    /// Writes an entry; the device sees it after [`publish`](Self::publish). False if the ring is full.
    #[inline]
    pub fn push(&mut self, entry: &[u64; N]) -> bool {
        if self.space() == 0 {
            return false;
        }
        let first = (self.tail & (self.size - 1)) as usize * N;
        self.words.store_entry(first, entry);
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Makes everything pushed visible; returns the tail slot for the doorbell, or `None` if nothing was pushed since.
    #[inline]
    pub fn publish(&mut self) -> Option<u32> {
        if self.committed == self.tail {
            return None;
        }
        fence(Ordering::Release);
        self.committed = self.tail;
        Some(self.tail & (self.size - 1))
    }

    /// Takes the device's word that it has read all entries before slot `head`. A slot that was never published is an error.
    #[inline]
    pub fn retire(&mut self, head: u32) -> Result<(), Error> {
        let step = head.wrapping_sub(self.head) & (self.size - 1);
        if head >= self.size || step > self.committed.wrapping_sub(self.head) {
            return Err(stray_head(head, self.head & (self.size - 1), self.committed & (self.size - 1)));
        }
        self.head = self.head.wrapping_add(step);
        Ok(())
    }

    /// Empties the ring after a reset of the device, which starts again at slot 0.
    pub fn reset(&mut self) {
        (self.head, self.tail, self.committed) = (0, 0, 0);
    }

    /// The memory underneath.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// The memory underneath, to give it up.
    pub fn words_mut(&mut self) -> &mut W {
        &mut self.words
    }
}

#[cold]
fn stray_head(head: u32, from: u32, to: u32) -> Error {
    Error::Protocol(format!("submission head {head} is outside of what was published ({from} to {to})"))
}

fn check_size(words: &impl Words, size: u32, entry: usize) -> Result<(), Error> {
    if !size.is_power_of_two() || size < 2 || words.count() < size as usize * entry {
        return Err(Error::Invalid(format!("a ring of {size} entries of {entry} words in {} words", words.count())));
    }
    Ok(())
}

/// A ring whose entries of `N` words the device writes, each with a phase bit that flips at every lap, as an NVMe completion queue.
pub struct CompletionRing<W, const N: usize> {
    words: W,
    size: u32,
    /// Which word of an entry holds the phase bit.
    phase_word: usize,
    phase_bit: u32,
    /// Next entry to look at, free-running; its lap says which phase is new.
    head: u32,
    /// What the doorbell last said.
    committed: u32,
}

impl<W: Words, const N: usize> CompletionRing<W, N> {
    /// A ring of `size` slots (a power of two of at least 2) over zeroed `words`, with the phase bit at `phase_bit` of word `phase_word`.
    pub fn new(words: W, size: u32, phase_word: usize, phase_bit: u32) -> Result<Self, Error> {
        check_size(&words, size, N)?;
        if phase_word >= N || phase_bit > 63 {
            return Err(Error::Invalid(format!("phase bit {phase_bit} of word {phase_word} in entries of {N} words")));
        }
        Ok(Self { words, size, phase_word, phase_bit, head: 0, committed: 0 })
    }

    /// Whether [`pop`](Self::pop) would return an entry: one load, no fence, for polling.
    #[inline]
    pub fn ready(&self) -> bool {
        let slot = (self.head & (self.size - 1)) as usize;
        self.is_new(self.words.load(slot * N + self.phase_word))
    }

    /// Whether the word with the phase bit belongs to the present lap: the first lap writes ones over zeroed memory, the second
    /// zeros, and so on.
    #[inline]
    fn is_new(&self, announced: u64) -> bool {
        (announced >> self.phase_bit & 1 == 1) == (self.head & self.size == 0)
    }

    /// Takes the next entry that the device has written, or `None`.
    #[inline]
    pub fn pop(&mut self) -> Option<[u64; N]> {
        let first = (self.head & (self.size - 1)) as usize * N;
        let announced = self.words.load(first + self.phase_word);
        if !self.is_new(announced) {
            return None;
        }
        fence(Ordering::Acquire);
        let mut entry = [0; N];
        for (i, word) in entry.iter_mut().enumerate() {
            // The word that announced the entry is not read twice: what was checked is what is returned.
            *word = if i == self.phase_word { announced } else { self.words.load(first + i) };
        }
        self.head = self.head.wrapping_add(1);
        Some(entry)
    }

    /// The head slot for the doorbell, or `None` if nothing was taken since the last call.
    #[inline]
    pub fn publish(&mut self) -> Option<u32> {
        if self.committed == self.head {
            return None;
        }
        fence(Ordering::Release);
        self.committed = self.head;
        Some(self.head & (self.size - 1))
    }

    /// Empties the ring after a reset of the device: zeroes the words, so that no entry of an earlier life counts.
    pub fn reset(&mut self) {
        for index in 0..self.size as usize * N {
            self.words.store(index, 0);
        }
        (self.head, self.committed) = (0, 0);
    }

    /// The memory underneath.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// The memory underneath, to give it up.
    pub fn words_mut(&mut self) -> &mut W {
        &mut self.words
    }
}

#[cfg(all(test, loom))]
mod loom_model;
#[cfg(all(test, not(loom)))]
mod tests;
