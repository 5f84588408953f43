//! What a drive's volatile write cache may have lost. What follows from a loss is
//! `disk/write_cache/mod.rs`.
//!
//! # How a loss is seen
//! A drive whose power fails for a moment comes back empty, with the same serial number, and the
//! next flush succeeds. Where it counts how often it was powered on (`statistics.rs`), it is asked
//! after each reset, and the count decides. Else all that a host can see at a SATA port is that the
//! link was lost although the host did not reset it. Cables do that, too; but unknown means lost.
//! On a parallel cable there is no link: there a drive has lost the transfer mode that it was set
//! to.

use std::sync::Arc;

use ring3_class::block::IoError;
use serde::{Deserialize, Serialize};

use crate::disk::write_cache::{Listener, PowerCount, Record, SavedCache, WriteCache};

/// What is known of the writes of one drive, and what the queues of that were told of it: one after
/// the other, they are one.
#[derive(Clone)]
pub(in crate::ata) struct Cache {
    cache: Arc<WriteCache>,
    listener: Listener,
    /// The link goes and comes back because it was reset.
    resetting: bool,
    /// How often the drive was powered on, as it said when it was last asked.
    power: PowerCount,
    /// The power of a drive that counts may have been gone since then.
    disturbed: bool,
}

impl Cache {
    /// Of a drive that says that it was powered on as often as `power`.
    pub(in crate::ata) fn new(cache: WriteCache, power: PowerCount) -> Self {
        Self {
            listener: cache.listen(),
            cache: Arc::new(cache),
            resetting: false,
            power,
            disturbed: false,
        }
    }

    /// A write has ended that need not be on the medium.
    #[inline]
    pub(in crate::ata) fn wrote(&mut self) {
        self.cache.wrote(|| false);
    }

    /// The drive has flushed, and nothing was written meanwhile. Fails if it did not have all that
    /// was written.
    pub(in crate::ata) fn flushed(&mut self) -> Result<(), IoError> {
        let number = self.cache.begin_flush();
        self.cache.end_flush(&mut self.listener, number)
    }

    /// Whether it holds nothing that is not on the medium.
    #[inline]
    pub(in crate::ata) fn is_clean(&self) -> bool {
        !self.cache.is_dirty()
    }

    /// The link is about to be reset, which costs the drive nothing of its cache.
    pub(in crate::ata) fn expect_link_loss(&mut self) {
        self.resetting = true;
    }

    /// The reset is over: from now on a link that is lost is lost.
    pub(in crate::ata) fn expect_link(&mut self) {
        self.resetting = false;
    }

    /// The link was lost, or a drive was plugged in.
    pub(in crate::ata) fn lose_link(&mut self) {
        if !self.resetting {
            self.disturb();
        }
    }

    /// The drive's power may have been gone: its count decides, if it has one.
    pub(in crate::ata) fn disturb(&mut self) {
        if self.counts_power() {
            self.disturbed = true;
        } else {
            self.mark_lost();
        }
    }

    /// Whether the drive says how often it was powered on.
    pub(in crate::ata) fn counts_power(&self) -> bool {
        self.power.is_known()
    }

    /// Whether the drive must be asked before it may flush.
    #[inline]
    pub(in crate::ata) fn is_disturbed(&self) -> bool {
        self.disturbed
    }

    /// The same, before it is asked: what comes meanwhile is another disturbance.
    pub(in crate::ata) fn take_disturbance(&mut self) -> bool {
        std::mem::take(&mut self.disturbed)
    }

    /// The drive says that it was powered on as often as `now`; where it does not, `undisturbed`
    /// says that its power was there. Returns whether that has cost something written.
    pub(in crate::ata) fn compare(&mut self, now: PowerCount, undisturbed: bool) -> bool {
        // Of a link that was lost while it was asked nobody knows which came first.
        let is_lost = self.power.was_lost(now, undisturbed) | self.take_disturbance();
        // First, so that a driver that dies in between does not take the loss with it.
        let has_cost = is_lost && self.cache.mark_lost();
        self.power = now;
        self.cache.set_power(now);
        has_cost
    }

    /// Nobody knows what the drive still has.
    pub(in crate::ata) fn mark_lost(&mut self) {
        self.cache.mark_lost();
    }

    /// Whether writes that ended well may be lost, and no flush has said so yet.
    pub(in crate::ata) fn has_lost(&self) -> bool {
        self.cache.has_unreported_loss(&self.listener)
    }
}

