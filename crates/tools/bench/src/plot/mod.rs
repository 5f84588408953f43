//! A report as a figure: one panel for each clock, workload and metric, one bar for each placement;
//! or curves over sizes.
//!
//! Bars are medians and start at zero; the thin line on a bar reaches from the smallest to the
//! largest round. Beside a bar stands its median, and its ratio to the best of the kernel's
//! placements, which has an asterisk.

mod axes;
mod bars;
mod curves;
mod delays;
mod echo;
mod hosted;
mod loopback;
mod steps;
mod streams;
mod svg;

pub use curves::{draw as draw_curves, utilisation_at};
pub use delays::draw as draw_delays;
pub use echo::draw as draw_echo;
pub use hosted::{draw as draw_hosted, draw_distributions};
pub use loopback::draw as draw_loopback;
pub use steps::draw as draw_steps;
pub use streams::draw as draw_streams;

use svg::{Anchor, Svg};

use crate::disk::{Driver, Placement, work};
use crate::report::{Report, unit};
use crate::stats::Summary;
use crate::table::rounded;
use crate::workload::STANDARD;

/// The rows of panels; one without data is left out.
const ROWS: [&str; 5] =
    ["iops", "cpu_us_per_op", "instructions_per_op", "busy_percent", "latency_us_p50"];

/// The colours of the placements, which stay apart in grey and for the colour-blind; what fio did
/// is paler. [Okabe, Ito: Color Universal Design, 2008]
fn colour(placement: Placement) -> &'static str {
    match (placement.driver(), placement) {
        (Driver::Kernel(_), _) if placement.is_fio() => "#bbbbbb",
        (Driver::Kernel(_), _) => "#555555",
        (_, Placement::Process) => "#0072b2",
        (_, Placement::ProcessPolled) => "#56b4e9",
        (_, Placement::ProcessAdaptive) => "#009e73",
        (_, Placement::ProcessThreads) => "#cc79a7",
        (_, Placement::Export) => "#d55e00",
        (_, Placement::ExportFio) => "#e69f00",
        (_, Placement::ExportVduse) => "#f0e442",
        (_, Placement::Supervised) => "#8c510a",
        (_, Placement::Hosted) => "#7f3b8f",
        (_, Placement::HostedFio) => "#c2a5cf",
        (_, _) => "#dddddd",
    }
}

/// Width of a panel, and of the names on the left of a row of panels.
const PANEL: f64 = 330.0;
const NAMES: f64 = 160.0;
const MARGIN: f64 = 24.0;
const HEAD: f64 = 64.0;
/// From one bar to the next, and a bar's own height.
const SLOT: f64 = 17.0;
const BAR: f64 = 11.0;
/// A panel's title above its bars, its ticks below them.
const TITLE: f64 = 40.0;
const TICKS: f64 = 34.0;
/// What stands beside a bar.
const VALUE: f64 = 92.0;

struct Panel<'a> {
    title: String,
    axis: String,
    bars: Vec<Bar<'a>>,
}

struct Bar<'a> {
    placement: Placement,
    summary: &'a Summary,
    /// Its value in words.
    label: String,
}

/// Draws `reports`, which differ in their clock.
pub fn draw(reports: &[Report]) -> String {
    let rows: Vec<Vec<Panel>> = reports.iter().flat_map(rows_of).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1).max(1) as f64;
    let heights: Vec<f64> =
        rows.iter().map(|row| TITLE + placements(row).len() as f64 * SLOT + TICKS).collect();
    let mut svg = Svg::new(
        NAMES + columns * PANEL + 2.0 * MARGIN,
        HEAD + heights.iter().sum::<f64>() + MARGIN,
    );
    head(&mut svg, reports);
    let mut y = HEAD;
    for (panels, height) in rows.iter().zip(heights) {
        let names = placements(panels);
        for (index, placement) in names.iter().enumerate() {
            svg.text(
                (MARGIN + NAMES - 8.0, y + TITLE + index as f64 * SLOT + 9.5),
                11,
                Anchor::End,
                placement.name(),
            );
        }
        for (column, panel) in panels.iter().enumerate() {
            panel.draw(&mut svg, (MARGIN + NAMES + column as f64 * PANEL, y), &names);
        }
        y += height;
    }
    svg.finish()
}

