//! One measurement: a load, and what it cost.

use std::time::Duration;

use super::load::{Kind, Load};
use super::talk::{Ask, Mark};
use super::{User, Work};
use crate::Error;
use crate::cpu::{Cost, Meter, Soaker};
use crate::report::Measurement;

/// How long the peer may take to answer, and a load to begin: a card's link comes up within.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// After so long without a packet nothing more comes.
pub const QUIET: Duration = Duration::from_millis(50);
/// How many of these a driver that has just started may take until it is idle.
const SETTLING: u32 = 60;

/// How a measurement is made.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Its length.
    pub time: Duration,
    /// Nanoseconds of an instruction by the instruction clock; `None` by the wall clock.
    pub instruction_ns: Option<f64>,
    /// By the instruction clock, nanoseconds of a [`Soaker`]'s step.
    pub soaker_step: Option<f64>,
    /// Processors of the machine.
    pub cpus: usize,
}

/// What came, by the numbers on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Packets.
    pub packets: u64,
    /// The number of the last.
    last: u64,
}

impl Seen {
    /// Counts a packet.
    #[inline]
    pub fn see(&mut self, mark: &Mark) {
        self.packets += 1;
        self.last = self.last.max(mark.number);
    }

    /// What has come after `before`.
    pub fn since(&self, before: &Self) -> Work {
        let packets = self.packets - before.packets;
        Work { packets, offered: self.last.saturating_sub(before.last).max(packets) }
    }
}

/// Measures `load`, whose number is `id`, with `user`; `driver` is the driver's process if it is
/// another one. Fills the numbers of `into` in.
///
/// What is not idle is counted by the kernel's idle time, or, by the instruction clock and where
/// packets do not come at a rate, by what a [`Soaker`] leaves: it keeps the clock running, by which
/// a rate would be another one.
pub fn measure(
    user: &mut dyn User,
    load: &Load,
    id: u32,
    method: &Method,
    driver: Option<u32>,
    mut into: Measurement,
) -> Result<Measurement, Error> {
    if load.kind == Kind::Idle {
        return idle(user, method, driver, into);
    }
    user.ask(&Ask::Begin(id, *load))?;
    let soaker = method
        .soaker_step
        .filter(|_| load.rate().is_none())
        .map(|step| Soaker::start(method.cpus, step));
    let count = || soaker.as_ref().map_or(0, Soaker::count);
    let (mut meter, mut cost, mut steps) = (None, Cost::default(), 0);
    let mut from = 0;
    let mut begin = || {
        meter = Some(Meter::start(driver));
        from = count();
    };
    let worked = user.work(load, method.time, &mut begin, &mut || steps = count());
    if let Some(meter) = &meter {
        cost = meter.read();
    }
    steps -= from.min(steps);
    let busy = soaker.as_ref().map(|soaker| soaker.busy(cost.elapsed, steps));
    drop(soaker);
    let work = worked?;
    user.ask(&Ask::Stop(id))?;
    user.drain(load)?;
    let tally = user.ask(&Ask::Tell(id))?;
    cost_of(&mut into, method, &work, &cost, busy.or(cost.busy(method.cpus)));
    rate_of(&mut into, load, &work, &cost, (tally.sent, tally.received));
    if load.kind == Kind::Echo(1) && method.instruction_ns.is_none() {
        into = into.with("latency_us_p50", tally.p50_us).with("latency_us_p99", tally.p99_us);
    }
    Ok(into)
}

/// What the machine, and the driver's process, take while nothing comes.
fn idle(
    user: &mut dyn User,
    method: &Method,
    driver: Option<u32>,
    mut into: Measurement,
) -> Result<Measurement, Error> {
    // What is left of before is over then, and the driver's start, unless it polls.
    for _ in 0..SETTLING {
        let meter = Meter::start(driver);
        user.idle(QUIET)?;
        if meter.read().driver.is_none_or(|driver| driver <= QUIET / 50) {
            break;
        }
    }
    let meter = Meter::start(driver);
    user.idle(method.time)?;
    let cost = meter.read();
    shares_of(&mut into, method, &cost);
    Ok(into)
}

