//! One writer of a segment.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(not(loom))]
use std::sync::atomic::fence;

use crate::segment::{Lost, Phase, Segment, entry, word};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Reads.
    Read = 0,
    /// Writes.
    Write = 1,
    /// Makes durable.
    Flush = 2,
    /// Writes zeroes.
    WriteZeroes = 3,
    /// Discards.
    Discard = 4,
    /// Something else.
    Other = 15,
}

impl Operation {
    fn of(word: u64) -> Self {
        [Self::Read, Self::Write, Self::Flush, Self::WriteZeroes, Self::Discard]
            .into_iter()
            .find(|&operation| operation as u64 == word)
            .unwrap_or(Self::Other)
    }
}

/// An operation that the flight recorder has kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A request came.
    Started {
        /// Its place among all of its queue.
        number: u64,
        /// The request's tag.
        tag: u16,
        /// What it does.
        operation: Operation,
        /// The first block.
        lba: u64,
        /// Blocks.
        blocks: u32,
    },
    /// A request ended.
    Ended {
        /// Its place among all of its queue.
        number: u64,
        /// The request's tag.
        tag: u16,
        /// 0, or what the kernel was told.
        errno: u16,
    },
}

const ENDED: u64 = 1 << 63;

/// A word that two processes share. Loom's models have words of their own.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

/// Writes entry `number` into its words, in which an older one may be.
///
/// # Ordering
/// The first word is 0 while the others change: the fence keeps their stores behind that one, and
/// the store of the number releases them. A reader that finds the number before and after it has
/// read the others has read this entry and no other.
#[inline]
fn write_entry(words: &[impl Word], number: u64, [what, lba, blocks]: [u64; 3]) {
    words[0].store(0, Ordering::Relaxed);
    fence(Ordering::Release);
    words[1].store(what, Ordering::Relaxed);
    words[2].store(lba, Ordering::Relaxed);
    words[3].store(blocks, Ordering::Relaxed);
    words[0].store(number + 1, Ordering::Release);
}

impl Entry {
    /// What `words` hold, if that is entry `number` as a whole.
    pub(crate) fn read(words: &[impl Word], number: u64) -> Option<Self> {
        let get = |index: usize| words[index].load(Ordering::Relaxed);
        let is_whole = |order| words[0].load(order) == number + 1;
        let before = is_whole(Ordering::Acquire);
        let (what, lba, blocks) = (get(1), get(2), get(3) as u32);
        // What was read of a later entry makes the 0 before it visible, too.
        fence(Ordering::Acquire);
        if !before || !is_whole(Ordering::Relaxed) {
            return None;
        }
        let tag = what as u16;
        Some(match what & ENDED {
            0 => Self::Started {
                number,
                tag,
                operation: Operation::of(what >> 16 & 0xff),
                lba,
                blocks,
            },
            _ => Self::Ended { number, tag, errno: (what >> 16) as u16 },
        })
    }
}

/// The writer of a part. There is one for each part; a second one would only make the figures
/// wrong.
pub struct Recorder {
    segment: Arc<Segment>,
    part: u16,
}

impl Recorder {
    /// The writer for `queue`, or for the process if `None`. What is beyond the last queue goes
    /// nowhere.
    pub fn new(segment: &Arc<Segment>, queue: Option<u16>) -> Option<Self> {
        let part = queue.map_or(Some(0), |queue| (queue < segment.queues()).then(|| queue + 1))?;
        Some(Self { segment: Arc::clone(segment), part })
    }

