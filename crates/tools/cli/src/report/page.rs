//! The page: HTML without anything outside of itself.
//!
//! # Trust
//! Reports are files that anybody may have written. All of their words go through maud, which
//! escapes them; pictures are plotters', which escapes, too; and in the raw data, which a script
//! element has, no `<` is left.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use ring3_bench::paper::{PAPERS, Paper, PaperFigure};
use ring3_bench::places::{self, Cell, PLACES};
use ring3_bench::plot::{Narrow, Pair, draw_narrow, draw_pairs};
use ring3_bench::report::Report;
use time::format_description::well_known::Rfc3339;

use super::content::{COMPARED, Compared, Content, compared, is_short, made, ours};
use super::list;

/// What a browser may load and run: nothing but what the page has in itself.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// The page's text.
pub fn page(content: &Content) -> Result<String> {
    let papers = PAPERS.papers.iter().map(|paper| section(content, paper));
    let papers = papers.collect::<Result<Vec<_>>>()?;
    let made = content.now.format(&Rfc3339).unwrap_or_default();
    let body = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy"
                    content=(POLICY);
                title { "ring3: one device in four places, and five papers repeated" }
                style { (PreEscaped(include_str!("page.css"))) }
            }
            body data-days=(content.days) {
                h1 { "ring3: one device in four places, and five papers repeated" }
                p {
                    "Each figure has the paper's own value (orange) beside ours (blue). What was "
                    "not measured says so, with the command that measures it. Values of papers are "
                    "those that their texts state; a curve that exists as a picture only was not "
                    "read off it."
                }
                p.faint {
                    "Made " (made) " at commit " code { (short(content.commit.as_deref())) }
                    " from " (content.reports.len()) " reports."
                }
                nav { (contents()) }
                (unreadable(content))
                (four_places(content))
                @for paper in &papers { (paper) }
                (all_rows())
                (raw(content)?)
                script { (PreEscaped(include_str!("page.js"))) }
            }
        }
    };
    Ok(body.into_string())
}

fn contents() -> Markup {
    html! {
        ul {
            li { a href="#places" { "The four places" } }
            @for paper in &PAPERS.papers {
                li {
                    a href=(format!("#{}", paper.id)) { (paper.title) } ": "
                    @for figure in PAPERS.figures.iter().filter(|one| one.paper == paper.id) {
                        a href=(format!("#{}", figure.id)) { (figure.id) } " "
                    }
                }
            }
            li { a href="#rows" { "All that the papers have: command, test and figure" } }
            li { a href="#data" { "Raw data" } }
        }
    }
}

fn unreadable(content: &Content) -> Markup {
    html! {
        @if !content.unreadable.is_empty() {
            div.note {
                "These files are no reports, and are left out:"
                ul {
                    @for (path, why) in &content.unreadable {
                        li { code { (path.display()) } ": " (why) }
                    }
                }
            }
        }
    }
}

fn short(commit: Option<&str>) -> String {
    commit.map_or("unknown".into(), |commit| commit.chars().take(10).collect())
}

/// By what a report was made, and what is to be said of its age.
fn provenance(content: &Content, report: &Report) -> Markup {
    let (from, lab) = (&report.provenance, &report.lab);
    let load = from.others_percent.map_or("not known".into(), |share| format!("{share:.0} %"));
    let old = made(report).map(|made| (content.now - made).whole_days());
    html! {
        @if from.commit.is_none() || from.commit != content.commit {
            p.note {
                "Measured at commit " code { (short(from.commit.as_deref())) }
                ", and this page is of " code { (short(content.commit.as_deref())) }
                ": the code may have changed since."
            }
        }
        @match old {
            Some(days) => {
                p.note data-made=(from.date) hidden[days <= i64::from(content.days)] {
                    "Measured " (days) " days ago: older than " (content.days) " days."
                }
            }
            None => p.note { "When it was measured is not known." },
        }
        @if is_short(report) {
            p.note { "Short rounds (--quick): too short to say. Printed grey, not to be compared." }
        }
        details {
            summary {
                (report.bench) ": " (lab.mode) " clock, " (from.date) ", others took " (load)
            }
            dl {
                dt { "command" } dd { code { (from.command) } }
                dt { "commit" }
                dd {
                    code { (from.commit.as_deref().unwrap_or("unknown")) }
                    ", version " (from.version)
                }
                dt { "machine" }
                dd { (from.processor) ", " (from.processors) " processors; others took " (load) }
                dt { "measured" }
                dd {
                    "Linux " (lab.kernel) ", QEMU " (lab.qemu) ", " (lab.vcpus) " processors; "
                    (lab.disk)
                }
            }
            pre { (report.text().unwrap_or_default()) }
        }
    }
}

