//! Persistent words: words of an arena that outlive the drivers of its device.
//!
//! # Shape
//! The last page of region 0 is never allocated. It is memory of the holder's, like the rest of the
//! arena, so a driver finds there what its predecessor has stored, however that one ended. Fresh
//! memory is zero.
//!
//! # Trust
//! A driver can write anything there, and so can a device that was given an address in this page:
//! readers must verify what they read.
//!
//! # Ordering
//! Each access is sequentially consistent, because users compare these words with atomics of their
//! own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::{Arena, Region, SavedArena};

/// The words.
#[derive(Clone)]
pub struct PersistentWords {
    region: Arc<Region>,
    /// Of word 0, from the region's start.
    base: usize,
}

impl PersistentWords {
    /// Bytes of all words.
    pub const BYTES: usize = 4096;
    /// How many there are.
    pub const WORDS: usize = Self::BYTES / size_of::<u64>();

    /// What word `index` is; 0 if there is none such.
    pub fn load(&self, index: usize) -> u64 {
        self.with(index, |word| word.load(SeqCst)).unwrap_or(0)
    }

    /// Word `index` is `value` from now on.
    pub fn store(&self, index: usize, value: u64) {
        self.with(index, |word| word.store(value, SeqCst));
    }

    /// Word `index` is at least `value` from now on.
    pub fn raise(&self, index: usize, value: u64) {
        self.with(index, |word| word.fetch_max(value, SeqCst));
    }

    fn with<T>(&self, index: usize, access: impl FnOnce(&AtomicU64) -> T) -> Option<T> {
        let offset = index.checked_mul(size_of::<u64>()).filter(|_| index < Self::WORDS)?;
        let word = self.region.at(self.base + offset, size_of::<u64>()).ok()?;
        // SAFETY: `at` proved the range, and `kept` that the first word is aligned. All access is
        // atomic.
        Some(access(unsafe { AtomicU64::from_ptr(word.cast()) }))
    }
}

impl Arena {
    /// As [`new`](Self::new), with [persistent words](Self::persistent_words) in the last page.
    pub fn with_persistent_words(region: impl Into<Arc<Region>>, iova: u64) -> Self {
        let region = region.into();
        let end = usable(region.len());
        let arena = Self::with_range(region, iova, 0, end);
        arena.keep();
        arena
    }

    /// The words that outlive the drivers of the device; `None` if buffers may lie there, as in the
    /// arena of an older driver without such words, or if the memory belongs to another process.
    pub fn persistent_words(&self) -> Option<PersistentWords> {
        let region = self.regions().next().filter(|_| self.has_persistent_words())?.region.clone();
        let base = region.len().checked_sub(PersistentWords::BYTES)?;
        let is_aligned = region.as_ptr().wrapping_add(base).cast::<AtomicU64>().is_aligned();
        let is_free = self.ledgers().first().is_some_and(|ledger| ledger.usable.end <= base as u64);
        (is_aligned && is_free).then_some(PersistentWords { region, base })
    }
}

impl SavedArena {
    /// The same with [persistent words](Arena::persistent_words) in the last page of region 0, of
    /// which nothing is allocated.
    pub fn with_persistent_words(mut self) -> Self {
        if let Some(first) = self.regions.first_mut() {
            first.end = first.end.min(usable(first.len as usize) as u64);
        }
        self.kept = true;
        self
    }
}

/// Bytes of a region of `len` bytes that are given out beside the words; all of one that is too
/// small for both.
fn usable(len: usize) -> usize {
    if len >= 4 * PersistentWords::BYTES { len - PersistentWords::BYTES } else { len }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Arc<Region> {
        Arc::new(Region::new(1 << 16).unwrap())
    }

    #[test]
    fn what_one_driver_keeps_the_next_one_reads_and_no_buffer_has() {
        let region = region();
        let arena = Arena::with_persistent_words(region.clone(), 0x10_0000);
        arena.persistent_words().unwrap().raise(3, 7);
        let rest = arena.alloc(arena.free_bytes(), 4096).unwrap();
        rest.fill(0xff);
        let saved = SavedArena::fresh([(0x10_0000, region.len() as u64)].into_iter())
            .with_persistent_words();
        let next = Arena::adopt(vec![region], &saved).unwrap().persistent_words().unwrap();
        next.raise(3, 5);
        assert_eq!((next.load(3), next.load(4)), (7, 0));
    }

    #[test]
    fn an_arena_that_gives_out_all_of_its_memory_keeps_no_words() {
        assert!(Arena::new(region(), 0x10_0000).persistent_words().is_none());
        assert!(
            Arena::with_persistent_words(Region::anonymous(4096).unwrap(), 0)
                .persistent_words()
                .is_none()
        );
    }

    #[test]
    fn there_is_no_word_behind_the_last() {
        let kept = Arena::with_persistent_words(region(), 0x10_0000).persistent_words().unwrap();
        kept.store(PersistentWords::WORDS, 1);
        assert_eq!((kept.load(PersistentWords::WORDS), kept.load(usize::MAX)), (0, 0));
    }
}
