//! Rings that a driver and a device share, and the only place where their memory ordering is
//! decided.
//!
//! # Shape
//! [`SubmissionRing`] is written by the driver and read by the device; [`CompletionRing`] is
//! written by the device and read by the driver. Entries are arrays of 64-bit words in memory that
//! both reach. The driver owns the doorbells: a ring returns the value to write, not the register.
//!
//! # Ordering
//! Words are relaxed atomics. These fences order them:
//! - [`SubmissionRing::publish`]: all stores of entries precede the doorbell store that the caller
//!   makes next (release).
//! - [`CompletionRing::publish`]: all loads of entries precede the doorbell store that frees their
//!   slots (release).
//! - [`DescriptorRing`], whose entries are returned in place, has the same: a release in `publish`,
//!   an acquire in `pop` and `pop_into`.
//! - [`CompletionRing::pop`] and [`pop_into`](CompletionRing::pop_into): the load of the word with
//!   the phase bit precedes the loads of the rest of the entry, and all later reads of the data
//!   that it announces (acquire).
//!
//! - Rings between two processes, [`Producer`] and [`Consumer`], document their own ordering.
//!
//! Controllers whose tables are not rings (ATA) use [`hand_over`] and [`take_back`] themselves.
//!
//! # What depends on the machine
//! [`order`](crate::order) has it.
//!
//! These need no order or get it otherwise:
//! - Interrupt masks ([`Irq`](crate::irq::Irq)) and the check that follows `unmask`: the store of
//!   the mask may still be in flight when memory is read. A message that arrives meanwhile is
//!   pending in the device or the backend and delivered at the unmask, as
//!   [`IrqControl`](crate::irq::IrqControl) requires. The flags of an `Irq` are hints for its own
//!   owner and its storm limit.
//! - Doorbells of several threads: each belongs to one queue and one thread. A thread that rings
//!   while another resets the controller is too late or too early. The generation counter, relaxed,
//!   makes that rare, and the device ignores entries that it does not know. What a reset left
//!   behind is read under the admin queue's lock.
//! - Slots: they belong to one thread. Flags between threads that decide about lost writes
//!   (`write_cache.rs`) are sequentially consistent.
//! - Bytes in DMA memory: relaxed atomics (`dma::bytes`), ordered by the fences above.
//!
//! # Indices
//! Indices are free-running: `tail - head` is the number of outstanding entries, and equals the
//! capacity when the ring is full. Slots are indices modulo the size. One slot stays empty, so that
//! head = tail means empty for the device, too.

use crate::Error;
use crate::order::{hand_over, take_back};

/// A ring whose entries of `N` words we write and the device reads, as an NVMe submission queue.
///
/// Its memory was seen to hold all slots when it was made, and is never replaced, so that a slot
/// modulo the size is reached unchecked.
pub struct SubmissionRing<W, const N: usize> {
    words: W,
    /// Slots - 1.
    mask: u32,
    /// Where the tail stands when the ring is full: `mask` entries after the first that the device
    /// has not taken.
    full: u32,
    /// Next entry to write.
    tail: u32,
    /// What the doorbell last said.
    committed: u32,
}

impl<W: Words, const N: usize> SubmissionRing<W, N> {
    /// A ring of `size` slots over `words`; holds at most `size - 1` entries. `size` is a power of
    /// two of at least 2, so that free-running indices wrap where slots do.
    pub fn new(words: W, size: u32) -> Result<Self, Error> {
        check_size(&words, size, N)?;
        Ok(Self { words, mask: size - 1, full: size - 1, tail: 0, committed: 0 })
    }

    /// Slots, one more than entries that it can hold.
    pub fn size(&self) -> u32 {
        self.mask + 1
    }

    /// Entries that still fit.
    #[inline]
    pub fn space(&self) -> u32 {
        self.full.wrapping_sub(self.tail)
    }

    /// First entry that the device has not taken.
    #[inline]
    fn head(&self) -> u32 {
        self.full.wrapping_sub(self.mask)
    }

