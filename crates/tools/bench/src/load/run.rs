//! The loop that keeps requests in flight.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::offsets::Offsets;
use super::stop::Stop;
use super::{Done, Target, stamp};
use crate::Error;
use crate::workload::Workload;

/// Ticks without any completion after which the target counts as stuck: longer than the kernel's 30
/// s for a request and its abort.
const STUCK_TICKS: u64 = 900;

/// When a load ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After this time. What is in flight then is waited for but not counted.
    Time(Duration),
    /// After so many requests, at least 1.
    Count(u64),
}

/// What to do with a target.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The pattern.
    pub workload: Workload,
    /// When it ends.
    pub limit: Limit,
    /// Bytes from the start of the disk that are used; all if `None`.
    pub region: Option<u64>,
    /// Where the random sequence starts.
    pub seed: u64,
    /// Whether each request's time is taken.
    pub latency: bool,
    /// Whether writes carry stamps and reads are checked against them. Reads of what was never
    /// written are mismatches.
    pub verify: bool,
}

impl Load {
    /// `workload` over the whole disk until `limit`, seed 1, without latency and verification.
    pub fn new(workload: Workload, limit: Limit) -> Self {
        Self { workload, limit, region: None, seed: 1, latency: false, verify: false }
    }
}

/// Percentiles of the time from submission to completion, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Half of the requests were faster.
    pub p50: f64,
    /// 99 % were faster.
    pub p99: f64,
}

/// What came of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Requests that were completed within the limit.
    pub operations: u64,
    /// Requests, also after the limit, that failed.
    pub errors: u64,
    /// Reads, also after the limit, whose bytes were not what belongs there.
    pub mismatches: u64,
    /// Time from the first submission to the limit (or to the last completion, if requests were
    /// counted).
    pub elapsed: Duration,
    /// If it was asked for.
    pub latency: Option<Latency>,
}

impl Outcome {
    /// Requests per second.
    pub fn iops(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Runs `load` on `target`; `at_end` is called once when the limit is reached, before the rest is
/// waited for.
pub fn run(
    target: &mut dyn Target,
    load: &Load,
    at_end: &mut dyn FnMut(),
) -> Result<Outcome, Error> {
    let mut run = Run::new(target, load)?;
    let limit = match load.limit {
        Limit::Time(limit) => Some(limit),
        Limit::Count(_) => None,
    };
    // In this order, so that no load is shorter than its limit.
    let start = Instant::now();
    let stop = Stop::after(limit);
    let elapsed = match load.workload.rate {
        None => run.until_over(&stop, start)?,
        Some(rate) => run.at_rate(rate, &stop, start)?,
    };
    at_end();
    let operations = run.completed;
    run.drain(&stop)?;
    Ok(Outcome {
        operations,
        errors: run.errors,
        mismatches: run.mismatches,
        elapsed,
        latency: run.latency(),
    })
}

/// While it lives, this thread's timers are not put off to come together with others.
struct ExactTimers(Option<std::num::NonZeroU64>);

impl ExactTimers {
    fn new() -> Self {
        let usual = rustix::thread::current_timer_slack().ok().and_then(std::num::NonZeroU64::new);
        // If it is refused, timers are some ten microseconds late.
        let _ = rustix::thread::set_current_timer_slack(Some(std::num::NonZeroU64::MIN));
        Self(usual)
    }
}

impl Drop for ExactTimers {
    fn drop(&mut self) {
        let _ = rustix::thread::set_current_timer_slack(self.0);
    }
}

struct Flight {
    offset: u64,
    write: bool,
    since: Instant,
}

struct Run<'a> {
    target: &'a mut dyn Target,
    load: &'a Load,
    offsets: Offsets,
    flights: Vec<Flight>,
    outstanding: u32,
    /// Requests that may still be started.
    budget: u64,
    completed: u64,
    errors: u64,
    mismatches: u64,
    histogram: Option<Histogram<u64>>,
    bytes: Vec<u8>,
    /// Completions at the last tick at which there were new ones, and that tick.
    seen: u64,
    alive: u64,
}

impl<'a> Run<'a> {
    fn new(target: &'a mut dyn Target, load: &'a Load) -> Result<Self, Error> {
        let workload = load.workload;
        let region = load.region.unwrap_or(u64::MAX).min(target.capacity());
        if region < u64::from(workload.bytes) {
            return Err(Error::Invalid(format!(
                "{workload}: the region of {region} bytes holds no request"
            )));
        }
        if target.depth() < workload.depth {
            let depth = target.depth();
            return Err(Error::Invalid(format!(
                "{workload}: the queue holds {depth} requests at most"
            )));
        }
        let now = Instant::now();
        let histogram =
            load.latency.then(|| Histogram::new_with_bounds(1, 60_000_000_000, 3)).transpose();
        Ok(Self {
            offsets: Offsets::new(workload, region, load.seed),
            flights: (0..workload.depth)
                .map(|_| Flight { offset: 0, write: false, since: now })
                .collect(),
            outstanding: 0,
            budget: if let Limit::Count(count) = load.limit { count.max(1) } else { u64::MAX },
            completed: 0,
            errors: 0,
            mismatches: 0,
            histogram: histogram.map_err(|error| Error::format("latency histogram", error))?,
            bytes: if load.verify { vec![0; workload.bytes as usize] } else { Vec::new() },
            seen: 0,
            alive: 0,
            target,
            load,
        })
    }