impl Default for Cache {
    /// Nothing was written.
    fn default() -> Self {
        Self::new(WriteCache::default(), PowerCount::UNKNOWN)
    }
}

/// A [`Cache`] as it is written down. Fields are only ever added, each with a default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::ata) struct SavedDriveCache {
    /// Writes have ended since the last flush that ended well.
    written: bool,
    /// Some may be lost, and no flush has said so.
    lost: bool,
    resetting: bool,
    #[serde(default)]
    power: PowerCount,
    #[serde(default)]
    disturbed: bool,
}

impl SavedDriveCache {
    pub(in crate::ata) fn of(cache: &Cache) -> Self {
        Self {
            written: !cache.is_clean(),
            lost: cache.has_lost(),
            resetting: cache.resetting,
            power: cache.power,
            disturbed: cache.disturbed,
        }
    }

    /// The cache with the `record` that it has.
    pub(in crate::ata) fn resume(self, record: Option<Record>) -> Cache {
        // The record is never older than what was saved.
        let power = record.as_ref().map_or(self.power, Record::power);
        let mut cache = Cache::new(SavedCache::default().resume(record), power);
        if self.written || self.lost {
            cache.wrote();
        }
        if self.lost && !cache.has_lost() {
            cache.mark_lost();
        }
        Cache { resetting: self.resetting, disturbed: self.disturbed, ..cache }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> Cache {
        let mut cache = Cache::default();
        cache.wrote();
        cache
    }

    #[test]
    fn a_link_that_is_lost_with_something_written_loses_it_and_one_flush_says_so() {
        let mut cache = written();
        cache.lose_link();
        assert!(cache.has_lost());
        assert_eq!((cache.flushed(), cache.flushed()), (Err(IoError::Transport), Ok(())));
        assert!(!cache.has_lost());
    }

    #[test]
    fn a_link_that_is_lost_behind_a_flush_loses_nothing() {
        let mut cache = written();
        cache.flushed().unwrap();
        cache.lose_link();
        assert!(!cache.has_lost() && cache.is_clean());
    }

    #[test]
    fn a_reset_of_the_link_loses_nothing_and_what_comes_after_it_does() {
        let mut cache = written();
        cache.expect_link_loss();
        cache.lose_link();
        assert!(!cache.has_lost());
        cache.expect_link();
        cache.lose_link();
        assert!(cache.has_lost());
    }

    /// The cache of a drive that was powered on `count` times, with something written.
    fn counting(count: u64) -> Cache {
        let mut cache = Cache::new(WriteCache::default(), PowerCount([count, 0]));
        cache.wrote();
        cache
    }

    #[test]
    fn a_count_decides_whether_a_lost_link_was_a_lost_power() {
        for (now, lost) in [(4, false), (5, true)] {
            let mut cache = counting(4);
            cache.lose_link();
            assert!(cache.is_disturbed() && !cache.has_lost());
            let undisturbed = !cache.take_disturbance();
            assert_eq!(cache.compare(PowerCount([now, 0]), undisturbed), lost);
            assert_eq!((cache.has_lost(), cache.is_disturbed()), (lost, false));
        }
    }

    #[test]
    fn a_drive_that_does_not_count_any_more_is_judged_by_its_link() {
        for disturbed in [false, true] {
            let mut cache = counting(4);
            assert_eq!(cache.compare(PowerCount::UNKNOWN, !disturbed), disturbed);
            assert!(!cache.counts_power());
            cache.lose_link();
            assert!(cache.has_lost());
        }
    }

    #[test]
    fn a_link_that_is_lost_while_the_drive_is_asked_is_a_loss() {
        let mut cache = counting(4);
        let undisturbed = !cache.take_disturbance();
        cache.lose_link();
        assert!(cache.compare(PowerCount([4, 0]), undisturbed) && !cache.is_disturbed());
    }

    #[test]
    fn what_is_saved_says_what_was_written_and_what_was_lost() {
        let mut lost = written();
        lost.mark_lost();
        let mut disturbed = counting(4);
        disturbed.lose_link();
        for cache in [Cache::default(), written(), lost, disturbed] {
            let saved = SavedDriveCache::of(&cache);
            assert_eq!(SavedDriveCache::of(&saved.resume(None)), saved);
        }
    }
}
