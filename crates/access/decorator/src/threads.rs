//! Whether a driver waits.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_micros(20);
/// A driver that gets no processor is waited for this long, where `busy` is shorter.
const STARVED: Duration = Duration::from_secs(2);

/// The threads that use a device.
#[derive(Default)]
pub(crate) struct Threads {
    known: Mutex<BTreeSet<i32>>,
    /// How many are in a call of the device, asleep or not.
    inside: AtomicUsize,
    /// Calls that were begun.
    calls: AtomicU64,
}

/// A thread that is in a call.
pub(crate) struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Threads {
    /// The calling thread is one of them, and in a call.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.inside.fetch_add(1, Ordering::AcqRel);
        self.calls.fetch_add(1, Ordering::AcqRel);
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(thread);
        Inside(&self.inside)
    }

    /// How many calls were begun so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Acquire)
    }

    /// Waits until all of them sleep outside of calls, or have run for `busy` since the last call.
    /// Time that others have the processor does not count, and neither does what a call takes, so
    /// that a busy machine changes nothing.
    pub(crate) fn wait_until_quiet(&self, busy: Duration) {
        let (since, mut had, mut calls) = (Instant::now(), self.processor_time(), self.calls());
        while !self.are_quiet() && since.elapsed() < STARVED {
            let begun = self.calls();
            if begun != calls || self.inside.load(Ordering::Acquire) > 0 {
                (had, calls) = (self.processor_time(), begun);
            } else if self.processor_time().saturating_sub(had) >= busy {
                break;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// How long all of them have run. [proc, Documentation/scheduler/sched-stats.rst]
    fn processor_time(&self) -> Duration {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let time = |thread: &i32| -> Option<u64> {
            let text =
                std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
            text.split(' ').next()?.parse().ok()
        };
        Duration::from_nanos(known.iter().filter_map(time).sum())
    }

    /// Whether all of them sleep outside of calls.
    pub(crate) fn are_quiet(&self) -> bool {
        let calls = self.calls();
        if self.inside.load(Ordering::Acquire) > 0 {
            return false;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut quiet = true;
        known.retain(|thread| match std::fs::read(format!("/proc/self/task/{thread}/stat")) {
            Ok(stat) => {
                quiet &= is_asleep(&stat);
                true
            }
            Err(_) => false,
        });
        // Who has begun a call meanwhile may sleep because it waits for the lock.
        quiet && self.calls() == calls
    }
}

/// The state stands behind the name, which may hold anything but ends with the last parenthesis.
/// Who waits for memory or a file (D) has work to do. [proc_pid_stat(5)]
fn is_asleep(stat: &[u8]) -> bool {
    let end = stat.iter().rposition(|&byte| byte == b')');
    end.and_then(|end| stat.get(end + 2)).is_some_and(|&state| !matches!(state, b'R' | b'D'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_thread_is_read_behind_a_name_that_looks_like_one() {
        assert!(is_asleep(b"7 (a) R b) S 1 2"));
        assert!(!is_asleep(b"7 (a) S b) R 1 2"));
        assert!(!is_asleep(b"7 (a) D 1 2"));
        assert!(!is_asleep(b""));
    }

    #[test]
    fn a_thread_that_makes_one_call_after_the_other_is_waited_for() {
        let (threads, done) = (Threads::default(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let since = Instant::now();
                while since.elapsed() < Duration::from_millis(50) {
                    drop(threads.enter());
                }
                done.store(1, Ordering::Release);
            });
            while threads.calls.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            threads.wait_until_quiet(Duration::from_millis(5));
            assert_eq!(done.load(Ordering::Acquire), 1);
            other.join().unwrap();
        });
    }

    #[test]
    fn a_thread_that_sleeps_in_a_call_is_not_quiet() {
        let threads = Threads::default();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let inside = threads.enter();
                std::thread::park();
                drop(inside);
                std::thread::park();
            });
            while threads.inside.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            assert!(!threads.are_quiet());
            other.thread().unpark();
            threads.wait_until_quiet(Duration::from_secs(10));
            assert!(threads.are_quiet());
            other.thread().unpark();
        });
    }
}
