//! How long requests are waited for, without a clock in the way of a request.
//!
//! Time is cut into epochs. A request notes the number of the epoch in which it was handed to the
//! device; a tick begins the next epoch when it is due. An epoch never stands for more than it
//! lasted at least, so a queue that was not ticked for long blames nobody.

use std::time::{Duration, Instant};

/// Epochs that make up the time-out.
const EPOCHS: u32 = 8;
/// Epochs that a request is given after its abort. It is late again when the next one after these
/// begins: with a time-out of 30 s, 11.25 s after the abort.
const GRACE: u32 = 2;
/// How often the controller's status is looked at while it has requests, and with it for what came
/// without its interrupt.
const LOOK: Duration = Duration::from_millis(50);

/// The clock of a queue.
pub(crate) struct Timeouts {
    epoch: u32,
    length: Duration,
    began: Option<Instant>,
    looked: Option<Instant>,
}

impl Timeouts {
    /// Waits at least `timeout` for each request, and an eighth longer at most, if ticked as soon
    /// as each epoch ends; slow ticks make each epoch longer.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { epoch: EPOCHS + GRACE, length: timeout / EPOCHS, began: None, looked: None }
    }

    /// The present epoch, for a request that is handed to the device now.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The epoch to note for a request that is handed to the device now and may take `limit`, if
    /// that is longer than others may.
    pub(crate) fn epoch_for(&self, limit: Duration) -> u32 {
        let longer = limit.saturating_sub(self.length * EPOCHS);
        // Almost all may take as long as others do: no division for them.
        if longer.is_zero() {
            return self.epoch;
        }
        let more = longer.as_nanos().div_ceil(self.length.as_nanos().max(1));
        self.epoch.wrapping_add(more.min(u128::from(u32::MAX / 4)) as u32)
    }

    /// How many epochs ago `epoch` was, for another clock; negative for one that is to come.
    pub(crate) fn age(&self, epoch: u32) -> i32 {
        self.epoch.wrapping_sub(epoch).cast_signed()
    }

    /// The epoch that is as old for this clock as `age` says.
    pub(crate) fn epoch_of(&self, age: i32) -> u32 {
        self.epoch.wrapping_sub(age.cast_unsigned())
    }

    /// Whether it is time to look at the controller's status again.
    pub(crate) fn poll_due(&mut self, now: Instant) -> bool {
        let due = self
            .looked
            .is_none_or(|looked| now.saturating_duration_since(looked) >= self.check_interval());
        if due {
            self.looked = Some(now);
        }
        due
    }

    #[inline]
    fn check_interval(&self) -> Duration {
        LOOK.min(self.length)
    }

    /// When the next tick is due, if anything is `in_flight` after the one at `now`.
    pub(crate) fn next(&self, now: Instant, in_flight: bool) -> Option<Instant> {
        let after = |last: Option<Instant>, pause| {
            last.map(|last| last + pause).filter(|&due| due > now).unwrap_or(now + pause)
        };
        in_flight
            .then(|| after(self.looked, self.check_interval()).min(after(self.began, self.length)))
    }

    /// Begins the next epoch if it is due; true if it did, so that requests are to be looked
    /// through.
    pub(crate) fn advance(&mut self, now: Instant) -> bool {
        match self.began {
            Some(began) if now.saturating_duration_since(began) < self.length => false,
            Some(_) => {
                self.began = Some(now);
                self.epoch = self.epoch.wrapping_add(1);
                true
            }
            None => {
                self.began = Some(now);
                false
            }
        }
    }

    /// Whether a request of `epoch` has taken too long.
    pub(crate) fn expired(&self, epoch: u32) -> bool {
        // Negative for one that may take longer than others, and whose time has not begun.
        self.age(epoch) > EPOCHS.cast_signed()
    }

    /// The epoch to note for a request that gets its time of grace.
    pub(crate) fn grace(&self) -> u32 {
        self.epoch.wrapping_sub(EPOCHS - GRACE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(800);

    /// How long after its submission a request is found exhausted, ticked every `step`.
    fn patience_of(step: Duration, submitted: impl Fn(&Timeouts) -> u32) -> Duration {
        let start = Instant::now();
        let mut timeouts = Timeouts::new(TIMEOUT);
        timeouts.advance(start);
        let epoch = submitted(&timeouts);
        let mut now = start;
        while !timeouts.expired(epoch) {
            now += step;
            timeouts.advance(now);
        }
        now - start
    }

    #[test]
    fn a_request_is_given_the_timeout_and_at_most_a_quarter_more() {
        let waited = patience_of(Duration::from_millis(10), Timeouts::epoch);
        assert!(waited >= TIMEOUT && waited <= TIMEOUT * 5 / 4, "{waited:?}");
    }

    #[test]
    fn a_request_that_may_take_longer_is_given_that_time() {
        let waited =
            patience_of(Duration::from_millis(10), |timeouts| timeouts.epoch_for(TIMEOUT * 3));
        assert!(waited >= TIMEOUT * 3 && waited <= TIMEOUT * 3 + TIMEOUT / 4, "{waited:?}");
        assert!(
            patience_of(Duration::from_millis(10), |timeouts| timeouts.epoch_for(TIMEOUT / 2))
                >= TIMEOUT
        );
    }

    #[test]
    fn grace_is_a_quarter_of_the_timeout_and_at_most_an_epoch_more() {
        let waited = patience_of(Duration::from_millis(10), Timeouts::grace);
        assert!(waited >= TIMEOUT / 4 && waited <= TIMEOUT * 3 / 8, "{waited:?}");
    }

    #[test]
    fn a_long_pause_between_ticks_is_one_epoch() {
        let mut timeouts = Timeouts::new(TIMEOUT);
        let start = Instant::now();
        timeouts.advance(start);
        let epoch = timeouts.epoch();
        timeouts.advance(start + TIMEOUT * 1000);
        assert!(!timeouts.expired(epoch));
    }

    #[test]
    fn the_next_tick_is_due_at_the_next_look_or_epoch_and_never_while_nothing_is_in_flight() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut timeouts = Timeouts::new(TIMEOUT);
        assert_eq!(timeouts.next(start, false), None);
        assert!(timeouts.poll_due(start) && !timeouts.advance(start));
        assert_eq!(timeouts.next(start + ms(30), true), Some(start + ms(50)));
        assert!(!timeouts.poll_due(start + ms(49)) && timeouts.poll_due(start + ms(50)));
        assert_eq!(
            Timeouts::new(ms(80)).next(start, true),
            Some(start + ms(10)),
            "an epoch shorter than a look"
        );
    }

    #[test]
    fn a_queue_that_looked_long_ago_does_not_want_a_tick_at_once_again_and_again() {
        let start = Instant::now();
        let mut timeouts = Timeouts::new(TIMEOUT);
        timeouts.poll_due(start);
        timeouts.advance(start);
        assert!(timeouts.next(start + TIMEOUT * 2, true) > Some(start + TIMEOUT * 2));
    }

    #[test]
    fn epochs_may_wrap_around() {
        let mut timeouts = Timeouts { epoch: u32::MAX, ..Timeouts::new(TIMEOUT) };
        let (epoch, mut now) = (timeouts.epoch(), Instant::now());
        for _ in 0..=EPOCHS + 1 {
            timeouts.advance(now);
            now += TIMEOUT;
        }
        assert!(timeouts.expired(epoch));
    }
}
