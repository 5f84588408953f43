//! The restart policy of a device: how many deaths it allows, and the delays between starts.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Restart policy of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Most deaths within `window` that are followed by another start.
    pub burst: u32,
    /// Length of the sliding window in which deaths are counted.
    pub window: Duration,
    /// Delay after the second failed start in a row; it doubles with each further failure.
    pub pause: Duration,
    /// Maximum of that delay.
    pub longest_pause: Duration,
    /// How long I/O waits for a driver before it fails.
    pub io_timeout: Duration,
    /// Maximum time of a start, and of a recovery of the device by its driver.
    pub recovery: Duration,
    /// Clients have registered memory (`export.share`): their requests must not complete before the
    /// device is fenced.
    pub lent: bool,
}

/// The remaining budget of the policy.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    deaths: VecDeque<Instant>,
    exhausted: bool,
    /// Consecutive failed starts.
    failures: u32,
    /// Consecutive failed starts of standbys.
    spawn_failures: u32,
    /// Earliest time of the next start.
    pub pause: Option<Instant>,
    /// Earliest time of the next standby.
    pub spawn: Option<Instant>,
}

impl Budget {
    /// A driver has died, or could not be started while there was none.
    pub fn spend(&mut self, policy: &RestartPolicy, now: Instant, had_run: bool) {
        self.deaths.retain(|&death| now.saturating_duration_since(death) < policy.window);
        self.deaths.push_back(now);
        self.exhausted |= self.deaths.len() > policy.burst as usize;
        self.failures = if had_run { 0 } else { self.failures.saturating_add(1) };
        self.pause = after(policy, now, self.failures);
    }

    /// A standby has ended before it was needed.
    pub fn spend_standby(&mut self, policy: &RestartPolicy, now: Instant) {
        self.spawn_failures = self.spawn_failures.saturating_add(1);
        self.spawn = after(policy, now, self.spawn_failures);
    }

    /// A standby has become the driver.
    pub fn standby_was_good(&mut self) {
        (self.spawn_failures, self.spawn) = (0, None);
    }

    /// A driver serves.
    pub fn serves(&mut self) {
        (self.failures, self.pause) = (0, None);
    }

    /// Resets the counts: a user has asked for a restart.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    pub fn is_exhausted(&self) -> bool {
        self.exhausted
    }
}

/// When to try again after `failures` in a row; at once after the first.
fn after(policy: &RestartPolicy, now: Instant, failures: u32) -> Option<Instant> {
    let doubled = failures.checked_sub(2)?;
    let pause = policy.pause.saturating_mul(1u32.checked_shl(doubled).unwrap_or(u32::MAX));
    Some(now + pause.min(policy.longest_pause))
}
