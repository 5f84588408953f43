//! Echo throughput and processor utilisation over the offered load, as in Figure 4 of Leslie et al. 2005: throughput rises on the left axis until something is exhausted, utilisation on the right one.

use super::svg::{Anchor, Svg};
use super::{rounded_tick, tick};
use crate::net::Load;
use crate::report::Report;

/// The placements with their names, colours and dashes.
const PLACEMENTS: [(&str, &str, &str, &str); 3] = [
    ("kernel", "kernel's driver", "#555555", "none"),
    ("process", "ring3 in process", "#0072b2", "2 3"),
    ("export", "ring3 export", "#d55e00", "7 4"),
];

const PANEL: (f64, f64) = (600.0, 400.0);
const MARGIN: f64 = 24.0;
const HEAD: f64 = 84.0;
/// Room of a panel: above, left, right and below its field.
const INSET: (f64, f64, f64, f64) = (34.0, 50.0, 50.0, 46.0);
const THICK: f64 = 2.0;
const THIN: f64 = 1.2;

/// Draws a panel for each report, one below the other.
pub fn draw(reports: &[Report]) -> String {
    let mut svg = Svg::new(PANEL.0 + 2.0 * MARGIN, HEAD + reports.len() as f64 * PANEL.1 + MARGIN);
    head(&mut svg, reports);
    for (index, report) in reports.iter().enumerate() {
        Panel::new(report, (MARGIN, HEAD + index as f64 * PANEL.1)).draw(&mut svg);
    }
    svg.finish()
}

fn head(svg: &mut Svg, reports: &[Report]) {
    let Some(first) = reports.first() else { return };
    svg.text((MARGIN, 26.0), 16, Anchor::Start, "UDP echo: throughput (thick) and processor utilisation (thin)");
    let rounds = first.rows.iter().map(|row| row.summary.rounds).max().unwrap_or(0);
    let line = format!(
        "after Leslie et al. 2005, Figure 4; packets of 1024 bytes; Linux {}, QEMU {}; medians of {rounds} rounds",
        first.lab.kernel, first.lab.qemu
    );
    svg.text((MARGIN, 46.0), 11, Anchor::Start, &line);
    let mut x = MARGIN;
    for (_, name, colour, dashes) in PLACEMENTS {
        svg.curve(&[(x, 64.0), (x + 44.0, 64.0)], colour, THICK, dashes);
        svg.text((x + 50.0, 68.0), 11, Anchor::Start, name);
        x += 60.0 + 8.0 * name.len() as f64;
    }
}

/// The medians of a metric over the load that was offered, in its order.
fn curve(report: &Report, placement: &str, metric: &str) -> Vec<(f64, f64)> {
    let rows = report.rows.iter().filter(|row| row.placement == placement && row.metric == metric);
    let point = |workload: &str, value: f64| {
        workload.parse::<Load>().ok()?.rate()?;
        Some((report.get(workload, placement, "offered_mbit_s")?.median, value))
    };
    let mut curve: Vec<_> = rows.filter_map(|row| point(&row.workload, row.summary.median)).collect();
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    curve
}

struct Panel<'a> {
    report: &'a Report,
    origin: (f64, f64),
    /// The ends of the axes: of the offered load, and of what was echoed.
    ends: (f64, f64),
}

impl<'a> Panel<'a> {
    fn new(report: &'a Report, origin: (f64, f64)) -> Self {
        let all = PLACEMENTS.iter().flat_map(|(name, ..)| curve(report, name, "mbit_s"));
        let most = all.fold((0.0_f64, 0.0_f64), |most, point| (most.0.max(point.0), most.1.max(point.1)));
        Self { report, origin, ends: (round_up(most.0), round_up(most.1)) }
    }

