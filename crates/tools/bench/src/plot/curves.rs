//! Figures of curves: throughput on the left axis, processor utilisation on the right one.

use plotters::style::RGBColor;

use super::clock;
use super::figure::{BLUE, Curve, Curves, Dashes, Figure, GREEN, GREY, PALE, Panel, RED};
use crate::net::Load;
use crate::report::Report;
use crate::stats::Summary;
use crate::workload::{SECTOR, Workload};

/// A placement in a figure: its name among placements, that in the key, its colour and its dashes.
type Key = (&'static str, &'static str, RGBColor, Dashes);

/// Over sizes. ublk's floor is what the kernel's disk would cost through ublk, had its driver no
/// work to do at all.
const SIZES: [Key; 4] = [
    ("kernel", "kernel's driver", GREY, None),
    ("process-adaptive", "ring3 in process", BLUE, Some((2, 3))),
    ("export", "ring3 export", RED, Some((7, 4))),
    ("ublk-null", "ublk, no driver", PALE, Some((9, 3))),
];

/// Over rates.
const ECHO: [Key; 3] = [
    ("kernel", "kernel's driver", GREY, None),
    ("process", "ring3 in process", BLUE, Some((2, 3))),
    ("export", "ring3 export", RED, Some((7, 4))),
];

/// Loads of a split driver while its crossings are delayed.
const DELAYS: [Key; 3] = [
    ("tcp-out", "sent", BLUE, None),
    ("tcp-in", "received", RED, Some((7, 4))),
    ("tcp-paced", "paced", GREEN, Some((2, 3))),
];

/// Utilisation by the idle time of the kernel, or by the soaker where that is all there is.
const BUSY: [&str; 2] = ["busy_percent", "soaked_busy_percent"];

/// Places and values.
type Points = Vec<(f64, f64)>;

fn figure(
    title: &str,
    source: &str,
    keys: &[Key],
    reports: &[Report],
    rows: Vec<Vec<Curves>>,
) -> Figure {
    let line = reports.first().map_or(String::new(), |first| {
        let rounds = first.rows.iter().map(|row| row.summary.rounds).max().unwrap_or(0);
        let (kernel, qemu) = (&first.lab.kernel, &first.lab.qemu);
        format!("{source}; Linux {kernel}, QEMU {qemu}; medians of {rounds} rounds")
    });
    let panels = |row: Vec<Curves>| row.into_iter().map(Panel::Curves).collect();
    Figure {
        title: title.into(),
        source: line,
        keys: keys.iter().map(|&(_, name, colour, dashes)| (name.into(), colour, dashes)).collect(),
        rows: rows.into_iter().map(panels).collect(),
    }
}

fn of((_, _, colour, dashes): Key, points: Points, percent: bool) -> Curve {
    Curve { points, ranges: Vec::new(), colour, dashes, percent }
}

fn last(curves: &[Curve]) -> f64 {
    let points = curves.iter().flat_map(|curve| &curve.points);
    points.map(|point| point.0).fold(0.0, f64::max)
}

fn title(report: &Report) -> String {
    format!("{}; {}", report.lab.disk, clock(report))
}

/// Throughput and utilisation over the transfer size, as in Figure 2 of Leslie et al. 2005: a panel
/// for each report, two in a row.
pub fn sizes(reports: &[Report]) -> Figure {
    let mut panels: Vec<Curves> = reports.iter().map(of_sizes).collect();
    let mut rows = Vec::new();
    while !panels.is_empty() {
        rows.push(panels.drain(..panels.len().min(2)).collect());
    }
    let title =
        "Sequential read: throughput (thick, rising) and processor utilisation (thin, falling)";
    figure(title, "after Leslie et al. 2005, Figure 2", &SIZES, reports, rows)
}

