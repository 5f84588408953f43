//! Pauses of a controller: while it activates new firmware, it takes no commands. [NVMe 3.1.4.6,
//! CSTS.PP]
//!
//! Requests that wait meanwhile are not late: an abort would wait, too, and a reset would disturb
//! the activation. A pause ends by what the controller says of it (MTFA).

use std::time::{Duration, Instant};

/// A pause ends within this if the controller does not say: as an admin command does with the
/// kernel's driver, which takes the same time.
const UNSAID: Duration = Duration::from_secs(60);
/// And within this, whatever it says, which can be 109 minutes: its requests wait.
const MOST: Duration = Duration::from_secs(600);

/// What a queue has seen of its controller's pauses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    /// When the first one was seen.
    began: Option<Instant>,
    /// When it was seen the last time.
    seen: Option<Instant>,
}

impl Pause {
    /// The controller `is_paused` at `now`, or not. Requests may take as long as `timeout`.
    pub(super) fn note(&mut self, is_paused: bool, now: Instant, timeout: Duration) {
        let is_new = |seen: Instant| now.saturating_duration_since(seen) >= timeout;
        if is_paused {
            // Nobody may have looked since the end of the one before.
            if self.seen.is_none_or(is_new) {
                self.began = Some(now);
            }
            self.seen = Some(now);
        } else if self.seen.is_some_and(is_new) {
            *self = Self::default();
        }
    }

    /// Whether a request that is late at `now` has an excuse: it waited for a controller that may
    /// pause for `limit`, and has had less than `timeout` since.
    pub(super) fn excuses(&self, now: Instant, limit: Duration, timeout: Duration) -> bool {
        let limit = if limit.is_zero() { UNSAID } else { limit.min(MOST) };
        let since = |then: Option<Instant>| then.map(|then| now.saturating_duration_since(then));
        since(self.began).is_some_and(|lasts| lasts < limit + timeout)
            && since(self.seen).is_some_and(|ago| ago < timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_pause_long_after_another_has_a_time_of_its_own() {
        let (start, timeout) = (Instant::now(), 30 * SECOND);
        let mut pause = Pause::default();
        pause.note(true, start, timeout);
        let later = start + 3600 * SECOND;
        pause.note(true, later, timeout);
        assert!(pause.excuses(later + SECOND, 10 * SECOND, timeout));
    }

    #[test]
    fn a_request_is_excused_by_a_pause_and_for_its_own_time_after_it() {
        let (start, mut pause) = (Instant::now(), Pause::default());
        let excuses = |pause: &Pause, at| pause.excuses(start + at, 9 * SECOND, 3 * SECOND);
        assert!(!excuses(&pause, SECOND));
        pause.note(true, start, 3 * SECOND);
        pause.note(true, start + SECOND, 3 * SECOND);
        assert!(excuses(&pause, 3 * SECOND) && !excuses(&pause, 4 * SECOND));
        pause.note(false, start + 4 * SECOND, 3 * SECOND);
        assert!(pause.began.is_none());
    }

    #[test]
    fn a_pause_without_end_excuses_nothing_after_what_the_controller_has_said() {
        let (start, mut pause) = (Instant::now(), Pause::default());
        for second in 0..700 {
            pause.note(true, start + SECOND * second, 30 * SECOND);
        }
        let excuses = |limit, at| pause.excuses(start + SECOND * at, limit, 30 * SECOND);
        assert!(!excuses(9 * SECOND, 699));
        assert!(!excuses(Duration::ZERO, 699), "a minute where it says nothing");
        assert!(!excuses(Duration::from_secs(6553), 699), "ten minutes whatever it says");
        assert!(excuses(Duration::from_secs(6553), 620));
    }
}
