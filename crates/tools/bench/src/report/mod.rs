//! The schema of all results. docs/report.md describes each field, docs/report.schema.json the
//! form; a test compares them.

mod metrics;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Error;
use crate::provenance::Provenance;
use crate::stats::Summary;
use metrics::{COMPARISONS, LESS, MORE, is_figure};
pub use metrics::{METRICS, unit};

/// The schema's name.
pub const SCHEMA: &str = "ring3-report";
/// The schema's version: raised when a field changes its meaning, not when one is added.
pub const VERSION: u32 = 1;

/// One benchmark's results under one clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    #[serde(default)]
    pub schema: String,
    /// Its name: `disk`.
    pub bench: String,
    /// [`VERSION`].
    pub version: u32,
    /// Where it comes from.
    #[serde(default)]
    pub provenance: Provenance,
    /// Where it ran.
    pub lab: Lab,
    /// One for each workload, placement and metric.
    pub rows: Vec<Row>,
    /// Medians over the medians of a baseline.
    pub ratios: Vec<Ratio>,
    /// What was so of the placements, such as the scheduler of a block device.
    #[serde(default)]
    pub facts: Vec<Fact>,
    /// What some benchmarks say under names of their own, as before this schema was theirs, too.
    #[serde(flatten)]
    pub own: Map<String, Value>,
}

/// The largest figure that a report may have: what is larger can be no measurement, and a figure's
/// axis has no place for it.
const MOST: f64 = 1e15;

/// Names that a benchmark cannot give to what is its own.
const FIELDS: [&str; 8] =
    ["schema", "bench", "version", "provenance", "lab", "rows", "ratios", "facts"];

/// What was so of a placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// Where the driver was.
    pub placement: String,
    /// What is said: `device`, `scheduler`, `multipath`, `left out`, or [`TOO_SHORT`] of a load.
    pub fact: String,
    /// What it was; if it changed between rounds, all that it was.
    pub value: String,
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
    /// The disk or the card in words.
    #[serde(default)]
    pub disk: String,
    /// Whether the loads were cut so short that their figures cannot be compared: there are no
    /// ratios then.
    #[serde(default)]
    pub quick: bool,
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
    /// Whether the denominator is the best of the kernel's placements by this metric; for fio's
    /// placements, of those under fio.
    #[serde(default)]
    pub best: bool,
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
    /// What was so of the placement.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, String>,
}

impl Measurement {
    /// Without any numbers yet.
    pub fn new(round: u32, workload: impl ToString, placement: impl ToString) -> Self {
        let (workload, placement) = (workload.to_string(), placement.to_string());
        Self { round, workload, placement, values: BTreeMap::new(), facts: BTreeMap::new() }
    }

    /// With one more number.
    pub fn with(mut self, metric: &str, value: f64) -> Self {
        self.values.insert(metric.into(), value);
        self
    }
}

/// Of a placement: the loads of which a round was too short for a cost.
pub const TOO_SHORT: &str = "too short";

impl Report {
    /// Puts the rounds together. Rows come in the order in which their first measurement did.
    pub fn new(bench: &str, lab: Lab, measurements: &[Measurement]) -> Self {
        let mut cells: Vec<(&Measurement, &str, Vec<f64>)> = Vec::new();
        for measurement in measurements {
            for (metric, &value) in
                measurement.values.iter().filter(|(metric, value)| is_figure(metric, **value))
            {
                let same = |(first, name, _): &&mut (&Measurement, &str, Vec<f64>)| {
                    *name == metric
                        && first.workload == measurement.workload
                        && first.placement == measurement.placement
                };
                match cells.iter_mut().find(same) {
                    Some((_, _, values)) => values.push(value),
                    None => cells.push((measurement, metric, vec![value])),
                }
            }
        }
        let rows: Vec<Row> = cells
            .into_iter()
            .filter_map(|(first, metric, values)| row(first, metric, &values))
            .collect();
        let ratios = if lab.quick { Vec::new() } else { ratios(&rows) };
        Self {
            schema: SCHEMA.into(),
            bench: bench.into(),
            version: VERSION,
            provenance: Provenance::now(),
            lab,
            rows,
            ratios,
            facts: facts(measurements),
            own: Map::new(),
        }
    }