fn of_sizes(report: &Report) -> Curves {
    // Powers of two along the axis of sizes.
    let along = |points: Points| points.into_iter().map(|(at, value)| (at.log2(), value)).collect();
    let drawn = SIZES.into_iter().filter(|(name, ..)| *name != "ublk-null");
    let reached = drawn.map(|key| of(key, along(by_size(report, key.0, "mib_s")), false));
    let busy = SIZES.into_iter().map(|key| of(key, along(utilisation(report, key.0)), true));
    let curves: Vec<_> = reached.chain(busy).collect();
    Curves {
        title: title(report),
        axes: ["sectors (512 bytes) per transfer", "MiB/s", "CPU, %"].map(Into::into),
        ends: (0.0, last(&curves).ceil()),
        tick: Some(|power| match power.fract() {
            0.0 => format!("{}", 2f64.powf(power)),
            _ => String::new(),
        }),
        curves,
        columns: Vec::new(),
    }
}

/// The medians of a metric in a placement, over the sectors of a transfer.
fn by_size(report: &Report, placement: &str, metric: &str) -> Points {
    over(report, placement, metric, |load| {
        load.parse::<Workload>().ok().map(|load| f64::from(load.bytes / SECTOR))
    })
}

/// The same over what `place` says of a load, in its order.
fn over(
    report: &Report,
    placement: &str,
    metric: &str,
    place: impl Fn(&str) -> Option<f64>,
) -> Points {
    let rows = report.rows.iter().filter(|row| row.placement == placement && row.metric == metric);
    let mut points: Points =
        rows.filter_map(|row| Some((place(&row.workload)?, row.summary.median))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// Utilisation in a placement. That of ublk's floor is its work for as many requests as the
/// kernel's driver served in the same time.
fn utilisation(report: &Report, placement: &str) -> Points {
    if placement == "ublk-null" {
        let costs = by_size(report, placement, "busy_us_per_op");
        let rates = by_size(report, "kernel", "iops");
        let at =
            |size: f64| rates.iter().find(|(sectors, _)| *sectors == size).map(|(_, rate)| *rate);
        return costs
            .into_iter()
            .filter_map(|(size, cost)| Some((size, (at(size)? * cost / 1e4).min(100.0))))
            .collect();
    }
    BUSY.into_iter()
        .map(|metric| by_size(report, placement, metric))
        .find(|points| !points.is_empty())
        .unwrap_or_default()
}

/// The same for one size.
pub fn utilisation_at<'a>(report: &'a Report, load: &str, placement: &str) -> Option<&'a Summary> {
    BUSY.into_iter().find_map(|metric| report.get(load, placement, metric))
}

/// Echo throughput and processor utilisation over the offered load, as in Figure 4 of Leslie et al.
/// 2005: throughput rises until something is exhausted. A panel for each report, one below the
/// other.
pub fn echo(reports: &[Report]) -> Figure {
    let panel = |report: &Report| {
        let curves: Vec<_> = ECHO
            .into_iter()
            .flat_map(|key| {
                let points = |metric| by_rate(report, key.0, metric);
                [of(key, points("mbit_s"), false), of(key, points("busy_percent"), true)]
            })
            .collect();
        Curves {
            title: title(report),
            axes: ["offered, Mb/s", "echoed, Mb/s", "CPU, %"].map(Into::into),
            ends: (0.0, last(&curves) * 1.02),
            curves,
            ..Curves::default()
        }
    };
    let source = "after Leslie et al. 2005, Figure 4; packets of 1024 bytes";
    let rows = reports.iter().map(|report| vec![panel(report)]).collect();
    figure(
        "UDP echo: throughput (thick) and processor utilisation (thin)",
        source,
        &ECHO,
        reports,
        rows,
    )
}

/// The medians of a metric over the load that was offered, which is not what was asked for.
fn by_rate(report: &Report, placement: &str, metric: &str) -> Points {
    over(report, placement, metric, |load| {
        load.parse::<Load>().ok()?.rate()?;
        Some(report.get(load, placement, "offered_mbit_s")?.median)
    })
}

