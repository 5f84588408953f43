//! What a drive's volatile write cache may have lost.
//!
//! # Why the link is watched
//! A drive whose power fails for a moment comes back empty, with the same serial number and nothing to say: the next flush succeeds. All
//! that a host can see is that the link was lost although the host did not reset it. Cables do that, too; but unknown means lost. So a link
//! that was lost while there were writes since the last good flush is the end of the disk, see `recovery.rs`. To fail one flush would
//! not do: a disk has several users, and the others' flush would succeed.

/// What is known of the writes of one drive. A drive without a volatile cache has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Cache {
    /// Writes have ended since the last flush that ended well.
    written: bool,
    /// Of these, some may be lost.
    lost: bool,
    /// The link goes and comes back because it was reset.
    resetting: bool,
}

impl Cache {
    /// A write has ended that need not be on the medium.
    #[inline]
    pub(super) fn wrote(&mut self) {
        self.written = true;
    }

    /// All writes are on the medium. Not said of a flush that failed.
    pub(super) fn flushed(&mut self) {
        self.written = false;
    }

    /// Whether it holds nothing that is not on the medium.
    #[inline]
    pub(super) fn is_clean(&self) -> bool {
        !self.written
    }

    /// The link is about to be reset, which costs the drive nothing of its cache.
    pub(super) fn expect_link_loss(&mut self) {
        self.resetting = true;
    }

    /// The reset is over: from now on a link that is lost is lost.
    pub(super) fn expect_link(&mut self) {
        self.resetting = false;
    }

    /// The link was lost, or a drive was plugged in.
    pub(super) fn lose_link(&mut self) {
        if !self.resetting {
            self.lose();
        }
    }

    /// Nobody knows what the drive still has.
    pub(super) fn lose(&mut self) {
        self.lost |= self.written;
    }

    /// Whether writes that ended well may be lost.
    pub(super) fn has_lost(&self) -> bool {
        self.lost
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
    fn a_link_that_is_lost_with_something_written_loses_it() {
        let mut cache = written();
        cache.lose_link();
        assert!(cache.has_lost());
        // A flush of what came later does not bring it back.
        cache.flushed();
        assert!(cache.has_lost());
    }

    #[test]
    fn a_link_that_is_lost_behind_a_flush_loses_nothing() {
        let mut cache = written();
        cache.flushed();
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
}