    /// Of one load in one placement, from the fields of `figures`: numbers and summaries are rows,
    /// words are facts, and all are there under their own names, too.
    ///
    /// # Errors
    /// They cannot be written as JSON.
    pub fn of(
        bench: &str,
        lab: Lab,
        (workload, placement): (&str, &str),
        figures: &impl Serialize,
    ) -> Result<Self, Error> {
        let mut report = Self::new(bench, lab, &[]).with_own(figures)?;
        for (name, value) in &report.own {
            let summary = match value {
                Value::Number(number) => number.as_f64().and_then(|value| Summary::of(&[value])),
                _ => serde_json::from_value(value.clone()).ok(),
            };
            let (placement, fact) = (placement.to_owned(), name.clone());
            if let Some(summary) = summary {
                let (workload, metric) = (workload.into(), name.clone());
                let unit = unit(name).into();
                report.rows.push(Row { workload, placement, metric, unit, summary });
            } else if let Value::String(value) = value {
                report.facts.push(Fact { placement, fact, value: value.clone() });
            } else if let Value::Bool(value) = value {
                report.facts.push(Fact { placement, fact, value: value.to_string() });
            }
        }
        Ok(report)
    }

    /// With the fields of `own` under their names.
    ///
    /// # Errors
    /// They cannot be written as JSON, or are no fields.
    pub fn with_own(mut self, own: &impl Serialize) -> Result<Self, Error> {
        let failed = |error| Error::format("what a benchmark has to say", error);
        self.own =
            serde_json::from_value(serde_json::to_value(own).map_err(failed)?).map_err(failed)?;
        FIELDS.iter().for_each(|name| drop(self.own.remove(*name)));
        Ok(self)
    }

    /// What [`Report::with_own`] was given.
    pub fn own<T: serde::de::DeserializeOwned>(&self) -> Result<T, Error> {
        let own = Value::Object(self.own.clone());
        serde_json::from_value(own).map_err(|error| Error::format("a report", error))
    }

    /// Reads the one report of the file at `path`.
    ///
    /// # Errors
    /// As [`Report::read_all`]; or the file has another number of reports.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut all = Self::read_all(path)?;
        match (all.pop(), all.is_empty()) {
            (Some(report), true) => Ok(report),
            _ => Err(Error::Invalid(format!("{}: not one report", path.display()))),
        }
    }

    /// Reads the reports of the file at `path`: one after the other, or in a list.
    ///
    /// # Errors
    /// It cannot be read, or has something that is no report of this version.
    pub fn read_all(path: &Path) -> Result<Vec<Self>, Error> {
        let name = path.display();
        let text = fs::read(path).map_err(|error| Error::os(format!("reading {name}"), error))?;
        let mut all = Vec::new();
        for part in serde_json::Deserializer::from_slice(&text).into_iter::<Value>() {
            let reports = part.and_then(|part| match part.is_array() {
                true => serde_json::from_value(part),
                false => serde_json::from_value(part).map(|report| vec![report]),
            });
            let reports: Vec<Self> =
                reports.map_err(|error| Error::format(format!("{name}"), error))?;
            all.extend(reports);
        }
        let wrong = all.iter().find_map(Self::defect);
        wrong.map_or(Ok(all), |wrong| Err(Error::Invalid(format!("{name}: {wrong}"))))
    }

    /// Why it is no report that this version can use. A file may have been written by anybody.
    fn defect(&self) -> Option<String> {
        // Reports of before the schema had a name have none.
        if !["", SCHEMA].contains(&self.schema.as_str()) || self.version > VERSION {
            return Some(format!(
                "it is of schema {:?}, version {}; this ring3 reads {SCHEMA} up to version \
                 {VERSION}",
                self.schema, self.version
            ));
        }
        let row = self.rows.iter().find(|row| {
            let Summary { min, median, max, .. } = row.summary;
            let is_sound = min <= median && median <= max && -MOST <= min && max <= MOST;
            !is_sound
        })?;
        Some(format!(
            "{} of {} {}: not a smallest, a middle and a largest figure of at most {MOST:e}",
            row.metric, row.workload, row.placement
        ))
    }

    /// Writes it to a file at `path`, whose folder is made if need be.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let failed = |error| Error::os(format!("writing {}", path.display()), error);
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
        fs::write(path, self.text()?).map_err(failed)
    }

    /// As JSON, a field a line.
    ///
    /// # Errors
    /// It has numbers that JSON has none for.
    pub fn text(&self) -> Result<String, Error> {
        let text = serde_json::to_string_pretty(self);
        text.map(|text| text + "\n").map_err(|error| Error::format("a report", error))
    }

    /// The placement in which the kernel's driver was best by `metric`; only under fio if `by_fio`.
    /// `None` if it was not measured, or if neither more nor less of the metric is better.
    pub fn best_kernel(&self, workload: &str, metric: &str, by_fio: bool) -> Option<&str> {
        best_kernel(&self.rows, workload, metric, by_fio)
    }

    /// A placement's median over that of the kernel's best; `None` for the kernel's own.
    pub fn ratio_to_best(&self, workload: &str, placement: &str, metric: &str) -> Option<f64> {
        let same = |ratio: &&Ratio| {
            ratio.best
                && ratio.workload == workload
                && ratio.placement == placement
                && ratio.metric == metric
        };
        self.ratios.iter().find(same).map(|ratio| ratio.median)
    }

    /// Whether each of `metrics` was counted, and is 0: what must not be.
    pub fn has_none_of(&self, metrics: &[&str]) -> bool {
        metrics.iter().all(|metric| {
            let mut rows = self.rows.iter().filter(|row| row.metric == *metric).peekable();
            rows.peek().is_some() && rows.all(|row| row.summary.max == 0.0)
        })
    }

    /// What was so of a placement.
    pub fn fact(&self, placement: &str, fact: &str) -> Option<&str> {
        let found =
            self.facts.iter().find(|found| found.placement == placement && found.fact == fact);
        found.map(|found| found.value.as_str())
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
    let row = rows.iter().find(|row| {
        row.workload == workload && row.placement == placement && row.metric == metric
    })?;
    Some(&row.summary)
}