fn four_places(content: &Content) -> Markup {
    let report = content.of(&[places::BENCH.to_owned()], places::BENCH).first().copied();
    html! {
        section {
            h2 #places { "The four places" }
            p {
                "One device, its driver in the kernel, native (ring3's own, in a process), hosted "
                "(Linux's, unmodified, in a process) and split (Linux's, cut by a tool). Ratios "
                "are to the kernel's driver in the same run."
            }
            @match report {
                None => (missing("ring3 bench places")),
                Some(report) => {
                    div.scroll.short[is_short(report)] { (table(report)) }
                    (provenance(content, report))
                }
            }
        }
    }
}

fn missing(command: &str) -> Markup {
    html! { p.note { "Not measured. To measure it: " code { (command) } } }
}

fn table(report: &Report) -> Markup {
    let mut device = "";
    html! {
        table {
            thead { tr { th { "" } @for place in PLACES { th scope="col" { (place) } } } }
            tbody {
                @for (of, what, name) in places::lines() {
                    @if std::mem::replace(&mut device, of) != of {
                        tr.device { th colspan="5" scope="rowgroup" { (of) } }
                    }
                    tr {
                        th scope="row" { (what) }
                        @for place in PLACES {
                            @match Cell::of(report, &name, place) {
                                None => td.words { "not measured" },
                                Some(Cell::Words(words)) => td.words { (words) },
                                Some(cell) => td { (cell) },
                            }
                        }
                    }
                }
            }
        }
    }
}

fn section(content: &Content, paper: &Paper) -> Result<Markup> {
    let figures = PAPERS.figures.iter().filter(|figure| figure.paper == paper.id);
    let figures = figures.map(|one| figure(content, one)).collect::<Result<Vec<_>>>()?;
    Ok(html! {
        section {
            h2 id=(paper.id) { (paper.title) }
            p.faint { "Method and limits: " code { (paper.page) } }
            @for figure in figures { (figure) }
        }
    })
}

fn figure(content: &Content, figure: &PaperFigure) -> Result<Markup> {
    let reports = content.of(&figure.benches, &figure.part);
    let is_sound = !reports.iter().any(|report| is_short(report));
    let pairs = pairs(figure, &reports, is_sound)?;
    let drawn = drawn(figure, &reports)?;
    let command = list::command(&figure.part);
    let absent: Vec<_> = figure
        .benches
        .iter()
        .filter(|bench| !reports.iter().any(|report| report.bench == **bench))
        .collect();
    Ok(html! {
        h3 id=(figure.id) { (figure.id) ". " (figure.title) }
        @if reports.is_empty() { (missing(&command)) }
        @else if !absent.is_empty() {
            p.note {
                "Not measured: "
                @for bench in absent { code { (bench) } " " }
                "(" code { (command) } ")"
            }
        }
        div.plots {
            @for (unit, picture) in pairs {
                figure data-plot="" {
                    figcaption { "paper and ours" @if unit == "x" { ": ratios" } }
                    (PreEscaped(picture))
                }
            }
            @for Narrow { panels, .. } in &drawn {
                @for (title, picture) in panels {
                    figure data-plot="" { figcaption { (title) } (PreEscaped(picture)) }
                }
            }
        }
        @for Narrow { keys, .. } in drawn.iter().take(1).filter(|one| !one.keys.is_empty()) {
            ul.key {
                @for (name, colour, has_dashes) in keys {
                    li { (swatch(colour, *has_dashes)) (name) }
                }
            }
        }
        (comparisons(figure, &reports, is_sound))
        p { b { "Why they differ. " } (figure.why) }
        @for report in &reports { (provenance(content, report)) }
    })
}

