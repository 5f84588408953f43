//! Which interrupt throttle pays, learned from the traffic.

use std::time::{Duration, Instant};

/// Intervals to choose among, microseconds.
const LEVELS: [u64; 6] = [0, 16, 32, 64, 128, 256];
/// Sleeps of which a sample is made.
const SLEEPS: u32 = 64;
/// Samples between the end of a climb and the next one: at first, and at most. Each climb that ends
/// where the one before did doubles them.
const REST: (u32, u32) = (16, 256);

/// Learns which interval pays, by trying. Pure: time is handed in.
///
/// It climbs: a longer interval is kept if each sleep then gathers more packets and no fewer
/// packets come in a second; otherwise the traffic waits for its own answers, and the interval only
/// delays it. So a stream is gathered, and one who asks and waits keeps the shortest way. Traffic
/// that gathers far less than it did starts the climb anew, as does time. Packets that come further
/// apart than the interval are never held back, whatever it is.
#[derive(Clone, Debug)]
pub struct Adaptive {
    level: usize,
    /// The best of the levels below, while this one is tried.
    before: Option<Sample>,
    /// Packets for each sleep, when the level was kept.
    kept: f64,
    /// Samples left until the next climb; none while it climbs.
    rest: u32,
    /// The level at which the last climb ended, and the rest after it.
    last: (usize, u32),
    sleeps: u32,
    /// When the sample began, and the packets that had come by then.
    begun: Option<(Instant, u64)>,
}

/// What came while the queue slept a number of times.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Packets a second.
    rate: f64,
    /// Packets for each sleep.
    gathered: f64,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self {
            level: 0,
            before: None,
            kept: 0.0,
            rest: 0,
            last: (0, REST.0 / 2),
            sleeps: 0,
            begun: None,
        }
    }
}

impl Adaptive {
    /// That of a queue whose vector has some interval already: it ends with the first sample.
    pub fn of_unknown() -> Self {
        Self { level: LEVELS.len() - 1, rest: 1, ..Self::default() }
    }

    /// The interval now.
    pub fn interval(&self) -> Duration {
        Duration::from_micros(LEVELS[self.level])
    }

    /// The queue goes to sleep: whether it is time for [`sample`](Self::sample).
    #[inline]
    pub fn sleeps(&mut self) -> bool {
        self.sleeps += 1;
        self.sleeps >= SLEEPS
    }

    /// So many `packets` have come in all, until `now`; the interval, if it is another one from now
    /// on.
    pub fn sample(&mut self, packets: u64, now: Instant) -> Option<Duration> {
        let sleeps = std::mem::take(&mut self.sleeps);
        let (begun, before) = self.begun.replace((now, packets))?;
        let (seconds, packets) =
            ((now - begun).as_secs_f64(), packets.saturating_sub(before) as f64);
        let level = self.level;
        self.judge(Sample {
            rate: packets / seconds.max(1e-9),
            gathered: packets / f64::from(sleeps.max(1)),
        });
        (self.level != level).then(|| self.interval())
    }

    fn judge(&mut self, sample: Sample) {
        match self.before.take() {
            Some(before)
                if sample.rate < before.rate * 0.95 || sample.gathered < before.gathered * 1.1 =>
            {
                self.level -= 1;
                self.end_climb();
            }
            Some(before) => {
                self.kept = sample.gathered;
                self.climb(Sample { rate: sample.rate.max(before.rate), ..sample });
            }
            None if self.rest > 0 => {
                self.rest -= 1;
                if self.rest == 0 || sample.gathered < self.kept / 2.0 {
                    // What comes at no interval is the next sample.
                    (self.level, self.rest, self.kept) = (0, 0, 0.0);
                }
            }
            None => self.climb(sample),
        }
    }

    fn climb(&mut self, sample: Sample) {
        if self.level + 1 == LEVELS.len() {
            return self.end_climb();
        }
        self.level += 1;
        self.before = Some(sample);
    }