/// Each placement over those that it is compared with, and over the kernel's best, which is named
/// once if it is one of them.
fn ratios(rows: &[Row]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for row in rows {
        let kernels = row.placement.starts_with("kernel");
        let by_fio = row.placement.ends_with("-fio");
        let best = best_kernel(rows, &row.workload, &row.metric, by_fio).filter(|_| !kernels);
        let compared = COMPARISONS
            .iter()
            .filter(|(placement, _)| *placement == row.placement)
            .map(|(_, baseline)| *baseline);
        for baseline in compared
            .clone()
            .chain(best.filter(|best| !compared.clone().any(|baseline| baseline == *best)))
        {
            let other = find(rows, &row.workload, baseline, &row.metric);
            if let Some(median) = other.and_then(|other| row.summary.ratio_to(other)) {
                let (workload, metric, placement) =
                    (row.workload.clone(), row.metric.clone(), row.placement.clone());
                let best = best == Some(baseline);
                ratios.push(Ratio {
                    workload,
                    metric,
                    placement,
                    baseline: baseline.into(),
                    median,
                    best,
                });
            }
        }
    }
    ratios
}

fn best_kernel<'a>(rows: &'a [Row], workload: &str, metric: &str, by_fio: bool) -> Option<&'a str> {
    let sign = if MORE.contains(&metric) { 1.0 } else { -1.0 };
    if sign < 0.0 && !LESS.contains(&metric) {
        return None;
    }
    let kernels = rows.iter().filter(|row| {
        row.workload == workload && row.metric == metric && row.placement.starts_with("kernel")
    });
    let candidates = kernels.filter(|row| !by_fio || row.placement.ends_with("-fio"));
    // The first of equals: the one to which less was done.
    let better = |a: &&Row, b: &&Row| {
        (sign * a.summary.median)
            .total_cmp(&(sign * b.summary.median))
            .then(std::cmp::Ordering::Greater)
    };
    candidates.max_by(better).map(|row| row.placement.as_str())
}

