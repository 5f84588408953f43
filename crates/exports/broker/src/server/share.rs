//! Whose turn it is, and for how long: deficit round robin, and limits in time.
//!
//! A client that has something to do gets a quantum of work each round and keeps what it cannot use
//! because its next request is larger; one that has nothing keeps nothing. A request costs its
//! bytes and something [beside](Scale::each), so that neither many small requests nor few large
//! ones push others aside. [Shreedhar and Varghese, Efficient Fair Queuing Using Deficit Round
//! Robin, 1995]

use std::time::{Duration, Instant};

/// What work is measured by.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Work that a client of weight 1 gets in a round.
    quantum: u64,
    /// What a request costs beside its bytes.
    each: u64,
}

/// Requests of a disk.
pub const DISK: Scale = Scale { quantum: 64 << 10, each: 4096 };
/// Packets that a card sends.
pub const CARD: Scale = Scale { quantum: 16 << 10, each: 256 };

/// What a limit in time lets through at once, as a part of a second: 1/20.
const BURST: u64 = 20;

/// How a client's turn ended.
pub enum TurnResult {
    /// It has had its part, and wants more.
    Used,
    /// It wants nothing more, or may not.
    Idle,
    /// What its next request is for has no room: its turn goes on when there is some.
    Full,
}

/// One client's part.
pub struct Share {
    scale: Scale,
    weight: u64,
    deficit: u64,
    /// It has had its quantum of this round.
    begun: bool,
    operations: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
}

impl Share {
    /// Of `weight`, with at most so many operations and bytes in a second.
    pub fn new(
        scale: Scale,
        weight: u16,
        operations: Option<u64>,
        bytes: Option<u64>,
        now: Instant,
    ) -> Self {
        let bucket = |rate| TokenBucket::new(rate, now);
        Self {
            scale,
            weight: weight.into(),
            deficit: 0,
            begun: false,
            operations: operations.map(bucket),
            bytes: bytes.map(bucket),
        }
    }

    /// Its turn begins, or goes on after others had to be waited for.
    pub fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            self.deficit = self.deficit.saturating_add(self.scale.quantum * self.weight);
        }
    }

    /// Its turn is over; it has nothing more to do if it `rests`.
    pub fn end(&mut self, rests: bool) {
        self.begun = false;
        if rests {
            self.deficit = 0;
        }
    }

    fn cost(&self, operations: u64, bytes: u64) -> u64 {
        self.scale.each.saturating_mul(operations).saturating_add(bytes)
    }

    /// Whether a request that counts as `operations` of `bytes` is still in its turn.
    pub fn affords(&self, operations: u64, bytes: u64) -> bool {
        self.cost(operations, bytes) <= self.deficit
    }

    /// When it may do something again, if not `now`.
    pub fn held_until(&mut self, now: Instant) -> Option<Instant> {
        let due =
            |bucket: &mut Option<TokenBucket>| bucket.as_mut().and_then(|bucket| bucket.due(now));
        due(&mut self.operations).max(due(&mut self.bytes))
    }

    /// A request that counts as `operations` of `bytes` is done for it.
    pub fn charge(&mut self, operations: u64, bytes: u64) {
        self.deficit = self.deficit.saturating_sub(self.cost(operations, bytes));
        self.operations.iter_mut().for_each(|bucket| bucket.take(operations));
        self.bytes.iter_mut().for_each(|bucket| bucket.take(bytes));
    }
}

/// Lets `rate` units through in a second. Who takes more than there is waits for it afterwards, so
/// that a request larger than any burst goes through, too.
struct TokenBucket {
    rate: u64,
    /// Nanoseconds' worth of units, below zero if more was taken.
    level: i128,
    at: Instant,
}

const SECOND: u64 = 1_000_000_000;

impl TokenBucket {
    fn new(rate: u64, now: Instant) -> Self {
        Self { rate, level: Self::most(rate), at: now }
    }

