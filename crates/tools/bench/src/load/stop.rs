//! Time for a loop that does not read the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a tick comes.
const TICK: Duration = Duration::from_millis(100);

/// The topmost bit: time is over. Below it: ticks so far.
const OVER: u64 = 1 << 63;

/// A thread that counts ticks and says when time is over. Dropping it ends the thread.
pub struct Stop {
    state: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Stop {
    /// Time is over `limit` from now, or never.
    pub fn after(limit: Option<Duration>) -> Self {
        let state = Arc::new(AtomicU64::new(0));
        let shared = state.clone();
        let thread = thread::spawn(move || {
            let start = Instant::now();
            loop {
                let left = limit.map_or(TICK, |limit| limit.saturating_sub(start.elapsed()));
                if left.is_zero() {
                    shared.fetch_or(OVER, Ordering::Relaxed);
                }
                thread::park_timeout(if left.is_zero() { TICK } else { left.min(TICK) });
                if Arc::strong_count(&shared) == 1 {
                    return;
                }
                shared.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { state, thread: Some(thread) }
    }

    /// Ticks so far, and whether time is over. One load.
    #[inline]
    pub fn look(&self) -> (u64, bool) {
        let state = self.state.load(Ordering::Relaxed);
        (state & !OVER, state & OVER != 0)
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.state = Arc::default();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that only sleeps and adds cannot panic.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_over_after_the_limit_and_not_before() {
        let start = Instant::now();
        let stop = Stop::after(Some(Duration::from_millis(30)));
        while !stop.look().1 {
            assert!(start.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(1));
        }
        assert!(start.elapsed() >= Duration::from_millis(30));
    }
}
