//! One measurement: a load, and what it cost.

use std::time::Duration;

use crate::Error;
use crate::cpu::{Meter, Soaker};
use crate::load::{Limit, Load, Outcome, Target, run};
use crate::report::Measurement;
use crate::workload::Workload;

/// How a measurement is made.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Length of the throughput pass; the latency pass takes a third of it.
    pub time: Duration,
    /// Whether latency is taken, in a pass of its own, so that its clock reads do not burden the
    /// throughput.
    pub latency: bool,
    /// If the clock counts instructions, busy time is what a [`Soaker`] leaves whose step takes so
    /// many nanoseconds.
    pub soaker_step: Option<f64>,
    /// Processors of the machine.
    pub cpus: usize,
    /// Where the random sequence starts.
    pub seed: u64,
}

/// Measures `workload` on `target`; `driver` is the driver's process if it is another one. Fills
/// the numbers of `into` in.
pub fn measure(
    target: &mut dyn Target,
    workload: Workload,
    method: &Method,
    driver: Option<u32>,
    mut into: Measurement,
) -> Result<Measurement, Error> {
    let load = Load { seed: method.seed, ..Load::new(workload, Limit::Time(method.time)) };
    let outcome = throughput(target, &load, method, driver, &mut into)?;
    let mut errors = outcome.errors;
    if method.latency {
        let outcome = run(
            target,
            &Load { latency: true, limit: Limit::Time(method.time / 3), ..load },
            &mut || {},
        )?;
        errors += outcome.errors;
        if let Some(latency) = outcome.latency {
            into = into.with("latency_us_p50", latency.p50).with("latency_us_p99", latency.p99);
        }
    }
    if let Some(waits) = target.wait_stats() {
        into = into
            .with("interrupts_lost", waits.lost as f64)
            .with("interrupts_late", waits.late as f64);
    }
    Ok(into.with("errors", errors as f64))
}

fn throughput(
    target: &mut dyn Target,
    load: &Load,
    method: &Method,
    driver: Option<u32>,
    into: &mut Measurement,
) -> Result<Outcome, Error> {
    let soaker = method.soaker_step.map(|step| Soaker::start(method.cpus, step));
    let steps = soaker.as_ref().map_or(0, Soaker::count);
    let meter = Meter::start(driver);
    let mut cost = Default::default();
    let mut soaked = 0;
    let outcome = run(target, load, &mut || {
        soaked = soaker.as_ref().map_or(0, Soaker::count) - steps;
        cost = meter.read();
    })?;
    let operations = outcome.operations.max(1) as f64;
    let mut put = |metric: &str, value: f64| into.values.insert(metric.into(), value);
    put("iops", outcome.iops());
    put("mib_s", outcome.iops() * f64::from(load.workload.bytes) / f64::from(1 << 20));
    put("switches_per_op", cost.switches as f64 / operations);
    if let Some(driver) = cost.driver {
        put("driver_cpu_us_per_op", driver.as_secs_f64() * 1e6 / operations);
    }
    match &soaker {
        Some(soaker) => {
            put(
                "instructions_per_op",
                soaker.busy(cost.elapsed, soaked).as_nanos() as f64 / operations,
            );
        }
        None => {
            let cpu = cost.process + cost.driver.unwrap_or_default();
            put("cpu_percent", cost.percent(cpu, 1));
            put("cpu_us_per_op", cpu.as_secs_f64() * 1e6 / operations);
            put("machine_busy_percent", cost.percent(cost.machine, method.cpus));
            put("machine_us_per_op", cost.machine.as_secs_f64() * 1e6 / operations);
        }
    }
    Ok(outcome)
}