/// Throughput and processor time of a split driver, over what each crossing takes longer: Figure 4
/// of Ganapathy et al. 2008.
pub fn delays(reports: &[Report]) -> Figure {
    let panel = |report: &Report, metric: &str, name: &str| {
        let delay = |placement: &str| placement.strip_prefix("delay-")?.parse::<u32>().ok();
        let curves = DELAYS.into_iter().map(|key| {
            let rows =
                report.rows.iter().filter(|row| row.workload == key.0 && row.metric == metric);
            // From no delay on in powers of ten.
            let at = |us: f64| (us + 1.0).log10();
            let mut all: Vec<_> = rows
                .filter_map(|row| Some((at(delay(&row.placement)?.into()), &row.summary)))
                .collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            let points = all.iter().map(|(at, row)| (*at, row.median)).collect();
            let ranges = all.iter().map(|(at, row)| (*at, row.min, row.max)).collect();
            Curve { ranges, ..of(key, points, false) }
        });
        let curves: Vec<_> = curves.collect();
        Curves {
            title: format!("{name}; {}", clock(report)),
            axes: ["delay of each crossing, us".into(), "original = 1".into(), String::new()],
            ends: (0.0, last(&curves)),
            tick: Some(|power| match power.fract() {
                0.0 if power == 0.0 => "0".into(),
                0.0 => format!("{}", 10f64.powf(power)),
                _ => String::new(),
            }),
            curves,
            columns: Vec::new(),
        }
    };
    let row = |report: &Report| {
        [("mbit_s_ratio", "throughput"), ("cpu_ratio", "processor time per packet")]
            .map(|(metric, name)| panel(report, metric, name))
            .into()
    };
    figure(
        "A split driver while its crossings take longer",
        "after Ganapathy et al. 2008, Figure 4",
        &DELAYS,
        reports,
        reports.iter().map(row).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::draw;
    use super::*;
    use crate::report::{Lab, Measurement};

    fn sizes() -> Report {
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
        Report::new("leslie-ahci", lab, &rows)
    }

    #[test]
    fn sizes_are_in_their_order_whatever_the_order_of_the_runs() {
        assert_eq!(by_size(&sizes(), "kernel", "mib_s"), [(1.0, 2.0), (8.0, 16.0)]);
    }

    #[test]
    fn the_floor_is_what_ublk_costs_at_the_rate_of_the_kernels_driver() {
        assert_eq!(utilisation(&sizes(), "ublk-null"), [(1.0, 30.0)]);
    }

    #[test]
    fn a_panel_says_which_disk_and_which_clock_it_is() {
        let figure = draw(&[sizes()]).unwrap();
        assert!(figure.contains("ahci, slow; instruction time, 8 ns each"), "{figure}");
        assert!(figure.contains("polyline"), "{figure}");
    }

    #[test]
    fn what_was_echoed_stands_over_what_was_offered_and_not_over_what_was_asked_for() {
        let at = |mbit, offered, echoed| {
            let one = Measurement::new(1, Load::at(mbit), "kernel");
            one.with("offered_mbit_s", offered).with("mbit_s", echoed).with("busy_percent", 40.0)
        };
        let other = Measurement::new(1, "udp-64-out", "kernel").with("mbit_s", 5.0);
        let rows = [at(100, 99.0, 80.0), at(10, 9.9, 9.8), other];
        let report = Report::new("udp-echo", Lab::default(), &rows);
        assert_eq!(by_rate(&report, "kernel", "mbit_s"), [(9.9, 9.8), (99.0, 80.0)]);
    }

    #[test]
    fn a_split_drivers_ratios_stand_over_the_delays_alone() {
        let at =
            |placement: &str| Measurement::new(1, "tcp-out", placement).with("mbit_s_ratio", 0.5);
        let report =
            Report::new("split", Lab::default(), &["undelayed", "delay-0", "delay-999"].map(at));
        let figure = delays(&[report]);
        let Panel::Curves(curves) = &figure.rows[0][0] else { panic!("no curves") };
        assert_eq!(curves.curves[0].points, [(0.0, 0.5), (3.0, 0.5)]);
    }
}
