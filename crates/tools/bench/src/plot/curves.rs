//! Throughput and processor utilisation over the transfer size, as in Figure 2 of Leslie et al.
//! 2005: throughput rises, on the left axis, utilisation falls, on the right one.

use super::axes::{Figure, Key, Panel, THICK, THIN, round_up};
use crate::report::Report;
use crate::stats::Summary;
use crate::workload::{SECTOR, Workload};

/// The placements with their names, colours and dashes. ublk's floor is what the kernel's disk
/// would cost through ublk, had its driver no work to do at all.
const PLACEMENTS: [Key; 4] = [
    ("kernel", "kernel's driver", "#555555", "none"),
    ("process-adaptive", "ring3 in process", "#0072b2", "2 3"),
    ("export", "ring3 export", "#d55e00", "7 4"),
    ("ublk-null", "ublk, no driver", "#aaaaaa", "8 3 2 3"),
];

const FIGURE: Figure = Figure {
    title: "Sequential read: throughput (thick, rising) and processor utilisation (thin, falling)",
    source: "after Leslie et al. 2005, Figure 2",
    rounds: "runs for each size",
    keys: &PLACEMENTS,
    gap: 50.0,
    units: ("MiB/s", "sectors (512 bytes) per transfer"),
};

/// Utilisation by the idle time of the kernel, or by the soaker where that is all there is.
const BUSY: [&str; 2] = ["busy_percent", "soaked_busy_percent"];

/// Draws a panel for each report, two in a row.
pub fn draw(reports: &[Report]) -> String {
    FIGURE
        .draw(&reports.iter().map(panel).collect::<Vec<_>>(), if reports.len() > 1 { 2 } else { 1 })
}

/// Sectors and value, in the order of the sectors.
type Curve = Vec<(f64, f64)>;

/// The medians of a metric in a placement, over the sectors of a transfer.
pub fn curve(report: &Report, placement: &str, metric: &str) -> Curve {
    let sectors =
        |name: &str| name.parse::<Workload>().ok().map(|load| f64::from(load.bytes / SECTOR));
    let rows = report.rows.iter().filter(|row| row.placement == placement && row.metric == metric);
    let mut curve: Curve =
        rows.filter_map(|row| Some((sectors(&row.workload)?, row.summary.median))).collect();
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    curve
}

/// Utilisation in a placement. That of ublk's floor is its work for as many requests as the
/// kernel's driver served in the same time.
fn utilisation(report: &Report, placement: &str) -> Curve {
    if placement == "ublk-null" {
        let costs = curve(report, placement, "busy_us_per_op");
        let rates = curve(report, "kernel", "iops");
        let at =
            |size: f64| rates.iter().find(|(sectors, _)| *sectors == size).map(|(_, rate)| *rate);
        return costs
            .into_iter()
            .filter_map(|(size, cost)| Some((size, (at(size)? * cost / 1e4).min(100.0))))
            .collect();
    }
    BUSY.into_iter()
        .map(|metric| curve(report, placement, metric))
        .find(|curve| !curve.is_empty())
        .unwrap_or_default()
}

fn panel(report: &Report) -> Panel<'_> {
    let drawn = || PLACEMENTS.into_iter().filter(|(name, ..)| *name != "ublk-null");
    let points: Curve = drawn().flat_map(|(name, ..)| curve(report, name, "mib_s")).collect();
    let top = round_up(points.iter().map(|point| point.1).fold(0.0, f64::max));
    // Powers of two along the axis of sizes.
    let end = points.iter().map(|point| point.0).fold(1.0, f64::max).log2().ceil().max(1.0);
    let of = |points: Curve, key: Key, top: f64, width| {
        (
            points
                .into_iter()
                .map(|(sectors, value)| (sectors.log2() / end, value / top))
                .collect(),
            key,
            width,
        )
    };
    let reached = drawn().map(|key| of(curve(report, key.0, "mib_s"), key, top, THICK));
    let busy = PLACEMENTS.into_iter().map(|key| of(utilisation(report, key.0), key, 100.0, THIN));
    let ticks = (0..=end as u32)
        .map(|power| (f64::from(power) / end, (1u64 << power).to_string()))
        .collect();
    Panel { report, top, ticks, curves: reached.chain(busy).collect() }
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
            one.with("mib_s", mib_s)
                .with("busy_percent", busy)
                .with("iops", 1000.0)
                .with("busy_us_per_op", 300.0)
        };
        let lab = Lab { disk: "ahci, slow".into(), instruction_ns: 8, ..Lab::default() };
        let rows = [
            at(8, "kernel", 16.0, 40.0),
            at(1, "kernel", 2.0, 52.0),
            at(1, "export", 2.0, 61.0),
            at(1, "ublk-null", 9.0, 100.0),
        ];
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
        assert!(
            text.contains("ahci, slow; instruction time, 8 ns each") && text.contains("polyline"),
            "{text}"
        );
    }

    #[test]
    fn no_reports_are_an_empty_figure() {
        assert!(draw(&[]).ends_with("</svg>\n"));
    }
}
