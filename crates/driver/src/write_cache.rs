//! Writes that sit in a disk's volatile cache, and whether they may have been lost.
//!
//! A controller that was reset without this driver's doing may have lost its power, and with it writes that it had reported as done. No
//! register tells a loss of power from a reset of the function, so both count as one. Whoever wrote must hear of it: the next flush fails,
//! once, and with it every flush that was under way at the time.
//!
//! # Ordering
//! A write that ends while another thread finds the reset is seen by one of the two: this thread stores `covering`, then loads
//! when the last loss was; the other stores the latter, then loads `covering`. All of that is sequentially consistent; a write pays for a
//! store only if it is the first since the last flush.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use ring3_class::block::{IoError, Operation, Request};
use serde::{Deserialize, Serialize};

/// What the queues of a disk with a volatile cache share. Flushes are numbered from 1 on, in the order in which they begin.
#[derive(Default)]
pub(crate) struct WriteCache {
    /// Flushes that were begun.
    begun: AtomicU64,
    /// The first flush that covers all writes that have ended.
    covering: AtomicU64,
    /// The latest flush that the device has done.
    flushed: AtomicU64,
    /// Writes were lost, and nobody was told yet.
    lost: AtomicBool,
    /// Flushes up to this one fail, because writes that they should have covered are lost.
    failed: AtomicU64,
}

impl WriteCache {
    /// A flush is about to be handed to the device; returns its number.
    pub(crate) fn begin_flush(&self) -> u64 {
        self.begun.fetch_add(1, SeqCst) + 1
    }

    /// Whether there was a flush of that number: the end of one that was never begun would hide every later loss.
    pub(crate) fn has_begun(&self, number: u64) -> bool {
        (1..=self.begun.load(SeqCst)).contains(&number)
    }

    /// The device has done `request`, which is flush number `flush` if it is one; `lost_since` says whether the cache was lost since that was handed to it.
    pub(crate) fn complete(&self, request: &Request, flush: u64, lost_since: impl FnOnce() -> bool) -> Result<(), IoError> {
        match request.operation {
            Operation::Flush => return self.end_flush(flush),
            _ if Self::holds(request) => self.wrote(lost_since),
            _ => {}
        }
        Ok(())
    }

    /// Whether it may hold what `request` has written.
    pub(crate) fn holds(request: &Request) -> bool {
        matches!(request.operation, Operation::Write | Operation::WriteZeroes) && !request.fua
    }

    /// It may hold what the device has written; `lost_since` says whether it was lost since that was handed over.
    pub(crate) fn wrote(&self, lost_since: impl FnOnce() -> bool) {
        let next = self.begun.load(SeqCst) + 1;
        if self.covering.load(SeqCst) < next {
            self.covering.fetch_max(next, SeqCst);
        }
        if lost_since() {
            self.lose();
        }
    }

    /// What the cache held is lost; true if that were writes that no flush had covered.
    pub(crate) fn lose(&self) -> bool {
        let lost = self.covering.load(SeqCst) > self.flushed.load(SeqCst);
        if lost {
            self.lost.store(true, SeqCst);
        }
        lost
    }

    fn end_flush(&self, number: u64) -> Result<(), IoError> {
        if self.lost.swap(false, SeqCst) {
            // None of those that are under way may say that all is well.
            self.failed.fetch_max(self.begun.load(SeqCst), SeqCst);
        }
        self.flushed.fetch_max(number, SeqCst);
        if number <= self.failed.load(SeqCst) { Err(IoError::Transport) } else { Ok(()) }
    }
}

/// A [`WriteCache`] as it is written down. Fields are only ever added, each with a default.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedCache {
    begun: u64,
    covering: u64,
    flushed: u64,
    lost: bool,
    failed: u64,
}

impl SavedCache {
    pub(crate) fn of(cache: &WriteCache) -> Self {
        Self {
            begun: cache.begun.load(SeqCst),
            covering: cache.covering.load(SeqCst),
            flushed: cache.flushed.load(SeqCst),
            lost: cache.lost.load(SeqCst),
            failed: cache.failed.load(SeqCst),
        }
    }

    /// Whether a cache can be so. Flushes are numbered, and a state in which a number comes before its flush, or which has no room for more of them, would have
    /// a loss go untold.
    pub(crate) fn is_possible(&self) -> bool {
        let Self { begun, covering, flushed, failed, .. } = *self;
        begun < u64::MAX / 2 && flushed <= begun && failed <= begun && covering <= begun + 1
    }

    /// The cache of a [possible](Self::is_possible) state.
    pub(crate) fn resume(&self) -> WriteCache {
        WriteCache {
            begun: AtomicU64::new(self.begun),
            covering: AtomicU64::new(self.covering),
            flushed: AtomicU64::new(self.flushed),
            lost: AtomicBool::new(self.lost),
            failed: AtomicU64::new(self.failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_ends_during_a_flush_is_not_covered_by_it() {
        let cache = WriteCache::default();
        cache.wrote(|| false);
        let flush = cache.begin_flush();
        cache.wrote(|| false);
        assert_eq!((cache.end_flush(flush), cache.lose()), (Ok(()), true));
    }

    #[test]
    fn a_loss_is_told_once_and_to_all_flushes_under_way() {
        let cache = WriteCache::default();
        cache.wrote(|| false);
        let flushes = [cache.begin_flush(), cache.begin_flush()];
        assert!(cache.lose());
        assert_eq!(flushes.map(|flush| cache.end_flush(flush)), [Err(IoError::Transport); 2]);
        let next = cache.begin_flush();
        assert_eq!(cache.end_flush(next), Ok(()));
    }

    #[test]
    fn nothing_is_lost_where_nothing_was_written_since_the_last_flush() {
        let cache = WriteCache::default();
        assert!(!cache.lose());
        cache.wrote(|| false);
        let flush = cache.begin_flush();
        assert_eq!((cache.end_flush(flush), cache.lose()), (Ok(()), false));
    }
}
