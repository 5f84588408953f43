//! Delays of interrupts under different conditions: bars of means, with what 99 % are not above.

use super::svg::{Anchor, Svg};
use super::{rounded_tick, tick};
use crate::report::Report;
use crate::table::rounded;

const NAMES: f64 = 170.0;
const WIDTH: f64 = 460.0;
const VALUE: f64 = 150.0;
const HEAD: f64 = 70.0;
const SLOT: f64 = 22.0;
const MARGIN: f64 = 24.0;

/// Draws what lies between the kernel's handler and the process.
pub fn draw(report: &Report) -> String {
    let rows: Vec<_> = report.rows.iter().filter(|row| row.metric == "process_us_mean").collect();
    let base = HEAD + rows.len() as f64 * SLOT;
    let mut svg = Svg::new(NAMES + WIDTH + VALUE + 2.0 * MARGIN, base + 40.0);
    let largest = rows.iter().map(|row| row.summary.max).fold(0.0, f64::max);
    let end = (largest / tick(largest)).ceil().max(1.0) * tick(largest);
    let x = |value: f64| MARGIN + NAMES + value / end * WIDTH;
    svg.text((MARGIN, 26.0), 16, Anchor::Start, "From the kernel's handler of an interrupt to the process, us");
    let lab = &report.lab;
    let clock = if lab.instruction_ns > 0 { "instruction time" } else { "wall clock" };
    let line = format!("after Weisbach 2011, Table 4.2; means, and 99 %; {}, Linux {}, {clock}", lab.disk, lab.kernel);
    svg.text((MARGIN, 46.0), 11, Anchor::Start, &line);
    for index in 0..=(end / tick(largest)).round() as u32 {
        let value = f64::from(index) * tick(largest);
        svg.line((x(value), HEAD - 6.0), (x(value), base), "#e4e4e4");
        svg.text((x(value), base + 14.0), 10, Anchor::Middle, &rounded_tick(value));
    }
    for (index, row) in rows.iter().enumerate() {
        let y = HEAD + index as f64 * SLOT;
        let late = report.get(&row.workload, &row.placement, "process_us_p99").map_or(0.0, |late| late.median);
        let (mean, label) = (row.summary.median, format!("{} (99 %: {})", rounded(row.summary.median), rounded(late)));
        svg.text((MARGIN + NAMES - 8.0, y + 11.0), 11, Anchor::End, &row.workload);
        svg.rect(x(0.0), y, x(mean) - x(0.0), 14.0, "#0072b2");
        svg.text((x(row.summary.max) + 6.0, y + 11.0), 10, Anchor::Start, &label);
    }
    svg.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    #[test]
    fn each_condition_has_a_bar_with_its_mean_and_what_most_are_below() {
        let one = Measurement::new(1, "irq-idle", "process").with("process_us_mean", 20.8).with("process_us_p99", 31.0);
        let text = draw(&Report::new("irq-delay", Lab::default(), &[one]));
        assert!(text.contains(">irq-idle<") && text.contains("20.8 (99 %: 31.0)"), "{text}");
        assert!(draw(&Report::new("irq-delay", Lab::default(), &[])).ends_with("</svg>\n"));
    }
}
