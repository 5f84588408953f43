//! Rings between two processes that do not trust each other.
//!
//! # Shape
//! One direction, one producer, one consumer. Of the shared words, the producer writes the entries
//! and the tail, and the consumer writes the head and its wake-up request; each is in a cache line
//! of its own. [`Producer`] and [`Consumer`] have their own index also in private memory, so that
//! the other side cannot change it.
//!
//! # Ordering
//! - [`Producer::publish`]: all entries precede the tail (release), and the tail precedes the check
//!   whether the consumer requests a wake-up (sequentially consistent).
//! - [`Consumer::want`]: the request precedes the check of the ring that follows it (sequentially
//!   consistent). A wake-up is a system call, which orders the accesses before and after it. If a
//!   wake-up clears a newer request, the consumer that was woken makes it again.
//! - [`Consumer::pop`]: the tail precedes the entry, and the data that it announces (acquire).
//! - [`Consumer::release`]: all loads of entries precede the head that frees their slots (release);
//!   [`Producer::room`] reads it (acquire).
//!
//! # Trust
//! The other side's index is untrusted input: an impossible value is [`Error::Protocol`], and
//! nothing is taken. The words of an entry are read once.

#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{Ordering, fence};

use super::Words;
use crate::Error;

/// Words of a line of the cache.
const LINE: usize = 8;
const TAIL: usize = 0;
const HEAD: usize = LINE;
const WANTED: usize = 2 * LINE;
/// Where entries begin.
const ENTRIES: usize = 3 * LINE;

/// Words that a ring of `entries` of `N` words takes.
pub const fn shared_words<const N: usize>(entries: u16) -> usize {
    ENTRIES + N * entries as usize
}

/// Fails unless a ring of `entries` of `N` words is one and fits `words`.
fn check<const N: usize>(words: &impl Words, entries: u16) -> Result<u32, Error> {
    if !entries.is_power_of_two() || words.count() < shared_words::<N>(entries) {
        return Err(Error::Invalid(format!(
            "a ring of {entries} entries in {} words",
            words.count()
        )));
    }
    Ok(u32::from(entries) - 1)
}

/// The side that writes entries.
pub struct Producer<W, const N: usize> {
    words: W,
    mask: u32,
    /// What was pushed; runs free.
    tail: u32,
    /// What of it the consumer has been shown.
    published: u32,
    /// Where the consumer was at the last look.
    head: u32,
}

/// The side that reads them.
pub struct Consumer<W, const N: usize> {
    words: W,
    mask: u32,
    /// What was popped; runs free.
    head: u32,
    /// What of it the producer has been told.
    released: u32,
}

impl<W: Words, const N: usize> Producer<W, N> {
    /// Of `entries`, a power of two, over zeroed words.
    pub fn new(words: W, entries: u16) -> Result<Self, Error> {
        let mask = check::<N>(&words, entries)?;
        Ok(Self { words, mask, tail: 0, published: 0, head: 0 })
    }

    /// Entries that can be pushed now. An error if the consumer says that it has taken what was
    /// never there, or takes back what it has taken.
    #[inline]
    pub fn room(&mut self) -> Result<u32, Error> {
        let head = self.words.load(HEAD) as u32;
        let (taken, left) = (head.wrapping_sub(self.head), self.published.wrapping_sub(self.head));
        if taken > left {
            return Err(stray("taken", taken, left));
        }
        fence(Ordering::Acquire);
        self.head = head;
        Ok(self.mask + 1 - self.tail.wrapping_sub(head))
    }

    /// The place of the next entry.
    #[inline]
    pub fn place(&self) -> usize {
        (self.tail & self.mask) as usize
    }

    /// Writes the next entry, which the consumer sees after [`publish`](Self::publish). Only while
    /// there is [`room`](Self::room): otherwise an entry that was not taken is lost.
    #[inline]
    pub fn push(&mut self, entry: &[u64; N]) {
        self.words.store_entry(ENTRIES + N * self.place(), entry);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows the consumer all that was pushed; whether it wants to be woken for it.
    #[inline]
    pub fn publish(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.published = self.tail;
        fence(Ordering::Release);
        self.words.store(TAIL, self.tail.into());
        fence(Ordering::SeqCst);
        let wanted = self.words.load(WANTED) != 0;
        if wanted {
            // Once for each wish.
            self.words.store(WANTED, 0);
        }
        wanted
    }
}

impl<W: Words, const N: usize> Consumer<W, N> {
    /// Of `entries`, a power of two, over zeroed words.
    pub fn new(words: W, entries: u16) -> Result<Self, Error> {
        let mask = check::<N>(&words, entries)?;
        Ok(Self { words, mask, head: 0, released: 0 })
    }

    /// Whether there is an entry, or an index that cannot be.
    #[inline]
    pub fn pending(&self) -> bool {
        self.words.load(TAIL) as u32 != self.head
    }

    /// The place of the next entry.
    #[inline]
    pub fn place(&self) -> usize {
        (self.head & self.mask) as usize
    }

