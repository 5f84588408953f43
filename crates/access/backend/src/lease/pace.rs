//! How fast a driver may change what its holder keeps for it.
//!
//! Each change is told to who keeps the claim beyond the holder's death, which is work for that
//! one, too. Who changes more than is usual waits for his next answer.

use std::time::{Duration, Instant};

/// Changes that may come at once.
const BURST: u32 = 4096;
/// How many more a second.
const RATE: u32 = 1000;

/// Changes that a driver has left.
#[derive(Debug)]
pub(super) struct ChangeRateLimit {
    left: f64,
    at: Instant,
}

impl ChangeRateLimit {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: BURST.into(), at: now }
    }

    /// There was a change.
    pub(super) fn spend(&mut self, now: Instant) {
        self.fill(now);
        self.left -= 1.0;
    }

    /// How long to wait before the next request is taken.
    pub(super) fn pause(&mut self, now: Instant) -> Duration {
        self.fill(now);
        Duration::from_secs_f64((-self.left).max(0.0) / f64::from(RATE))
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.left, self.at) = ((self.left + passed * f64::from(RATE)).min(BURST.into()), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_changes_its_mappings_without_end_is_held_to_a_rate() {
        let start = Instant::now();
        let (mut pace, mut now) = (ChangeRateLimit::new(start), start);
        for _ in 0..BURST + 10 * RATE {
            now += pace.pause(now);
            pace.spend(now);
        }
        let took = now.saturating_duration_since(start).as_secs_f64();
        assert!((9.9..10.1).contains(&took), "{took}");
    }

    #[test]
    fn a_driver_that_maps_what_it_needs_at_its_start_does_not_wait() {
        let now = Instant::now();
        let mut pace = ChangeRateLimit::new(now);
        (0..BURST).for_each(|_| pace.spend(now));
        assert_eq!(pace.pause(now), Duration::ZERO);
    }
}
