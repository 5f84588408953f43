//! Property tests of the index algebra against a simple queue.

use std::cell::Cell;
use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

struct Plain(Vec<Cell<u64>>);

impl Plain {
    fn new(count: usize) -> Self {
        Self(vec![Cell::new(0); count])
    }
}

impl Words for &Plain {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn load(&self, index: usize) -> u64 {
        self.0[index].get()
    }
    fn store(&self, index: usize, value: u64) {
        self.0[index].set(value);
    }
}

fn submission(words: &Plain, size: u32, start: u32) -> SubmissionRing<&Plain, 2> {
    let mut ring = SubmissionRing::new(words, size).unwrap();
    (ring.full, ring.tail, ring.committed) = (start.wrapping_add(size - 1), start, start);
    ring
}

/// What a device does with a completion ring: writes at its own index, flips the phase at every
/// lap.
fn post(words: &Plain, size: u32, index: u64, payload: u64) {
    let first = (index % u64::from(size)) as usize * 2;
    words.0[first].set(payload);
    words.0[first + 1].set((index / u64::from(size) + 1) & 1);
}

/// Starts that make a free-running index pass 2^32 within a test, and one that does not.
fn starts() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), (u32::MAX - 40)..=u32::MAX]
}

#[derive(Clone, Debug)]
enum Step {
    Push(u64),
    Publish,
    /// The device takes this many of what was published.
    Retire(u32),
    /// The device names any slot.
    Stray(u32),
    /// Somebody else goes on with the ring.
    Resume,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<u64>().prop_map(Step::Push),
        2 => Just(Step::Publish),
        2 => (0u32..20).prop_map(Step::Retire),
        1 => (0u32..64).prop_map(Step::Stray),
        1 => Just(Step::Resume),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #[test]
    fn a_submission_ring_behaves_like_a_bounded_queue_whoever_goes_on_with_it(
        log in 1u32..5, start in starts(), steps in steps(),
    ) {
        let size = 1u32 << log;
        let words = Plain::new(size as usize * 2);
        let mut ring = submission(&words, size, start);
        // Entries not yet taken, and how many of them are published.
        let (mut queue, mut published, mut head) = (VecDeque::new(), 0u32, start % size);
        for step in steps {
            match step {
                Step::Push(value) => {
                    let fits = queue.len() < size as usize - 1;
                    prop_assert_eq!(ring.push(&[value, !value]), fits);
                    if fits {
                        queue.push_back(value);
                    }
                }
                Step::Publish => {
                    let tail = (head + queue.len() as u32) % size;
                    prop_assert_eq!(
                        ring.publish(), (queue.len() as u32 > published).then_some(tail),
                    );
                    published = queue.len() as u32;
                }
                Step::Retire(count) => {
                    let count = count.min(published);
                    for i in 0..count {
                        let first = ((head + i) % size) as usize * 2;
                        let value = queue.pop_front().unwrap();
                        prop_assert_eq!(
                            (words.0[first].get(), words.0[first + 1].get()), (value, !value),
                        );
                    }
                    head = (head + count) % size;
                    published -= count;
                    prop_assert!(ring.retire(head).is_ok());
                }
                Step::Stray(slot) => {
                    let step = slot.wrapping_sub(head) % size;
                    let known = slot < size && step <= published;
                    prop_assert_eq!(ring.retire(slot).is_ok(), known);
                    if known {
                        queue.drain(..step as usize);
                        (head, published) = (slot, published - step);
                    }
                }
                Step::Resume => ring = SubmissionRing::resume(&words, ring.state()).unwrap(),
            }
            prop_assert_eq!(ring.space() as usize, size as usize - 1 - queue.len());
        }
    }

    #[test]
    fn a_completion_ring_returns_every_entry_once_and_in_order_whoever_goes_on_with_it(
        log in 1u32..5, start in starts(),
        bursts in prop::collection::vec((0u32..20, 0u32..20), 1..60),
    ) {
        let size = 1u32 << log;
        let words = Plain::new(size as usize * 2);
        // An old lap's entries lie in the ring: their phase is the wrong one.
        let mut device = u64::from(start);
        (device.saturating_sub(u64::from(size))..device).for_each(
            |index| post(&words, size, index, u64::MAX)
        );
        let mut ring = CompletionRing::<_, 2, 1, 0>::new(&words, size).unwrap();
        (ring.head, ring.committed) = (start, start);
        let (mut waiting, mut taken) = (VecDeque::new(), u64::from(start));
        for (post_count, pop_count) in bursts {
            for _ in 0..post_count.min(size - waiting.len() as u32) {
                post(&words, size, device, device * 7);
                waiting.push_back(device * 7);
                device += 1;
            }
            // Some of them at once, if they are of the kind that is asked for: here, of any.
            let mut places = vec![0; pop_count as usize / 2];
            let run =
                (waiting.len() as u32).min(places.len() as u32).min(size - taken as u32 % size);
            let count = ring.pop_into(&mut places, 0, 0, |word, place| {
                *place = word;
                true
            });
            prop_assert_eq!(count, run as usize);
            prop_assert!(
                places[..count].iter().all(|&word| word == (taken / u64::from(size) + 1) & 1)
            );
            waiting.drain(..count);
            taken += count as u64;
            for _ in 0..pop_count {
                prop_assert_eq!(ring.ready(), !waiting.is_empty());
                let expected = waiting.pop_front();
                prop_assert_eq!(ring.pop().map(|entry| entry[0]), expected);
                taken += u64::from(expected.is_some());
            }
            ring = CompletionRing::resume(&words, ring.state()).unwrap();
            if let Some(head) = ring.publish() {
                prop_assert_eq!(u64::from(head), taken % u64::from(size));
            }
            prop_assert_eq!(ring.publish(), None);
        }
    }