    fn draw(&self, svg: &mut Svg) {
        let lab = &self.report.lab;
        let clock = match lab.instruction_ns {
            0 => "wall clock".to_owned(),
            nanos => format!("instruction time, {nanos} ns each"),
        };
        svg.text((self.origin.0, self.origin.1 + 14.0), 12, Anchor::Start, &format!("{}; {clock}", lab.disk));
        self.axes(svg);
        for (placement, _, colour, dashes) in PLACEMENTS {
            for (metric, top, width) in [("mbit_s", self.ends.1, THICK), ("busy_percent", 100.0, THIN)] {
                let points = curve(self.report, placement, metric);
                let points: Vec<_> = points.into_iter().map(|(offered, value)| (self.x(offered), self.y(value / top))).collect();
                if !points.is_empty() {
                    svg.curve(&points, colour, width, dashes);
                }
            }
        }
    }

    fn x(&self, offered: f64) -> f64 {
        let (_, left, right, _) = INSET;
        self.origin.0 + left + offered / self.ends.0 * (PANEL.0 - left - right - MARGIN)
    }

    fn y(&self, share: f64) -> f64 {
        let (above, _, _, below) = INSET;
        self.origin.1 + PANEL.1 - below - share * (PANEL.1 - above - below)
    }

    fn axes(&self, svg: &mut Svg) {
        let (left, right, base) = (self.x(0.0), self.x(self.ends.0), self.y(0.0));
        for value in ticks(self.ends.1) {
            let y = self.y(value / self.ends.1);
            svg.line((left, y), (right, y), "#e4e4e4");
            svg.text((left - 5.0, y + 3.5), 10, Anchor::End, &rounded_tick(value));
        }
        for percent in [0, 20, 40, 60, 80, 100] {
            svg.text((right + 5.0, self.y(f64::from(percent) / 100.0) + 3.5), 10, Anchor::Start, &percent.to_string());
        }
        for value in ticks(self.ends.0) {
            svg.line((self.x(value), base), (self.x(value), base + 4.0), "#222222");
            svg.text((self.x(value), base + 16.0), 10, Anchor::Middle, &rounded_tick(value));
        }
        svg.line((left, base), (right, base), "#222222");
        svg.text((left - 40.0, self.y(1.0) - 8.0), 10, Anchor::Start, "echoed, Mb/s");
        svg.text((right + 24.0, self.y(1.0) - 8.0), 10, Anchor::End, "CPU, %");
        svg.text(((left + right) / 2.0, base + 32.0), 10, Anchor::Middle, "offered, Mb/s");
    }
}

/// The next tick from `largest` on.
fn round_up(largest: f64) -> f64 {
    (largest / tick(largest)).ceil().max(1.0) * tick(largest)
}

fn ticks(end: f64) -> impl Iterator<Item = f64> {
    let step = tick(end);
    (0..=(end / step).round() as u32).map(move |index| f64::from(index) * step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    fn report() -> Report {
        let at = |mbit, offered, echoed| {
            let one = Measurement::new(1, Load::at(mbit), "kernel");
            one.with("offered_mbit_s", offered).with("mbit_s", echoed).with("busy_percent", 40.0)
        };
        let other = Measurement::new(1, "udp-64-out", "kernel").with("mbit_s", 5.0);
        let lab = Lab { disk: "e1000e".into(), instruction_ns: 8, ..Lab::default() };
        Report::new("udp-echo", lab, &[at(100, 99.0, 80.0), at(10, 9.9, 9.8), other])
    }

    #[test]
    fn what_was_echoed_stands_over_what_was_offered_and_not_over_what_was_asked_for() {
        assert_eq!(curve(&report(), "kernel", "mbit_s"), [(9.9, 9.8), (99.0, 80.0)]);
    }

    #[test]
    fn a_panel_says_which_card_and_which_clock_it_is() {
        let text = draw(&[report()]);
        assert!(text.contains("e1000e; instruction time, 8 ns each") && text.contains("polyline"), "{text}");
    }

    #[test]
    fn a_report_without_rates_and_none_at_all_are_empty_figures() {
        assert!(draw(&[Report::new("udp-echo", Lab::default(), &[])]).ends_with("</svg>\n"));
        assert!(draw(&[]).ends_with("</svg>\n"));
    }
}
