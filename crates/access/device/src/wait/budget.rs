//! How long polling pays, learned from the duration of earlier waits.

use std::time::Duration;

/// One wait in this many polls up to the limit, whatever was learned.
const PROBE: u32 = 64;
/// Weight of one observation is one in this many.
const WEIGHT: u64 = 8;

/// Polls twice as long as waits take on average, and not at all once that is more than the limit.
/// Pure: time is handed in.
///
/// Waking up can take longer than the device does. What was measured by sleeping then hides a
/// device that became fast, so that one wait in 64 polls up to the limit nevertheless; at most one
/// limit in 64 sleeps is spent on that.
#[derive(Clone, Debug)]
pub struct Budget {
    limit: u64,
    /// Average wait, nanoseconds.
    expected: u64,
    waits: u32,
}

impl Budget {
    /// Never polls longer than `limit` in one wait; zero never polls.
    pub fn new(limit: Duration) -> Self {
        let limit = limit.as_nanos().min(u128::from(u32::MAX)) as u64;
        Self { limit, expected: limit / 2, waits: 0 }
    }

    /// How long to poll before sleeping.
    pub fn poll_for(&self) -> Duration {
        Duration::from_nanos(match (self.probing(), self.pays()) {
            (true, _) => self.limit,
            (false, true) => (self.expected * 2).min(self.limit),
            (false, false) => 0,
        })
    }

    /// Whether polling is the present way, probes aside.
    pub fn pays(&self) -> bool {
        self.expected <= self.limit
    }

    /// Learns that a wait slept, for a time that nobody measured: it counts as too long for
    /// polling.
    pub fn slept(&mut self) {
        self.observe(Duration::MAX, false);
    }

    /// Learns that a wait took `waited`, from the first look to the completion; `polled` says that
    /// polling caught it.
    pub fn observe(&mut self, waited: Duration, polled: bool) {
        // One long wait must not outweigh the next dozen.
        let waited =
            (waited.as_nanos().min(u128::from(u64::MAX)) as u64).min(self.limit.saturating_mul(4));
        self.expected = if polled && self.expected > self.limit {
            waited
        } else {
            self.expected - self.expected / WEIGHT + waited / WEIGHT
        };
        self.waits = self.waits.wrapping_add(1);
    }

    fn probing(&self) -> bool {
        self.waits % PROBE == PROBE - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(50);
    const FAST: Duration = Duration::from_micros(10);
    const SLOW: Duration = Duration::from_millis(5);

    fn after(waits: &[(Duration, bool)]) -> Budget {
        let mut budget = Budget::new(LIMIT);
        waits.iter().for_each(|&(waited, polled)| budget.observe(waited, polled));
        budget
    }

    #[test]
    fn a_device_that_answers_fast_is_polled_for_about_twice_its_time() {
        let budget = after(&[(FAST, true); 40]).poll_for();
        assert!(budget >= FAST * 2 && budget < FAST * 3, "{budget:?}");
    }

    #[test]
    fn a_device_that_answers_late_is_not_polled() {
        assert_eq!(after(&[(SLOW, false); 8]).poll_for(), Duration::ZERO);
    }

    #[test]
    fn a_device_that_became_fast_is_polled_again_after_one_probe() {
        let mut budget = after(&[(SLOW, false); 63]);
        assert_eq!(budget.poll_for(), LIMIT);
        budget.observe(FAST, true);
        assert_eq!(budget.poll_for(), FAST * 2);
    }

    #[test]
    fn one_late_answer_does_not_end_the_polling() {
        let mut budget = after(&[(FAST, true); 40]);
        budget.observe(SLOW, false);
        assert!(budget.poll_for() > Duration::ZERO);
    }

    #[test]
    fn a_limit_of_zero_never_polls() {
        let mut budget = Budget::new(Duration::ZERO);
        for _ in 0..200 {
            assert_eq!(budget.poll_for(), Duration::ZERO);
            budget.observe(FAST, false);
        }
    }
}