    /// Keeps the slots busy until time is over or the budget is spent and everything came back;
    /// returns the time that took.
    fn until_over(&mut self, stop: &Stop, start: Instant) -> Result<Duration, Error> {
        (0..self.load.workload.depth).try_for_each(|slot| self.start(slot, start))?;
        let mut last_tick = 0;
        loop {
            self.target.proceed()?;
            let now = if self.histogram.is_some() { Instant::now() } else { start };
            while let Some(done) = self.target.finished()? {
                self.account(done, now)?;
                self.start(done.slot, now)?;
            }
            let (tick, over) = stop.look();
            if over || self.outstanding == 0 {
                return Ok(start.elapsed());
            }
            if tick != last_tick {
                last_tick = tick;
                self.pass(tick)?;
            }
        }
    }

    /// Starts a request at each of its times, as long as there is a slot, whatever becomes of those
    /// before. What has to wait for a slot counts from its time on.
    fn at_rate(&mut self, rate: u32, stop: &Stop, start: Instant) -> Result<Duration, Error> {
        let _exact = ExactTimers::new();
        let (interval, mut next) = (Duration::from_secs(1) / rate, start);
        let mut free: Vec<u16> = (0..self.load.workload.depth).collect();
        let mut last_tick = 0;
        loop {
            while next <= Instant::now()
                && let Some(slot) = free.pop()
            {
                self.start(slot, next)?;
                next += interval;
            }
            match free.is_empty() {
                true => self.target.proceed()?,
                false => self.target.proceed_until(next)?,
            }
            let now = Instant::now();
            while let Some(done) = self.target.finished()? {
                self.account(done, now)?;
                free.push(done.slot);
            }
            let (tick, over) = stop.look();
            if over || (self.budget == 0 && self.outstanding == 0) {
                return Ok(start.elapsed());
            }
            if tick != last_tick {
                last_tick = tick;
                self.pass(tick)?;
            }
        }
    }

    /// Waits for what is in flight.
    fn drain(&mut self, stop: &Stop) -> Result<(), Error> {
        let (mut last_tick, _) = stop.look();
        while self.outstanding > 0 {
            self.target.proceed()?;
            while let Some(done) = self.target.finished()? {
                self.account(done, Instant::now())?;
            }
            let (tick, _) = stop.look();
            if tick != last_tick {
                last_tick = tick;
                self.pass(tick)?;
            }
        }
        Ok(())
    }

    /// Once per tick: time passes for the target, too; if nothing came back for long, it never
    /// will.
    fn pass(&mut self, tick: u64) -> Result<(), Error> {
        if self.completed != self.seen {
            (self.seen, self.alive) = (self.completed, tick);
        } else if tick.saturating_sub(self.alive) > STUCK_TICKS {
            return Err(Error::Stuck { requests: self.outstanding, seconds: STUCK_TICKS / 10 });
        }
        self.target.tick()
    }

    #[inline]
    fn start(&mut self, slot: u16, now: Instant) -> Result<(), Error> {
        if self.budget == 0 {
            return Ok(());
        }
        self.budget -= 1;
        let (write, offset) = self.offsets.draw();
        if write && self.load.verify {
            stamp::fill(&mut self.bytes, offset, self.load.seed);
            self.target.fill(slot, &self.bytes)?;
        }
        if let Some(flight) = self.flights.get_mut(usize::from(slot)) {
            *flight = Flight { offset, write, since: now };
        }
        self.outstanding += 1;
        self.target.queue(slot, write, offset, self.load.workload.bytes)
    }

    #[inline]
    fn account(&mut self, done: Done, now: Instant) -> Result<(), Error> {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.completed += 1;
        self.errors += u64::from(!done.ok);
        let Some(flight) = self.flights.get(usize::from(done.slot)) else {
            return Err(Error::Invalid(format!(
                "a completion for slot {}, which does not exist",
                done.slot
            )));
        };
        if let Some(histogram) = &mut self.histogram {
            histogram
                .saturating_record(now.saturating_duration_since(flight.since).as_nanos() as u64);
        }
        if self.load.verify && done.ok && !flight.write {
            let offset = flight.offset;
            self.target.copy_out(done.slot, &mut self.bytes)?;
            self.mismatches += u64::from(!stamp::check(&self.bytes, offset, self.load.seed));
        }
        Ok(())
    }

    fn latency(&self) -> Option<Latency> {
        let histogram = self.histogram.as_ref()?;
        let micros = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Some(Latency { p50: micros(0.5), p99: micros(0.99) })
    }
}
