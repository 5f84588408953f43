//! Bars of one metric, each with what stands beside it, below each other.

use super::svg::{Anchor, Svg, line_width};
use super::{rounded_tick, tick};
use crate::report::{Report, Row};

const NAMES: f64 = 240.0;
const WIDTH: f64 = 460.0;
const VALUE: f64 = 150.0;
const HEAD: f64 = 70.0;
const SLOT: f64 = 22.0;
const MARGIN: f64 = 24.0;

/// What is drawn of a report.
pub struct Bars<'a> {
    /// What the figure is of.
    pub title: &'a str,
    /// What stands before the lab in the line below.
    pub source: &'a str,
    /// Whose medians the bars are.
    pub metric: &'a str,
    /// What a bar is called.
    pub name: fn(&Row) -> String,
    /// What stands beside it.
    pub label: fn(&Report, &Row) -> String,
}

impl Bars<'_> {
    /// Draws the bars in the order of the report's rows.
    pub fn draw(&self, report: &Report) -> String {
        let rows: Vec<_> = report.rows.iter().filter(|row| row.metric == self.metric).collect();
        let base = HEAD + rows.len() as f64 * SLOT;
        let lab = &report.lab;
        let clock = if lab.instruction_ns > 0 { "instruction time" } else { "wall clock" };
        let quick = if lab.quick { "QUICK, no measurement; " } else { "" };
        let line = format!(
            "{quick}{}; lines from the smallest to the largest; {}, Linux {}, {clock}",
            self.source, lab.disk, lab.kernel
        );
        let mut svg =
            Svg::new((NAMES + WIDTH + VALUE).max(line_width(&line)) + 2.0 * MARGIN, base + 40.0);
        let largest = rows.iter().map(|row| row.summary.max).fold(0.0, f64::max);
        let end = (largest / tick(largest)).ceil().max(1.0) * tick(largest);
        let x = |value: f64| MARGIN + NAMES + value / end * WIDTH;
        svg.text((MARGIN, 26.0), 16, Anchor::Start, self.title);
        svg.text((MARGIN, 46.0), 11, Anchor::Start, &line);
        for index in 0..=(end / tick(largest)).round() as u32 {
            let value = f64::from(index) * tick(largest);
            svg.line((x(value), HEAD - 6.0), (x(value), base), "#e4e4e4");
            svg.text((x(value), base + 14.0), 10, Anchor::Middle, &rounded_tick(value));
        }
        for (index, row) in rows.into_iter().enumerate() {
            let y = HEAD + index as f64 * SLOT;
            let colour = match row.placement.as_str() {
                "dpdk" => "#e69f00",
                placement if placement.starts_with("kernel") => "#555555",
                _ => "#0072b2",
            };
            svg.text((MARGIN + NAMES - 8.0, y + 11.0), 11, Anchor::End, &(self.name)(row));
            svg.rect(x(0.0), y, x(row.summary.median) - x(0.0), 14.0, colour);
            svg.line((x(row.summary.min), y + 7.0), (x(row.summary.max), y + 7.0), "#000000");
            svg.text(
                (x(row.summary.max) + 6.0, y + 11.0),
                10,
                Anchor::Start,
                &(self.label)(report, row),
            );
        }
        svg.finish()
    }
}
