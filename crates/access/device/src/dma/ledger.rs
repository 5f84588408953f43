//! Which ranges of a region are free, which are taken, and by whom.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use super::extents::Extents;
use super::saved::SavedRange;

/// The ranges of one region, in offsets from its start; each is free, or taken by its length.
#[derive(Debug)]
pub(super) struct RangeAllocator {
    /// What is given out at all.
    pub(super) usable: Range<u64>,
    free: Extents,
    taken: BTreeMap<u64, Taken>,
    /// Ranges that were ever taken.
    count: u64,
}

#[derive(Debug)]
struct Taken {
    len: u64,
    /// Never the same for two that were carved, though they have the same place.
    number: u64,
    tag: Cow<'static, str>,
    holder: Holder,
}

/// Who has a range that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// Whoever will claim it.
    Nobody,
    /// A buffer that gives it back to nobody, because its owner may not come to be.
    Trial,
    /// A buffer of this process.
    Buffer,
}

impl RangeAllocator {
    /// All of `usable` is free.
    pub(super) fn new(usable: Range<u64>) -> Self {
        let free = Extents::new(usable.start, usable.end.saturating_sub(usable.start));
        Self { usable, free, taken: BTreeMap::new(), count: 0 }
    }

    /// Takes `len` bytes for a buffer whose device address is a multiple of `align`, a power of
    /// two; the region begins at `iova`.
    pub(super) fn carve(&mut self, len: u64, align: u64, iova: u64) -> Option<u64> {
        let at = self.free.carve(len, align, iova)?;
        self.count += 1;
        self.taken.insert(
            at,
            Taken { len, number: self.count, tag: Cow::Borrowed(""), holder: Holder::Buffer },
        );
        Some(at)
    }

    /// Makes free what a buffer had at `at`. What it had on trial is to be claimed again, and what
    /// was left stays.
    pub(super) fn give_back(&mut self, at: u64) {
        match self.taken.get_mut(&at) {
            Some(taken) if taken.holder != Holder::Buffer => taken.holder = Holder::Nobody,
            Some(taken) => {
                self.free.give_back(at, taken.len);
                self.taken.remove(&at);
            }
            None => {}
        }
    }

    /// The range that `at` lies in has no holder until it is claimed; it stays allocated.
    pub(super) fn release_to_successor(&mut self, at: u64) {
        if let Some((_, taken)) = self
            .taken
            .range_mut(..=at)
            .next_back()
            .filter(|(start, taken)| at - **start < taken.len)
        {
            taken.holder = Holder::Nobody;
        }
    }

    /// The buffer that has claimed `at` on trial, if there still is one, keeps it.
    pub(super) fn commit(&mut self, at: u64) {
        if let Some(taken) = self.taken.get_mut(&at).filter(|taken| taken.holder == Holder::Trial) {
            taken.holder = Holder::Buffer;
        }
    }

    pub(super) fn tag(&mut self, at: u64, tag: &'static str) {
        if let Some(taken) = self.taken.get_mut(&at) {
            taken.tag = Cow::Borrowed(tag);
        }
    }

    /// Bytes that are free.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.total()
    }

    /// Where each range that is taken starts, its bytes, and its number, in ascending order.
    pub(super) fn taken(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.taken.iter().map(|(&offset, taken)| (offset, taken.len, taken.number))
    }

    /// What is taken, in ascending order, with what for.
    pub(super) fn saved(&self) -> Vec<SavedRange> {
        let range = |(&offset, taken): (&u64, &Taken)| SavedRange {
            offset,
            len: taken.len,
            tag: taken.tag.to_string(),
        };
        self.taken.iter().map(range).collect()
    }

    /// Takes what somebody has saved, for nobody yet; false unless it was free.
    pub(super) fn restore(&mut self, range: &SavedRange) -> bool {
        let free = self.free.take(range.offset, range.len);
        if free {
            let (len, tag) = (range.len, Cow::Owned(range.tag.clone()));
            self.taken.insert(range.offset, Taken { len, number: 0, tag, holder: Holder::Nobody });
        }
        free
    }

    /// What nobody has claimed: offset, length and tag.
    pub(super) fn unclaimed(&self) -> impl Iterator<Item = (u64, u64, &str)> {
        self.taken
            .iter()
            .filter(|(_, taken)| taken.holder == Holder::Nobody)
            .map(|(&at, taken)| (at, taken.len, &*taken.tag))
    }

    /// Gives the range at `at` to a buffer, on trial at first; false unless it has that length and
    /// nobody has claimed it.
    pub(super) fn claim(&mut self, at: u64, len: u64) -> bool {
        let found = self
            .taken
            .get_mut(&at)
            .filter(|taken| taken.len == len && taken.holder == Holder::Nobody);
        found.map(|taken| taken.holder = Holder::Trial).is_some()
    }

    /// Makes free what nobody has claimed.
    pub(super) fn release(&mut self) {
        let free = &mut self.free;
        self.taken.retain(|&at, taken| {
            let left = taken.holder == Holder::Nobody;
            if left {
                free.give_back(at, taken.len);
            }
            !left
        });
    }

    /// In how many ranges it is free.
    #[cfg(test)]
    pub(super) fn free_ranges(&self) -> usize {
        self.free.count()
    }
}