/// All facts, each once; values that differ between rounds one after the other.
fn facts(measurements: &[Measurement]) -> Vec<Fact> {
    let mut facts: Vec<Fact> = Vec::new();
    for measurement in measurements {
        let is_short = measurement.values.iter().any(|(metric, &value)| !is_figure(metric, value));
        let short = is_short.then_some((TOO_SHORT, measurement.workload.as_str()));
        let known = measurement.facts.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in known.chain(short) {
            match facts
                .iter_mut()
                .find(|fact| fact.placement == measurement.placement && fact.fact == name)
            {
                Some(fact) if fact.value.split(", ").any(|old| old == value) => {}
                Some(fact) => fact.value += &format!(", {value}"),
                None => facts.push(Fact {
                    placement: measurement.placement.clone(),
                    fact: name.into(),
                    value: value.into(),
                }),
            }
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds() -> Vec<Measurement> {
        let iops = |round, placement: &str, value| {
            Measurement::new(round, "randread-4k-qd32", placement).with("iops", value)
        };
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
        assert_eq!(
            (ratio.placement.as_str(), ratio.baseline.as_str(), ratio.median),
            ("export", "kernel", 36.0 / 40.0)
        );
    }

    fn one(placement: &str, metric: &str, value: f64) -> Measurement {
        Measurement::new(1, "randread-4k-qd32", placement).with(metric, value)
    }

    #[test]
    fn the_kernels_best_is_a_baseline_by_name_beside_the_kernel_as_it_comes() {
        let rounds = [
            one("kernel", "iops", 100.0),
            one("kernel-none", "iops", 150.0),
            one("kernel-passthrough", "iops", 200.0),
            one("process", "iops", 800.0),
        ];
        let report = Report::new("disk", Lab::default(), &rounds);
        let of = |baseline: &str| {
            report
                .ratios
                .iter()
                .find(|ratio| ratio.placement == "process" && ratio.baseline == baseline)
        };
        assert_eq!(of("kernel").map(|ratio| (ratio.median, ratio.best)), Some((8.0, false)));
        assert_eq!(
            of("kernel-passthrough").map(|ratio| (ratio.median, ratio.best)),
            Some((4.0, true))
        );
        assert_eq!(report.ratio_to_best("randread-4k-qd32", "process", "iops"), Some(4.0));
    }

    #[test]
    fn the_best_of_instructions_is_the_fewest_and_the_best_of_a_share_is_none() {
        let kernels = |metric: &str| {
            [
                one("kernel", metric, 6.0),
                one("kernel-none", metric, 4.0),
                one("process", metric, 1.0),
            ]
        };
        let best = |metric: &str| {
            let report = Report::new("disk", Lab::default(), &kernels(metric));
            report.best_kernel("randread-4k-qd32", metric, false).map(str::to_owned)
        };
        assert_eq!(best("instructions_per_op").as_deref(), Some("kernel-none"));
        assert_eq!(best("cpu_percent"), None);
    }

    #[test]
    fn what_fio_did_is_compared_with_what_fio_did() {
        let rounds = [
            one("kernel-none", "iops", 900.0),
            one("kernel-fio", "iops", 300.0),
            one("export-fio", "iops", 150.0),
        ];
        let [ratio] = &Report::new("disk", Lab::default(), &rounds).ratios[..] else {
            panic!("one ratio")
        };
        assert_eq!((ratio.baseline.as_str(), ratio.median, ratio.best), ("kernel-fio", 0.5, true));
    }

    #[test]
    fn of_equals_the_kernel_as_it_comes_is_the_best() {
        let report = Report::new(
            "disk",
            Lab::default(),
            &[one("kernel", "iops", 5.0), one("kernel-none", "iops", 5.0)],
        );
        assert_eq!(report.best_kernel("randread-4k-qd32", "iops", false), Some("kernel"));
    }

    #[test]
    fn a_fact_is_said_once_and_a_change_of_it_is_seen() {
        let with = |round, scheduler: &str| {
            let facts = BTreeMap::from([("scheduler".to_owned(), scheduler.to_owned())]);
            Measurement { facts, ..Measurement::new(round, "driver", "kernel") }
        };
        let report = Report::new(
            "disk",
            Lab::default(),
            &[with(1, "mq-deadline"), with(2, "none"), with(3, "none")],
        );
        assert_eq!(report.fact("kernel", "scheduler"), Some("mq-deadline, none"));
        assert!(report.rows.is_empty());
    }

    #[test]
    fn a_cost_that_is_not_above_zero_is_no_figure_and_its_load_is_named() {
        let rounds = [
            one("kernel", "instructions_per_op", 4000.0),
            one("process", "instructions_per_op", 0.0),
        ];
        let report = Report::new("udp-echo", Lab::default(), &rounds);
        assert_eq!(report.get("randread-4k-qd32", "process", "instructions_per_op"), None);
        assert_eq!(report.fact("process", TOO_SHORT), Some("randread-4k-qd32"));
        assert_eq!(report.fact("kernel", TOO_SHORT), None);
    }

    #[test]
    fn a_share_of_zero_is_a_figure() {
        let report = Report::new("udp-echo", Lab::default(), &[one("kernel", "busy_percent", 0.0)]);
        assert_eq!(
            report.get("randread-4k-qd32", "kernel", "busy_percent").map(|summary| summary.median),
            Some(0.0)
        );
    }

    #[test]
    fn a_quick_report_compares_nothing() {
        let report = Report::new("disk", Lab { quick: true, ..Lab::default() }, &rounds());
        assert!(report.ratios.is_empty() && report.rows.len() == 2, "{report:?}");
    }

    #[derive(serde::Deserialize, Serialize, PartialEq, Debug)]
    struct Outcome {
        model: String,
        quick: bool,
        stall_ms_p99: f64,
        iops: Option<Summary>,
        rows: u32,
        list: Vec<u32>,
    }

    #[test]
    fn figures_with_names_become_rows_and_facts_and_keep_their_names() {
        let iops = Summary::of(&[1.0, 3.0]);
        let list = vec![1];
        let outcome =
            Outcome { model: "nvme".into(), quick: true, stall_ms_p99: 7.5, iops, rows: 4, list };
        let report = Report::of("kill", Lab::default(), ("kill", "sim"), &outcome).unwrap();
        assert_eq!(report.get("kill", "sim", "iops"), iops.as_ref());
        assert_eq!(report.get("kill", "sim", "stall_ms_p99").unwrap().max, 7.5);
        assert_eq!(report.rows.iter().map(|row| &row.unit[..]).collect::<Vec<_>>(), ["1/s", "ms"]);
        assert_eq!(
            (report.fact("sim", "model"), report.fact("sim", "quick")),
            (Some("nvme"), Some("true"))
        );
        assert!(!report.has_none_of(&["stall_ms_p99"]));
        assert!(!report.has_none_of(&["errors"]), "what was not counted is not known to be 0");
        let json = serde_json::to_value(&report).unwrap();
        assert!(
            json["model"] == "nvme" && json["rows"].is_array() && json["list"][0] == 1,
            "{json}"
        );
    }

    #[test]
    fn a_report_of_before_it_had_a_schema_is_read() {
        let text = r#"{"bench": "disk", "version": 1, "lab": {"kernel": "6.12", "qemu": "none",
            "mode": "wall", "vcpus": 2}, "rows": [], "ratios": []}"#;
        let report: Report = serde_json::from_str(text).unwrap();
        assert_eq!((report.bench.as_str(), report.schema.as_str()), ("disk", ""));
    }

    #[test]
    fn a_file_has_reports_one_after_the_other_or_in_a_list_and_none_that_cannot_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reports");
        let report = Report::new("disk", Lab::default(), &rounds());
        let text = report.text().unwrap();
        for (file, count) in
            [(text.clone() + &text, 2), (format!("[{text},{text},{text}]"), 3), (text, 1)]
        {
            fs::write(&path, file).unwrap();
            assert_eq!(Report::read_all(&path).unwrap().len(), count);
        }
        let wrong = |change: fn(&mut Report)| {
            let mut report = report.clone();
            change(&mut report);
            fs::write(&path, report.text().unwrap()).unwrap();
            Report::read(&path).unwrap_err().to_string()
        };
        assert!(wrong(|report| report.schema = "other".into()).contains("of schema \"other\""));
        assert!(wrong(|report| report.version = 99).contains("version 99"));
        for change in [
            |report: &mut Report| report.rows[0].summary.max = 1.79e308,
            |report: &mut Report| report.rows[0].summary.min = 1e9,
        ] {
            assert!(wrong(change).contains("not a smallest, a middle and a largest"));
        }
    }

    #[test]
    fn a_report_is_read_back_as_it_was_written() {
        let report = Report::new("disk", Lab { mode: "wall".into(), ..Lab::default() }, &rounds());
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