    #[inline]
    fn add(&self, index: usize, more: u64) {
        let word = &self.segment.part(self.part)[index];
        word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// The thread is in `phase`.
    #[inline]
    pub fn phase(&self, phase: Phase) {
        self.segment.part(self.part)[word::PHASE].store(phase as u64, Ordering::Release);
    }

    /// The thread lives.
    #[inline]
    pub fn beat(&self) {
        self.add(word::BEAT, 1);
    }

    /// An interrupt came that was waited for.
    #[inline]
    pub fn interrupted(&self) {
        self.add(word::INTERRUPTS, 1);
    }

    /// A request lies in a client's memory.
    #[inline]
    pub fn hit_shared(&self) {
        self.add(word::SHARED_HITS, 1);
    }

    /// So many packets were lost so far.
    pub fn lost(&self, lost: Lost) {
        let part = self.segment.part(self.part);
        let Lost { rx_missed, rx_errors, tx_lost } = lost;
        for (index, count) in
            [(word::RX_MISSED, rx_missed), (word::RX_ERRORS, rx_errors), (word::TX_LOST, tx_lost)]
        {
            part[index].store(count, Ordering::Relaxed);
        }
    }

    /// A request came.
    #[inline]
    pub fn started(&self, tag: u16, operation: Operation, lba: u64, blocks: u32) {
        self.add(word::SUBMITTED, 1);
        self.record(u64::from(tag) | (operation as u64) << 16, lba, blocks);
    }

    /// A request ended; `bytes` moved.
    #[inline]
    pub fn ended(&self, tag: u16, errno: u16, bytes: u32) {
        self.add(word::COMPLETED, 1);
        self.add(word::BYTES, bytes.into());
        if errno != 0 {
            self.add(word::ERRORS, 1);
        }
        self.record(ENDED | u64::from(tag) | u64::from(errno) << 16, 0, 0);
    }

    /// So many have ended of which the flight recorder keeps nothing: turns in which packets were
    /// moved.
    #[inline]
    pub fn passed(&self, count: u64) {
        self.add(word::COMPLETED, count);
    }

    #[inline]
    fn record(&self, what: u64, lba: u64, blocks: u32) {
        let part = self.segment.part(self.part);
        let number = part[word::RECORDED].load(Ordering::Relaxed);
        write_entry(entry(part, number), number, [what, lba, blocks.into()]);
        part[word::RECORDED].store(number + 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::ENTRIES;

    #[test]
    fn what_one_process_writes_another_reads() {
        let segment = Segment::create(2).unwrap();
        let other = Arc::new(Segment::open(segment.as_fd().try_clone_to_owned().unwrap()).unwrap());
        let recorder = Recorder::new(&other, Some(1)).unwrap();
        recorder.phase(Phase::Waiting);
        recorder.beat();
        recorder.started(7, Operation::Write, 1 << 40, 8);
        recorder.ended(7, 5, 0);
        let lost = Lost { rx_missed: 1, rx_errors: 2, tx_lost: 3 };
        recorder.lost(lost);
        assert_eq!(segment.counters(Some(1)).lost, lost);
        let counters = segment.counters(Some(1));
        assert_eq!(
            (
                counters.phase,
                counters.beat,
                counters.submitted,
                counters.completed,
                counters.errors
            ),
            (Phase::Waiting, 1, 1, 1, 1)
        );
        let started = Entry::Started {
            number: 0,
            tag: 7,
            operation: Operation::Write,
            lba: 1 << 40,
            blocks: 8,
        };
        assert_eq!(segment.recorded(1), [started, Entry::Ended { number: 1, tag: 7, errno: 5 }]);
        assert_eq!(segment.recorded(0), []);
    }

    #[test]
    fn the_flight_recorder_keeps_the_last_operations() {
        let segment = Arc::new(Segment::create(1).unwrap());
        let recorder = Recorder::new(&segment, Some(0)).unwrap();
        (0..1000).for_each(|number| recorder.started(0, Operation::Read, number, 1));
        let kept = segment.recorded(0);
        assert_eq!(kept.len(), ENTRIES);
        assert!(matches!(kept[0], Entry::Started { number: 744, lba: 744, .. }), "{:?}", kept[0]);
    }

    #[test]
    fn any_words_of_a_hostile_writer_are_read_without_a_panic() {
        let segment = Arc::new(Segment::create(1).unwrap());
        for pattern in [u64::MAX, 1 << 63, 0x0101_0101_0101_0101] {
            segment.part(1).iter().for_each(|word| word.store(pattern, Ordering::Relaxed));
            let _ = segment.recorded(0);
            assert_eq!(segment.counters(Some(0)).phase, Phase::Working);
        }
        assert_eq!(segment.counters(Some(1)), crate::Counters::default());
    }

    #[test]
    fn a_file_that_could_shrink_is_no_segment() {
        assert!(Segment::open(tempfile()).is_err());
        assert!(Recorder::new(&Arc::new(Segment::create(1).unwrap()), Some(1)).is_none());
    }

    fn tempfile() -> std::os::fd::OwnedFd {
        rustix::fs::memfd_create("plain", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }
}

/// Loom tries the orders in which another process may see the words.
#[cfg(all(test, loom))]
mod loom_models {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;
    use crate::ENTRIES;

    impl Word for AtomicU64 {
        fn load(&self, order: Ordering) -> u64 {
            self.load(order)
        }

        fn store(&self, value: u64, order: Ordering) {
            self.store(value, order);
        }
    }

    /// The words of an entry that says by its block and its count which one it is.
    fn words_of(number: u64) -> [u64; 3] {
        [(Operation::Read as u64) << 16, number, number]
    }

    fn is_of(entry: &Entry, wanted: u64) -> bool {
        matches!(*entry, Entry::Started { number, lba, blocks, .. }
            if number == wanted && lba == wanted && u64::from(blocks) == wanted)
    }

    #[test]
    fn loom_an_entry_that_is_overwritten_meanwhile_is_read_whole_or_not_at_all() {
        loom::model(|| {
            let words: Arc<[AtomicU64; 4]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
            // Both have the same place.
            let (old, new) = (1, 1 + ENTRIES as u64);
            write_entry(&words[..], old, words_of(old));
            let writer = {
                let words = Arc::clone(&words);
                thread::spawn(move || write_entry(&words[..], new, words_of(new)))
            };
            for wanted in [old, new] {
                if let Some(entry) = Entry::read(&words[..], wanted) {
                    assert!(is_of(&entry, wanted), "{wanted}: {entry:?}");
                }
            }
            writer.join().unwrap();
            assert!(is_of(&Entry::read(&words[..], new).unwrap(), new));
            assert_eq!(Entry::read(&words[..], old), None);
        });
    }
}
