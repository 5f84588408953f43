//! Throughput and processor utilisation over the transfer size, as in Figure 2 of Leslie et al. 2005: throughput rises, on the left
//! axis, utilisation falls, on the right one.

use super::svg::{Anchor, Svg};
use super::tick;
use crate::report::Report;
use crate::stats::Summary;
use crate::workload::{SECTOR, Workload};

/// The placements with their names, colours and dashes. ublk's floor is what the kernel's disk would cost through ublk, had its driver
/// no work to do at all.
const PLACEMENTS: [(&str, &str, &str, &str); 4] = [
    ("kernel", "kernel's driver", "#555555", "none"),
    ("process-adaptive", "ring3 in process", "#0072b2", "2 3"),
    ("export", "ring3 export", "#d55e00", "7 4"),
    ("ublk-null", "ublk, no driver", "#aaaaaa", "8 3 2 3"),
];

/// Utilisation by the idle time of the kernel, or by the soaker where that is all there is.
const BUSY: [&str; 2] = ["busy_percent", "soaked_busy_percent"];

const PANEL: (f64, f64) = (600.0, 400.0);
const MARGIN: f64 = 24.0;
const HEAD: f64 = 84.0;
/// Room of a panel: above, left, right and below its field.
const INSET: (f64, f64, f64, f64) = (34.0, 50.0, 50.0, 46.0);
const THICK: f64 = 2.0;
const THIN: f64 = 1.2;

/// Draws a panel for each report, two in a row.
pub fn draw(reports: &[Report]) -> String {
    let columns = if reports.len() > 1 { 2 } else { 1 };
    let rows = reports.len().div_ceil(columns).max(1);
    let mut svg = Svg::new(columns as f64 * PANEL.0 + 2.0 * MARGIN, HEAD + rows as f64 * PANEL.1 + MARGIN);
    head(&mut svg, reports);
    for (index, report) in reports.iter().enumerate() {
        let origin = (MARGIN + (index % columns) as f64 * PANEL.0, HEAD + (index / columns) as f64 * PANEL.1);
        Panel::new(report, origin).draw(&mut svg);
    }
    svg.finish()
}

fn head(svg: &mut Svg, reports: &[Report]) {
    let Some(first) = reports.first() else { return };
    svg.text(
        (MARGIN, 26.0),
        16,
        Anchor::Start,
        "Sequential read: throughput (thick, rising) and processor utilisation (thin, falling)",
    );
    let rounds = first.rows.iter().map(|row| row.summary.rounds).max().unwrap_or(0);
    let line = format!(
        "after Leslie et al. 2005, Figure 2; Linux {}, QEMU {}; medians of {rounds} runs for each size",
        first.lab.kernel, first.lab.qemu
    );
    svg.text((MARGIN, 46.0), 11, Anchor::Start, &line);
    let mut x = MARGIN;
    for (_, name, colour, dashes) in PLACEMENTS {
        svg.curve(&[(x, 64.0), (x + 44.0, 64.0)], colour, THICK, dashes);
        svg.text((x + 50.0, 68.0), 11, Anchor::Start, name);
        x += 50.0 + 8.0 * name.len() as f64;
    }
}

/// Sectors and value, in the order of the sectors.
type Curve = Vec<(f64, f64)>;

/// The medians of a metric in a placement, over the sectors of a transfer.
pub fn curve(report: &Report, placement: &str, metric: &str) -> Curve {
    let sectors = |name: &str| name.parse::<Workload>().ok().map(|load| f64::from(load.bytes / SECTOR));
    let rows = report.rows.iter().filter(|row| row.placement == placement && row.metric == metric);
    let mut curve: Curve = rows.filter_map(|row| Some((sectors(&row.workload)?, row.summary.median))).collect();
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    curve
}

/// Utilisation in a placement. That of ublk's floor is its work for as many requests as the kernel's driver served in the same time.
fn utilisation(report: &Report, placement: &str) -> Curve {
    if placement == "ublk-null" {
        let costs = curve(report, placement, "busy_us_per_op");
        let rates = curve(report, "kernel", "iops");
        let at = |size: f64| rates.iter().find(|(sectors, _)| *sectors == size).map(|(_, rate)| *rate);
        return costs.into_iter().filter_map(|(size, cost)| Some((size, (at(size)? * cost / 1e4).min(100.0)))).collect();
    }
    BUSY.into_iter().map(|metric| curve(report, placement, metric)).find(|curve| !curve.is_empty()).unwrap_or_default()
}

struct Panel<'a> {
    report: &'a Report,
    origin: (f64, f64),
    largest: f64,
    /// Powers of two at the ends of the axis of sizes.
    ends: (f64, f64),
}

