//! The schema of all results. docs/bench.md describes each field; a test compares the two.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stats::Summary;

/// The schema's version: raised when a field changes its meaning, not when one is added.
pub const VERSION: u32 = 1;

/// One benchmark's results under one clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Its name: `disk`.
    pub bench: String,
    /// [`VERSION`].
    pub version: u32,
    /// Where it ran.
    pub lab: Lab,
    /// One for each workload, placement and metric.
    pub rows: Vec<Row>,
    /// Medians over the medians of a baseline.
    pub ratios: Vec<Ratio>,
}

/// Where a benchmark ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lab {
    /// The running kernel's release.
    pub kernel: String,
    /// QEMU's version, `none` outside of the lab.
    pub qemu: String,
    /// `wall` or `instructions`.
    pub mode: String,
    /// Processors.
    pub vcpus: u32,
    /// Nanoseconds that an instruction takes by the instruction clock; 0 by the wall clock.
    #[serde(default)]
    pub instruction_ns: u32,
    /// The disk in words: its controller, and what limits it.
    #[serde(default)]
    pub disk: String,
}

/// One metric of one workload in one placement over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was done.
    pub workload: String,
    /// Where the driver was.
    pub placement: String,
    /// What was counted.
    pub metric: String,
    /// In which unit.
    pub unit: String,
    /// Rounds, smallest, median, largest.
    #[serde(flatten)]
    pub summary: Summary,
}

/// One metric's median in one placement over that in another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// What was done.
    pub workload: String,
    /// What was counted.
    pub metric: String,
    /// The numerator.
    pub placement: String,
    /// The denominator.
    pub baseline: String,
    /// The ratio of the medians.
    pub median: f64,
}

/// One round's numbers of one workload in one placement, by metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// From 1 on.
    pub round: u32,
    /// What was done.
    pub workload: String,
    /// Where the driver was.
    pub placement: String,
    /// Metric to value.
    pub values: BTreeMap<String, f64>,
}

impl Measurement {
    /// Without any numbers yet.
    pub fn new(round: u32, workload: impl ToString, placement: impl ToString) -> Self {
        Self { round, workload: workload.to_string(), placement: placement.to_string(), values: BTreeMap::new() }
    }

    /// With one more number.
    pub fn with(mut self, metric: &str, value: f64) -> Self {
        self.values.insert(metric.into(), value);
        self
    }
}

/// The metrics and their units.
pub const METRICS: [(&str, &str); 34] = [
    ("iops", "1/s"),
    ("mib_s", "MiB/s"),
    ("mib", "MiB"),
    ("latency_us_p50", "us"),
    ("latency_us_p99", "us"),
    ("cpu_percent", "%"),
    ("cpu_us_per_op", "us"),
    ("driver_cpu_us_per_op", "us"),
    ("machine_busy_percent", "%"),
    ("machine_us_per_op", "us"),
    ("busy_percent", "%"),
    ("soaked_busy_percent", "%"),
    ("busy_us_per_op", "us"),
    ("clock_behind_percent", "%"),
    ("instructions_per_op", "instructions"),
    ("switches_per_op", "1"),
    ("calls_per_op", "1"),
    ("interrupts_per_op", "1"),
    ("accesses_per_op", "1"),
    ("queue_us", "us"),
    ("driver_wakeup_us", "us"),
    ("driver_queue_us", "us"),
    ("device_us", "us"),
    ("interrupt_us", "us"),
    ("scheduler_us", "us"),
    ("handler_us", "us"),
    ("signal_us", "us"),
    ("client_wakeup_us", "us"),
    ("return_us", "us"),
    ("complete_percent", "%"),
    ("errors", "1"),
    ("startup_ms", "ms"),
    ("driver_peak_mib", "MiB"),
    ("driver_idle_cpu_percent", "%"),
];

/// A metric's unit; `1` for one that is not in the list.
pub fn unit(metric: &str) -> &'static str {
    METRICS.iter().find(|(name, _)| *name == metric).map_or("1", |(_, unit)| unit)
}

