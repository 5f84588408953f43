//! Doorbells as plain memory, as a mapped BAR is for who rings them: a benchmark counts the store,
//! and not this model of it.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// What is in a word that was not written. No doorbell is rung with it: it is beyond the end of
/// every ring.
const NOTHING: u32 = u32::MAX;

/// Two words, so that the first is aligned as a BAR is.
#[repr(align(8))]
struct Pair([AtomicU32; 2]);

/// The words of one BAR. Writes to one of them between two [looks](Self::take) are one write, of
/// the last value.
pub(super) struct Doorbells {
    bar: u8,
    pairs: Box<[Pair]>,
}

impl Doorbells {
    /// For BAR `bar` of `len` bytes.
    pub(super) fn new(bar: u8, len: u64) -> Self {
        Self {
            bar,
            pairs: (0..len / 8).map(|_| Pair([const { AtomicU32::new(NOTHING) }; 2])).collect(),
        }
    }

    /// Where they are, aligned to 8 bytes, and how many bytes.
    pub(super) fn window(&self) -> (NonNull<u8>, u64) {
        (NonNull::from(&*self.pairs).cast(), self.pairs.len() as u64 * 8)
    }

    /// Hands what was written since the last look to `write`: BAR, offset and value, the lowest
    /// offset first. Of a word of which 16 bits were written, the others are ones.
    pub(super) fn take(&self, mut write: impl FnMut(u8, u64, u32)) {
        for (index, word) in self.pairs.iter().flat_map(|pair| &pair.0).enumerate() {
            let value = word.swap(NOTHING, Ordering::Acquire);
            if value != NOTHING {
                write(self.bar, index as u64 * 4, value);
            }
        }
    }
}
