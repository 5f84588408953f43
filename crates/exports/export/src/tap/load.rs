//! Which engine moves a queue's packets: by calls, which is cheapest for one at a time, or by
//! vhost-net, which pays for many.
//!
//! # Shape
//! A [`Load`] counts what a queue's thread does, and makes a [`Window`] of it now and then. A
//! [`Choice`] judges that: it is handed all that it knows, and reads no clock.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// What moves packets between the card's buffers and the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// `read` and `write` at low load, vhost-net at high load where there is one.
    #[default]
    Auto,
    /// `read` and `write`.
    Tap,
    /// vhost-net; an error where there is none.
    Vhost,
}

impl Engine {
    /// In options and manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Tap => "tap",
            Self::Vhost => "vhost",
        }
    }

    /// The one of that name.
    pub fn of(name: &str) -> Option<Self> {
        [Self::Auto, Self::Tap, Self::Vhost].into_iter().find(|engine| engine.name() == name)
    }
}

/// When [`Engine::Auto`] takes which engine. None is a rate: what a processor can do a second says
/// nothing of how much of it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Percent of the time that the thread works at least: below it there is nothing to be gained.
    pub busy: u32,
    /// Packets that a turn of the thread brings at least: so many share the waking of the worker.
    pub together: u64,
    /// The same where the worker has a processor of its own: percent of the time from which on it
    /// is the thread that packets wait for.
    pub full: u32,
    /// Packets of a turn then.
    pub some: u64,
    /// Or bytes: segments are few, and long.
    pub bytes: u64,
    /// Percent of the load at which vhost-net was taken, below which it is left.
    pub low: u32,
}

impl Default for Limits {
    /// A tenth of the time and sixteen packets; or half of it with four, or 16 KiB, where
    /// processors are left. Until a quarter of the load is left.
    ///
    /// By the instructions that packets take on one processor (docs/net.md): a stream one way of
    /// packets that come by thirty-two costs 5 to 15 % less behind vhost-net; long segments cost
    /// the same, and where each batch is small, or each packet answered, waking the worker costs
    /// more than it saves.
    fn default() -> Self {
        Self { busy: 10, together: 16, full: 50, some: 4, bytes: 16 << 10, low: 25 }
    }
}

/// What a queue's thread has done in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// How long that was.
    pub time: Duration,
    /// Of it, what the thread worked. To poll for what does not come is no work.
    pub busy: Duration,
    /// Packets both ways, as the kernel has them: what was put together is one.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Turns that have moved some.
    pub turns: u64,
}

/// Turns of a thread after which the clock is read, and the least time that is judged.
const TURNS: u32 = 64;
const WINDOW: Duration = Duration::from_millis(50);
/// Whether vhost-net still pays can be seen by calls alone, to which a queue goes back so often.
const TRIAL: Duration = Duration::from_secs(5);
/// Windows in a row that say the same before it is done: what is over sooner is not worth the
/// change.
const AGREED: u32 = 2;
/// A packet costs about as much as so many bytes, by the instructions of both (docs/bench.md).
const PACKET: u64 = 4096;

impl Window {
    /// Whether the thread has worked so many percent of the time.
    fn is_busy(&self, percent: u32) -> bool {
        self.busy.as_nanos() * 100 >= self.time.as_nanos() * u128::from(percent)
    }

    /// What was moved in a second, in bytes.
    fn load(&self) -> u64 {
        let bytes = u128::from(self.packets) * u128::from(PACKET) + u128::from(self.bytes);
        (bytes * 1_000_000_000 / self.time.as_nanos().max(1)).min(u64::MAX.into()) as u64
    }
}

impl Limits {
    /// Whether vhost-net would pay for what has gone by calls, with a processor for the worker that
    /// the threads leave, or without.
    fn pays(&self, window: &Window, spare: bool) -> bool {
        let Window { packets, bytes, turns, .. } = *window;
        let brings = |all: u64, each: u64| turns > 0 && all >= each.saturating_mul(turns);
        let cheaper = window.is_busy(self.busy) && brings(packets, self.together);
        let sooner = spare
            && window.is_busy(self.full)
            && (brings(packets, self.some) || brings(bytes, self.bytes));
        cheaper || sooner
    }
}

/// What was chosen lately, and what speaks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Windows in a row that speak against what is in use.
    against: u32,
    /// The load by calls, when it was judged last.
    load: u64,
    /// How long vhost-net is in use.
    used: Duration,
}

