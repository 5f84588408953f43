//! Whether a driver lives, told by the words that it shows in shared memory.
//!
//! A thread that has something to do beats, or says that it looks after its device, which may take
//! long. One that has nothing to do sleeps and costs nothing, and may; unless the kernel has
//! requests for the disk all the same, none of which ends.
//!
//! # Trust
//! The words are the driver's, and may be lies. How many requests wait and how many have ended is
//! the kernel's to say wherever it counts them: of the driver's own counts nothing is believed
//! then.

use std::time::{Duration, Instant};

use ring3_stats::{Counters, Phase, Segment};

/// For how long a thread may stand still.
#[derive(Clone, Copy, Debug)]
pub struct HealthTimeouts {
    /// While it works, or waits for its device.
    pub beat: Duration,
    /// While it looks after its device.
    pub recovery: Duration,
}

/// What the kernel says of the requests of a driver's users.
#[derive(Clone, Copy, Debug, Default)]
pub struct UserLoad {
    /// Requests that it has for the driver's disks.
    pub in_flight: u64,
    /// Requests that have ended; `None` if nobody but the driver counts them.
    pub ended: Option<u64>,
}

/// What was seen last of each thread, and since when.
#[derive(Debug)]
pub struct Watch {
    patience: HealthTimeouts,
    threads: Vec<(Counters, Instant)>,
    completed: (u64, Instant),
    idle: bool,
}

impl Watch {
    /// Of a driver that begins now.
    pub fn new(patience: HealthTimeouts, now: Instant) -> Self {
        Self { patience, threads: Vec::new(), completed: (0, now), idle: false }
    }

