//! Panels of curves with two axes: what was reached on the left one, in its unit, and processor
//! utilisation on the right one, in percent.

use super::svg::{Anchor, Svg, line_width};
use super::{rounded_tick, tick};
use crate::report::Report;

const PANEL: (f64, f64) = (600.0, 400.0);
const MARGIN: f64 = 24.0;
const HEAD: f64 = 84.0;
/// Room of a panel: above, left, right and below its field.
const INSET: (f64, f64, f64, f64) = (34.0, 50.0, 50.0, 46.0);
/// Width of a curve of what was reached.
pub const THICK: f64 = 2.0;
/// Of utilisation.
pub const THIN: f64 = 1.2;

/// A placement in a figure: its name among placements, that in the key, its colour and its dashes.
pub type Key = (&'static str, &'static str, &'static str, &'static str);

/// What all panels have in common.
pub struct Figure<'a> {
    /// What it is of.
    pub title: &'a str,
    /// What it is after, and what was done.
    pub source: &'a str,
    /// What a number of the largest count of rounds is of: runs or rounds.
    pub rounds: &'a str,
    /// The placements.
    pub keys: &'a [Key],
    /// Pixels from the end of one name of the key to the next.
    pub gap: f64,
    /// The unit of the axes: left, and below.
    pub units: (&'a str, &'a str),
}

/// The curves of one report.
pub struct Panel<'a> {
    /// Whose.
    pub report: &'a Report,
    /// The value at the top of the left axis, a tick.
    pub top: f64,
    /// Where on the axis below, from 0 to 1, there are which ticks.
    pub ticks: Vec<(f64, String)>,
    /// All of them.
    pub curves: Vec<Curve>,
}

/// Points in shares of the axes, whose, and how thick.
pub type Curve = (Vec<(f64, f64)>, Key, f64);

impl Figure<'_> {
    /// Draws panels in rows of `columns`.
    pub fn draw(&self, panels: &[Panel], columns: usize) -> String {
        let rows = panels.len().div_ceil(columns).max(1);
        let line = panels.first().map_or(String::new(), |panel| self.line(panel.report));
        let width = (columns as f64 * PANEL.0).max(line_width(&line));
        let mut svg = Svg::new(width + 2.0 * MARGIN, HEAD + rows as f64 * PANEL.1 + MARGIN);
        self.head(&mut svg, &line);
        for (index, panel) in panels.iter().enumerate() {
            let origin = (
                MARGIN + (index % columns) as f64 * PANEL.0,
                HEAD + (index / columns) as f64 * PANEL.1,
            );
            panel.draw(&mut svg, origin, self.units);
        }
        svg.finish()
    }

    /// What was measured where.
    fn line(&self, first: &Report) -> String {
        let rounds = first.rows.iter().map(|row| row.summary.rounds).max().unwrap_or(0);
        let (kernel, qemu) = (&first.lab.kernel, &first.lab.qemu);
        format!("{}; Linux {kernel}, QEMU {qemu}; medians of {rounds} {}", self.source, self.rounds)
    }

    fn head(&self, svg: &mut Svg, line: &str) {
        svg.text((MARGIN, 26.0), 16, Anchor::Start, self.title);
        svg.text((MARGIN, 46.0), 11, Anchor::Start, line);
        let mut x = MARGIN;
        for (_, name, colour, dashes) in self.keys {
            svg.curve(&[(x, 64.0), (x + 44.0, 64.0)], colour, THICK, dashes);
            svg.text((x + 50.0, 68.0), 11, Anchor::Start, name);
            x += self.gap + 8.0 * name.len() as f64;
        }
    }
}

impl Panel<'_> {
    fn draw(&self, svg: &mut Svg, origin: (f64, f64), (left_unit, below_unit): (&str, &str)) {
        let lab = &self.report.lab;
        let clock = match lab.instruction_ns {
            0 => "wall clock".to_owned(),
            nanos => format!("instruction time, {nanos} ns each"),
        };
        svg.text((origin.0, origin.1 + 14.0), 12, Anchor::Start, &format!("{}; {clock}", lab.disk));
        let (above, inset, right, below) = INSET;
        let x = |share: f64| origin.0 + inset + share * (PANEL.0 - inset - right - MARGIN);
        let y = |share: f64| origin.1 + PANEL.1 - below - share * (PANEL.1 - above - below);
        let (left, right, base) = (x(0.0), x(1.0), y(0.0));
        for value in ticks(self.top) {
            let y = y(value / self.top);
            svg.line((left, y), (right, y), "#e4e4e4");
            svg.text((left - 5.0, y + 3.5), 10, Anchor::End, &rounded_tick(value));
        }
        for percent in [0, 20, 40, 60, 80, 100] {
            svg.text(
                (right + 5.0, y(f64::from(percent) / 100.0) + 3.5),
                10,
                Anchor::Start,
                &percent.to_string(),
            );
        }
        for (share, text) in &self.ticks {
            svg.line((x(*share), base), (x(*share), base + 4.0), "#222222");
            svg.text((x(*share), base + 16.0), 10, Anchor::Middle, text);
        }
        svg.line((left, base), (right, base), "#222222");
        svg.text((left - 40.0, y(1.0) - 8.0), 10, Anchor::Start, left_unit);
        svg.text((right + 24.0, y(1.0) - 8.0), 10, Anchor::End, "CPU, %");
        svg.text(((left + right) / 2.0, base + 32.0), 10, Anchor::Middle, below_unit);
        for (points, (_, _, colour, dashes), width) in
            self.curves.iter().filter(|(points, ..)| !points.is_empty())
        {
            let points: Vec<_> = points.iter().map(|&(along, up)| (x(along), y(up))).collect();
            svg.curve(&points, colour, *width, dashes);
        }
    }
}

/// The next tick from `largest` on.
pub fn round_up(largest: f64) -> f64 {
    (largest / tick(largest)).ceil().max(1.0) * tick(largest)
}

/// The ticks up to `end`, which is one.
pub fn ticks(end: f64) -> impl Iterator<Item = f64> {
    let step = tick(end);
    (0..=(end / step).round() as u32).map(move |index| f64::from(index) * step)
}