fn swatch(colour: &str, has_dashes: bool) -> Markup {
    html! {
        svg width="30" height="8" viewBox="0 0 30 8" aria-hidden="true" {
            line x1="0" y1="4" x2="30" y2="4" stroke=(colour) stroke-width="3"
                stroke-dasharray=[has_dashes.then_some("6 3")] {}
        }
    }
}

/// Figures of which the values alone say something: a benchmark's own figure would be a panel for
/// each of dozens of metrics.
const PAIRS_ALONE: [&str; 3] = ["C5", "G1", "G7"];

/// The benchmark's own figures.
fn drawn(figure: &PaperFigure, reports: &[&Report]) -> Result<Vec<Narrow>> {
    if PAIRS_ALONE.contains(&figure.id.as_str()) {
        return Ok(Vec::new());
    }
    let one = |report: &&Report| draw_narrow(std::slice::from_ref(*report), &figure.points);
    Ok(reports
        .iter()
        .filter(|report| has_figure(figure, report))
        .map(one)
        .collect::<Result<_, _>>()?)
}

/// Whether a report has what the figure shows: `ring3 split bench` measures many things.
fn has_figure(figure: &PaperFigure, report: &Report) -> bool {
    figure.id != "G8" || report.rows.iter().any(|row| row.placement.starts_with("delay-"))
}

/// A picture for each unit, in the order of the units.
fn pairs(
    figure: &PaperFigure,
    reports: &[&Report],
    is_sound: bool,
) -> Result<Vec<(String, String)>> {
    let mut units: Vec<&str> = Vec::new();
    for one in &figure.comparisons {
        if !units.contains(&one.unit.as_str()) {
            units.push(&one.unit);
        }
    }
    let picture = |unit: &str| {
        let of_it = figure.comparisons.iter().filter(|one| one.unit == unit);
        let pairs: Vec<Pair> = of_it
            .map(|one| Pair { what: one.what.clone(), paper: one.paper, ours: ours(one, reports) })
            .collect();
        Ok((unit.to_owned(), draw_pairs(&pairs, unit, is_sound)?))
    };
    units.into_iter().map(picture).collect()
}

fn comparisons(figure: &PaperFigure, reports: &[&Report], is_sound: bool) -> Markup {
    html! {
        div.scroll {
            table class=[(!is_sound).then_some("short")] {
                thead { tr {
                    th scope="col" { "" }
                    @for head in COMPARED { th scope="col" { (head) } }
                } }
                tbody {
                    @for Compared { what, cells: [paper, ours, ratio, source] }
                        in compared(figure, reports)
                    {
                        tr {
                            th scope="row" { (what) }
                            td { (paper) }
                            td.ours { (ours) }
                            td.ours { (ratio) }
                            td.words { (source) }
                        }
                    }
                }
            }
        }
    }
}

fn all_rows() -> Markup {
    html! {
        section {
            h2 #rows { "All that the papers have" }
            div.scroll { table {
                thead { tr {
                    @for head in ["", "what", "command", "test", "figure"] {
                        th scope="col" { (head) }
                    }
                } }
                tbody { @for row in &PAPERS.rows { tr {
                    th scope="row" { (row.id) }
                    td { (row.what) }
                    td { code { (row.command) } }
                    td { code { (row.test) } }
                    td {
                        @if let Some(figure) = &row.figure {
                            a href=(format!("#{figure}")) { (figure) }
                        }
                    }
                } } }
            } }
        }
    }
}

/// All reports as JSON: for people who look, and for programs.
fn raw(content: &Content) -> Result<Markup> {
    let all: Vec<_> = content.reports.iter().map(|(_, report)| report).collect();
    // In JSON, `<` stands in strings alone, where it may be written so; a script element ends at
    // the first `</script`, wherever that stands.
    let json = serde_json::to_string(&all)?.replace('<', "\\u003c");
    Ok(html! {
        section {
            h2 #data { "Raw data" }
            p.faint {
                "The element " code { "report-data" }
                " of this page has all reports as JSON. Files:"
            }
            ul.faint {
                @for (path, report) in &content.reports {
                    li { code { (path.display()) } " (" (report.bench) ")" }
                }
            }
            script #report-data type="application/json" { (PreEscaped(json)) }
        }
    })
}