/// The placements of a row of panels.
fn placements(panels: &[Panel]) -> Vec<Placement> {
    let drawn = |placement: &Placement| {
        panels.iter().any(|panel| panel.bars.iter().any(|bar| bar.placement == *placement))
    };
    Placement::ALL.into_iter().filter(drawn).collect()
}

fn rows_of(report: &Report) -> Vec<Vec<Panel<'_>>> {
    // The papers' loads are among the standard ones, too.
    let papers = work::LOADS.iter().filter(|load| !STANDARD.contains(load));
    let loads: Vec<&str> = STANDARD.iter().chain(papers).copied().collect();
    let row = |metric| {
        loads
            .iter()
            .filter_map(|workload| panel(report, workload, suited(workload, metric)))
            .collect()
    };
    ROWS.into_iter().map(row).filter(|panels: &Vec<Panel>| !panels.is_empty()).collect()
}

/// Of large requests, bytes are counted.
fn suited<'a>(workload: &str, metric: &'a str) -> &'a str {
    if metric == "iops" && workload.contains("128k") { "mib_s" } else { metric }
}

fn panel<'a>(report: &'a Report, workload: &str, metric: &str) -> Option<Panel<'a>> {
    let bars = Placement::ALL.into_iter().filter_map(|placement| {
        let summary = report.get(workload, placement.name(), metric)?;
        Some(Bar { placement, summary, label: label(report, workload, placement, metric, summary) })
    });
    let bars: Vec<_> = bars.collect();
    let name = match metric {
        "iops" => "requests".into(),
        "mib_s" => "throughput".into(),
        "cpu_us_per_op" => "CPU per request".into(),
        "instructions_per_op" => "per request".into(),
        "busy_percent" => "processor".into(),
        "latency_us_p50" => "latency, median".into(),
        other => other.to_owned(),
    };
    let panel = Panel {
        title: format!("{workload}, {}", clock(report)),
        axis: format!("{name}, {}", unit(metric)),
        bars,
    };
    (!panel.bars.is_empty()).then_some(panel)
}

fn clock(report: &Report) -> &'static str {
    if report.lab.mode == "instructions" { "instruction time" } else { "wall clock" }
}

/// A median, with its ratio to the kernel's best, which has an asterisk.
fn label(
    report: &Report,
    workload: &str,
    placement: Placement,
    metric: &str,
    summary: &Summary,
) -> String {
    let ratio = report
        .ratio_to_best(workload, placement.name(), metric)
        .map(|ratio| format!(" ({ratio:.2}x)"));
    let best = report.best_kernel(workload, metric, placement.is_fio()) == Some(placement.name());
    let mark = ratio.unwrap_or_else(|| if best { " *".into() } else { String::new() });
    rounded(summary.median) + &mark
}

fn head(svg: &mut Svg, reports: &[Report]) {
    let Some(first) = reports.first() else { return };
    let of = |report: &Report| report.rows.iter().map(|row| row.summary.rounds).max().unwrap_or(0);
    let rounds: Vec<_> =
        reports.iter().map(|report| format!("{} by {}", of(report), clock(report))).collect();
    let title = format!("{}: the same device, its driver in different places", first.bench);
    svg.text((MARGIN, 26.0), 16, Anchor::Start, &title);
    let lab = &first.lab;
    let line = format!(
        "Linux {}, QEMU {}; medians of rounds: {}; lines from the smallest to the largest; ratios \
        to the kernel's best (*)",
        lab.kernel,
        lab.qemu,
        rounds.join(", ")
    );
    svg.text((MARGIN, 46.0), 11, Anchor::Start, &line);
}

