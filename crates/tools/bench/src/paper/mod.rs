//! What the papers have, beside what ring3 has: `papers.toml`, and its values in stored reports.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::report::Report;

/// The file.
static TEXT: &str = include_str!("papers.toml");

/// All of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Papers {
    /// The papers, in their order.
    #[serde(rename = "paper")]
    pub papers: Vec<Paper>,
    /// Figures and tables that were repeated.
    #[serde(rename = "figure")]
    pub figures: Vec<PaperFigure>,
    /// All that the papers have, a line each.
    #[serde(rename = "row")]
    pub rows: Vec<PaperRow>,
}

/// A paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// By what figures and rows name it.
    pub id: String,
    /// Its authors, year and title.
    pub title: String,
    /// ring3's page on it.
    pub page: String,
}

/// A feature or a figure of a paper, and where ring3 has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperRow {
    /// Such as `L1`.
    pub id: String,
    /// The paper.
    pub paper: String,
    /// What it is.
    pub what: String,
    /// A command that shows it.
    pub command: String,
    /// A file of tests, from the top of the repository.
    pub test: String,
    /// The figure that shows it.
    #[serde(default)]
    pub figure: Option<String>,
}

/// A figure or a table of a paper.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFigure {
    /// The row that it is of.
    pub id: String,
    /// The paper.
    pub paper: String,
    /// What it is.
    pub title: String,
    /// The part that measures it.
    pub part: String,
    /// The benchmarks whose reports it is made of.
    pub benches: Vec<String>,
    /// Why ours differs.
    pub why: String,
    /// The paper's values beside ours.
    #[serde(rename = "compare", default)]
    pub comparisons: Vec<Comparison>,
    /// What the paper's text says of its curves.
    #[serde(default)]
    pub points: Vec<Points>,
}

/// A value of the paper's, and the same of ours.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// What is compared.
    pub what: String,
    /// The unit of both.
    pub unit: String,
    /// The paper's value, if it has one.
    #[serde(default)]
    pub paper: Option<f64>,
    /// Where the paper has it.
    #[serde(default)]
    pub source: Option<String>,
    /// Where ours is.
    #[serde(default)]
    pub ours: Option<Ours>,
    /// Why there is none of ours.
    #[serde(default)]
    pub none: Option<String>,
}

/// A figure of a stored report.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ours {
    bench: String,
    workload: String,
    #[serde(default)]
    placement: Option<String>,
    metric: String,
    /// The placement whose value is the denominator.
    #[serde(default)]
    over: Option<String>,
    /// The metric whose value is the denominator.
    #[serde(default)]
    of: Option<String>,
    #[serde(default)]
    times: Option<f64>,
    #[serde(default)]
    pick: Option<Pick>,
}

/// Which of several rows.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Pick {
    /// The largest.
    Max,
}

/// Points of a curve that the paper's text states.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Points {
    /// What stands in the key.
    pub name: String,
    /// In which panel; in all without.
    #[serde(default)]
    pub panel: Option<usize>,
    /// By the axis of percents on the right, or by the one on the left.
    pub axis: Axis,
    /// Places on the axis below, as the panel has it, and values.
    pub points: Vec<(f64, f64)>,
}

/// An axis.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    /// On the left.
    Left,
    /// On the right, of percents.
    Percent,
}

/// The file's content; a test reads it, so that a program that runs has a whole one.
pub static PAPERS: LazyLock<Papers> =
    LazyLock::new(|| toml::from_str(TEXT).unwrap_or_else(|error| panic!("papers.toml: {error}")));