    /// Takes the next entry. An error if the producer says that there are more than the ring has.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<[u64; N]>, Error> {
        let ready = (self.words.load(TAIL) as u32).wrapping_sub(self.head);
        if ready == 0 {
            return Ok(None);
        }
        if ready > self.mask + 1 {
            return Err(stray("there", ready, self.mask + 1));
        }
        fence(Ordering::Acquire);
        let first = ENTRIES + N * self.place();
        let entry = std::array::from_fn(|word| self.words.load(first + word));
        self.head = self.head.wrapping_add(1);
        Ok(Some(entry))
    }

    /// Gives the places of all that was popped back.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.head {
            self.released = self.head;
            fence(Ordering::Release);
            self.words.store(HEAD, self.head.into());
        }
    }

    /// Asks to be woken for the next entry, or not to be. Look once more before sleeping.
    #[inline]
    pub fn want(&mut self, wanted: bool) {
        self.words.store(WANTED, wanted.into());
        fence(Ordering::SeqCst);
    }
}

#[cold]
fn stray(what: &str, said: u32, most: u32) -> Error {
    Error::Protocol(format!(
        "a ring's index says that {said} entries are {what}, of {most} at most"
    ))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::dma::{Arena, DmaBuffer, Region};
    use proptest::prelude::*;
    use std::sync::Arc;

    const ENTRIES: u16 = 8;

    /// The same words for either side.
    fn pair() -> (Producer<DmaBuffer, 2>, Consumer<DmaBuffer, 2>, DmaBuffer) {
        let region = Arc::new(Region::new(4096).unwrap());
        let words = || Arena::new(region.clone(), 0).alloc_pages(4096).unwrap();
        (
            Producer::new(words(), ENTRIES).unwrap(),
            Consumer::new(words(), ENTRIES).unwrap(),
            words(),
        )
    }

    #[test]
    fn nothing_is_there_before_it_is_published_and_then_once() {
        let (mut producer, mut consumer, _) = pair();
        producer.push(&[1, 2]);
        assert!(!consumer.pending());
        producer.publish();
        assert_eq!((consumer.pop().unwrap(), consumer.pop().unwrap()), (Some([1, 2]), None));
    }

    #[test]
    fn who_wants_to_be_woken_is_woken_once_and_not_for_nothing() {
        let (mut producer, mut consumer, _) = pair();
        consumer.want(true);
        assert!(!producer.publish());
        producer.push(&[1, 2]);
        assert!(producer.publish());
        producer.push(&[3, 4]);
        assert!(!producer.publish());
    }

    #[test]
    fn a_tail_that_jumps_is_an_error_and_nothing_is_taken() {
        let (_, mut consumer, words) = pair();
        for tail in [9, 100, u64::from(u32::MAX), 1 << 31] {
            words.store(TAIL, tail);
            assert!(matches!(consumer.pop(), Err(Error::Protocol(_))), "{tail}");
        }
        assert_eq!(consumer.place(), 0);
    }

    #[test]
    fn a_head_before_what_was_taken_or_behind_what_was_published_is_an_error() {
        let (mut producer, _, words) = pair();
        (0..3).for_each(|entry| producer.push(&[entry, 0]));
        producer.publish();
        words.store(HEAD, 2);
        assert_eq!(producer.room().unwrap(), 7);
        for head in [1, 4, u64::from(u32::MAX)] {
            words.store(HEAD, head);
            assert!(matches!(producer.room(), Err(Error::Protocol(_))), "{head}");
        }
    }

    #[test]
    fn a_ring_that_is_none_is_refused() {
        let words = || Arena::new(Region::new(4096).unwrap(), 0).alloc_pages(4096).unwrap();
        assert!(
            Producer::<_, 2>::new(words(), 6).is_err()
                && Consumer::<_, 2>::new(words(), 0).is_err()
        );
        assert!(Consumer::<_, 2>::new(words(), 1 << 15).is_err());
    }

    proptest! {
        #[test]
        fn entries_come_out_once_and_in_order(steps in prop::collection::vec(0u8..4, 1..400)) {
            let (mut producer, mut consumer, _) = pair();
            let (mut next, mut published, mut unpublished) = (0, VecDeque::new(), VecDeque::new());
            for step in steps {
                match step {
                    0 if producer.room().unwrap() > 0 => {
                        producer.push(&[next, !next]);
                        unpublished.push_back(next);
                        next += 1;
                    }
                    1 => {
                        producer.publish();
                        published.append(&mut unpublished);
                    }
                    2 => {
                        prop_assert_eq!(
                            consumer.pop().unwrap(),
                            published.pop_front().map(|entry: u64| [entry, !entry]),
                        )
                    },
                    _ => consumer.release(),
                }
            }
        }
    }

    #[test]
    fn two_threads_agree_on_a_hundred_thousand_entries() {
        let (mut producer, mut consumer, _) = pair();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for entry in 0..100_000 {
                    while producer.room().unwrap() == 0 {
                        std::hint::spin_loop();
                    }
                    producer.push(&[entry, !entry]);
                    producer.publish();
                }
            });
            for entry in 0..100_000 {
                let taken = loop {
                    match consumer.pop().unwrap() {
                        Some(taken) => break taken,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(taken, [entry, !entry]);
                consumer.release();
            }
        });
    }
}
