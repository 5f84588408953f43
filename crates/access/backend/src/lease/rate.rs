//! How many interrupts a device may raise: counted where its driver has no say, and held back where
//! it cannot reach.
//!
//! A driver masks its vectors in memory of the device, or asks the holder to; a hostile one does
//! neither, or undoes it. So the holder counts what the kernel has taken, and a device that raises
//! too many has its vectors untied from their descriptors: the kernel takes none of them then, and
//! the IOMMU refuses what the function sends all the same.

use std::time::{Duration, Instant};

/// How long vectors are held back, at first and at most: each time twice as long.
const HOLD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));

/// What is to be done after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Fine,
    /// There were so many in a second: hold all back, for so long.
    Hold(u64, Duration),
    /// Let them through.
    Release,
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct InterruptRate {
    last: Option<(Instant, u64)>,
    until: Option<Instant>,
    hold: Duration,
}

impl InterruptRate {
    /// Checks the rate: `count` interrupts have come until `now`; `most` a second are allowed.
    pub(super) fn check(&mut self, now: Instant, count: u64, most: u64) -> Verdict {
        let last = self.last.replace((now, count));
        if let Some(until) = self.until {
            if now < until {
                return Verdict::Fine;
            }
            self.until = None;
            return Verdict::Release;
        }
        let Some((since, before)) = last else { return Verdict::Fine };
        let passed = now.saturating_duration_since(since).max(Duration::from_millis(1));
        let rate = (count.saturating_sub(before) as f64 / passed.as_secs_f64()) as u64;
        if rate <= most {
            // A quiet second pays half of the debt back.
            self.hold /= 2;
            return Verdict::Fine;
        }
        self.hold = (self.hold * 2).clamp(HOLD.0, HOLD.1);
        self.until = Some(now + self.hold);
        Verdict::Hold(rate, self.hold)
    }

    /// Whether they are held back now.
    pub(super) fn is_held(&self) -> bool {
        self.until.is_some()
    }

    /// The driver that was too loud is gone.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn as_many_as_are_allowed_are_fine_and_one_more_is_held_back_for_a_second() {
        let (mut rate, start) = (InterruptRate::default(), Instant::now());
        assert_eq!(rate.check(start, 1_000_000, 100), Verdict::Fine);
        assert_eq!(rate.check(start + SECOND, 1_000_100, 100), Verdict::Fine);
        assert_eq!(rate.check(start + 2 * SECOND, 1_000_201, 100), Verdict::Hold(101, SECOND));
        assert_eq!(rate.check(start + 5 * SECOND / 2, 1_000_201, 100), Verdict::Fine);
        assert_eq!(rate.check(start + 3 * SECOND, 1_000_201, 100), Verdict::Release);
        assert!(!rate.is_held());
    }

    #[test]
    fn a_device_that_goes_on_is_held_back_longer_each_time_up_to_a_minute() {
        let (mut rate, mut now, mut count) = (InterruptRate::default(), Instant::now(), 0);
        rate.check(now, count, 100);
        let mut holds = Vec::new();
        while holds.len() < 8 {
            (now, count) = (now + SECOND, count + 1_000);
            if let Verdict::Hold(_, hold) = rate.check(now, count, 100) {
                holds.push(hold.as_secs());
                now += hold;
                assert_eq!(rate.check(now, count, 100), Verdict::Release);
            }
        }
        assert_eq!(holds, [1, 2, 4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn a_count_that_begins_anew_is_no_storm() {
        let (mut rate, start) = (InterruptRate::default(), Instant::now());
        rate.check(start, 1_000, 100);
        assert_eq!(rate.check(start + SECOND, 5, 100), Verdict::Fine);
    }
}
