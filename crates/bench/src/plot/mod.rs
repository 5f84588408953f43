//! A report as a figure: one panel for each clock, workload and metric, one bar for each placement; or curves over sizes.
//!
//! Bars are medians and start at zero; the thin line on a bar reaches from the smallest to the largest round.

mod curves;
mod steps;
mod svg;

pub use curves::{draw as draw_curves, utilisation_at};
pub use steps::draw as draw_steps;

use svg::{Anchor, Svg};

use crate::disk::work;
use crate::report::{Report, unit};
use crate::stats::Summary;
use crate::table::rounded;
use crate::workload::STANDARD;

/// The rows of panels; one without data is left out.
const ROWS: [&str; 5] = ["iops", "cpu_us_per_op", "instructions_per_op", "busy_percent", "latency_us_p50"];

/// The placements, in the order of their bars, with colours that stay apart in grey and for the colour-blind.
/// [Okabe, Ito: Color Universal Design, 2008]
const PLACEMENTS: [(&str, &str); 8] = [
    ("kernel", "#555555"),
    ("kernel-fio", "#aaaaaa"),
    ("process", "#0072b2"),
    ("process-polled", "#56b4e9"),
    ("process-threads", "#009e73"),
    ("export", "#d55e00"),
    ("export-fio", "#e69f00"),
    ("ublk-null", "#cccccc"),
];

const PANEL: (f64, f64) = (320.0, 210.0);
const MARGIN: f64 = 24.0;
const HEAD: f64 = 64.0;
/// Room of a panel's title, its axis and its ticks.
const INSET: (f64, f64, f64) = (36.0, 58.0, 14.0);

struct Panel<'a> {
    title: String,
    axis: String,
    bars: Vec<(&'static str, &'static str, &'a Summary)>,
}

/// Draws `reports`, which differ in their clock.
pub fn draw(reports: &[Report]) -> String {
    let rows: Vec<Vec<Panel>> = reports.iter().flat_map(rows_of).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(1).max(1) as f64;
    let mut svg = Svg::new(columns * PANEL.0 + 2.0 * MARGIN, HEAD + rows.len() as f64 * PANEL.1 + MARGIN);
    head(&mut svg, reports);
    for (row, panels) in rows.iter().enumerate() {
        for (column, panel) in panels.iter().enumerate() {
            let origin = (MARGIN + column as f64 * PANEL.0, HEAD + row as f64 * PANEL.1);
            panel.draw(&mut svg, origin);
        }
    }
    svg.finish()
}

fn rows_of(report: &Report) -> Vec<Vec<Panel<'_>>> {
    // The papers' loads are among the standard ones, too.
    let papers = work::LOADS.iter().filter(|load| !STANDARD.contains(load));
    let loads: Vec<&str> = STANDARD.iter().chain(papers).copied().collect();
    let row = |metric| loads.iter().filter_map(|workload| panel(report, workload, suited(workload, metric))).collect();
    ROWS.into_iter().map(row).filter(|panels: &Vec<Panel>| !panels.is_empty()).collect()
}

/// Of large requests, bytes are counted.
fn suited<'a>(workload: &str, metric: &'a str) -> &'a str {
    if metric == "iops" && workload.contains("128k") { "mib_s" } else { metric }
}

fn panel<'a>(report: &'a Report, workload: &str, metric: &str) -> Option<Panel<'a>> {
    let bars: Vec<_> =
        PLACEMENTS.iter().filter_map(|&(name, colour)| Some((name, colour, report.get(workload, name, metric)?))).collect();
    let clock = if report.lab.mode == "instructions" { "instruction time" } else { "wall clock" };
    let name = match metric {
        "iops" => "requests".into(),
        "mib_s" => "throughput".into(),
        "cpu_us_per_op" => "CPU per request".into(),
        "instructions_per_op" => "per request".into(),
        "busy_percent" => "processor".into(),
        "latency_us_p50" => "latency, median".into(),
        other => other.to_owned(),
    };
    let panel = Panel { title: format!("{workload}, {clock}"), axis: format!("{name}, {}", unit(metric)), bars };
    (!panel.bars.is_empty()).then_some(panel)
}

