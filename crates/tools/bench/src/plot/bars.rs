//! Figures of bars: panels for each clock, load and metric, or one panel of all loads.

use plotters::style::RGBColor;

use super::figure::{
    BLUE, Bar, Bars, Figure, GREEN, GREY, LIGHT, ORANGE, PALE, PINK, Panel, RED, SKY, YELLOW,
};
use super::{clock, label};
use crate::disk::work;
use crate::report::{Report, Row, unit};
use crate::table::rounded;
use crate::workload::STANDARD;

/// Of disks, the rows of panels and what they are called; one without data is left out.
const METRICS: [(&str, &str); 5] = [
    ("iops", "requests"),
    ("cpu_us_per_op", "CPU per request"),
    ("instructions_per_op", "per request"),
    ("busy_percent", "processor"),
    ("latency_us_p50", "latency, median"),
];

/// The placements' colours; what fio did is paler.
fn colour(placement: &str) -> RGBColor {
    match placement {
        _ if placement.starts_with("kernel") && placement.ends_with("-fio") => PALE,
        "dpdk" | "export-fio" => ORANGE,
        "process-polled" => SKY,
        "process-adaptive" => GREEN,
        "process-threads" => PINK,
        "export" => RED,
        "export-vduse" => YELLOW,
        "supervised" => RGBColor(0x8c, 0x51, 0x0a),
        "hosted" => RGBColor(0x7f, 0x3b, 0x8f),
        "hosted-fio" => RGBColor(0xc2, 0xa5, 0xcf),
        _ if placement.starts_with("kernel") => GREY,
        _ if placement.ends_with("-null") || placement.ends_with("-fio") => LIGHT,
        _ => BLUE,
    }
}

fn bar(row: &Row, slot: usize, label: String) -> Bar {
    let summary = &row.summary;
    Bar {
        slot,
        parts: vec![(summary.median, colour(&row.placement), String::new())],
        range: Some((summary.min, summary.max)),
        label,
    }
}

/// What a figure of one panel is of.
struct One {
    bench: &'static str,
    title: &'static str,
    source: &'static str,
    /// Whose medians the bars are.
    metric: fn(&Report) -> &'static str,
    /// What else stands beside a bar: its name, metric and unit; the ratio to the kernel's driver
    /// without.
    beside: Option<(&'static str, &'static str)>,
}

const ONES: [One; 4] = [
    One {
        bench: "tcp",
        title: "TCP in pieces of 64 KiB: bytes per instruction",
        source: "medians",
        metric: |_| "bytes_per_instruction",
        beside: None,
    },
    One {
        bench: "loopback",
        title: "Two cards cabled together: packets a second",
        source: "after Enea; medians, and what 99 % of the latencies are not above",
        metric: |_| "packets_s",
        beside: Some(("latency_us_p99", " us")),
    },
    One {
        bench: "irq-delay",
        title: "From the kernel's handler of an interrupt to the process, us",
        source: "after Weisbach 2011, Table 4.2; means, and 99 %",
        metric: |_| "process_us_mean",
        beside: Some(("process_us_p99", "")),
    },
    One {
        bench: "dde",
        title: "A card by Linux's driver, in the kernel and in a process: instructions per round \
                trip (icmp), datagram (udp) and segment (tcp)",
        source: "after Weisbach 2011; medians",
        metric: |report| match report.lab.mode.as_str() {
            "instructions" => "instructions_per_op",
            _ => "latency_us_mean",
        },
        beside: None,
    },
];

/// The figure of one panel of those benchmarks that have one.
pub fn special(bench: &str, reports: &[Report]) -> Option<Figure> {
    let one = ONES.iter().find(|one| one.bench == bench)?;
    let report = reports.first()?;
    let mut figure = single(one, report);
    for other in &reports[1..] {
        figure.rows.extend(single(one, other).rows);
    }
    Some(figure)
}

