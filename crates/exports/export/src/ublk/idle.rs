//! Polling for the next request of a queue that has none.
//!
//! A thread that looks is not woken, which is most of what a request costs whose queue is empty:
//! who submits it writes to memory, and raises no processor out of its idleness. It takes a
//! processor that nobody else wants, for as long as requests have come soon lately.
//!
//! # When it does not
//! - Without a spare processor: who is to submit the next request could not run meanwhile
//!   ([`allowed`]).
//! - When requests come later than the limit: as for a device, [`Budget`] learns that, and tries
//!   again at one wait in 64.
//! - When somebody else has wanted the processor meanwhile: the scheduler has taken it away, which
//!   the kernel counts. Then not for a number of sleeps.

use std::collections::BTreeSet;
use std::time::Duration;

use ring3_class::wait::Budget;
use rustix::thread::{CpuSet, sched_getaffinity};

/// Polled waits after which the kernel is asked whether somebody else wanted the processor.
const ASKED_EVERY: u32 = 64;

/// Sleeps until it is tried again once somebody else has.
const GIVEN_UP: u32 = 4096;

/// How long a queue without requests looks for the next one before it sleeps. Pure: times and
/// counts are handed in.
pub struct IdlePoll {
    budget: Budget,
    /// Polled waits since the kernel was asked.
    waits: u32,
    /// What it said then.
    preempted: u64,
    /// Sleeps that are left until it is tried again.
    given_up: u32,
}

impl IdlePoll {
    /// Looks for at most `limit`; zero never looks. `preempted` is how often this thread has lost
    /// its processor so far.
    pub fn new(limit: Duration, preempted: u64) -> Self {
        Self { budget: Budget::new(limit), waits: 0, preempted, given_up: 0 }
    }

    /// The same for the calling thread, whose kernel is not asked if there is nothing to give up: a
    /// sandbox need not allow that.
    pub fn of_this_thread(limit: Duration) -> Self {
        Self::new(limit, if limit.is_zero() { 0 } else { preemptions() })
    }

    /// How long to look for the next request.
    #[inline]
    pub fn poll_for(&self) -> Duration {
        if self.given_up > 0 { Duration::ZERO } else { self.budget.poll_for() }
    }

    /// Learns that the queue has gone to sleep without looking.
    #[inline]
    pub fn slept(&mut self) {
        match self.given_up {
            0 => self.budget.slept(),
            _ => self.given_up -= 1,
        }
    }

    /// Learns that a look of `looked` has found a request, or that the queue went to sleep after
    /// it. `preempted` asks the kernel how often this thread has lost its processor.
    #[inline]
    pub fn looked(&mut self, looked: Duration, found: bool, preempted: impl FnOnce() -> u64) {
        match found {
            true => self.budget.observe(looked, true),
            false => self.budget.slept(),
        }
        self.waits += 1;
        if self.waits == ASKED_EVERY {
            self.waits = 0;
            let now = preempted();
            if now > self.preempted {
                (self.preempted, self.given_up) = (now, GIVEN_UP);
            }
        }
    }
}

/// How often the calling thread has lost its processor to somebody else. [getrusage(2), ru_nivcsw]
pub fn preemptions() -> u64 {
    // SAFETY: plain integers, for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes the structure that it is given.
    let asked = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    if asked == 0 { usage.ru_nivcsw as u64 } else { 0 }
}

/// How long the thread of a queue may look for its next request: `limit`, or not at all where no
/// processor is spare, which is said. To be asked before the thread is pinned to `cpus`, those that
/// submit to it; `queues` is how many the disk has.
pub fn allowed(limit: Duration, (queue, queues): (u16, usize), cpus: &[usize]) -> Duration {
    if limit.is_zero() {
        return limit;
    }
    let own = sched_getaffinity(None).unwrap_or_default();
    let own: BTreeSet<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| own.is_set(cpu)).collect();
    let parallel = std::thread::available_parallelism().map_or(1, usize::from);
    if is_spare(&own, cpus, queues, parallel) {
        return limit;
    }
    tracing::warn!(
        queue,
        ?cpus,
        "--idle-poll is left out: no processor is spare beside this queue's thread. Next: fewer \
        --queues, or more processors"
    );
    Duration::ZERO
}

/// Whether a thread can look for requests and leave a processor to who makes them: there are two at
/// least on which it may run, and one more than all threads that look.
fn is_spare(own: &BTreeSet<usize>, cpus: &[usize], queues: usize, parallel: usize) -> bool {
    let beside = cpus.iter().filter(|cpu| own.contains(cpu)).count();
    beside >= 2 && parallel > queues
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);
    const SOON: Duration = Duration::from_micros(5);

    fn never() -> u64 {
        0
    }

    #[test]
    fn requests_that_come_soon_are_looked_for() {
        let mut idle = IdlePoll::new(LIMIT, 0);
        (0..200).for_each(|_| idle.looked(SOON, true, never));
        assert!(idle.poll_for() >= SOON && idle.poll_for() <= LIMIT);
    }

    #[test]
    fn a_queue_that_is_used_seldom_does_not_look_but_at_one_wait_in_64() {
        let mut idle = IdlePoll::new(LIMIT, 0);
        let mut looks = 0;
        for _ in 0..640 {
            match idle.poll_for() {
                Duration::ZERO => idle.slept(),
                _ => {
                    looks += 1;
                    idle.looked(LIMIT, false, never);
                }
            }
        }
        assert!((10..25).contains(&looks), "{looks}");
    }

    #[test]
    fn whoever_wants_the_processor_gets_it_for_thousands_of_sleeps() {
        let mut idle = IdlePoll::new(LIMIT, 3);
        (0..ASKED_EVERY).for_each(|_| idle.looked(SOON, true, || 4));
        for _ in 0..GIVEN_UP {
            assert_eq!(idle.poll_for(), Duration::ZERO);
            idle.slept();
        }
        assert!(idle.poll_for() > Duration::ZERO);
    }

    #[test]
    fn what_was_taken_before_is_no_reason_and_the_kernel_is_asked_seldom() {
        let mut idle = IdlePoll::new(LIMIT, 7);
        let mut asked = 0;
        for _ in 0..ASKED_EVERY * 3 {
            idle.looked(SOON, true, || {
                asked += 1;
                7
            });
        }
        assert!(asked == 3 && idle.poll_for() > Duration::ZERO);
    }

    #[test]
    fn a_limit_of_zero_never_looks() {
        let mut idle = IdlePoll::new(Duration::ZERO, 0);
        for _ in 0..200 {
            assert_eq!(idle.poll_for(), Duration::ZERO);
            idle.slept();
        }
    }

    #[test]
    fn a_processor_is_spare_beside_every_thread_that_looks() {
        let all: BTreeSet<usize> = (0..4).collect();
        assert!(is_spare(&all, &[0, 1, 2, 3], 1, 4) && is_spare(&all, &[0, 1], 2, 4));
        // One processor; a queue for each; one that this process may not use; less than that by a
        // control group's share.
        assert!(!is_spare(&BTreeSet::from([0]), &[0], 1, 1));
        assert!(!is_spare(&all, &[2], 4, 4));
        assert!(!is_spare(&BTreeSet::from([0, 2]), &[0, 1], 1, 2));
        assert!(!is_spare(&all, &[0, 1, 2, 3], 1, 1));
    }
}
