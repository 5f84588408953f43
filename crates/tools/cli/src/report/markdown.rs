//! Figures in Markdown pages: what stands between two marks is made from stored reports.
//!
//! # Marks
//! A block begins with a line `<!-- ring3 report: NAME -->` and ends with `<!-- end of NAME -->`.
//! `NAME` is a figure of a paper (`L8`), `places`, the table of the four places, or `places-brief`,
//! its lines that say most. All other lines of a page are left as they are.
//!
//! # Age
//! A report is older than the code if the code that it measures was changed [`GRACE`] or more after
//! it was made: its block says so. Time alone makes no figure old here, since a check of a page
//! must give the same answer for the same commit.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use ring3_bench::paper::{PAPERS, PaperFigure};
use ring3_bench::places;
use ring3_bench::report::Report;
use ring3_bench::table::Table;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use super::content::{COMPARED, Compared, Content, compared, is_short, made};
use super::list;

/// How much newer than a report the code may be before its block says so: work goes on after a
/// measurement, and most of it changes no figure.
const GRACE: Duration = Duration::days(7);
/// What is measured, from the top of the repository: drivers, and all that is between them and
/// their users. The programs that measure are not among them.
const MEASURED: [&str; 6] = [
    ":/crates/access",
    ":/crates/drivers",
    ":/crates/exports",
    ":/crates/processes",
    ":/hosting",
    ":/split/runtime",
];
const BEGIN: &str = "<!-- ring3 report: ";
const END: &str = "<!-- end of ";
const BRIEF: &str = "places-brief";
const CLOSE: &str = " -->";
const OLD: &str = "**Older than the code**, which has changed since these figures were measured.\n";

/// When the code was last changed that reports are about.
pub struct Code(Option<OffsetDateTime>);

impl Code {
    /// By the history of the repository that `page` is in. Without a history nothing is known.
    pub fn of(page: &Path) -> Self {
        let folder = page.parent().filter(|folder| !folder.as_os_str().is_empty());
        let git = |words: &[&str]| {
            let mut git = Command::new("git");
            git.arg("-C").arg(folder.unwrap_or(Path::new("."))).args(words);
            let output = git.output().ok().filter(|output| output.status.success())?;
            Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        // In a shallow clone, the first commit seems to change all files.
        let is_whole =
            git(&["rev-parse", "--is-shallow-repository"]).is_some_and(|is| is == "false");
        let log = ["log", "-1", "--format=%cI", "--"];
        let date = is_whole.then(|| git(&[&log[..], &MEASURED].concat())).flatten();
        Self(date.and_then(|date| OffsetDateTime::parse(&date, &Rfc3339).ok()))
    }

    /// By how much the code is newer than the oldest of `reports`.
    fn newer_than(&self, reports: &[&Report]) -> Option<Duration> {
        let oldest = reports.iter().filter_map(|report| made(report)).min()?;
        Some(self.0? - oldest)
    }
}

/// `page`'s text, its blocks made anew.
///
/// # Errors
/// A mark without its other one, an unknown name, and a block without a report.
pub fn rewritten(text: &str, content: &Content, code: &Code) -> Result<String> {
    let mut lines = text.split_inclusive('\n').enumerate();
    let mut out = String::with_capacity(text.len());
    while let Some((number, line)) = lines.next() {
        out.push_str(line);
        let Some(name) = name(line, BEGIN) else { continue };
        let failed = || format!("line {}: the block {name}", number + 1);
        out.push_str(&block(name, content, code).with_context(failed)?);
        let end = lines.find(|(_, line)| line.starts_with(END) || line.starts_with(BEGIN));
        match end {
            Some((_, line)) if self::name(line, END) == Some(name) => out.push_str(line),
            _ => bail!("line {}: the block {name} has no line {END}{name}{CLOSE}", number + 1),
        }
    }
    Ok(out)
}

/// What stands in a mark.
fn name<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    line.trim_end().strip_prefix(mark)?.strip_suffix(CLOSE)
}

fn block(name: &str, content: &Content, code: &Code) -> Result<String> {
    let figure = PAPERS.figures.iter().find(|figure| figure.id == name);
    let (reports, command) = match figure {
        Some(figure) => (content.of(&figure.benches, &figure.part), list::command(&figure.part)),
        None if [places::BENCH, BRIEF].contains(&name) => {
            (content.of(&[places::BENCH.to_owned()], places::BENCH), "ring3 bench places".into())
        }
        None => bail!("no figure has this name: ring3 report names all of them on its page"),
    };
    ensure!(!reports.is_empty(), "no report of it: measure with {command}");
    // Of what age it is cannot be told otherwise, and it would pass as new.
    let is_dated = reports.iter().all(|report| made(report).is_some());
    ensure!(is_dated, "a report of it has no date: measure anew with {command}");
    let age = code.newer_than(&reports);
    if let Some(age) = age.filter(|age| *age > Duration::days(i64::from(content.days))) {
        bail!(
            "the code is {} days newer than its report, and {} is the limit: measure anew with \
             {command}",
            age.whole_days(),
            content.days
        );
    }
    let figures = match figure {
        Some(figure) => comparisons(figure, &reports),
        None if name == BRIEF => places::in_brief(reports[0]),
        None => places::render(reports[0], true),
    };
    let short = reports.iter().any(|report| is_short(report));
    let short = if short { "Short rounds (`--quick`): too short to be compared.\n" } else { "" };
    let old = if age.is_some_and(|age| age >= GRACE) { OLD } else { "" };
    let notes = [short, old].concat();
    let gap = if notes.is_empty() { "" } else { "\n" };
    Ok(format!("\n{figures}\n{}{gap}{notes}\n", sources(&reports)))
}

/// The paper's values beside ours.
fn comparisons(figure: &PaperFigure, reports: &[&Report]) -> String {
    let mut table = Table::new("", COMPARED).left(&[4]);
    for Compared { what, cells } in compared(figure, reports) {
        table.line(what, cells);
    }
    table.markdown()
}

/// By what the reports were made.
fn sources(reports: &[&Report]) -> String {
    let heads = ["clock", "made", "commit", "others took", "command"];
    let mut table = Table::new("report", heads).left(&[1, 2, 3, 5]);
    for report in reports {
        let from = &report.provenance;
        let commit = from.commit.as_deref().unwrap_or("unknown");
        let cells = [
            report.lab.mode.clone(),
            from.date.split('T').next().unwrap_or_default().to_owned(),
            format!("`{}`", commit.chars().take(8).collect::<String>()),
            from.others_percent.map_or_else(|| "not known".into(), |share| format!("{share:.0} %")),
            format!("`{}`", from.command),
        ];
        table.line(&report.bench, cells);
    }
    table.markdown()
}