impl Ours {
    /// The value in the first of `reports` that has it.
    pub fn value<'a>(&self, reports: impl IntoIterator<Item = &'a Report>) -> Option<f64> {
        let reports = reports.into_iter().filter(|report| report.bench == self.bench);
        reports.into_iter().find_map(|report| self.of(report))
    }

    fn of(&self, report: &Report) -> Option<f64> {
        let placement = self.placement.as_deref();
        let mut value = self.pick(report, placement, &self.metric)?;
        if let Some(over) = &self.over {
            value = ratio(value, self.pick(report, Some(over), &self.metric)?)?;
        }
        if let Some(of) = &self.of {
            value = ratio(value, self.pick(report, placement, of)?)?;
        }
        Some(value * self.times.unwrap_or(1.0))
    }

    fn pick(&self, report: &Report, placement: Option<&str>, metric: &str) -> Option<f64> {
        let mut rows = report.rows.iter().filter(|row| {
            row.metric == metric && placement.is_none_or(|placement| row.placement == placement)
        });
        match self.pick {
            Some(Pick::Max) => rows
                .filter(|row| row.workload.starts_with(&self.workload))
                .map(|row| row.summary.median)
                .max_by(f64::total_cmp),
            None => rows.find(|row| row.workload == self.workload).map(|row| row.summary.median),
        }
    }
}

fn ratio(value: f64, over: f64) -> Option<f64> {
    (over != 0.0).then(|| value / over)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::report::{Lab, Measurement};

    #[test]
    fn each_of_forty_rows_has_a_command_and_a_test_that_is_there() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let ids: BTreeSet<_> = PAPERS.rows.iter().map(|row| &row.id).collect();
        assert_eq!((PAPERS.rows.len(), ids.len()), (40, 40));
        for row in &PAPERS.rows {
            assert!(top.join(&row.test).exists(), "{}: {}", row.id, row.test);
            assert!(row.command.starts_with("ring3 "), "{}", row.command);
            let has = |id: &String| PAPERS.figures.iter().any(|figure| figure.id == *id);
            assert!(row.figure.as_ref().is_none_or(has), "{}", row.id);
        }
    }

    #[test]
    fn each_figure_is_of_a_paper_and_each_value_of_a_paper_has_its_source() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        for figure in &PAPERS.figures {
            let paper = PAPERS.papers.iter().find(|paper| paper.id == figure.paper).unwrap();
            assert!(top.join(&paper.page).exists() && !figure.comparisons.is_empty());
            for one in &figure.comparisons {
                assert_eq!(one.paper.is_some(), one.source.is_some(), "{}", one.what);
                assert_ne!(one.ours.is_some(), one.none.is_some(), "{}", one.what);
                let bench = one.ours.as_ref().map(|ours| &ours.bench);
                assert!(bench.is_none_or(|bench| figure.benches.contains(bench)), "{}", one.what);
            }
        }
    }

    fn ours(text: &str) -> Ours {
        toml::from_str(text).unwrap()
    }

    fn report() -> Report {
        let at = |load: &str, placement: &str, value| {
            Measurement::new(1, load, placement).with("mbit_s", value)
        };
        let rows = [
            at("echo-at10", "kernel", 10.0),
            at("echo-at20", "kernel", 20.0),
            at("echo-at10", "export", 5.0),
            at("idle", "export", 99.0),
        ];
        Report::new("udp-echo", Lab::default(), &rows)
    }

    #[test]
    fn the_peak_of_one_placement_stands_over_that_of_another() {
        let text = "bench = 'udp-echo'\nworkload = 'echo-at'\npick = 'max'\nplacement = 'export'\n\
                    over = 'kernel'\nmetric = 'mbit_s'\ntimes = 100.0";
        assert_eq!(ours(text).value([&report()]), Some(25.0));
    }

    #[test]
    fn what_no_report_has_is_no_value() {
        let text = "bench = 'udp-echo'\nworkload = 'echo-at10'\nmetric = 'mbit_s'\nplacement = ";
        assert_eq!(ours(&format!("{text}'kernel'")).value([&report()]), Some(10.0));
        assert_eq!(ours(&format!("{text}'hosted'")).value([&report()]), None);
        assert_eq!(ours(&format!("{text}'kernel'\nover = 'no'")).value([&report()]), None);
        assert_eq!(ours(&format!("{text}'kernel'")).value([]), None);
    }
}
