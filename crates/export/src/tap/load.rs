//! Which engine moves a queue's packets: by calls, which is cheapest for one at a time, or by vhost-net, which pays for many.

use std::time::{Duration, Instant};

/// What moves packets between the card's buffers and the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// `read` and `write` at low load, vhost-net at high load where there is one.
    #[default]
    Auto,
    /// `read` and `write`.
    Tap,
    /// vhost-net; an error where there is none.
    Vhost,
}

/// When [`Engine::Auto`] takes which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packets a second from which on vhost-net pays.
    pub high: u64,
    /// So many of them at least in a turn of the thread that moves some: what comes alone is not worth waking a worker for.
    pub together: u64,
    /// Packets a second below which it does not pay any more.
    pub low: u64,
}

impl Default for Limits {
    /// 20,000 packets a second, sixteen at a time; until there are less than 5,000.
    ///
    /// By the instructions that packets take (docs/net.md): a stream one way of packets that come by thirty-two costs 5 to 15 % less behind vhost-net. Where each batch is small, or each packet
    /// answered, as the segments of TCP are, waking the worker costs more than that.
    fn default() -> Self {
        Self { high: 20_000, together: 16, low: 5_000 }
    }
}

/// Turns of a thread after which the clock is read, and the least time that is judged.
const TURNS: u32 = 64;
const WINDOW: Duration = Duration::from_millis(50);
/// Whether vhost-net still pays can be seen by calls alone, to which a queue goes back for a window so often.
const TRIAL: Duration = Duration::from_secs(5);

/// The load of one queue, judged now and then.
pub struct Load {
    limits: Limits,
    since: Instant,
    /// When it went from calls to vhost-net, or was judged by calls last.
    began: Instant,
    /// Packets there were then.
    packets: u64,
    turns: u32,
    /// Of them, those that have moved something.
    moving: u64,
}

impl Load {
    /// From `now` on, when `packets` have been moved.
    pub fn new(limits: Limits, now: Instant, packets: u64) -> Self {
        Self { limits, since: now, began: now, packets, turns: 0, moving: 0 }
    }

    /// Counts a turn, which has moved something or not; whether it is time to [judge](Self::judge).
    #[inline]
    pub fn turn(&mut self, moved: bool) -> bool {
        self.turns += 1;
        self.moving += u64::from(moved);
        self.turns >= TURNS
    }

    /// Whether vhost-net pays for what has come since the last judgement, where it is in use or not; `packets` have been moved in all.
    pub fn judge(&mut self, in_use: bool, now: Instant, packets: u64) -> bool {
        self.turns = 0;
        let passed = now.saturating_duration_since(self.since);
        if passed < WINDOW {
            return in_use;
        }
        let moved = packets.wrapping_sub(self.packets);
        let rate = u128::from(moved) * 1_000_000_000 / passed.as_nanos();
        // Behind vhost-net each turn brings little however much comes: only the rate counts.
        let Limits { high, together, low } = self.limits;
        let tried = now.saturating_duration_since(self.began) >= TRIAL;
        let pays = match in_use {
            true => rate >= low.into() && !tried,
            false => rate >= high.into() && moved >= together.saturating_mul(self.moving),
        };
        *self = Self { began: if in_use { self.began } else { now }, ..Self::new(self.limits, now, packets) };
        pays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { high: 20_000, together: 4, low: 5_000 };

    /// What is judged of a second with so many packets and turns that have moved some.
    fn judged(in_use: bool, packets: u64, moving: u64) -> bool {
        let start = Instant::now();
        let mut load = Load::new(LIMITS, start, 100);
        load.moving = moving;
        load.judge(in_use, start + Duration::from_secs(1), 100 + packets)
    }

    #[test]
    fn many_packets_that_come_together_are_vhosts_and_few_are_not() {
        assert!(judged(false, 20_000, 5_000) && !judged(false, 19_999, 0));
        assert!(judged(true, 5_000, 5_000) && !judged(true, 4_999, 0));
    }

    #[test]
    fn many_packets_that_come_alone_stay_with_calls() {
        assert!(!judged(false, 200_000, 200_000));
    }

    #[test]
    fn a_queue_goes_back_to_calls_now_and_then_however_much_comes() {
        let start = Instant::now();
        let mut load = Load::new(LIMITS, start, 0);
        let mut now = start + WINDOW;
        assert!(load.judge(false, now, 1 << 20));
        let mut windows = 1;
        while load.judge(true, now + WINDOW, (windows + 1) << 20) {
            (now, windows) = (now + WINDOW, windows + 1);
        }
        assert_eq!(now + WINDOW - start, WINDOW + TRIAL);
        assert!(load.judge(false, now + 2 * WINDOW, (windows + 2) << 20), "and comes again");
    }

    #[test]
    fn a_load_between_both_limits_changes_nothing() {
        assert!(judged(true, 12_000, 0) && !judged(false, 12_000, 0));
    }

    #[test]
    fn the_clock_is_read_once_in_many_turns_and_a_moment_is_not_judged() {
        let start = Instant::now();
        let mut load = Load::new(LIMITS, start, 0);
        assert_eq!((1..=TURNS).filter(|_| load.turn(false)).count(), 1);
        assert!(!load.judge(false, start + WINDOW / 2, 1 << 30) && load.judge(true, start + WINDOW / 2, 0));
        assert!(load.judge(false, start + WINDOW, 1 << 30));
    }
}
