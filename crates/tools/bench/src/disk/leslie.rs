//! The figure of Leslie et al. 2005: a stretch of the disk, read from its start in pieces of each
//! size, and what that costs.
//!
//! # Method
//! As in section 4.1 of the paper: one read after the other, by read() in a loop on a block device
//! opened with O_DIRECT, or by the class API where the driver is in the same process. Throughput is
//! by the clock. Processor utilisation is everything that is not idle: by the kernel's idle time,
//! which is exact, and, in a second and shorter pass, by a [`Soaker`] as in the paper. Where the
//! soaker cannot serve (a disk that takes real time under the instruction clock, whose time would
//! run away while it counts) there is only the first, and where idleness spins (the instruction
//! clock without such a disk) only the second.
//!
//! # Two clocks
//! Such a disk keeps its pace by real time, while the guest's clock stands still whenever the host
//! keeps the guest waiting in the middle of its work. A run then seems to be shorter than the disk
//! can be; it counts as what the disk takes, and `clock_behind_percent` says by how much that is
//! more than what the guest saw.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::here::Way;
use super::{Pace, Plan};
use crate::Error;
use crate::cpu::{Cost, Meter, Soaker};
use crate::load::{Direct, Limit, Load, Outcome, Pread, Target, run};
use crate::report::Measurement;
use crate::workload::Workload;

/// Sectors of 512 bytes that a transfer has: the paper's footnote 3.
pub const SECTORS: [u32; 64] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
    27, 28, 29, 30, 31, 32, //
    40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024,
    1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192,
];

/// A few of them.
pub const FEW: [u32; 6] = [1, 8, 32, 128, 1024, 8192];

/// Bytes of a run.
pub const BYTES: u64 = 64 << 20;

/// A disk of the paper's kind: it starts a command every quarter of a millisecond, of which the
/// kernel's driver needs about half (the paper's 52 % at one sector), and its medium gives 50
/// MiB/s.
pub const PACE: Pace = Pace { commands: 4000, bytes: 50 << 20 };

/// What the disk has saved up while it was idle, a tenth of a second of each limit, is spent before
/// a run begins.
const WARM_UP: Duration = Duration::from_millis(250);

/// The same where nothing is saved up.
const SHORT_WARM_UP: Duration = Duration::from_millis(10);

/// The pass under a soaker reads this part of a run.
const SOAKED_PART: u64 = 4;

/// What is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leslie {
    /// Sectors of a transfer, for one run each.
    pub sectors: Vec<u32>,
    /// Bytes of a run.
    pub bytes: u64,
    /// Most requests of a run, whatever its bytes.
    pub requests: Option<u64>,
}

/// How utilisation is found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gauge {
    idle: bool,
    soaker: Option<Soaking>,
    warm_up: Duration,
    cpus: usize,
    /// The disk keeps to this, by another clock than the guest's.
    pace: Option<Pace>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Soaking {
    /// Steps of so many nanoseconds.
    Steps(f64),
    Clock,
}

impl Gauge {
    pub(super) fn of(plan: &Plan, cpus: usize) -> Result<Self, Error> {
        let (idle, soaker) = match (plan.instructions, plan.pace) {
            (true, Some(_)) => (true, None),
            (true, None) => (false, Some(Soaking::Steps(Soaker::calibrate(cpus)?))),
            (false, _) => (true, Some(Soaking::Clock)),
        };
        let warm_up = if plan.pace.is_some() { WARM_UP } else { SHORT_WARM_UP };
        Ok(Self { idle, soaker, warm_up, cpus, pace: plan.pace.filter(|_| plan.instructions) })
    }

    /// The same for a placement without the disk.
    pub(super) fn without_disk(self) -> Self {
        Self { pace: None, ..self }
    }
}

impl Leslie {
    /// Requests of a run.
    pub fn requests(&self, load: Workload) -> u64 {
        (self.bytes / u64::from(load.bytes)).clamp(1, self.requests.unwrap_or(u64::MAX).max(1))
    }

    /// Milliseconds that a run should take, passes before and after it included.
    pub(super) fn millis(&self, load: Workload, pace: Option<Pace>) -> u64 {
        let requests = self.requests(load);
        let run = pace
            .unwrap_or(Pace { commands: 8000, bytes: 1 << 30 })
            .time(requests, load)
            .as_millis() as u64;
        run + run / SOAKED_PART + WARM_UP.as_millis() as u64
    }

