//! The reports that pages are made of.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use ring3_bench::paper::{Comparison, PaperFigure};
use ring3_bench::report::Report;
use ring3_bench::table::rounded;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// What a page is made of.
pub struct Content {
    /// All reports that were found, each with its file.
    pub reports: Vec<(PathBuf, Report)>,
    /// Files that are no reports, and why.
    pub unreadable: Vec<(PathBuf, String)>,
    /// The commit that figures are compared with: this program's.
    pub commit: Option<String>,
    /// When the page is made.
    pub now: OffsetDateTime,
    /// Days after which a figure is old.
    pub days: u32,
}

impl Content {
    /// The newest reports of these benchmarks. Several parts may have the same benchmark: if there
    /// are reports in a folder of the name of `part`, those alone.
    pub fn of(&self, benches: &[String], part: &str) -> Vec<&Report> {
        let is_of_part = |path: &Path| path.iter().any(|folder| folder == part);
        let mut found: Vec<&Report> = Vec::new();
        for bench in benches {
            let all = self.reports.iter().filter(|(_, report)| report.bench == *bench);
            let has_part = all.clone().any(|(path, _)| is_of_part(path));
            let mut all: Vec<_> =
                all.filter(|(path, _)| !has_part || is_of_part(path)).map(|(_, one)| one).collect();
            all.sort_by_key(|report| Reverse(made(report)));
            // One for each clock, or each driver, of which a benchmark may have several.
            let mut seen: Vec<String> = Vec::new();
            for report in all {
                let kind = kind(report);
                if !seen.contains(&kind) {
                    seen.push(kind);
                    found.push(report);
                }
            }
        }
        found
    }
}

/// What tells reports of one benchmark apart that are not the same measured again.
fn kind(report: &Report) -> String {
    let first = report.rows.first().map(|row| format!("{} {}", row.workload, row.placement));
    match report.bench.as_str() {
        "split" | "split-plan" | "restart" | "outage" => {
            format!("{} {}", report.lab.mode, first.unwrap_or_default())
        }
        _ => report.lab.mode.clone(),
    }
}

/// When a report was made, if it says so.
pub fn made(report: &Report) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(&report.provenance.date, &Rfc3339).ok()
}

/// Whether a report is of loads that were cut short.
pub fn is_short(report: &Report) -> bool {
    report.lab.quick || report.provenance.command.split_whitespace().any(|word| word == "--quick")
}

/// Our value of a comparison, in the first report that has it.
pub fn ours(one: &Comparison, reports: &[&Report]) -> Option<f64> {
    one.ours.as_ref()?.value(reports.iter().copied())
}

/// What stands at the head of each cell of a [`Compared`].
pub const COMPARED: [&str; 4] = ["the paper", "ours", "ours / paper", "where the paper has it"];

/// A value of a paper beside ours, as every page shows it.
pub struct Compared<'a> {
    pub what: &'a str,
    /// As [`COMPARED`] says. Without a ratio or a place that cell is empty.
    pub cells: [String; 4],
}

/// All comparisons of a figure, in its order.
pub fn compared<'a>(figure: &'a PaperFigure, reports: &[&Report]) -> Vec<Compared<'a>> {
    let cells = |one: &'a Comparison| {
        let (found, number) =
            (ours(one, reports), |value: f64| format!("{} {}", rounded(value), one.unit));
        let ratio = found.zip(one.paper).filter(|(_, paper)| *paper != 0.0);
        let ours = || found.map_or_else(|| "not measured".into(), number);
        let cells = [
            one.paper.map_or_else(|| "none".into(), number),
            one.none.clone().unwrap_or_else(ours),
            ratio.map_or_else(String::new, |(ours, paper)| format!("{:.2}", ours / paper)),
            one.source.clone().unwrap_or_default(),
        ];
        Compared { what: &one.what, cells }
    };
    figure.comparisons.iter().map(cells).collect()
}