impl<'a> Panel<'a> {
    fn new(report: &'a Report, origin: (f64, f64)) -> Self {
        let drawn = PLACEMENTS.iter().filter(|(name, ..)| *name != "ublk-null");
        let points: Curve = drawn.flat_map(|(name, ..)| curve(report, name, "mib_s")).collect();
        let largest = points.iter().map(|point| point.1).fold(0.0, f64::max);
        let last = points.iter().map(|point| point.0).fold(1.0, f64::max);
        Self { report, origin, largest, ends: (0.0, last.log2().ceil().max(1.0)) }
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
            if placement != "ublk-null" {
                self.line(svg, &curve(self.report, placement, "mib_s"), self.steps(), (colour, THICK, dashes));
            }
            self.line(svg, &utilisation(self.report, placement), 100.0, (colour, THIN, dashes));
        }
    }

    /// The value at the top of the throughput's axis.
    fn steps(&self) -> f64 {
        let step = tick(self.largest);
        (self.largest / step).ceil().max(1.0) * step
    }

    fn line(&self, svg: &mut Svg, curve: &Curve, top: f64, (colour, width, dashes): (&str, f64, &str)) {
        let points: Vec<_> = curve.iter().map(|&(sectors, value)| (self.x(sectors.log2()), self.y(value / top))).collect();
        if !points.is_empty() {
            svg.curve(&points, colour, width, dashes);
        }
    }

    fn x(&self, power: f64) -> f64 {
        let (_, left, right, _) = INSET;
        self.origin.0 + left + (power - self.ends.0) / (self.ends.1 - self.ends.0) * (PANEL.0 - left - right - MARGIN)
    }

    fn y(&self, share: f64) -> f64 {
        let (above, _, _, below) = INSET;
        self.origin.1 + PANEL.1 - below - share * (PANEL.1 - above - below)
    }

    fn axes(&self, svg: &mut Svg) {
        let (left, right, base) = (self.x(self.ends.0), self.x(self.ends.1), self.y(0.0));
        let (top, step) = (self.steps(), tick(self.largest));
        for index in 0..=(top / step).round() as u32 {
            let value = f64::from(index) * step;
            svg.line((left, self.y(value / top)), (right, self.y(value / top)), "#e4e4e4");
            svg.text((left - 5.0, self.y(value / top) + 3.5), 10, Anchor::End, &super::rounded_tick(value));
        }
        for percent in [0, 20, 40, 60, 80, 100] {
            svg.text((right + 5.0, self.y(f64::from(percent) / 100.0) + 3.5), 10, Anchor::Start, &percent.to_string());
        }
        for power in self.ends.0 as u32..=self.ends.1 as u32 {
            let x = self.x(f64::from(power));
            svg.line((x, base), (x, base + 4.0), "#222222");
            svg.text((x, base + 16.0), 10, Anchor::Middle, &(1u64 << power).to_string());
        }
        svg.line((left, base), (right, base), "#222222");
        svg.text((left - 40.0, self.y(1.0) - 8.0), 10, Anchor::Start, "MiB/s");
        svg.text((right + 24.0, self.y(1.0) - 8.0), 10, Anchor::End, "CPU, %");
        svg.text(((left + right) / 2.0, base + 32.0), 10, Anchor::Middle, "sectors (512 bytes) per transfer");
    }
}

/// The same for one size.
pub fn utilisation_at<'a>(report: &'a Report, load: &str, placement: &str) -> Option<&'a Summary> {
    BUSY.into_iter().find_map(|metric| report.get(load, placement, metric))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    fn report() -> Report {
        let at = |sectors, placement: &str, mib_s, busy| {
            let one = Measurement::new(1, Workload::reading(sectors), placement);
            one.with("mib_s", mib_s).with("busy_percent", busy).with("iops", 1000.0).with("busy_us_per_op", 300.0)
        };
        let lab = Lab { disk: "ahci, slow".into(), instruction_ns: 8, ..Lab::default() };
        let rows =
            [at(8, "kernel", 16.0, 40.0), at(1, "kernel", 2.0, 52.0), at(1, "export", 2.0, 61.0), at(1, "ublk-null", 9.0, 100.0)];
        Report::new("leslie", lab, &rows)
    }

    #[test]
    fn sizes_are_in_their_order_whatever_the_order_of_the_runs() {
        assert_eq!(curve(&report(), "kernel", "mib_s"), [(1.0, 2.0), (8.0, 16.0)]);
    }

    #[test]
    fn the_floor_is_what_ublk_costs_at_the_rate_of_the_kernels_driver() {
        assert_eq!(utilisation(&report(), "ublk-null"), [(1.0, 30.0)]);
    }

    #[test]
    fn a_panel_says_which_disk_and_which_clock_it_is() {
        let text = draw(&[report()]);
        assert!(text.contains("ahci, slow; instruction time, 8 ns each") && text.contains("polyline"), "{text}");
    }

    #[test]
    fn no_reports_are_an_empty_figure() {
        assert!(draw(&[]).ends_with("</svg>\n"));
    }
}