    #[test]
    fn whatever_lies_in_the_memory_a_completion_ring_neither_panics_nor_returns_more_than_a_lap(
        garbage in prop::collection::vec(any::<u64>(), 16),
    ) {
        let words = Plain(garbage.into_iter().map(Cell::new).collect());
        let mut ring = CompletionRing::<_, 2, 1, 0>::new(&words, 8).unwrap();
        let mut taken = 0;
        while ring.pop().is_some() {
            taken += 1;
            prop_assert!(taken <= 8);
        }
    }
}

#[test]
fn entries_of_another_kind_and_those_that_are_refused_stay_in_the_ring_with_all_behind_them() {
    let words = Plain::new(16);
    let mut ring = CompletionRing::<_, 2, 1, 0>::new(&words, 8).unwrap();
    for (index, kind) in [2, 2, 4, 2].into_iter().enumerate() {
        words.0[index * 2 + 1].set(kind << 4 | 1);
        words.0[index * 2].set(index as u64);
    }
    let take_two = |ring: &mut CompletionRing<&Plain, 2, 1, 0>| {
        ring.pop_into(&mut [0; 8], 0xf0, 2 << 4, |_, _| true)
    };
    assert_eq!(ring.pop_into(&mut [0; 8], 0xf0, 2 << 4, |_, _| false), 0);
    assert_eq!((take_two(&mut ring), take_two(&mut ring)), (2, 0));
    assert_eq!(ring.pop().map(|entry| entry[0]), Some(2));
    assert_eq!((take_two(&mut ring), take_two(&mut ring)), (1, 0));
}

#[test]
fn a_size_that_is_no_power_of_two_is_refused() {
    let words = Plain::new(64);
    for size in [0, 1, 3, 6] {
        assert!(SubmissionRing::<_, 2>::new(&words, size).is_err());
        assert!(CompletionRing::<_, 2, 1, 0>::new(&words, size).is_err());
    }
}

#[test]
fn a_ring_that_does_not_fit_its_memory_is_refused() {
    assert!(SubmissionRing::<_, 2>::new(&Plain::new(15), 8).is_err());
}

#[test]
fn after_a_reset_nothing_of_the_earlier_life_counts() {
    let words = Plain::new(8);
    let mut ring = CompletionRing::<_, 2, 1, 0>::new(&words, 4).unwrap();
    (0..3).for_each(|index| post(&words, 4, index, index));
    ring.pop();
    ring.reset();
    assert_eq!((ring.pop(), ring.publish()), (None, None));
}

#[test]
fn words_that_are_placed_leave_the_others_of_their_entry_and_go_around_without_end() {
    let words = Plain::new(8);
    let mut ring = SubmissionRing::<_, 2>::new(&words, 4).unwrap();
    for lap in 1..3 {
        for slot in 0..4 {
            ring.place([(1, lap * 10 + slot)]);
            assert_eq!(ring.publish(), Some((slot as u32 + 1) % 4));
        }
        let found: Vec<_> = words.0.iter().map(Cell::get).collect();
        assert_eq!(found, [0, lap * 10, 0, lap * 10 + 1, 0, lap * 10 + 2, 0, lap * 10 + 3]);
    }
}

#[test]
fn entries_that_must_have_been_read_make_room_and_unpublished_ones_never_do() {
    let words = Plain::new(16);
    let mut ring = SubmissionRing::<_, 2>::new(&words, 8).unwrap();
    for _ in 0..5 {
        ring.push(&[1, 1]);
    }
    ring.publish();
    ring.push(&[2, 2]);
    ring.retire_all_but(3);
    assert_eq!(ring.space(), 4);
    ring.retire_all_but(0);
    assert_eq!(ring.space(), 6);
}

#[test]
fn a_state_that_no_ring_can_have_is_refused() {
    let words = Plain::new(16);
    let full = SubmissionState { size: 8, head: u32::MAX, tail: 6, committed: 2 };
    assert_eq!(
        SubmissionRing::<_, 2>::resume(&words, full).map(|ring| ring.state()).unwrap(),
        full
    );
    for state in [
        SubmissionState { size: 16, ..full },
        SubmissionState { size: 6, ..full },
        SubmissionState { tail: 7, ..full },
        SubmissionState { tail: u32::MAX - 1, ..full },
        SubmissionState { committed: 7, ..full },
        SubmissionState { committed: u32::MAX - 1, ..full },
    ] {
        assert!(
            matches!(SubmissionRing::<_, 2>::resume(&words, state), Err(Error::Invalid(_))),
            "{state:?}"
        );
    }
    let untold = CompletionState { size: 8, head: 3, committed: u32::MAX - 4 };
    assert_eq!(
        CompletionRing::<_, 2, 1, 0>::resume(&words, untold).map(|ring| ring.state()).unwrap(),
        untold
    );
    for state in [
        CompletionState { size: 16, ..untold },
        CompletionState { head: 4, ..untold },
        CompletionState { committed: 4, ..untold },
    ] {
        assert!(
            matches!(CompletionRing::<_, 2, 1, 0>::resume(&words, state), Err(Error::Invalid(_))),
            "{state:?}"
        );
    }
}