impl Panel<'_> {
    /// With its corner at `(x, y)`, and a slot for each of `names`.
    fn draw(&self, svg: &mut Svg, (x, y): (f64, f64), names: &[Placement]) {
        let (top, base) = (y + TITLE, y + TITLE + names.len() as f64 * SLOT);
        let largest = self.bars.iter().map(|bar| bar.summary.max).fold(0.0, f64::max);
        let step = tick(largest);
        let ticks = (largest / step).ceil().max(1.0);
        let scale = |value: f64| x + value / (ticks * step) * (PANEL - VALUE);
        svg.text((x, y + 14.0), 12, Anchor::Start, &self.title);
        svg.text((x, y + 29.0), 10, Anchor::Start, &self.axis);
        for index in 0..=ticks as u32 {
            let value = f64::from(index) * step;
            svg.line((scale(value), top - 3.0), (scale(value), base), "#e4e4e4");
            svg.text((scale(value), base + 13.0), 10, Anchor::Middle, &rounded_tick(value));
        }
        for bar in &self.bars {
            let Some(index) = names.iter().position(|name| *name == bar.placement) else {
                continue;
            };
            let (slot, summary) = (top + index as f64 * SLOT, bar.summary);
            svg.rect(x, slot, scale(summary.median) - x, BAR, colour(bar.placement));
            svg.line(
                (scale(summary.min), slot + BAR / 2.0),
                (scale(summary.max), slot + BAR / 2.0),
                "#000000",
            );
            svg.text((scale(summary.max) + 4.0, slot + 9.0), 10, Anchor::Start, &bar.label);
        }
        svg.line((x, top - 3.0), (x, base), "#222222");
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides `largest` into at most five.
fn tick(largest: f64) -> f64 {
    let rough = (largest / 5.0).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * power >= rough);
    if largest > 0.0 { step.unwrap_or(10.0) * power } else { 1.0 }
}

fn rounded_tick(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} M", value / 1e6),
        value if value >= 1e3 => format!("{} k", value / 1e3),
        // Steps below one have few digits, but binary fractions may print many.
        value => format!("{}", (value * 1e6).round() / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    fn report(mode: &str, metric: &str) -> Report {
        let one = |placement: &str, value| {
            Measurement::new(1, "randread-4k-qd32", placement).with(metric, value)
        };
        let lab = Lab { mode: mode.into(), ..Lab::default() };
        Report::new("disk", lab, &[one("kernel", 43_000.0), one("process", 397_000.0)])
    }

    #[test]
    fn both_clocks_stand_in_one_figure_and_say_which_they_are() {
        let text = draw(&[report("wall", "iops"), report("instructions", "instructions_per_op")]);
        assert!(
            text.contains("randread-4k-qd32, wall clock")
                && text.contains("randread-4k-qd32, instruction time")
        );
        assert!(text.contains(">requests, 1/s<") && text.contains(">per request, instructions<"));
    }

    #[test]
    fn each_clock_has_its_own_number_of_rounds() {
        let again =
            |round| Measurement::new(round, "randread-4k-qd32", "kernel").with("iops", 43_000.0);
        let wall = Report::new("disk", Lab::default(), &[again(1), again(2)]);
        let text = draw(&[report("instructions", "instructions_per_op"), wall]);
        assert!(
            text.contains("medians of rounds: 1 by instruction time, 2 by wall clock;"),
            "{text}"
        );
    }

    #[test]
    fn bars_have_names_and_values() {
        let text = draw(&[report("wall", "iops")]);
        assert!(
            text.contains(">process<")
                && text.contains(">397.0 k (9.23x)<")
                && text.contains(">43.0 k *<")
        );
    }

    #[test]
    fn a_load_has_one_column() {
        assert_eq!(
            draw(&[report("wall", "iops")]).matches("randread-4k-qd32, wall clock").count(),
            1
        );
    }

    #[test]
    fn ticks_are_round_numbers_and_at_most_five() {
        for (largest, step) in
            [(397_000.0, 100_000.0), (9.0, 2.0), (0.03, 0.01), (5.0, 1.0), (0.0, 1.0)]
        {
            assert!((tick(largest) - step).abs() < step * 1e-9, "{largest}: {}", tick(largest));
        }
    }

    #[test]
    fn a_report_without_rows_is_an_empty_figure() {
        assert!(draw(&[Report::new("disk", Lab::default(), &[])]).ends_with("</svg>\n"));
    }
}
