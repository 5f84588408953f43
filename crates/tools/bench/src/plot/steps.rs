//! Where one request's time goes: a bar for each placement, its steps one after the other, as in
//! Figure 5 of Chubb 2004.

use super::svg::{Anchor, Svg};
use super::{rounded_tick, tick};
use crate::report::Report;
use crate::table::rounded;
use crate::trace::timeline::STEPS;

/// Colours of the steps, in their order; those of one kind are alike. [Okabe, Ito: Color Universal
/// Design, 2008]
const COLOURS: [&str; 10] = [
    "#0072b2", "#e6c84c", "#4c9ed6", "#dddddd", "#d55e00", "#e6c84c", "#009e73", "#cc79a7",
    "#e6c84c", "#88c5e8",
];

/// The step that is the device's own, drawn shorter than it is: it is the disk's model, and no
/// driver changes it.
const DEVICE: &str = "device_us";

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 130.0;
const MARGIN: f64 = 24.0;
const BAR: f64 = 30.0;
/// From one bar to the next.
const ROW: f64 = 48.0;
const HEAD: f64 = 112.0;
/// Of a group, beside its bars: its title above, its axis below.
const TITLE: f64 = 34.0;
const AXIS: f64 = 26.0;
/// What stands behind a bar.
const SUM: f64 = 170.0;
/// Pixels of the device's step.
const GAP: f64 = 40.0;

/// Draws a group of bars for each report.
pub fn draw(reports: &[Report]) -> String {
    let groups: Vec<(&Report, Vec<Bar>)> =
        reports.iter().map(|report| (report, bars(report))).collect();
    let rows: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    let height = HEAD + rows as f64 * ROW + groups.len() as f64 * (TITLE + AXIS) + MARGIN;
    let mut svg = Svg::new(WIDTH + 2.0 * MARGIN, height);
    head(&mut svg, reports);
    let mut y = HEAD;
    for (report, bars) in &groups {
        y = group(&mut svg, report, bars, y);
    }
    svg.finish()
}

/// A placement and its steps: number of the step, and microseconds.
type Bar = (String, Vec<(usize, f64)>);

fn bars(report: &Report) -> Vec<Bar> {
    let mut placements: Vec<&str> = report.rows.iter().map(|row| row.placement.as_str()).collect();
    placements.dedup();
    let mut seen = Vec::new();
    placements.retain(|name| {
        !seen.contains(name) && {
            seen.push(name);
            true
        }
    });
    let steps = |placement: &str| {
        let at = |(index, (metric, _)): (usize, &(&str, &str))| {
            Some((index, median(report, placement, metric)?))
        };
        STEPS.iter().enumerate().filter_map(at).collect::<Vec<_>>()
    };
    placements
        .into_iter()
        .map(|name| (name.to_owned(), steps(name)))
        .filter(|(_, steps)| !steps.is_empty())
        .collect()
}

/// A metric's median under the load that is cut into steps.
pub fn median(report: &Report, placement: &str, metric: &str) -> Option<f64> {
    report.get(crate::disk::timeline::LOADS[0], placement, metric).map(|summary| summary.median)
}

fn head(svg: &mut Svg, reports: &[Report]) {
    let Some(first) = reports.first() else { return };
    svg.text((MARGIN, 26.0), 16, Anchor::Start, "Where the time of a 4 KiB read goes");
    let line = format!(
        "after Chubb 2004, Figure 5; Linux {}, QEMU {}; medians; the device's own time (grey) is \
        not to scale; events cost time, too",
        first.lab.kernel, first.lab.qemu
    );
    svg.text((MARGIN, 46.0), 11, Anchor::Start, &line);
    for (index, ((_, name), colour)) in STEPS.iter().zip(COLOURS).enumerate() {
        let (x, y) = (MARGIN + (index % 5) as f64 * 190.0, 62.0 + (index / 5) as f64 * 18.0);
        svg.rect(x, y, 12.0, 12.0, colour);
        svg.text((x + 17.0, y + 10.0), 11, Anchor::Start, name);
    }
}

fn group(svg: &mut Svg, report: &Report, bars: &[Bar], top: f64) -> f64 {
    let lab = &report.lab;
    let clock = if lab.instruction_ns == 0 {
        "wall clock"
    } else {
        "instruction time, 1 us = 1000 instructions"
    };
    svg.text((MARGIN, top + 20.0), 12, Anchor::Start, &format!("{}; {clock}", lab.disk));
    let own = |steps: &[(usize, f64)]| {
        steps.iter().filter(|(step, _)| STEPS[*step].0 != DEVICE).map(|(_, time)| time).sum::<f64>()
    };
    let longest =
        bars.iter().map(|(_, steps)| own(steps)).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let scale = (WIDTH - LEFT - GAP - SUM) / longest;
    let mut y = top + TITLE;
    for (placement, steps) in bars {
        svg.text((LEFT - 6.0, y + BAR / 2.0 + 4.0), 11, Anchor::End, placement);
        let mut x = LEFT;
        for &(step, time) in steps {
            let width = if STEPS[step].0 == DEVICE { GAP } else { time * scale };
            svg.rect(x, y, width, BAR, COLOURS[step]);
            if width > 22.0 {
                svg.text(
                    (x + width / 2.0, y + BAR / 2.0 + 4.0),
                    10,
                    Anchor::Middle,
                    &rounded(time),
                );
            }
            x += width;
        }
        svg.text(
            (x + 6.0, y + BAR / 2.0 + 4.0),
            10,
            Anchor::Start,
            &format!("{} us without the device", rounded(own(steps))),
        );
        y += ROW;
    }
    let step = tick(longest);
    svg.line((LEFT, y), (LEFT + longest * scale, y), "#222222");
    for index in 0..=(longest / step) as u32 {
        let value = f64::from(index) * step;
        svg.line((LEFT + value * scale, y), (LEFT + value * scale, y + 4.0), "#222222");
        svg.text(
            (LEFT + value * scale, y + 16.0),
            10,
            Anchor::Middle,
            &format!("{} us", rounded_tick(value)),
        );
    }
    y + AXIS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    #[test]
    fn each_placement_has_a_bar_with_its_own_steps() {
        let at = |placement: &str| {
            Measurement::new(1, "randread-4k-qd1", placement)
                .with("queue_us", 5.0)
                .with("device_us", 100.0)
        };
        let rows = [
            at("kernel"),
            at("process").with("handler_us", 2.0),
            Measurement::new(1, "driver", "kernel").with("startup_ms", 1.0),
        ];
        let report = Report::new("timeline", Lab::default(), &rows);
        let steps: Vec<_> =
            bars(&report).into_iter().map(|(name, steps)| (name, steps.len())).collect();
        assert_eq!(steps, [("kernel".to_owned(), 2), ("process".to_owned(), 3)]);
        let text = draw(&[report]);
        assert!(
            text.contains("7.00 us without the device") && text.contains(">queue new work<"),
            "{text}"
        );
    }

    #[test]
    fn no_reports_are_an_empty_figure() {
        assert!(draw(&[]).ends_with("</svg>\n"));
    }
}
