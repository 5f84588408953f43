//! Poll or sleep: decided by how long polling had to wait lately.

use std::time::Duration;

/// While asleep is the better way, every so many waits one is polled, to see whether the device has become faster.
const PROBE_EVERY: u32 = 256;

/// A new wait counts for 1/2^WEIGHT of the estimate.
const WEIGHT: u32 = 3;

/// The waiting policy of one queue.
///
/// Polling pays while the device answers within about the time that going to sleep and waking up would take: the `limit`. The
/// estimate is an average over polled waits only, because the length of a slept one includes the wake-up that it is to be
/// compared with. A wait that was not over at the limit counts as twice the limit. So a device that is slower than the limit
/// costs `limit / PROBE_EVERY` of polling per wait, and a queue with nothing in flight never asks.
#[derive(Clone, Copy, Debug)]
pub struct Adaptive {
    limit: u64,
    expected: u64,
    until_probe: u32,
}

impl Adaptive {
    /// Polls for at most `limit` per wait; zero never polls.
    pub fn new(limit: Duration) -> Self {
        Self { limit: limit.as_nanos() as u64, expected: 0, until_probe: PROBE_EVERY }
    }

    /// Whether polling is the present way, probes aside.
    #[inline]
    pub fn is_polling(&self) -> bool {
        self.expected < self.limit
    }

    /// How long to poll now, before sleeping; zero: sleep at once.
    #[inline]
    pub fn budget(&mut self) -> Duration {
        if self.is_polling() {
            return Duration::from_nanos(self.limit);
        }
        self.until_probe = self.until_probe.saturating_sub(1);
        if self.until_probe > 0 || self.limit == 0 {
            return Duration::ZERO;
        }
        self.until_probe = PROBE_EVERY;
        Duration::from_nanos(self.limit)
    }

    /// A polled wait ended with something to do after `waited`.
    #[inline]
    pub fn hit(&mut self, waited: Duration) {
        self.average(waited.as_nanos() as u64);
    }

    /// A polled wait used its budget up.
    #[inline]
    pub fn miss(&mut self) {
        self.average(self.limit * 2);
    }

    #[inline]
    fn average(&mut self, waited: u64) {
        // Rounded up, so that an estimate that is always missed reaches the limit.
        self.expected = (self.expected * ((1 << WEIGHT) - 1) + waited.min(self.limit * 2)).div_ceil(1 << WEIGHT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(10);

    fn slow() -> Adaptive {
        let mut adaptive = Adaptive::new(LIMIT);
        while adaptive.is_polling() {
            adaptive.miss();
        }
        adaptive
    }

    #[test]
    fn a_device_that_misses_the_limit_is_slept_for_after_a_few_waits() {
        let mut adaptive = Adaptive::new(LIMIT);
        let misses = (0..).take_while(|_| adaptive.is_polling().then(|| adaptive.miss()).is_some()).count();
        assert!((2..=8).contains(&misses), "{misses}");
    }

    #[test]
    fn a_device_that_answers_in_time_is_polled_for_ever() {
        let mut adaptive = Adaptive::new(LIMIT);
        for _ in 0..10_000 {
            assert_eq!(adaptive.budget(), LIMIT);
            adaptive.hit(LIMIT / 2);
        }
    }

    #[test]
    fn a_slow_device_is_probed_once_in_a_while_only() {
        let mut adaptive = slow();
        let polled = (0..PROBE_EVERY * 4).filter(|_| !adaptive.budget().is_zero()).count();
        assert_eq!(polled, 4);
    }

    #[test]
    fn a_device_that_has_become_fast_is_polled_again_after_a_few_probes() {
        let mut adaptive = slow();
        let mut probes = 0;
        while !adaptive.is_polling() {
            if !adaptive.budget().is_zero() {
                adaptive.hit(Duration::from_micros(1));
                probes += 1;
            }
        }
        assert!(probes <= 8, "{probes}");
    }

    #[test]
    fn a_limit_of_zero_never_polls() {
        let mut adaptive = Adaptive::new(Duration::ZERO);
        assert!((0..1000).all(|_| adaptive.budget().is_zero()));
    }
}