    fn end_climb(&mut self) {
        let (level, rest) = self.last;
        self.rest = if level == self.level { (rest * 2).min(REST.1) } else { REST.0 };
        self.last = (self.level, self.rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue without a card: time in nanoseconds.
    struct Queue {
        adaptive: Adaptive,
        start: Instant,
        now: u64,
        packets: u64,
        /// The last interrupt.
        last: u64,
        longest: Duration,
    }

    /// To wake up, and to handle a packet.
    const WAKE: u64 = 10_000;
    const EACH: u64 = 1_000;

    impl Queue {
        fn new() -> Self {
            let adaptive = Adaptive::default();
            Self {
                adaptive,
                start: Instant::now(),
                now: 0,
                packets: 0,
                last: 0,
                longest: Duration::ZERO,
            }
        }

        /// Sleeps until the interrupt of what came at `arrival`, and handles what has come by then,
        /// of which `come` tells.
        fn sleep_and_handle(&mut self, arrival: u64, come: impl Fn(u64) -> u64) {
            if self.adaptive.sleeps() {
                self.adaptive.sample(self.packets, self.start + Duration::from_nanos(self.now));
            }
            self.longest = self.longest.max(self.adaptive.interval());
            self.last =
                arrival.max(self.now).max(self.last + self.adaptive.interval().as_nanos() as u64);
            self.now = self.last + WAKE;
            let packets = come(self.now);
            self.packets += packets;
            self.now += packets * EACH;
        }

        /// One packet every `gap`, whatever becomes of them; sleeps for each packet.
        fn stream(&mut self, gap: u64, turns: u32) -> f64 {
            let (begin, before) = (self.now, self.packets);
            for _ in 0..turns {
                let next = begin + (self.packets - before + 1) * gap;
                let taken = self.packets - before;
                self.sleep_and_handle(next, |now| {
                    ((now - begin) / gap).saturating_sub(taken).max(1)
                });
            }
            f64::from(turns) / (self.packets - before) as f64
        }

        /// One who sends `window` packets when the last ones are answered, which takes `away`;
        /// packets a second.
        fn answers(&mut self, window: u64, away: u64, turns: u32) -> f64 {
            let (begin, before) = (self.now, self.packets);
            for _ in 0..turns {
                self.sleep_and_handle(self.now + away, |_| window);
            }
            (self.packets - before) as f64 * 1e9 / (self.now - begin) as f64
        }
    }

    #[test]
    fn a_stream_is_gathered_and_its_interval_ends_at_the_longest() {
        let mut queue = Queue::new();
        let first = queue.stream(15_000, 32);
        queue.stream(15_000, 64 * 8);
        assert_eq!(queue.adaptive.interval(), Duration::from_micros(256));
        let sleeps = queue.stream(15_000, 1000);
        assert!(first > 0.9 && sleeps < 0.15, "{first} and {sleeps} sleeps for each packet");
    }

    #[test]
    fn one_who_asks_and_waits_loses_a_hundredth_at_most() {
        let mut queue = Queue::new();
        let throttled = queue.answers(1, 1_000, 200_000);
        let alone = 1e9 / (1_000 + WAKE + EACH) as f64;
        assert!(queue.longest > Duration::ZERO, "nothing was tried");
        assert!(throttled > alone * 0.99, "{throttled} of {alone} a second");
    }

    #[test]
    fn a_window_that_waits_for_its_answers_loses_a_hundredth_at_most() {
        let mut queue = Queue::new();
        let throttled = queue.answers(16, 5_000, 200_000);
        let alone = 16e9 / (5_000 + WAKE + 16 * EACH) as f64;
        assert!(throttled > alone * 0.99, "{throttled} of {alone} a second");
    }

    #[test]
    fn a_stream_that_becomes_questions_has_no_interval_after_three_samples() {
        let mut queue = Queue::new();
        queue.stream(15_000, 64 * 10);
        assert!(queue.adaptive.interval() > Duration::ZERO);
        queue.answers(1, 5_000, 3 * 64);
        assert_eq!(queue.adaptive.interval(), Duration::ZERO);
    }

    #[test]
    fn packets_that_come_one_by_one_are_not_held_back_for_more() {
        let mut queue = Queue::new();
        let sleeps = queue.stream(1_000_000, 64 * 100);
        assert!((0.99..=1.0).contains(&sleeps), "{sleeps}");
        assert!(
            queue.adaptive.interval() <= Duration::from_micros(16),
            "{:?}",
            queue.adaptive.interval()
        );
    }

    #[test]
    fn an_interval_that_nobody_knows_ends_with_the_first_sample() {
        let mut queue = Queue { adaptive: Adaptive::of_unknown(), ..Queue::new() };
        queue.answers(1, 5_000, 2 * 64 + 1);
        assert_eq!(queue.adaptive.interval(), Duration::ZERO);
    }

    #[test]
    fn an_interval_is_looked_for_anew_when_the_rest_is_over() {
        let mut queue = Queue::new();
        queue.stream(15_000, 64 * 8);
        let mut intervals = Vec::new();
        for _ in 0..64 {
            queue.stream(15_000, 64);
            intervals.push(queue.adaptive.interval());
        }
        assert!(intervals.contains(&Duration::ZERO), "{intervals:?}");
        assert_eq!(intervals.last(), Some(&Duration::from_micros(256)), "{intervals:?}");
    }
}
