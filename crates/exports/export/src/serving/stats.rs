//! What a queue has done, counted by its thread and read by others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A count with one writer: no locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counts of one queue that its [`Recorder`](ring3_stats::Recorder) has not, on cache lines of
/// their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    pub batches: Counter,
    pub calls: Counter,
    pub sleeps: Counter,
    pub polls_hit: Counter,
    pub polls_missed: Counter,
    pub shared_hits: Counter,
    pub shared_misses: Counter,
    /// Nanoseconds from the start of the export to the first completed request, plus one; 0: none
    /// yet.
    first: AtomicU64,
}

impl Counters {
    /// A request has ended. `since` is when the export began.
    #[inline]
    pub fn completed(&self, since: Instant) {
        if self.first.load(Ordering::Relaxed) == 0 {
            self.first.store(since.elapsed().as_nanos() as u64 + 1, Ordering::Relaxed);
        }
    }
}

/// What an export has done so far, over all its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Requests ended.
    pub requests: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Bytes read and written.
    #[serde(rename = "bytes_moved")]
    pub bytes: u64,
    /// Batches submitted to the driver; each rang once.
    pub batches: u64,
    /// System calls of the queue threads.
    pub calls: u64,
    /// Of these, the ones that slept.
    pub sleeps: u64,
    /// Polled waits that ended with something to do.
    pub polls_hit: u64,
    /// Polled waits that did not.
    pub polls_missed: u64,
    /// Interrupts that were waited for.
    pub interrupts: u64,
    /// Reads and writes that lay in memory of a client's, so that nobody copied their bytes.
    pub shared_hits: u64,
    /// Those that did not, while there was such memory: their bytes were copied.
    pub shared_misses: u64,
    /// Nanoseconds from the beginning of the export's start to the first completed request.
    #[serde(skip)]
    pub first_request_ns: Option<u64>,
}

impl Stats {
    /// Adds up queues, each with what was recorded of it.
    pub fn sum<'a>(queues: impl Iterator<Item = (&'a Counters, ring3_stats::Counters)>) -> Self {
        queues.fold(Self::default(), |sum, (queue, recorded)| {
            let first = queue.first.load(Ordering::Relaxed).checked_sub(1);
            Self {
                requests: sum.requests + recorded.completed,
                errors: sum.errors + recorded.errors,
                bytes: sum.bytes + recorded.bytes,
                batches: sum.batches + queue.batches.get(),
                calls: sum.calls + queue.calls.get(),
                sleeps: sum.sleeps + queue.sleeps.get(),
                polls_hit: sum.polls_hit + queue.polls_hit.get(),
                polls_missed: sum.polls_missed + queue.polls_missed.get(),
                interrupts: sum.interrupts + recorded.interrupts,
                shared_hits: sum.shared_hits + queue.shared_hits.get(),
                shared_misses: sum.shared_misses + queue.shared_misses.get(),
                first_request_ns: [sum.first_request_ns, first].into_iter().flatten().min(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_bytes_of_all_queues_are_added_up() {
        let queues = [Counters::default(), Counters::default()];
        queues[1].completed(Instant::now());
        let recorded = [4096, 512].map(|bytes| ring3_stats::Counters {
            completed: 1,
            bytes,
            ..Default::default()
        });
        let stats = Stats::sum(queues.iter().zip(recorded));
        assert_eq!((stats.requests, stats.bytes), (2, 4608));
        assert!(stats.first_request_ns.is_some());
    }

    #[test]
    fn an_export_that_nobody_has_used_has_no_first_request() {
        assert_eq!(
            Stats::sum([(&Counters::default(), ring3_stats::Counters::default())].into_iter())
                .first_request_ns,
            None
        );
    }
}
