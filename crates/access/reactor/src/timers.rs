//! Any number of timers, of which the kernel has one at a time. Pure: time is handed in.

use std::collections::BTreeSet;
use std::time::Instant;

/// A timer that was set: its time, and which of those that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timer {
    due: Instant,
    sequence: u64,
}

/// Those that were set and have not fired.
#[derive(Default)]
pub(crate) struct Timers {
    set: BTreeSet<Timer>,
    sequence: u64,
    /// Since when those that are due are given out, and the first that was set since: it waits for
    /// the next turn.
    firing: Option<(Instant, u64)>,
}

impl Timers {
    pub(crate) fn set(&mut self, due: Instant) -> Timer {
        let timer = Timer { due, sequence: self.sequence };
        self.sequence += 1;
        self.set.insert(timer);
        timer
    }

    pub(crate) fn cancel(&mut self, timer: Timer) {
        self.set.remove(&timer);
    }

    /// When the first is due.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.set.first().map(|timer| timer.due)
    }

    /// Begins to give out what is due `now`.
    pub(crate) fn fire(&mut self, now: Instant) {
        self.firing = Some((now, self.sequence));
    }

    /// Whether something is being given out.
    #[inline]
    pub(crate) fn is_firing(&self) -> bool {
        self.firing.is_some()
    }

    /// The next that is due, and the time at which that was found.
    pub(crate) fn next(&mut self) -> Option<(Timer, Instant)> {
        let (now, end) = self.firing?;
        let due = self
            .set
            .iter()
            .take_while(|timer| timer.due <= now)
            .find(|timer| timer.sequence < end)
            .copied();
        match due {
            Some(timer) => self.set.remove(&timer),
            None => self.firing.take().is_some(),
        };
        due.map(|timer| (timer, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn timers_fire_in_the_order_of_their_times_and_none_before_its_own() {
        let (mut timers, start) = (Timers::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let set: Vec<_> = [30, 10, 20, 10, 40].map(|ms| timers.set(at(ms))).into();
        assert_eq!(timers.first(), Some(at(10)));
        timers.fire(at(30));
        let fired: Vec<_> = std::iter::from_fn(|| timers.next()).map(|(timer, _)| timer).collect();
        assert_eq!(fired, [set[1], set[3], set[2], set[0]]);
        assert_eq!(timers.first(), Some(at(40)));
    }

    #[test]
    fn a_timer_that_is_set_while_others_fire_waits_for_the_next_turn() {
        let (mut timers, start) = (Timers::default(), Instant::now());
        let later = timers.set(start);
        timers.fire(start);
        let early = timers.set(start - Duration::from_secs(1));
        assert_eq!(timers.next(), Some((later, start)));
        assert_eq!(timers.next(), None);
        timers.fire(start);
        assert_eq!(timers.next(), Some((early, start)));
    }

    #[test]
    fn a_timer_that_was_cancelled_does_not_fire() {
        let (mut timers, now) = (Timers::default(), Instant::now());
        let timer = timers.set(now);
        timers.fire(now);
        timers.cancel(timer);
        assert_eq!((timers.next(), timers.first()), (None, None));
    }
}
