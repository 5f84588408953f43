//! Checkpoint of the admin queue: how far it is, for the driver that [adopts](super::adopt) the
//! controller of a process that was killed.
//!
//! # Format
//! One 64-bit word in a buffer of the arena. The holder owns the arena, so the word outlives the
//! driver process. It is written by one store, so a kill never leaves it half written. Zero means
//! "do not adopt". It is zero while an admin command is in progress, and for good after a reset or
//! a shutdown. A word that is not zero means that only asynchronous event requests are outstanding.
//!
//! # Order
//! The word is written after the entry and before the doorbell, so it covers every command that was
//! rung. A command that it covers and that was not rung is an event request, which the next
//! doorbell rings. Completions that were taken are in the word before the device is told: an event
//! that is taken twice is reported twice, and none is lost.
//!
//! # Trust
//! The device, or a stray write of the dead process, may have changed the word. So its upper half
//! is a checksum of its lower half, and adoption [verifies](super::adopt) what it says before it
//! relies on it.

use ring3_device::Error;
use ring3_device::dma::{Arena, DmaBuffer, Span};
use ring3_device::ring::{CompletionState, SubmissionState, Words};

use super::admin::{ENTRIES, EVENT_IDS, MAX_EVENT_REQUESTS};

/// Bytes of it: a cache line of its own.
const BYTES: usize = 64;
/// The last entries before the tail. They count as occupied until an SQHD says otherwise; all
/// others are free.
const UNHEARD: u32 = ENTRIES / 2;

/// The word.
pub(super) struct Checkpoint {
    word: DmaBuffer,
    /// Whether the word is updated.
    enabled: bool,
}

/// How far the queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// The slot of the next command.
    pub(super) tail: u32,
    /// The next completion to look at, modulo two laps.
    pub(super) head: u32,
    /// The next command's id.
    pub(super) next_id: u16,
    /// Event requests with the device, one bit each.
    pub(super) armed: u16,
}

impl Checkpoint {
    /// One that says nothing, before [`open`](Self::open).
    pub(super) fn new(arena: &Arena) -> Result<Self, Error> {
        Ok(Self::over(arena.alloc(BYTES, BYTES)?.tagged("nvme admin checkpoint")))
    }

    /// The same in memory that another process has left.
    pub(super) fn over(word: DmaBuffer) -> Self {
        let checkpoint = Self { word, enabled: false };
        checkpoint.erase();
        checkpoint
    }

    pub(super) fn span(&self) -> Span {
        self.word.span()
    }

    /// Releases its memory to the next process; it stays allocated.
    pub(super) fn release_to_successor(&mut self) {
        self.close();
        self.word.release_to_successor();
    }

    /// Gives the memory up, as the queue's own is.
    pub(super) fn abandon(&mut self) {
        self.word.abandon();
    }

    /// Keeps the word from now on.
    pub(super) fn open(&mut self, progress: Progress) {
        self.enabled = true;
        self.store(progress);
    }

    /// Never says anything again.
    pub(super) fn close(&mut self) {
        self.enabled = false;
        self.erase();
    }

    /// The queue is so.
    pub(super) fn store(&self, progress: Progress) {
        if self.enabled {
            self.word.store(0, progress.encode());
        }
    }

    /// The queue is busy, or nobody knows.
    pub(super) fn erase(&self) {
        self.word.store(0, 0);
    }

    /// What `word` says, if anything.
    pub(super) fn read(word: &DmaBuffer) -> Option<Progress> {
        Progress::decode(word.load(0))
    }
}

impl Progress {
    fn encode(self) -> u64 {
        let Self { tail, head, next_id, armed } = self;
        let low = u32::from(next_id) << 16
            | u32::from(armed & 0xf) << 12
            | (tail % ENTRIES) << 6
            | (head % (2 * ENTRIES));
        u64::from(checksum(low)) << 32 | u64::from(low)
    }

    fn decode(word: u64) -> Option<Self> {
        let low = word as u32;
        let (tail, head) = (low >> 6 & 0x3f, low & 0x3f);
        let (next_id, armed) = ((low >> 16) as u16, (low >> 12 & 0xf) as u16);
        let fits = (word >> 32) as u32 == checksum(low) && tail < ENTRIES && next_id < EVENT_IDS;
        fits.then_some(Self { tail, head, next_id, armed })
    }

    /// The rings of a queue that is so far.
    pub(super) fn rings(self) -> (SubmissionState, CompletionState) {
        let (size, tail, head) = (ENTRIES, ENTRIES + self.tail, self.head);
        (
            SubmissionState { size, head: tail - UNHEARD, tail, committed: tail },
            CompletionState { size, head, committed: head },
        )
    }
}

/// The checksum in the upper half of a word with the lower half `low`. A word of all zeroes or all
/// ones does not match.
fn checksum(low: u32) -> u32 {
    !low.wrapping_mul(0x9e37_79b1).rotate_left(15)
}

const _: () = assert!(
    2 * ENTRIES <= 1 << 6 && MAX_EVENT_REQUESTS <= 4 && UNHEARD > MAX_EVENT_REQUESTS as u32 + 1
);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_and_a_flipped_bit_is_nothing(tail in 0..ENTRIES, head in 0..2 * ENTRIES, next_id in 0..EVENT_IDS, armed in 0u16..16, bit in 0u32..64) {
            let progress = Progress { tail, head, next_id, armed };
            let word = progress.encode();
            prop_assert_eq!(Progress::decode(word), Some(progress));
            prop_assert_eq!(Progress::decode(word ^ 1u64 << bit), None);
        }

        #[test]
        fn words_that_nobody_has_written_are_nothing(word: u64) {
            prop_assert!(Progress::decode(word).is_none_or(|progress| progress.encode() == word));
        }
    }

    #[test]
    fn memory_that_nobody_has_written_or_that_is_gone_says_nothing() {
        assert_eq!([0, u64::MAX].map(Progress::decode), [None, None]);
    }
}
