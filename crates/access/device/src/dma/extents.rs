//! Free ranges of an address space: first fit, neighbours joined.

use std::collections::BTreeMap;

/// A set of free ranges, start to length, never adjacent and never empty.
#[derive(Debug, Default)]
pub(super) struct Extents {
    free: BTreeMap<u64, u64>,
}

impl Extents {
    /// One free range.
    pub(super) fn new(start: u64, len: u64) -> Self {
        let mut extents = Self::default();
        extents.give_back(start, len);
        extents
    }

    /// Takes `len` addresses, as low as there are, whose first is a multiple of `align`, a power of
    /// two, when `base` is added.
    pub(super) fn carve(&mut self, len: u64, align: u64, base: u64) -> Option<u64> {
        let (start, size, at) = self.free.iter().find_map(|(&start, &size)| {
            let at = base.checked_add(start)?.checked_next_multiple_of(align)? - base;
            (at.checked_add(len)? <= start + size).then_some((start, size, at))
        })?;
        self.cut(start, size, at, len);
        Some(at)
    }

    /// Takes `start..start + len`; false, and nothing is taken, unless all of it is free.
    pub(super) fn take(&mut self, start: u64, len: u64) -> bool {
        let Some((&at, &size)) = self.free.range(..=start).next_back() else { return false };
        let inside = len > 0 && start.checked_add(len).is_some_and(|end| end <= at + size);
        if inside {
            self.cut(at, size, start, len);
        }
        inside
    }

    /// Takes out whatever is free between `start` and `start + len`.
    pub(super) fn exclude(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        let hit: Vec<_> =
            self.free.range(..end).map(|(&s, &n)| (s, n)).filter(|&(s, n)| s + n > start).collect();
        for (s, n) in hit {
            let from = s.max(start);
            self.cut(s, n, from, end.min(s + n) - from);
        }
    }

    /// Takes `at..at + len` out of the free range `start..start + size`, which holds it.
    fn cut(&mut self, start: u64, size: u64, at: u64, len: u64) {
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if at + len < start + size {
            self.free.insert(at + len, start + size - at - len);
        }
    }

    /// Makes a range free that is not.
    pub(super) fn give_back(&mut self, mut start: u64, mut len: u64) {
        if len == 0 {
            return;
        }
        if let Some((&before, &size)) = self.free.range(..start).next_back()
            && before + size == start
        {
            self.free.remove(&before);
            (start, len) = (before, size + len);
        }
        if let Some(size) = self.free.remove(&(start + len)) {
            len += size;
        }
        self.free.insert(start, len);
    }

    /// How much is free, in all ranges together.
    pub(super) fn total(&self) -> u64 {
        self.free.values().sum()
    }

    /// In how many ranges.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_excluded_is_never_carved() {
        let mut extents = Extents::new(0, 100);
        extents.exclude(10, 80);
        assert_eq!(
            (extents.carve(20, 1, 0), extents.carve(10, 1, 0), extents.carve(10, 1, 0)),
            (None, Some(0), Some(90))
        );
    }

    #[test]
    fn excluding_what_was_never_free_changes_nothing() {
        let mut extents = Extents::new(1000, 10);
        extents.exclude(0, 1000);
        extents.exclude(1010, u64::MAX);
        assert_eq!(extents.total(), 10);
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_and_join_again(
            start in 0u64..1000, sizes in prop::collection::vec((1u64..50, 0u32..6), 1..60),
        ) {
            let mut extents = Extents::new(start, 1 << 10);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (i, &(len, align)) in sizes.iter().enumerate() {
                if let Some(at) = extents.carve(len, 1 << align, 0) {
                    prop_assert!(
                        at % (1 << align) == 0 && at >= start && at + len <= start + (1 << 10)
                    );
                    prop_assert!(held.iter().all(|&(s, n)| at + len <= s || s + n <= at));
                    held.push((at, len));
                }
                if i % 3 == 2 && !held.is_empty() {
                    let (at, len) = held.swap_remove(i % held.len());
                    extents.give_back(at, len);
                }
            }
            held.drain(..).for_each(|(at, len)| extents.give_back(at, len));
            prop_assert_eq!((extents.total(), extents.count()), (1 << 10, 1));
        }
    }
}
