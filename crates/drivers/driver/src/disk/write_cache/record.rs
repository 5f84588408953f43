//! What a disk's cache may hold, in words that outlive the driver.
//!
//! # Shape
//! The [kept words](PersistentWords) of a device begin with what the holder's fence has found, and
//! go on with a record for each disk: whose it is, the numbers of its
//! [`WriteCache`](super::WriteCache), and how often the device had lost its power when it was asked
//! last. Numbers only grow, so that two threads that write them at the same time leave the greater
//! one, whichever comes last.
//!
//! # Trust
//! A driver that ran wild, or its device, may have written anything. A record that cannot be is one
//! of a disk that has lost what was written.

use ring3_device::dma::PersistentWords;

/// Words before the first record.
const HEADER: usize = 8;
/// Words of a record.
const WORDS: usize = 8;
/// Records: a device with more disks than this has the rest of them without one.
const RECORDS: usize = (PersistentWords::WORDS - HEADER) / WORDS;
/// No disk has flushed or lost so often.
const LIMIT: u64 = 1 << 62;

const KEY: usize = 0;
const COVERING: usize = 1;
const FLUSHED: usize = 2;
const LOSSES: usize = 3;
const TOLD: usize = 4;
const POWER: [usize; 2] = [5, 6];

/// How often a device says that it has lost its power: two counters of its own, of which the first
/// is not 0 in a device that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct PowerCount(pub(crate) [u64; 2]);

impl PowerCount {
    /// Of a device that does not count.
    pub(crate) const UNKNOWN: Self = Self([0; 2]);

    /// Whether the device counts.
    pub(crate) fn is_known(self) -> bool {
        self.0[0] != 0
    }

    /// Whether the power was lost before the device said `now`. Where it does not count, unknown
    /// means lost, unless it was seen to run on (`undisturbed`).
    pub(crate) fn was_lost(self, now: Self, undisturbed: bool) -> bool {
        if self.is_known() && now.is_known() { self != now } else { !undisturbed }
    }
}

/// A disk's words.
#[derive(Clone)]
pub(crate) struct Record {
    kept: PersistentWords,
    first: usize,
}

/// What a driver has left in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedCacheState {
    pub(super) covering: u64,
    pub(super) flushed: u64,
    pub(super) losses: u64,
    pub(super) told: u64,
}

impl SavedCacheState {
    /// Flushes that were begun for certain: the one that is to cover the last write was perhaps
    /// not.
    pub(super) fn begun(&self) -> u64 {
        self.covering.saturating_sub(1).max(self.flushed)
    }
}

impl Record {
    /// The record of the disk `part` of the device that is called `serial`; `None` if none is free.
    pub(crate) fn find(kept: Option<PersistentWords>, serial: &str, part: u32) -> Option<Self> {
        let (kept, key) = (kept?, key(serial, part));
        let first = |index: usize| HEADER + index * WORDS;
        let place = (0..RECORDS).map(first).find(|&at| [0, key].contains(&kept.load(at + KEY)))?;
        kept.store(place + KEY, key);
        Some(Self { kept, first: place })
    }

    /// What was left there; `None` if that cannot be.
    pub(super) fn left(&self) -> Option<SavedCacheState> {
        let load = |word| self.kept.load(self.first + word);
        let left = SavedCacheState {
            covering: load(COVERING),
            flushed: load(FLUSHED),
            losses: load(LOSSES),
            told: load(TOLD),
        };
        let fits = [left.covering, left.flushed, left.losses].iter().all(|&number| number < LIMIT)
            && left.told <= left.losses;
        fits.then_some(left)
    }

    pub(super) fn set(&self, left: SavedCacheState) {
        let SavedCacheState { covering, flushed, losses, told } = left;
        // Losses first: a driver that dies in between leaves one that was told more often than need
        // be.
        let words = [(LOSSES, losses), (TOLD, told), (COVERING, covering), (FLUSHED, flushed)];
        words.into_iter().for_each(|(word, value)| self.kept.store(self.first + word, value));
    }

    pub(super) fn set_covering(&self, flush: u64) {
        self.kept.raise(self.first + COVERING, flush);
    }

    pub(super) fn flush(&self, flush: u64) {
        self.kept.raise(self.first + FLUSHED, flush);
    }

    pub(super) fn mark_lost(&self, losses: u64) {
        self.kept.raise(self.first + LOSSES, losses);
    }

    pub(super) fn mark_reported(&self, losses: u64) {
        self.kept.raise(self.first + TOLD, losses);
    }

    /// What the device said last.
    pub(crate) fn power(&self) -> PowerCount {
        PowerCount(POWER.map(|word| self.kept.load(self.first + word)))
    }

    pub(super) fn set_power(&self, now: PowerCount) {
        POWER
            .into_iter()
            .zip(now.0)
            .for_each(|(word, count)| self.kept.store(self.first + word, count));
    }
}

/// What a disk's record begins with: never 0.
fn key(serial: &str, part: u32) -> u64 {
    // FNV-1a, whose offset and prime these are. Two disks of one device that have the same would
    // share a record, and each other's losses.
    let bytes = serial.bytes().chain(part.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    }) | 1
}

#[cfg(test)]
pub(super) mod tests {
    use ring3_device::dma::{Arena, Region};

    use super::*;

    pub(crate) fn kept() -> PersistentWords {
        Arena::with_persistent_words(Region::new(1 << 16).unwrap(), 0x10_0000)
            .persistent_words()
            .unwrap()
    }

    #[test]
    fn each_disk_finds_its_own_record_again() {
        let kept = kept();
        let find = |part| Record::find(Some(kept.clone()), "serial", part).unwrap();
        find(1).set_covering(5);
        find(2).set_covering(6);
        assert_eq!([1, 2, 3].map(|part| find(part).left().unwrap().covering), [5, 6, 0]);
    }

    #[test]
    fn a_disk_beyond_the_last_record_has_none() {
        let kept = kept();
        let found =
            (0..100).filter(|&part| Record::find(Some(kept.clone()), "serial", part).is_some());
        assert_eq!((found.count(), Record::find(None, "serial", 0).is_none()), (RECORDS, true));
    }

    #[test]
    fn a_record_that_cannot_be_is_none() {
        let kept = kept();
        let record = Record::find(Some(kept.clone()), "serial", 1).unwrap();
        for (word, value) in [(COVERING, u64::MAX), (FLUSHED, LIMIT), (LOSSES, LIMIT), (TOLD, 1)] {
            kept.store(record.first + word, value);
            assert_eq!(record.left(), None, "{word}");
            kept.store(record.first + word, 0);
        }
        assert_eq!(record.left(), Some(SavedCacheState::default()));
    }

    #[test]
    fn a_device_that_counts_its_losses_of_power_is_believed_and_another_one_only_if_it_was_seen_to_run()
     {
        let count = |cycles| PowerCount([cycles, 3]);
        assert!(!count(4).was_lost(count(4), false) && count(4).was_lost(count(5), true));
        for (before, now) in [
            (PowerCount::UNKNOWN, count(4)),
            (count(4), PowerCount::UNKNOWN),
            (PowerCount::UNKNOWN, PowerCount::UNKNOWN),
        ] {
            assert!(before.was_lost(now, false) && !before.was_lost(now, true));
        }
    }
}