/// Which placements are compared with which: (placement, baseline). `-fio` names the same placement under fio.
const COMPARISONS: [(&str, &str); 6] = [
    ("process", "kernel"),
    ("process", "kernel-fio"),
    ("export", "kernel"),
    ("export", "ublk-null"),
    ("export-fio", "kernel-fio"),
    ("ublk-null", "kernel"),
];

impl Report {
    /// Puts the rounds together. Rows come in the order in which their first measurement did.
    pub fn new(bench: &str, lab: Lab, measurements: &[Measurement]) -> Self {
        let mut cells: Vec<(&Measurement, &str, Vec<f64>)> = Vec::new();
        for measurement in measurements {
            for (metric, &value) in &measurement.values {
                let same = |(first, name, _): &&mut (&Measurement, &str, Vec<f64>)| {
                    *name == metric && first.workload == measurement.workload && first.placement == measurement.placement
                };
                match cells.iter_mut().find(same) {
                    Some((_, _, values)) => values.push(value),
                    None => cells.push((measurement, metric, vec![value])),
                }
            }
        }
        let rows: Vec<Row> = cells.into_iter().filter_map(|(first, metric, values)| row(first, metric, &values)).collect();
        let ratios = ratios(&rows);
        Self { bench: bench.into(), version: VERSION, lab, rows, ratios }
    }

    /// A metric's summary.
    pub fn get(&self, workload: &str, placement: &str, metric: &str) -> Option<&Summary> {
        find(&self.rows, workload, placement, metric)
    }
}

fn row(first: &Measurement, metric: &str, values: &[f64]) -> Option<Row> {
    Some(Row {
        workload: first.workload.clone(),
        placement: first.placement.clone(),
        metric: metric.into(),
        unit: unit(metric).into(),
        summary: Summary::of(values)?,
    })
}

fn find<'a>(rows: &'a [Row], workload: &str, placement: &str, metric: &str) -> Option<&'a Summary> {
    let row = rows.iter().find(|row| row.workload == workload && row.placement == placement && row.metric == metric)?;
    Some(&row.summary)
}

fn ratios(rows: &[Row]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for row in rows {
        for (_, baseline) in COMPARISONS.into_iter().filter(|(placement, _)| *placement == row.placement) {
            let other = find(rows, &row.workload, baseline, &row.metric);
            if let Some(median) = other.and_then(|other| row.summary.ratio_to(other)) {
                let (workload, metric, placement) = (row.workload.clone(), row.metric.clone(), row.placement.clone());
                ratios.push(Ratio { workload, metric, placement, baseline: baseline.into(), median });
            }
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds() -> Vec<Measurement> {
        let iops = |round, placement: &str, value| Measurement::new(round, "randread-4k-qd32", placement).with("iops", value);
        vec![
            iops(1, "kernel", 40.0),
            iops(1, "export", 35.0),
            iops(2, "kernel", 50.0),
            iops(2, "export", 36.0),
            iops(3, "kernel", 30.0),
            iops(3, "export", 38.0),
        ]
    }

    #[test]
    fn rounds_of_one_cell_become_one_row() {
        let report = Report::new("disk", Lab::default(), &rounds());
        assert_eq!(report.rows.len(), 2);
        let kernel = report.get("randread-4k-qd32", "kernel", "iops").unwrap();
        assert_eq!((kernel.rounds, kernel.min, kernel.median, kernel.max), (3, 30.0, 40.0, 50.0));
    }

    #[test]
    fn a_ratio_stands_for_each_pair_that_was_measured() {
        let report = Report::new("disk", Lab::default(), &rounds());
        let [ratio] = &report.ratios[..] else { panic!("{:?}", report.ratios) };
        assert_eq!((ratio.placement.as_str(), ratio.baseline.as_str(), ratio.median), ("export", "kernel", 36.0 / 40.0));
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let report = Report::new("disk", Lab { mode: "wall".into(), ..Lab::default() }, &rounds());
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