fn head(svg: &mut Svg, reports: &[Report]) {
    let Some(first) = reports.first() else { return };
    let rounds = first.rows.iter().map(|row| row.summary.rounds).max().unwrap_or(0);
    let title = format!("{}: the same device, its driver in different places", first.bench);
    svg.text((MARGIN, 26.0), 16, Anchor::Start, &title);
    let lab = &first.lab;
    let line =
        format!("Linux {}, QEMU {}; median of {rounds} rounds, lines from the smallest to the largest", lab.kernel, lab.qemu);
    svg.text((MARGIN, 46.0), 11, Anchor::Start, &line);
}

impl Panel<'_> {
    fn draw(&self, svg: &mut Svg, (x, y): (f64, f64)) {
        let (top, left, right) = INSET;
        let (base, height) = (y + PANEL.1 - 34.0, PANEL.1 - 34.0 - top - 12.0);
        let largest = self.bars.iter().map(|(_, _, summary)| summary.max).fold(0.0, f64::max);
        let step = tick(largest);
        let ticks = (largest / step).ceil().max(1.0);
        let scale = |value: f64| base - value / (ticks * step) * height;
        svg.text((x, y + 14.0), 12, Anchor::Start, &self.title);
        svg.text((x, y + 29.0), 10, Anchor::Start, &self.axis);
        for index in 0..=ticks as u32 {
            let value = f64::from(index) * step;
            svg.line((x + left, scale(value)), (x + PANEL.0 - right, scale(value)), "#e4e4e4");
            svg.text((x + left - 5.0, scale(value) + 3.5), 10, Anchor::End, &rounded_tick(value));
        }
        let slot = (PANEL.0 - left - right) / self.bars.len() as f64;
        for (index, (name, colour, summary)) in self.bars.iter().enumerate() {
            let middle = x + left + (index as f64 + 0.5) * slot;
            let width = (slot * 0.62).min(46.0);
            svg.rect(middle - width / 2.0, scale(summary.median), width, base - scale(summary.median), colour);
            svg.line((middle, scale(summary.min)), (middle, scale(summary.max)), "#000000");
            svg.text((middle, scale(summary.max) - 4.0), 10, Anchor::Middle, &rounded(summary.median));
            let (place, generator) = name.split_once('-').unwrap_or((name, ""));
            svg.text((middle, base + 13.0), 10, Anchor::Middle, place);
            svg.text((middle, base + 24.0), 10, Anchor::Middle, generator);
        }
        svg.line((x + left, base), (x + PANEL.0 - right, base), "#222222");
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
        let one = |placement: &str, value| Measurement::new(1, "randread-4k-qd32", placement).with(metric, value);
        let lab = Lab { mode: mode.into(), ..Lab::default() };
        Report::new("disk", lab, &[one("kernel", 43_000.0), one("process", 397_000.0)])
    }

    #[test]
    fn both_clocks_stand_in_one_figure_and_say_which_they_are() {
        let text = draw(&[report("wall", "iops"), report("instructions", "instructions_per_op")]);
        assert!(text.contains("randread-4k-qd32, wall clock") && text.contains("randread-4k-qd32, instruction time"));
        assert!(text.contains(">requests, 1/s<") && text.contains(">per request, instructions<"));
    }

    #[test]
    fn bars_have_names_and_values() {
        let text = draw(&[report("wall", "iops")]);
        assert!(text.contains(">process<") && text.contains(">397.0 k<"));
    }

    #[test]
    fn a_load_has_one_column() {
        assert_eq!(draw(&[report("wall", "iops")]).matches("randread-4k-qd32, wall clock").count(), 1);
    }

    #[test]
    fn ticks_are_round_numbers_and_at_most_five() {
        for (largest, step) in [(397_000.0, 100_000.0), (9.0, 2.0), (0.03, 0.01), (5.0, 1.0), (0.0, 1.0)] {
            assert!((tick(largest) - step).abs() < step * 1e-9, "{largest}: {}", tick(largest));
        }
    }

    #[test]
    fn a_report_without_rows_is_an_empty_figure() {
        assert!(draw(&[Report::new("disk", Lab::default(), &[])]).ends_with("</svg>\n"));
    }
}
