//! Model check of the rings: every interleaving and every stale read that the memory model allows,
//! exhaustively.
//!
//! A driver thread runs the real rings. A device thread models a device: it reads the doorbell,
//! takes entries, writes data, then an entry whose phase word comes last. Doorbells are relaxed
//! atomics, because device registers order nothing by themselves. Run by `make test` as
//! `RUSTFLAGS="--cfg loom" cargo test -p ring3-device --release loom`.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;

use super::{CompletionRing, Consumer, Producer, SubmissionRing, Words, shared_words};

/// The smallest ring: one entry outstanding, the phase flips every second entry.
const SIZE: u32 = 2;
/// One more than a lap, so that slots and phases are used again.
const ENTRIES: u64 = 3;
const PHASE: u64 = 1;

#[derive(Clone)]
struct Shared(Arc<Vec<AtomicU64>>);

impl Shared {
    fn new(count: usize) -> Self {
        Self(Arc::new((0..count).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl Words for Shared {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn load(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }
    fn store(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Relaxed);
    }
}

/// Waits until the doorbell has reached `value`.
fn wait_for(doorbell: &AtomicU32, value: u32) {
    while doorbell.load(Ordering::Relaxed) < value {
        thread::yield_now();
    }
    // The device's own order: the doorbell before the entries.
    fence(Ordering::Acquire);
}

/// Writes the doorbell for entry `index`. The device gets the whole index and not the slot, so that
/// no value is ambiguous.
fn ring_doorbell(doorbell: &AtomicU32, slot: Option<u32>, index: u64) {
    assert_eq!(slot, Some((index as u32 + 1) % SIZE));
    doorbell.store(index as u32 + 1, Ordering::Relaxed);
}

/// The device's side of a completion: payload, then, in order, the word with the phase.
fn post(words: &Shared, index: u64, payload: u64) {
    let first = (index % u64::from(SIZE)) as usize * 2;
    words.store(first, payload);
    fence(Ordering::Release);
    let phase = (index / u64::from(SIZE) + 1) & PHASE;
    words.store(first + 1, payload << 1 | phase);
}

#[test]
fn the_device_never_reads_an_entry_older_than_its_doorbell() {
    loom::model(|| {
        let (words, doorbell, taken) =
            (Shared::new(4), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let device = thread::spawn({
            let (words, doorbell, taken) = (words.clone(), doorbell.clone(), taken.clone());
            move || {
                for index in 0..ENTRIES {
                    wait_for(&doorbell, index as u32 + 1);
                    let first = (index % u64::from(SIZE)) as usize * 2;
                    assert_eq!(
                        (words.load(first), words.load(first + 1)),
                        (index + 10, index + 20)
                    );
                    taken.store(index as u32 + 1, Ordering::Release);
                }
            }
        });
        let mut ring = SubmissionRing::<_, 2>::new(words, SIZE).unwrap();
        for index in 0..ENTRIES {
            assert!(ring.push(&[index + 10, index + 20]));
            ring_doorbell(&doorbell, ring.publish(), index);
            while taken.load(Ordering::Acquire) != index as u32 + 1 {
                thread::yield_now();
            }
            ring.retire((index as u32 + 1) % SIZE).unwrap();
        }
        device.join().unwrap();
    });
}

#[test]
fn the_driver_never_sees_half_an_entry_nor_data_older_than_it() {
    loom::model(|| {
        let (words, data, doorbell) =
            (Shared::new(4), Shared::new(ENTRIES as usize), Arc::new(AtomicU32::new(0)));
        let device = thread::spawn({
            let (words, data, doorbell) = (words.clone(), data.clone(), doorbell.clone());
            move || {
                for index in 0..ENTRIES {
                    if index >= u64::from(SIZE) {
                        // The slot is free again when the driver's head has left it.
                        wait_for(&doorbell, index as u32 + 1 - SIZE);
                    }
                    data.store(index as usize, index + 30);
                    post(&words, index, index + 10);
                }
            }
        });
        let mut ring = CompletionRing::<_, 2, 1, 0>::new(words, SIZE).unwrap();
        for index in 0..ENTRIES {
            let entry = loop {
                match ring.pop() {
                    Some(entry) => break entry,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((entry[0], entry[1] >> 1), (index + 10, index + 10));
            assert_eq!(data.load(index as usize), index + 30);
            ring_doorbell(&doorbell, ring.publish(), index);
        }
        device.join().unwrap();
    });
}

#[test]
fn a_command_and_its_completion_carry_data_both_ways() {
    loom::model(|| {
        let (sq, cq, data) = (Shared::new(4), Shared::new(4), Shared::new(1));
        let doorbell = Arc::new(AtomicU32::new(0));
        let device = thread::spawn({
            let (sq, cq, data, doorbell) = (sq.clone(), cq.clone(), data.clone(), doorbell.clone());
            move || {
                for index in 0..ENTRIES {
                    wait_for(&doorbell, index as u32 + 1);
                    let command = sq.load((index % u64::from(SIZE)) as usize * 2);
                    assert_eq!((command, data.load(0)), (index + 10, index + 40));
                    data.store(0, index + 50);
                    post(&cq, index, command);
                }
            }
        });
        let mut submissions = SubmissionRing::<_, 2>::new(sq, SIZE).unwrap();
        let mut completions = CompletionRing::<_, 2, 1, 0>::new(cq, SIZE).unwrap();
        for index in 0..ENTRIES {
            data.store(0, index + 40);
            assert!(submissions.push(&[index + 10, 0]));
            ring_doorbell(&doorbell, submissions.publish(), index);
            let mut ends = [0];
            while completions.pop_into(&mut ends, 0, 0, |word, end| {
                *end = word >> 1;
                true
            }) == 0
            {
                thread::yield_now();
            }
            assert_eq!((ends[0], data.load(0)), (index + 10, index + 50));
            submissions.retire((index as u32 + 1) % SIZE).unwrap();
        }
        device.join().unwrap();
    });
}

/// As two processes do that share a ring of one entry: the second takes the place of the first.
#[test]
fn an_entry_between_processes_comes_whole_and_its_place_is_given_back_after_it_was_read() {
    loom::model(|| {
        let words = Shared::new(shared_words::<1>(1));
        let process = thread::spawn({
            let words = words.clone();
            move || {
                let mut ring = Producer::<_, 1>::new(words, 1).unwrap();
                for index in 0..2 {
                    while ring.room().unwrap() == 0 {
                        thread::yield_now();
                    }
                    ring.push(&[index + 10]);
                    ring.publish();
                }
            }
        });
        let mut ring = Consumer::<_, 1>::new(words, 1).unwrap();
        for index in 0..2 {
            let entry = loop {
                match ring.pop().unwrap() {
                    Some(entry) => break entry,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(entry, [index + 10]);
            ring.release();
        }
        process.join().unwrap();
    });
}

/// The consumer sleeps only if it has seen nothing after it asked to be woken, and nothing but the
/// producer ends its sleep.
#[test]
fn nobody_sleeps_through_an_entry() {
    loom::model(|| {
        let (words, woken) = (Shared::new(shared_words::<1>(1)), Arc::new(AtomicU32::new(0)));
        let process = thread::spawn({
            let (words, woken) = (words.clone(), woken.clone());
            move || {
                let mut ring = Producer::<_, 1>::new(words, 1).unwrap();
                ring.push(&[10]);
                if ring.publish() {
                    // A system call, which orders what is on either side of it.
                    woken.store(1, Ordering::Release);
                }
            }
        });
        let mut ring = Consumer::<_, 1>::new(words, 1).unwrap();
        ring.want(true);
        if !ring.pending() {
            process.join().unwrap();
            assert_eq!(woken.load(Ordering::Acquire), 1);
        }
    });
}