    /// Whether nothing was to be done at the last look.
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    /// Polls the process and its first `queues` queues; `users` is the load of its disks that the
    /// kernel reports. Returns the reason if the process counts as dead.
    pub fn poll(
        &mut self,
        segment: &Segment,
        queues: u16,
        users: UserLoad,
        now: Instant,
    ) -> Option<String> {
        self.threads.resize(usize::from(queues) + 1, (Counters::default(), now));
        let mut own: u64 = 0;
        for (place, (last, since)) in self.threads.iter_mut().enumerate() {
            let queue = place.checked_sub(1).map(|queue| queue as u16);
            let counters = segment.counters(queue);
            own = own.wrapping_add(if queue.is_some() { counters.completed } else { 0 });
            if (counters.phase, counters.beat) != (last.phase, last.beat) {
                *since = now;
            }
            *last = counters;
            let who = queue
                .map_or("its first thread".into(), |queue| format!("the thread of queue {queue}"));
            let limit = match (counters.phase, queue) {
                (Phase::New | Phase::Idle | Phase::Ended, _) => continue,
                // What is ordered may take long: to leave, to empty a cache.
                (Phase::Recovering, _) | (_, None) => self.patience.recovery,
                (Phase::Working | Phase::Waiting | Phase::Draining, Some(_)) => self.patience.beat,
            };
            let still = now.saturating_duration_since(*since);
            if still > limit {
                return Some(format!(
                    "{who} has not moved for {} ms ({:?})",
                    still.as_millis(),
                    counters.phase
                ));
            }
        }
        let UserLoad { in_flight, ended } = users;
        let completed = ended.unwrap_or(own);
        if in_flight == 0 || completed != self.completed.0 {
            self.completed = (completed, now);
        }
        let waiting = now.saturating_duration_since(self.completed.1);
        // Who waits for the device beats, and who recovers it may take longer: only a driver that
        // has not even seen the requests is meant.
        let asleep =
            self.threads.iter().skip(1).all(|(counters, _)| {
                matches!(counters.phase, Phase::Idle | Phase::New | Phase::Ended)
            });
        self.idle = asleep && in_flight == 0;
        // Beats without ends are no life: a driver may mend its device once, and try again.
        (asleep && waiting > self.patience.beat || waiting > 2 * self.patience.recovery).then(
            || {
                format!(
                    "{in_flight} requests wait in the kernel, and none has ended for {} ms",
                    waiting.as_millis()
                )
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ring3_stats::Recorder;

    use super::*;

    const PATIENCE: HealthTimeouts =
        HealthTimeouts { beat: Duration::from_secs(5), recovery: Duration::from_secs(100) };

    struct Bed {
        watch: Watch,
        segment: Arc<Segment>,
        queue: Recorder,
        now: Instant,
        /// The kernel's count.
        ended: Option<u64>,
    }

    fn bed() -> Bed {
        let (segment, now) = (Arc::new(Segment::create(1).unwrap()), Instant::now());
        let queue = Recorder::new(&segment, Some(0)).unwrap();
        Bed { watch: Watch::new(PATIENCE, now), segment, queue, now, ended: Some(0) }
    }

    impl Bed {
        /// Looks once a second; why it is taken for dead at last.
        fn after(&mut self, seconds: u64, in_flight: u64) -> Option<String> {
            (0..seconds).find_map(|_| {
                self.now += Duration::from_secs(1);
                self.watch.poll(
                    &self.segment,
                    1,
                    UserLoad { in_flight, ended: self.ended },
                    self.now,
                )
            })
        }
    }

    #[test]
    fn an_idle_driver_lives_however_long() {
        let mut bed = bed();
        bed.queue.phase(Phase::Idle);
        assert_eq!(bed.after(10_000, 0), None);
        assert!(bed.watch.is_idle());
    }

    #[test]
    fn a_driver_with_something_to_do_is_not_idle_whoever_says_so() {
        let mut bed = bed();
        bed.queue.phase(Phase::Idle);
        assert!(bed.after(1, 1).is_none() && !bed.watch.is_idle());
        bed.queue.phase(Phase::Working);
        assert!(bed.after(1, 0).is_none() && !bed.watch.is_idle());
    }

    #[test]
    fn an_idle_driver_that_leaves_requests_with_the_kernel_is_dead() {
        let mut bed = bed();
        bed.queue.phase(Phase::Idle);
        assert_eq!(bed.after(4, 3), None);
        assert!(bed.after(3, 3).unwrap().contains("3 requests wait"));
    }

    #[test]
    fn a_driver_that_beats_and_ends_nothing_is_dead_in_the_end() {
        let mut bed = bed();
        let mut dead = None;
        for second in 0..300 {
            bed.queue.phase(Phase::Working);
            bed.queue.beat();
            dead = dead.or(bed.after(1, 3).map(|why| (second, why)));
        }
        let (second, why) = dead.unwrap();
        assert!(second >= 199 && why.contains("3 requests wait"), "{second} {why}");
    }

    #[test]
    fn a_driver_whose_requests_end_lives_though_some_wait() {
        let mut bed = bed();
        for round in 0..20 {
            bed.queue.phase(Phase::Idle);
            bed.ended = Some(round);
            assert_eq!(bed.after(4, 3), None);
        }
    }

    #[test]
    fn a_driver_that_only_says_that_requests_end_is_dead_by_the_kernels_count() {
        for phase in [Phase::Idle, Phase::Working] {
            let mut bed = bed();
            let dead = (0..300).find_map(|_| {
                bed.queue.phase(phase);
                bed.queue.beat();
                bed.queue.ended(0, 0, 4096);
                bed.after(1, 3)
            });
            assert!(dead.unwrap().contains("3 requests wait"), "{phase:?}");
        }
    }

    #[test]
    fn where_nobody_else_counts_the_drivers_own_count_has_to_do() {
        let mut bed = bed();
        bed.ended = None;
        for _ in 0..20 {
            bed.queue.phase(Phase::Idle);
            bed.queue.ended(0, 0, 4096);
            assert_eq!(bed.after(4, 3), None);
        }
        assert!(bed.after(6, 3).is_some());
    }

    #[test]
    fn a_thread_that_works_and_does_not_beat_is_dead() {
        for phase in [Phase::Working, Phase::Waiting, Phase::Draining] {
            let mut bed = bed();
            bed.queue.phase(phase);
            for _ in 0..10 {
                assert_eq!(bed.after(4, 1), None);
                bed.queue.beat();
            }
            assert!(bed.after(8, 1).unwrap().contains("queue 0"));
        }
    }

    #[test]
    fn a_driver_that_looks_after_its_device_has_longer() {
        let mut bed = bed();
        bed.queue.phase(Phase::Recovering);
        assert_eq!(bed.after(99, 64), None);
        assert!(bed.after(4, 64).unwrap().contains("Recovering"));
    }
}
