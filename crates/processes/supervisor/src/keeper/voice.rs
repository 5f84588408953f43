//! How many lines of the log, which is all devices', a driver may fill.

use std::time::{Duration, Instant};

/// Lines that may come at once.
const BURST: u32 = 100;
/// How long each further one takes to be allowed.
const EACH: Duration = Duration::from_millis(500);

/// Lines that a driver has left.
#[derive(Debug)]
pub struct Lines {
    left: u32,
    filled: Instant,
    /// Since a line was let through.
    left_out: u64,
}

impl Lines {
    pub fn new(now: Instant) -> Self {
        Self { left: BURST, filled: now, left_out: 0 }
    }

    /// Whether one more is let through, and how many were left out before it.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        let more = (now.saturating_duration_since(self.filled).as_millis() / EACH.as_millis())
            .min(BURST.into()) as u32;
        if more > 0 {
            (self.left, self.filled) = ((self.left + more).min(BURST), now);
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(std::mem::take(&mut self.left_out))
            }
            None => {
                self.left_out += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_has_much_to_say_leaves_the_log_to_the_others_and_how_much_it_was_is_said() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        let said = (0..100_000u32)
            .filter(|line| {
                lines.take(start + Duration::from_millis(u64::from(*line / 10))).is_some()
            })
            .count();
        // Ten seconds.
        assert!((100..=125).contains(&said), "{said}");
        assert!(lines.take(start + Duration::from_secs(20)).is_some_and(|left_out| left_out > 0));
        assert_eq!(lines.take(start + Duration::from_secs(20)), Some(0));
    }
}