    /// Writes an entry; the device sees it after [`publish`](Self::publish). False if the ring is
    /// full.
    #[inline]
    pub fn push(&mut self, entry: &[u64; N]) -> bool {
        if self.tail == self.full {
            return false;
        }
        let first = (self.tail & self.mask) as usize * N;
        // SAFETY: `new` has seen that the words of each slot are there.
        unsafe { self.words.store_entry_unchecked(first, entry) };
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Writes these words, each with its number, of the next entry, whether the ring is full or
    /// not: for who knows by other means that fewer than [`size`](Self::size) are unread. The
    /// entry's other words stay as they are: zero, where none of them was ever written.
    #[inline]
    pub fn place<const K: usize>(&mut self, words: [(usize, u64); K]) {
        let first = (self.tail & self.mask) as usize * N;
        // SAFETY: `new` has seen that the words of each slot are there.
        unsafe { self.words.store_some_unchecked::<N, K>(first, words) };
        self.tail = self.tail.wrapping_add(1);
    }

    /// Makes everything pushed or placed visible; returns the tail slot for the doorbell, or `None`
    /// if nothing was pushed since.
    #[inline]
    pub fn publish(&mut self) -> Option<u32> {
        if self.committed == self.tail {
            return None;
        }
        hand_over();
        self.committed = self.tail;
        Some(self.tail & self.mask)
    }

    /// Takes the device's word that it has read all entries before slot `head`. A slot that was
    /// never published is an error.
    #[inline]
    pub fn retire(&mut self, head: u32) -> Result<(), Error> {
        let step = head.wrapping_sub(self.head()) & self.mask;
        if head > self.mask || step > self.committed.wrapping_sub(self.head()) {
            return Err(stray_head(head, self.head() & self.mask, self.committed & self.mask));
        }
        self.full = self.full.wrapping_add(step);
        Ok(())
    }

    /// Takes all entries but the newest `kept` as read by the device: for who knows from
    /// completions how many may be unread.
    ///
    /// A device reads its commands in order, so that the end of one means that all before it were
    /// read.
    #[inline]
    pub fn retire_all_but(&mut self, kept: u32) {
        let read = self.tail.wrapping_sub(self.head()).saturating_sub(kept);
        self.full = self.full.wrapping_add(read.min(self.committed.wrapping_sub(self.head())));
    }

    /// Empties the ring after a reset of the device, which starts again at slot 0.
    pub fn reset(&mut self) {
        (self.full, self.tail, self.committed) = (self.mask, 0, 0);
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

#[cold]
fn stray_head(head: u32, from: u32, to: u32) -> Error {
    Error::Protocol(format!(
        "submission head {head} is outside of what was published ({from} to {to})"
    ))
}

fn check_size(words: &impl Words, size: u32, entry: usize) -> Result<(), Error> {
    if !size.is_power_of_two() || size < 2 || words.count() < size as usize * entry {
        return Err(Error::Invalid(format!(
            "a ring of {size} entries of {entry} words in {} words",
            words.count()
        )));
    }
    Ok(())
}

/// A ring whose entries of `N` words the device writes, each with a phase bit that flips at every
/// lap, as an NVMe completion queue.
///
/// Word `WORD` of an entry holds it at bit `BIT`.
pub struct CompletionRing<W, const N: usize, const WORD: usize, const BIT: u32> {
    words: W,
    size: u32,
    /// Next entry to look at, free-running; its lap says which phase is new.
    head: u32,
    /// What the doorbell last said.
    committed: u32,
}

impl<W: Words, const N: usize, const WORD: usize, const BIT: u32> CompletionRing<W, N, WORD, BIT> {
    /// A ring of `size` slots (a power of two of at least 2) over zeroed `words`.
    pub fn new(words: W, size: u32) -> Result<Self, Error> {
        const { assert!(WORD < N && BIT < u64::BITS, "the phase bit lies within an entry") };
        check_size(&words, size, N)?;
        Ok(Self { words, size, head: 0, committed: 0 })
    }

    /// Slots.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whether [`pop`](Self::pop) would return an entry: one load, no fence, for polling.
    #[inline]
    pub fn ready(&self) -> bool {
        self.is_new(self.head, self.load(self.head, WORD))
    }

    /// Word `word` of entry `index`.
    #[inline]
    fn load(&self, index: u32, word: usize) -> u64 {
        // SAFETY: `new` has seen that the words of each slot are there.
        unsafe { self.words.load_unchecked((index & (self.size - 1)) as usize * N + word % N) }
    }

    /// Whether the word with the phase bit of entry `index` belongs to its lap: the first lap
    /// writes ones over zeroed memory, the second zeros, and so on.
    #[inline]
    fn is_new(&self, index: u32, word: u64) -> bool {
        (word >> BIT & 1 == 1) == (index & self.size == 0)
    }

    /// Takes the next entry that the device has written, or `None`.
    #[inline]
    pub fn pop(&mut self) -> Option<[u64; N]> {
        let announcer = self.load(self.head, WORD);
        if !self.is_new(self.head, announcer) {
            return None;
        }
        take_back();
        // The word that announced the entry is not read twice: what was checked is what is
        // returned.
        let entry =
            std::array::from_fn(|i| if i == WORD { announcer } else { self.load(self.head, i) });
        self.head = self.head.wrapping_add(1);
        Some(entry)
    }

    /// Takes entries for as long as they are new, their word with the phase bit is `value` where
    /// `mask` is set, and `take` takes them by that word, the only one that is read. Returns how
    /// many: one for each of `places` at most, and none from behind the end of the ring, where the
    /// phase changes. `mask` does not cover the phase: both are compared at once.
    #[inline(always)]
    pub fn pop_into<T>(
        &mut self,
        places: &mut [T],
        mask: u64,
        value: u64,
        mut take: impl FnMut(u64, &mut T) -> bool,
    ) -> usize {
        let (expected, slot) = (value | self.new_phase(), (self.head & (self.size - 1)) as usize);
        let run = places.len().min(self.size as usize - slot);
        let accept = |word: u64, place: &mut T| {
            if word & (mask | 1 << BIT) != expected {
                return false;
            }
            take_back();
            take(word, place)
        };
        // SAFETY: `new` has seen that the words of each slot are there.
        let taken =
            unsafe { self.words.take_unchecked(slot * N + WORD, N, &mut places[..run], accept) };
        self.head = self.head.wrapping_add(taken as u32);
        taken
    }

    /// The phase bit of an entry that is new.
    #[inline]
    fn new_phase(&self) -> u64 {
        u64::from(self.head & self.size == 0) << BIT
    }

    /// Entries taken that [`publish`](Self::publish) has not told the device of.
    #[inline]
    pub fn unpublished(&self) -> u32 {
        self.head.wrapping_sub(self.committed)
    }

    /// The head slot for the doorbell, or `None` if nothing was taken since the last call.
    #[inline]
    pub fn publish(&mut self) -> Option<u32> {
        if self.committed == self.head {
            return None;
        }
        hand_over();
        self.committed = self.head;
        Some(self.head & (self.size - 1))
    }

    /// Empties the ring after a reset of the device: zeroes the words, so that no entry of an
    /// earlier life counts.
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

    /// Gives the memory underneath up for good: the device may still reach it.
    pub fn abandon(&mut self) {
        self.words.abandon();
    }
}

mod descriptors;
mod packed;
mod shared;
mod split;
mod state;
mod words;

pub use descriptors::DescriptorRing;
pub use packed::PackedRing;
pub use shared::{Consumer, Producer, shared_words};
pub use split::SplitRing;
pub use state::{CompletionState, DescriptorState, PackedState, SplitState, SubmissionState};
pub use words::{HalfWords, Words};

#[cfg(all(test, loom))]
mod loom_model;
#[cfg(all(test, not(loom)))]
mod tests;