    /// At least one unit, in nanoseconds.
    fn most(rate: u64) -> i128 {
        i128::from((SECOND / BURST).max(SECOND / rate))
    }

    /// When there is something in it; `None` if there is.
    fn due(&mut self, now: Instant) -> Option<Instant> {
        let passed = now.saturating_duration_since(self.at).as_nanos() as i128;
        (self.level, self.at) =
            ((self.level + passed).min(Self::most(self.rate)), now.max(self.at));
        (self.level <= 0).then(|| {
            now + Duration::from_nanos((1 - self.level).clamp(1, i128::from(u64::MAX)) as u64)
        })
    }

    fn take(&mut self, units: u64) {
        self.level -= i128::from(units) * i128::from(SECOND) / i128::from(self.rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of several clients gets done of its requests, all of one size, in `rounds`, if all
    /// always have more.
    fn served(sizes: &[(u16, u64)], rounds: usize) -> Vec<u64> {
        let now = Instant::now();
        let mut shares: Vec<_> =
            sizes.iter().map(|&(weight, _)| Share::new(DISK, weight, None, None, now)).collect();
        let mut bytes = vec![0; sizes.len()];
        for _ in 0..rounds {
            for (index, share) in shares.iter_mut().enumerate() {
                let size = sizes[index].1;
                share.begin();
                while share.affords(1, size) {
                    share.charge(1, size);
                    bytes[index] += share.cost(1, size);
                }
                share.end(false);
            }
        }
        bytes
    }

    #[test]
    fn large_and_small_requests_get_the_same_work_done() {
        let work = served(&[(1, 512), (1, 4096), (1, 1 << 20), (1, 65536)], 1000);
        let (least, most) = (work.iter().min().unwrap(), work.iter().max().unwrap());
        assert!(most - least <= (1 << 20) + 4096, "{work:?}");
    }

    #[test]
    fn twice_the_weight_is_twice_the_work() {
        let work = served(&[(1, 4096), (2, 4096)], 1000);
        assert!(work[1].abs_diff(2 * work[0]) <= 3 * 65536, "{work:?}");
    }

    #[test]
    fn who_has_had_nothing_to_do_does_not_save_it_up() {
        let mut share = Share::new(DISK, 1, None, None, Instant::now());
        for _ in 0..100 {
            share.begin();
            share.end(true);
        }
        share.begin();
        assert!(!share.affords(1, DISK.quantum));
    }

    #[test]
    fn a_turn_that_goes_on_gets_no_second_quantum() {
        let mut share = Share::new(DISK, 1, None, None, Instant::now());
        share.begin();
        share.charge(1, DISK.quantum - DISK.each);
        share.begin();
        assert!(!share.affords(1, 0));
    }

    /// Requests of `bytes` that go through in ten seconds of a clock that is turned by hand.
    fn through(iops: Option<u64>, rate: Option<u64>, bytes: u64) -> u64 {
        let start = Instant::now();
        let (mut share, mut now, mut count) = (Share::new(DISK, 1, iops, rate, start), start, 0);
        while now < start + Duration::from_secs(10) {
            match share.held_until(now) {
                Some(due) => now = due,
                None => {
                    share.charge(1, bytes);
                    count += 1;
                }
            }
        }
        count
    }

    #[test]
    fn operations_and_bytes_are_held_to_their_rates() {
        let operations = through(Some(100), None, 1 << 20);
        assert!((1000..=1010).contains(&operations), "{operations}");
        let bytes = through(None, Some(1 << 20), 65536) * 65536;
        assert!((10 << 20..=(10 << 20) + (2 << 17)).contains(&bytes), "{bytes}");
        assert!((10..=12).contains(&through(Some(1), None, 0)));
    }

    #[test]
    fn a_request_larger_than_any_burst_goes_through_and_is_waited_for_afterwards() {
        let count = through(None, Some(1 << 20), 4 << 20);
        assert!((2..=4).contains(&count), "{count}");
    }
}
