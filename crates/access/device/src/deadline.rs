//! Deadlines: every wait has one, from the specification or from the caller.

use std::time::{Duration, Instant};

use crate::{Error, clock};

/// The moment at which a wait gives up.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    start: Instant,
    limit: Duration,
}

impl Deadline {
    /// `limit` from now.
    pub fn after(limit: Duration) -> Self {
        Self { start: clock::now(), limit }
    }

    /// What is left; zero when it has passed.
    pub fn remaining(&self) -> Duration {
        self.remaining_at(clock::now())
    }

    /// What is left at `now`, for who has read the clock.
    pub fn remaining_at(&self, now: Instant) -> Duration {
        self.limit.saturating_sub(now.saturating_duration_since(self.start))
    }

    /// How long ago the wait began.
    pub fn elapsed(&self) -> Duration {
        clock::now().saturating_duration_since(self.start)
    }

    /// Whether it has passed.
    pub fn expired(&self) -> bool {
        self.remaining().is_zero()
    }

    /// This one, or `due` if that comes sooner.
    #[must_use]
    pub fn sooner(self, due: Option<Instant>) -> Self {
        let until_due = due.map_or(self.limit, |due| due.saturating_duration_since(self.start));
        Self { limit: self.limit.min(until_due), ..self }
    }

    /// The error that says that `what` did not happen in time.
    pub fn timeout(&self, what: &'static str) -> Error {
        Error::Timeout { what, waited: self.limit }
    }
}

/// Asks `ready` until it answers with a value, at growing intervals (none at first, then up to 1
/// ms, in the end a sixteenth of what was waited), or fails at the deadline.
///
/// The condition is asked once more after the deadline, so that a caller that was not scheduled for
/// a while does not give up on a device that was in time.
pub fn poll_until<T>(
    deadline: Deadline,
    what: &'static str,
    mut ready: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let (mut pause, mut waited) = (Duration::ZERO, Duration::ZERO);
    loop {
        let late = deadline.expired();
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if late {
            return Err(deadline.timeout(what));
        }
        if pause.is_zero() {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(pause.min(deadline.remaining()));
        }
        waited += pause;
        pause =
            (pause * 2 + Duration::from_micros(1)).min(Duration::from_millis(1).max(waited / 16));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_never_holds_fails_at_the_deadline() {
        let result =
            poll_until::<()>(Deadline::after(Duration::from_millis(5)), "nothing", || Ok(None));
        assert!(matches!(result, Err(Error::Timeout { what: "nothing", .. })));
    }

    #[test]
    fn a_long_wait_looks_seldom() {
        let mut looks = 0;
        let result =
            poll_until::<()>(Deadline::after(Duration::from_millis(200)), "nothing", || {
                looks += 1;
                Ok(None)
            });
        assert!(result.is_err() && looks < 100, "{looks} looks");
    }

    #[test]
    fn a_condition_that_holds_at_last_wins_over_a_deadline_that_has_passed() {
        assert_eq!(poll_until(Deadline::after(Duration::ZERO), "it", || Ok(Some(7))).unwrap(), 7);
    }

    #[test]
    fn an_error_of_the_condition_ends_the_wait() {
        let result =
            poll_until::<()>(Deadline::after(Duration::from_secs(60)), "it", || Err(Error::Gone));
        assert!(matches!(result, Err(Error::Gone)));
    }
}