impl Choice {
    /// Whether vhost-net is to move packets after what `window` was, in which it did (`in_use`) or
    /// did not.
    ///
    /// Behind vhost-net the thread works little and each turn brings little however much comes, so
    /// only how much it is counts there, beside what it was by calls.
    pub fn judge(&mut self, limits: &Limits, spare: bool, in_use: bool, window: &Window) -> bool {
        let load = window.load();
        let (pays, at_once) = if in_use {
            self.used += window.time;
            let (tried, kept) =
                (self.used >= TRIAL, u128::from(self.load) * u128::from(limits.low));
            (!tried && u128::from(load) * 100 >= kept, tried)
        } else {
            (self.load, self.used) = (load, Duration::ZERO);
            (limits.pays(window, spare), false)
        };
        self.against = if pays == in_use { 0 } else { self.against + 1 };
        if at_once || self.against >= AGREED {
            self.against = 0;
            return pays;
        }
        in_use
    }
}

/// What was done so far, by the thread that has done it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Its processor time without what it has polled.
    pub worked: Duration,
    /// As of a [`Window`].
    pub packets: u64,
    pub bytes: u64,
}

/// The processor time of the calling thread: a system call.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

/// The load of one queue, judged now and then.
pub struct Load {
    limits: Limits,
    /// There is a processor for the worker.
    spare: bool,
    choice: Choice,
    since: (Instant, Done),
    turns: u32,
    /// Turns that have moved something since then.
    moving: u64,
}

impl Load {
    /// From `now` on, of a thread that has `done` something before.
    pub fn new(limits: Limits, spare: bool, now: Instant, done: Done) -> Self {
        Self { limits, spare, choice: Choice::default(), since: (now, done), turns: 0, moving: 0 }
    }

    /// Counts a turn, which has moved something or not; whether it is time to [judge](Self::judge).
    #[inline]
    pub fn count_turn(&mut self, moved: bool) -> bool {
        self.turns += 1;
        self.moving += u64::from(moved);
        self.turns >= TURNS
    }