/// The figure of one report, whose one panel says what it is of.
fn single(one: &One, report: &Report) -> Figure {
    let metric = (one.metric)(report);
    let rows: Vec<_> = report.rows.iter().filter(|row| row.metric == metric).collect();
    let bars = rows.iter().enumerate().map(|(slot, row)| {
        let late = one.beside.and_then(|(name, _)| report.get(&row.workload, &row.placement, name));
        let label = match (late, one.beside) {
            (Some(late), Some((_, unit))) => {
                let late = rounded(late.median);
                format!("{} (99 %: {late}{unit})", rounded(row.summary.median))
            }
            _ => label(report, &row.workload, &row.placement, metric),
        };
        bar(row, slot, label)
    });
    let lab = &report.lab;
    let quick = if lab.quick { "QUICK, no measurement; " } else { "" };
    let panel = Bars {
        bars: bars.collect(),
        names: rows.iter().map(|row| format!("{}, {}", row.workload, row.placement)).collect(),
        title: format!("{}, {}", report.lab.disk, clock(report)),
        ..Bars::default()
    };
    Figure {
        title: one.title.into(),
        source: format!(
            "{quick}{}; lines from the smallest to the largest; {}, Linux {}, {}",
            one.source,
            lab.disk,
            lab.kernel,
            clock(report)
        ),
        rows: vec![vec![Panel::Bars(panel)]],
        ..Figure::default()
    }
}

/// A row of panels for each metric of each report: a panel for each load, a bar for each placement.
pub fn figure(reports: &[Report]) -> Figure {
    let Some(first) = reports.first() else { return Figure::default() };
    let rounds = reports.iter().map(|report| {
        let most = report.rows.iter().map(|row| row.summary.rounds).max().unwrap_or(0);
        format!("{most} by {}", clock(report))
    });
    let source = format!(
        "Linux {}, QEMU {}; medians of rounds: {}; lines from the smallest to the largest; ratios \
        to the kernel's best (*)",
        first.lab.kernel,
        first.lab.qemu,
        rounds.collect::<Vec<_>>().join(", ")
    );
    let title = match is_disk(first) {
        true => format!("{}: the same device, its driver in different places", first.bench),
        false => first.bench.clone(),
    };
    Figure { title, source, rows: reports.iter().flat_map(rows).collect(), ..Figure::default() }
}

/// Whether it is of the benchmark of disks: `make demo` is, too.
fn is_disk(report: &Report) -> bool {
    matches!(report.bench.as_str(), "disk" | "demo") || report.bench.starts_with("work")
}

fn known(load: &str) -> bool {
    STANDARD.contains(&load) || work::LOADS.contains(&load)
}

/// Each of `names` once.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    names.for_each(|name| {
        if !found.contains(&name) {
            found.push(name);
        }
    });
    found
}

