//! How often a driver may die, and how long the next start waits.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// On what terms a driver is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Deaths within `window` that are followed by another start.
    pub burst: u32,
    /// For how long a death counts.
    pub window: Duration,
    /// The pause after a second start in a row has failed; doubled with each further one.
    pub pause: Duration,
    /// Its longest.
    pub longest_pause: Duration,
    /// For how long I/O waits for a driver.
    pub patience: Duration,
    /// For how long a driver may look after its device, a start included.
    pub recovery: Duration,
    /// Users lend memory: what a dead driver has begun there ends before their requests do.
    pub lent: bool,
}

/// What is left of it.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    deaths: VecDeque<Instant>,
    exhausted: bool,
    /// Starts that have failed since one has succeeded.
    failures: u32,
    /// The same of standbys.
    spawn_failures: u32,
    /// The next start comes no sooner.
    pub pause: Option<Instant>,
    /// The next standby comes no sooner.
    pub spawn: Option<Instant>,
}

impl Budget {
    /// A driver has died, or could not be started while there was none.
    pub fn spend(&mut self, terms: &Terms, now: Instant, had_run: bool) {
        self.deaths.retain(|&death| now.saturating_duration_since(death) < terms.window);
        self.deaths.push_back(now);
        self.exhausted |= self.deaths.len() > terms.burst as usize;
        self.failures = if had_run { 0 } else { self.failures.saturating_add(1) };
        self.pause = after(terms, now, self.failures);
    }

    /// A standby has ended before it was needed.
    pub fn spend_standby(&mut self, terms: &Terms, now: Instant) {
        self.spawn_failures = self.spawn_failures.saturating_add(1);
        self.spawn = after(terms, now, self.spawn_failures);
    }

    /// A standby has become the driver.
    pub fn standby_was_good(&mut self) {
        (self.spawn_failures, self.spawn) = (0, None);
    }

    /// A driver serves.
    pub fn serves(&mut self) {
        (self.failures, self.pause) = (0, None);
    }

    /// A user has asked for a fresh start.
    pub fn forgive(&mut self) {
        *self = Self::default();
    }

    pub fn is_exhausted(&self) -> bool {
        self.exhausted
    }
}

/// When to try again after `failures` in a row; at once after the first.
fn after(terms: &Terms, now: Instant, failures: u32) -> Option<Instant> {
    let doubled = failures.checked_sub(2)?;
    let pause = terms.pause.saturating_mul(1u32.checked_shl(doubled).unwrap_or(u32::MAX));
    Some(now + pause.min(terms.longest_pause))
}