    /// Whether vhost-net pays for what has come since the last judgement, where it is in use or
    /// not. What was `done` in all is asked only if that is judged.
    pub fn judge(&mut self, in_use: bool, now: Instant, done: impl FnOnce() -> Done) -> bool {
        self.turns = 0;
        let (then, before) = self.since;
        let time = now.saturating_duration_since(then);
        if time < WINDOW {
            return in_use;
        }
        let done = done();
        let window = Window {
            time,
            busy: done.worked.saturating_sub(before.worked),
            packets: done.packets.wrapping_sub(before.packets),
            bytes: done.bytes.wrapping_sub(before.bytes),
            turns: self.moving,
        };
        (self.since, self.moving) = ((now, done), 0);
        self.choice.judge(&self.limits, self.spare, in_use, &window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { busy: 10, together: 16, full: 50, some: 4, bytes: 16 << 10, low: 25 };
    const SECOND: Duration = Duration::from_secs(1);

    /// A second in which a thread was busy so many percent, in a thousand turns of so many packets
    /// of so many bytes.
    fn window(percent: u32, packets: u64, bytes: u64) -> Window {
        let (packets, turns) = (packets * 1000, 1000);
        Window {
            time: SECOND,
            busy: SECOND * percent / 100,
            packets,
            bytes: packets * bytes,
            turns,
        }
    }

    /// What comes of `windows` from calls on.
    fn chosen(spare: bool, windows: &[Window]) -> Vec<bool> {
        let (mut choice, mut in_use) = (Choice::default(), false);
        let judge = |window: &Window| {
            in_use = choice.judge(&LIMITS, spare, in_use, window);
            in_use
        };
        windows.iter().map(judge).collect()
    }

    #[test]
    fn large_batches_of_a_thread_that_works_are_vhosts() {
        assert!(LIMITS.pays(&window(10, 16, 64), false));
        assert!(!LIMITS.pays(&window(9, 16, 64), false), "there is nothing to be gained");
        assert!(!LIMITS.pays(&window(90, 15, 64), false), "waking the worker costs more");
    }

    #[test]
    fn how_many_packets_a_processor_manages_in_a_second_says_nothing() {
        let slow =
            Window { time: SECOND, busy: SECOND / 2, packets: 320, bytes: 320 * 64, turns: 20 };
        assert!(LIMITS.pays(&slow, false));
        let many = Window { packets: 1 << 40, turns: 1 << 40, ..slow };
        assert!(!LIMITS.pays(&many, true));
    }

    #[test]
    fn a_thread_that_is_full_hands_smaller_batches_to_a_worker_that_has_a_processor() {
        let four = window(50, 4, 64);
        assert!(LIMITS.pays(&four, true) && !LIMITS.pays(&four, false));
        assert!(!LIMITS.pays(&window(49, 4, 64), true) && !LIMITS.pays(&window(100, 3, 64), true));
    }

    #[test]
    fn few_long_segments_count_by_their_bytes_where_the_worker_has_a_processor() {
        let segments = window(60, 1, 64 << 10);
        assert!(LIMITS.pays(&segments, true) && !LIMITS.pays(&segments, false));
        assert!(!LIMITS.pays(&window(60, 1, 1500), true));
    }

    #[test]
    fn a_time_in_which_nothing_was_moved_is_never_vhosts() {
        assert!(!LIMITS.pays(&Window { time: SECOND, busy: SECOND, ..Window::default() }, true));
    }

    #[test]
    fn one_window_changes_nothing_and_two_in_a_row_do() {
        let (much, little) = (window(90, 32, 64), window(1, 1, 64));
        assert_eq!(chosen(false, &[much, little, much, much]), [false, false, false, true]);
        assert_eq!(
            chosen(false, &[much, much, little, much, little, little]),
            [false, true, true, true, true, false]
        );
    }

    #[test]
    fn what_is_left_of_the_load_at_which_vhost_was_taken_is_what_keeps_it() {
        let much = window(90, 32, 64);
        let of_much = |percent: u64| Window {
            busy: Duration::ZERO,
            turns: 30_000,
            ..Window { packets: 320 * percent, bytes: 20_480 * percent, ..much }
        };
        assert_eq!(
            chosen(false, &[much, much, of_much(25), of_much(25), of_much(24), of_much(24)]),
            [false, true, true, true, true, false]
        );
    }

    #[test]
    fn a_queue_goes_back_to_calls_now_and_then_however_much_comes() {
        let windows = [window(90, 32, 64); 12];
        let chosen = chosen(false, &windows);
        assert_eq!(
            chosen[..8],
            [false, true, true, true, true, true, false, false],
            "{TRIAL:?} of a second each"
        );
        assert!(chosen[8], "and comes again");
    }

    #[test]
    fn the_clock_is_read_once_in_many_turns_and_a_moment_is_not_judged() {
        let start = Instant::now();
        let mut load = Load::new(LIMITS, false, start, Done::default());
        assert_eq!((1..=TURNS).filter(|_| load.count_turn(true)).count(), 1);
        let unasked = || panic!("it is not judged");
        assert!(
            !load.judge(false, start + WINDOW / 2, unasked)
                && load.judge(true, start + WINDOW / 2, unasked)
        );
    }

    #[test]
    fn what_is_judged_is_what_was_done_since_the_last_time() {
        let start = Instant::now();
        let before = Done { worked: SECOND, packets: 1 << 40, bytes: 1 << 50 };
        let mut load = Load::new(LIMITS, false, start, before);
        let mut judge = |windows: u32, packets: u64| {
            (0..TURNS).for_each(|_| assert!(!load.count_turn(true) || load.turns == TURNS));
            let worked = before.worked + WINDOW / 2 * windows;
            load.judge(false, start + WINDOW * windows, || Done {
                worked,
                packets: before.packets + packets,
                bytes: before.bytes,
            })
        };
        assert!(!judge(1, 16 * u64::from(TURNS)), "one window");
        assert!(!judge(2, 16 * u64::from(TURNS)), "nothing has come in the second");
        assert!(!judge(3, 32 * u64::from(TURNS)) && judge(4, 48 * u64::from(TURNS)));
    }

    #[test]
    fn the_time_of_a_thread_is_what_it_has_worked_and_not_what_it_has_slept() {
        let before = processor_time();
        std::thread::sleep(Duration::from_millis(30));
        let slept = processor_time() - before;
        assert!(slept < Duration::from_millis(15), "{slept:?}");
        let start = Instant::now();
        while processor_time() - before < Duration::from_millis(20) {
            assert!(start.elapsed() < Duration::from_secs(20));
        }
    }
}
