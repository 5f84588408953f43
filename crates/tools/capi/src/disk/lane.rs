//! Entries from one who pushes to one who pops them, in order: memory that was taken once, and no
//! lock.

use std::array;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Room for a fixed number of entries of `N` words.
pub(super) struct Lane<const N: usize> {
    entries: Box<[[AtomicU64; N]]>,
    pushed: AtomicUsize,
    popped: AtomicUsize,
}

impl<const N: usize> Lane<N> {
    pub(super) fn new(room: usize) -> Self {
        let entry = |_| array::from_fn(|_| AtomicU64::new(0));
        Self {
            entries: (0..room).map(entry).collect(),
            pushed: AtomicUsize::new(0),
            popped: AtomicUsize::new(0),
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.pushed.load(Ordering::Acquire).wrapping_sub(self.popped.load(Ordering::Acquire))
    }

    /// False, and nothing has changed, if there is no room. By one at a time.
    pub(super) fn push(&self, words: [u64; N]) -> bool {
        let pushed = self.pushed.load(Ordering::Relaxed);
        if self.len() >= self.entries.len() {
            return false;
        }
        let entry = &self.entries[pushed % self.entries.len()];
        entry.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        self.pushed.store(pushed.wrapping_add(1), Ordering::Release);
        true
    }

    /// The next one, if there is one. By one at a time.
    pub(super) fn pop(&self) -> Option<[u64; N]> {
        if self.len() == 0 {
            return None;
        }
        let popped = self.popped.load(Ordering::Relaxed);
        let entry = &self.entries[popped % self.entries.len()];
        let words = array::from_fn(|place| entry[place].load(Ordering::Relaxed));
        self.popped.store(popped.wrapping_add(1), Ordering::Release);
        Some(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_in_order_whoever_is_faster() {
        let lane = Lane::<2>::new(4);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..10_000 {
                    while !lane.push([number, !number]) {
                        std::thread::yield_now();
                    }
                }
            });
            for number in 0..10_000 {
                let found = loop {
                    match lane.pop() {
                        Some(found) => break found,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(found, [number, !number]);
            }
        });
        assert_eq!(lane.len(), 0);
    }

    #[test]
    fn a_lane_that_is_full_takes_nothing_and_one_that_is_empty_gives_nothing() {
        let lane = Lane::new(2);
        assert!(lane.push([1]) && lane.push([2]) && !lane.push([3]));
        assert_eq!((lane.pop(), lane.pop(), lane.pop()), (Some([1]), Some([2]), None));
    }
}