/// The busy share of the machine by the kernel's idle time, and that of the driver's process.
pub fn shares_of(into: &mut Measurement, method: &Method, cost: &Cost) {
    let shares = [("busy_percent", cost.busy(method.cpus)), ("driver_cpu_percent", cost.driver)];
    for (metric, time) in shares {
        time.and_then(|time| into.values.insert(metric.into(), cost.percent(time, method.cpus)));
    }
}

/// What it took of the machine.
fn cost_of(
    into: &mut Measurement,
    method: &Method,
    work: &Work,
    cost: &Cost,
    busy: Option<Duration>,
) {
    let packets = work.packets.max(1) as f64;
    let mut put = |metric: &str, value: f64| into.values.insert(metric.into(), value);
    put("switches_per_op", cost.switches as f64 / packets);
    if let Some(driver) = cost.driver {
        put("driver_cpu_us_per_op", driver.as_secs_f64() * 1e6 / packets);
        put("driver_cpu_percent", cost.percent(driver, 1));
    }
    let Some(busy) = busy else { return };
    put("busy_percent", cost.percent(busy, method.cpus));
    match method.instruction_ns {
        Some(nanos) => put("instructions_per_op", busy.as_nanos() as f64 / nanos / packets),
        None => put("busy_us_per_op", busy.as_secs_f64() * 1e6 / packets),
    };
}

/// What went through: as the user has seen it; of a rate, as the peer has.
fn rate_of(
    into: &mut Measurement,
    load: &Load,
    work: &Work,
    cost: &Cost,
    (sent, received): (u64, u64),
) {
    let seconds = cost.elapsed.as_secs_f64().max(1e-9);
    let mbit = |packets: f64| packets * f64::from(load.bytes) * 8.0 / 1e6 / seconds;
    let mut put = |metric: &str, value: f64| into.values.insert(metric.into(), value);
    if load.rate().is_none() {
        put("packets_s", work.packets as f64 / seconds);
        put("mbit_s", mbit(work.packets as f64));
        return;
    }
    let kept = received.min(sent) as f64 / sent.max(1) as f64;
    put("offered_mbit_s", mbit(work.offered as f64));
    put("mbit_s", mbit(work.offered as f64 * kept));
    put("packets_s", work.offered as f64 * kept / seconds);
    put("loss_percent", 100.0 * (1.0 - kept));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_offered_is_told_by_the_numbers_of_what_came() {
        let mark = |number| Mark { id: 1, number, at: 0 };
        let mut seen = Seen::default();
        seen.see(&mark(10));
        let before = seen;
        [12, 13, 20].iter().for_each(|&number| seen.see(&mark(number)));
        assert_eq!(seen.since(&before), Work { packets: 3, offered: 10 });
    }

    #[test]
    fn loss_is_by_what_has_returned_to_the_peer() {
        let mut into = Measurement::new(1, "udp-1024-echo-at10", "kernel");
        let cost = Cost { elapsed: Duration::from_secs(1), ..Cost::default() };
        rate_of(
            &mut into,
            &Load::at(10),
            &Work { packets: 1000, offered: 1000 },
            &cost,
            (2000, 1500),
        );
        assert_eq!((into.values["loss_percent"], into.values["packets_s"]), (25.0, 750.0));
        assert_eq!((into.values["offered_mbit_s"], into.values["mbit_s"]), (8.192, 6.144));
    }

    #[test]
    fn instructions_are_busy_time_by_what_one_takes() {
        let method =
            Method { time: Duration::ZERO, instruction_ns: Some(8.0), soaker_step: None, cpus: 1 };
        let mut into = Measurement::new(1, "udp-64-out", "kernel");
        let cost = Cost { elapsed: Duration::from_millis(1), switches: 20, ..Cost::default() };
        cost_of(
            &mut into,
            &method,
            &Work { packets: 10, offered: 10 },
            &cost,
            Some(Duration::from_micros(400)),
        );
        assert_eq!(
            (into.values["instructions_per_op"], into.values["busy_percent"]),
            (5000.0, 40.0)
        );
        assert_eq!(into.values["switches_per_op"], 2.0);
    }
}