    /// Reads by `way` in pieces of `load` and fills the numbers of `into` in.
    pub(super) fn measure(
        &self,
        way: &Way,
        load: Workload,
        gauge: Gauge,
        mut into: Measurement,
    ) -> Result<Measurement, Error> {
        let mut target: Box<dyn Target> = match way {
            Way::Path(path, _) => Box::new(Pread::open(path, load.bytes, true)?),
            Way::Disk(disk) => Box::new(Direct::open(*disk, 1, load.bytes)?),
            Way::Passthrough(_) | Way::Qemu(_) => return Err(Way::no_figure()),
        };
        run(&mut *target, &Load::new(load, Limit::Time(gauge.warm_up)), &mut || {})?;
        let requests = self.requests(load);
        let mut errors = 0;
        if gauge.idle {
            let (mut outcome, mut cost) =
                pass(&mut *target, load, requests, way.driver(), &mut || {})?;
            errors += outcome.errors;
            if let Some(pace) = gauge.pace {
                let least = pace.time(requests, load);
                let behind = least.saturating_sub(outcome.elapsed);
                into.values.insert(
                    "clock_behind_percent".into(),
                    100.0 * behind.as_secs_f64() / least.as_secs_f64().max(1e-9),
                );
                outcome.elapsed += behind;
                cost.elapsed += behind;
                cost.idle = cost.idle.map(|idle| idle + behind);
            }
            throughput(&mut into, load, &outcome, &cost);
            if let Some(time) = cost.busy(gauge.cpus) {
                busy(&mut into, "busy_percent", gauge, &outcome, &cost, time);
            }
        }
        if let Some(soaking) = gauge.soaker {
            let soaker = match soaking {
                Soaking::Steps(step) => Soaker::start(gauge.cpus, step),
                Soaking::Clock => Soaker::timed(gauge.cpus),
            };
            let part = if gauge.idle { requests.div_ceil(SOAKED_PART) } else { requests };
            let (before, mut after) = (soaker.count(), 0);
            let (outcome, cost) =
                pass(&mut *target, load, part, way.driver(), &mut || after = soaker.count())?;
            errors += outcome.errors;
            if !gauge.idle {
                throughput(&mut into, load, &outcome, &cost);
            }
            let time = soaker.busy(cost.elapsed, after - before);
            busy(&mut into, "soaked_busy_percent", gauge, &outcome, &cost, time);
        }
        Ok(into.with("errors", errors as f64))
    }
}

impl Pace {
    /// The least time that `requests` of `load` take.
    fn time(self, requests: u64, load: Workload) -> Duration {
        let bytes = requests as f64 * f64::from(load.bytes);
        Duration::from_secs_f64(
            (requests as f64 / self.commands.max(1) as f64).max(bytes / self.bytes.max(1) as f64),
        )
    }
}

fn pass(
    target: &mut dyn Target,
    load: Workload,
    requests: u64,
    driver: Option<u32>,
    at_end: &mut dyn FnMut(),
) -> Result<(Outcome, Cost), Error> {
    let (meter, mut cost) = (Meter::start(driver), Cost::default());
    let outcome = run(target, &Load::new(load, Limit::Count(requests)), &mut || {
        at_end();
        cost = meter.read();
    })?;
    Ok((outcome, cost))
}

fn throughput(into: &mut Measurement, load: Workload, outcome: &Outcome, cost: &Cost) {
    let mib = outcome.operations as f64 * f64::from(load.bytes) / f64::from(1 << 20);
    let mut put = |metric: &str, value: f64| into.values.insert(metric.into(), value);
    put("mib", mib);
    put("mib_s", mib / outcome.elapsed.as_secs_f64().max(1e-9));
    put("iops", outcome.iops());
    put("switches_per_op", cost.switches as f64 / outcome.operations.max(1) as f64);
}

/// The time that was not idle, in percent of all processors, and per request.
fn busy(
    into: &mut Measurement,
    metric: &str,
    gauge: Gauge,
    outcome: &Outcome,
    cost: &Cost,
    time: Duration,
) {
    into.values.insert(metric.into(), cost.percent(time, gauge.cpus));
    if metric == "busy_percent" || !gauge.idle {
        let each = time.as_secs_f64() * 1e6 / outcome.operations.max(1) as f64;
        into.values.insert("busy_us_per_op".into(), each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_are_those_of_the_footnote() {
        assert!(SECTORS[..32].iter().copied().eq(1..=32));
        // From 32 on, four steps to each power of two.
        let steps: Vec<u32> = (5..13)
            .flat_map(|power| (1..=4).map(move |step| (1 << power) + step * (1 << (power - 2))))
            .collect();
        assert_eq!(SECTORS[32..], steps);
    }

    #[test]
    fn a_run_reads_its_bytes_unless_its_requests_are_limited() {
        let all = Leslie { sectors: vec![], bytes: BYTES, requests: None };
        assert_eq!(all.requests(Workload::reading(1)), 131_072);
        assert_eq!(all.requests(Workload::reading(8192)), 16);
        let few = Leslie { requests: Some(1000), ..all };
        assert_eq!(
            (few.requests(Workload::reading(1)), few.requests(Workload::reading(8192))),
            (1000, 16)
        );
    }

    #[test]
    fn a_sector_takes_as_long_as_a_command_and_a_large_transfer_as_long_as_its_bytes() {
        let leslie = Leslie { sectors: vec![], bytes: BYTES, requests: None };
        let seconds = |sectors| leslie.millis(Workload::reading(sectors), Some(PACE)) / 1000;
        assert_eq!((seconds(1), seconds(8192)), (41, 1));
    }
}