fn rows(report: &Report) -> Vec<Vec<Panel>> {
    let is_disk = is_disk(report);
    let drawn: Vec<&Row> =
        report.rows.iter().filter(|row| !is_disk || known(&row.workload)).collect();
    let all = distinct(drawn.iter().map(|row| row.metric.as_str()));
    let metrics: Vec<_> = match is_disk {
        true => METRICS.to_vec(),
        false => all.into_iter().map(|name| (name, name)).collect(),
    };
    let loads = distinct(drawn.iter().map(|row| row.workload.as_str()));
    let row = |&(metric, name): &(&str, &str)| {
        // Of large requests, bytes are counted.
        let suited = |load: &str| match metric {
            "iops" if load.contains("128k") => ("mib_s", "throughput"),
            _ => (metric, name),
        };
        let of = |load: &str| {
            let wanted = suited(load).0;
            let of = |row: &&&Row| row.workload == load && row.metric == wanted;
            drawn.iter().filter(of).copied().collect::<Vec<&Row>>()
        };
        let all = loads.iter().flat_map(|load| of(load));
        let names = distinct(all.map(|row| row.placement.as_str()));
        let panel = |load: &&str| {
            let (rows, (metric, name)) = (of(load), suited(load));
            let bars = rows.iter().map(|row| {
                let slot = names.iter().position(|name| *name == row.placement);
                let label = label(report, load, &row.placement, metric);
                bar(row, slot.unwrap_or_default(), label)
            });
            let bars: Vec<_> = bars.collect();
            let panel = Bars {
                title: format!("{load}, {}", clock(report)),
                axis: format!("{name}, {}", unit(metric)),
                names: names.iter().map(ToString::to_string).collect(),
                bars,
                ..Bars::default()
            };
            (!panel.bars.is_empty()).then_some(Panel::Bars(panel))
        };
        loads.iter().filter_map(panel).collect::<Vec<_>>()
    };
    metrics.iter().map(row).filter(|panels| !panels.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::draw;
    use super::super::tests::texts;
    use super::*;
    use crate::report::{Lab, Measurement};

    #[test]
    fn of_the_demonstration_the_same_metrics_are_drawn_as_of_the_benchmark_of_disks() {
        let one = Measurement::new(1, "randread-4k-qd1", "kernel").with("iops", 7.0);
        let report = Report::new("demo", Lab::default(), &[one.with("errors", 0.0)]);
        let figure = draw(&[report]).unwrap();
        let texts = texts(&figure);
        assert!(texts.contains(&"requests, 1/s") && !texts.contains(&"errors, 1"), "{texts:?}");
    }

    #[test]
    fn a_bar_has_its_ratio_to_the_kernels_driver() {
        let one = |placement: &str, bytes| {
            Measurement::new(1, "tcp-64k-in", placement).with("bytes_per_instruction", bytes)
        };
        let report = Report::new("tcp", Lab::default(), &[one("kernel", 1.0), one("export", 0.9)]);
        let figure = draw(&[report]).unwrap();
        let texts = texts(&figure);
        assert!(texts.contains(&"tcp-64k-in, export") && texts.contains(&"0.90 (0.90x)"));
    }

    #[test]
    fn each_condition_has_a_bar_with_its_mean_and_what_most_are_below() {
        let one = Measurement::new(1, "irq-idle", "process")
            .with("process_us_mean", 20.8)
            .with("process_us_p99", 31.0);
        let figure = draw(&[Report::new("irq-delay", Lab::default(), &[one])]).unwrap();
        assert!(texts(&figure).contains(&"20.8 (99 %: 31.0)"), "{figure}");
    }

    #[test]
    fn kernel_ring3_and_dpdk_have_a_colour_each_and_the_latency_of_most_if_that_is_known() {
        let one = |placement: &str| {
            Measurement::new(1, "loop-60-stream", placement).with("packets_s", 500.0)
        };
        let all = [one("kernel").with("latency_us_p99", 31.0), one("process"), one("dpdk")];
        let figure = draw(&[Report::new("loopback", Lab::default(), &all)]).unwrap();
        assert!(["#555555", "#0072B2", "#E69F00"].iter().all(|colour| figure.contains(colour)));
        let texts = texts(&figure);
        assert!(texts.contains(&"500 (99 %: 31.0 us)"), "{texts:?}");
    }

    #[test]
    fn a_load_has_one_panel_and_of_large_requests_bytes_are_counted() {
        let load = Measurement::new(1, "seqread-128k-qd8", "kernel");
        let load = load.with("iops", 5.0).with("mib_s", 7.0).with("startup_ms", 4.0);
        let figure = draw(&[Report::new("disk", Lab::default(), &[load])]).unwrap();
        let texts = texts(&figure);
        assert_eq!(texts.iter().filter(|text| text.starts_with("seqread-128k-qd8")).count(), 1);
        assert!(texts.contains(&"throughput, MiB/s"), "{texts:?}");
    }
}
