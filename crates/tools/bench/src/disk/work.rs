//! How the same driver's work can be distributed, after section 5 of Chubb 2004, and what that
//! costs and gains at different loads: one thread that polls; an interrupt thread beside the one
//! that makes requests ([`Threaded`]); one thread that polls as long as that pays and then sleeps.
//!
//! # Method
//! Requests start at their times, a number of them a second, whatever becomes of those before;
//! latency counts from a request's time. The last load has no times: 32 in flight. Utilisation is
//! by the kernel's idle time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Placement;
use super::here::Way;
use crate::Error;
use crate::cpu::{Cost, Meter};
use crate::load::{Direct, Limit, Load, Target, Threaded, run};
use crate::report::Measurement;
use crate::workload::Workload;

/// The loads: a light one, a heavier one, and as much as there can be.
pub const LOADS: [&str; 3] =
    ["randread-4k-qd32-at1000", "randread-4k-qd32-at5000", "randread-4k-qd32"];

/// What comes before the measurement takes this part of its time.
const WARM_UP: u32 = 10;

/// For how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Milliseconds of a measurement.
    pub millis: u64,
}

impl Work {
    /// Measures `load` in `placement` and fills the numbers of `into` in.
    pub(super) fn measure(
        &self,
        way: &Way,
        load: Workload,
        placement: Placement,
        cpus: usize,
        mut into: Measurement,
    ) -> Result<Measurement, Error> {
        let Way::Disk(disk) = way else {
            return Err(Error::Invalid(format!(
                "{placement}: work is distributed within this process"
            )));
        };
        let mut target: Box<dyn Target> = match placement {
            Placement::ProcessThreads => Box::new(Threaded::open(*disk, load.depth, load.bytes)?),
            _ => Box::new(
                Direct::open(*disk, load.depth, load.bytes)?
                    .polling(placement == Placement::ProcessPolled),
            ),
        };
        let time = Duration::from_millis(self.millis);
        run(&mut *target, &Load::new(load, Limit::Time(time / WARM_UP)), &mut || {})?;
        let (meter, mut cost) = (Meter::start(None), Cost::default());
        let timed = Load { latency: true, ..Load::new(load, Limit::Time(time)) };
        let outcome = run(&mut *target, &timed, &mut || cost = meter.read())?;
        let operations = outcome.operations.max(1) as f64;
        let mut put = |metric: &str, value: f64| into.values.insert(metric.into(), value);
        put("iops", outcome.iops());
        put("switches_per_op", cost.switches as f64 / operations);
        put("errors", outcome.errors as f64);
        if let Some(busy) = cost.busy(cpus) {
            put("busy_percent", cost.percent(busy, cpus));
            put("busy_us_per_op", busy.as_secs_f64() * 1e6 / operations);
        }
        if let Some(latency) = outcome.latency {
            put("latency_us_p50", latency.p50);
            put("latency_us_p99", latency.p99);
        }
        Ok(into)
    }
}
