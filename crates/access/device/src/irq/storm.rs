//! Detection and masking of interrupt storms.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When an interrupt counts as a storm, and for how long it is then held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StormLimit {
    /// Most interrupts that are let through in one window.
    pub count: u64,
    /// The window.
    pub window: Duration,
    /// How long the vector stays masked after a storm.
    pub hold: Duration,
}

impl StormLimit {
    /// Nothing is a storm.
    pub const NONE: Self = Self { count: u64::MAX, window: Duration::ZERO, hold: Duration::ZERO };
}

impl Default for StormLimit {
    /// 250,000 a second, about twice what a vector reaches that is served by sleeping and waking;
    /// then 10 ms of silence.
    fn default() -> Self {
        Self { count: 5_000, window: Duration::from_millis(20), hold: Duration::from_millis(10) }
    }
}

/// Counts interrupts in windows. Lock-free; two threads that race can count one window twice, which
/// only shifts the limit.
pub(super) struct Storm {
    limit: StormLimit,
    origin: Instant,
    /// Nanoseconds from the origin to the start of the window.
    window_start: AtomicU64,
    in_window: AtomicU64,
    /// Nanoseconds from the origin to the end of the hold; 0 while nothing is held.
    held_until: AtomicU64,
    storms: AtomicU64,
}

impl Storm {
    pub(super) fn new(limit: StormLimit) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            limit,
            origin: Instant::now(),
            window_start: zero(),
            in_window: zero(),
            held_until: zero(),
            storms: zero(),
        }
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Records `count` interrupts; true if they make a storm, which starts the pause. Of those that
    /// nobody has counted for longer than a window, so many are in it as came in that time on
    /// average.
    pub(super) fn record(&self, count: u64) -> bool {
        let (now, window) = (self.now(), self.limit.window.as_nanos() as u64);
        let since = now.saturating_sub(self.window_start.load(Ordering::Relaxed));
        let seen = if since > window {
            let share = u128::from(count) * u128::from(window) / u128::from(since);
            self.window_start.store(now, Ordering::Relaxed);
            self.in_window.store(share as u64, Ordering::Relaxed);
            share as u64
        } else {
            self.in_window.fetch_add(count, Ordering::Relaxed).saturating_add(count)
        };
        if seen <= self.limit.count || self.held_until.load(Ordering::Relaxed) != 0 {
            return false;
        }
        self.in_window.store(0, Ordering::Relaxed);
        self.held_until.store(now + self.limit.hold.as_nanos() as u64, Ordering::Relaxed);
        self.storms.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The rest of the pause; `None` if there is no pause.
    pub(super) fn storm_pause(&self) -> Option<Duration> {
        match self.held_until.load(Ordering::Relaxed) {
            0 => None,
            until => Some(Duration::from_nanos(until.saturating_sub(self.now()))),
        }
    }

    /// Ends the hold.
    pub(super) fn release(&self) {
        self.held_until.store(0, Ordering::Relaxed);
    }

    /// How many holds there were.
    pub(super) fn storms(&self) -> u64 {
        self.storms.load(Ordering::Relaxed)
    }

    pub(super) fn limit(&self) -> StormLimit {
        self.limit
    }
}
