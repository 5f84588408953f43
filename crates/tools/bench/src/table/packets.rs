//! The report of `bench udp-echo` as text.

use super::{align, cell, head, number};
use crate::net::loopback::{LOOPBACK_PLACEMENTS, Loop};
use crate::net::{Kind, Load, PLACEMENTS, STREAM_PLACEMENTS, Way};
use crate::report::Report;

/// What a packet costs in each placement, and what is echoed at each rate.
pub fn render_packets(report: &Report) -> String {
    let tables = [costs(report), rates(report)];
    let text = tables.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n");
    text + &super::notes(report)
}

/// From a cause to the kernel's handler, from there to the process, and the whole way, under each
/// condition.
pub fn render_delays(report: &Report) -> String {
    let metrics = [
        "kernel_us_p50",
        "process_us_mean",
        "process_us_p50",
        "process_us_p99",
        "raise_us_p50",
        "raise_us_p99",
    ];
    let heads =
        ["us", "to the kernel, p50", "kernel to process, mean", "p50", "p99", "whole, p50", "p99"];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    let mut rows: Vec<(&str, &str)> = Vec::new();
    for row in report.rows.iter().filter(|row| row.metric == "raise_us_p50") {
        rows.push((&row.workload, &row.placement));
    }
    for (load, placement) in rows {
        let cells = metrics
            .iter()
            .map(|metric| report.get(load, placement, metric).map_or(String::new(), number));
        lines.push([format!("{load}, {placement}")].into_iter().chain(cells).collect());
    }
    align(&lines) + &super::notes(report)
}

/// What a byte of TCP costs in each placement.
pub fn render_streams(report: &Report) -> String {
    let metrics = [
        ("bytes_per_instruction", "bytes per instruction"),
        ("mib_s", "MiB/s"),
        ("busy_percent", "CPU, %"),
    ];
    let columns: Vec<_> = Way::ALL
        .iter()
        .flat_map(|way| metrics.map(|(metric, _)| (way.to_string(), metric)))
        .collect();
    let heads =
        Way::ALL.iter().flat_map(|way| metrics.map(|(_, heading)| format!("{way}: {heading}")));
    let mut lines = vec![[String::new()].into_iter().chain(heads).collect::<Vec<_>>()];
    for placement in STREAM_PLACEMENTS {
        let cells: Vec<String> =
            columns.iter().map(|(way, metric)| cell(report, way, placement, metric)).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            lines.push([vec![placement.to_owned()], cells].concat());
        }
    }
    align(&lines) + &super::notes(report)
}

/// Throughput and latencies of two cards under each load.
pub fn render_loopback(report: &Report) -> String {
    let metrics = [
        ("packets_s", "packets/s"),
        ("instructions_per_op", "instructions per packet"),
        ("loss_percent", "loss, %"),
        ("latency_us_mean", "us: mean"),
        ("latency_us_p50", "p50"),
        ("latency_us_p99", "p99"),
        ("latency_us_p999", "p99.9"),
        ("latency_us_max", "max"),
    ];
    let mut lines = vec![head("", &metrics.map(|(_, heading)| ("", heading)))];
    for load in Loop::all().iter().map(Loop::to_string) {
        for placement in LOOPBACK_PLACEMENTS {
            let cells = metrics.map(|(metric, _)| {
                report.get(&load, placement, metric).map_or(String::new(), number)
            });
            if cells.iter().any(|cell| !cell.is_empty()) {
                lines.push([vec![format!("{load}, {placement}")], cells.into()].concat());
            }
        }
    }
    align(&lines) + &super::notes(report)
}

/// The machine's busy share, and what was echoed, at each load in each placement; at idle, the
/// share of the driver's process.
pub fn render_cpu(report: &Report) -> String {
    let placements: Vec<_> = PLACEMENTS
        .into_iter()
        .filter(|name| report.rows.iter().any(|row| row.placement == *name))
        .collect();
    let mut lines = vec![head(
        "CPU, % (echoed, Mb/s; idle: the driver's process, %)",
        &placements.iter().map(|name| (*name, *name)).collect::<Vec<_>>(),
    )];
    for load in loads(report) {
        let name = load.to_string();
        let beside = if load.kind == Kind::Idle { "driver_cpu_percent" } else { "mbit_s" };
        let one = |placement: &str, metric: &str| report.get(&name, placement, metric).map(number);
        let cell = |placement: &&str| match (one(placement, "busy_percent"), one(placement, beside))
        {
            (Some(busy), Some(beside)) => format!("{busy} ({beside})"),
            (busy, _) => busy.unwrap_or_default(),
        };
        lines.push([vec![name.clone()], placements.iter().map(cell).collect()].concat());
    }
    align(&lines) + &super::notes(report)
}

fn costs(report: &Report) -> String {
    let metric =
        if report.lab.mode == "instructions" { "instructions_per_op" } else { "busy_us_per_op" };
    let unit =
        if report.lab.mode == "instructions" { "instructions per packet" } else { "us per packet" };
    let loads: Vec<String> =
        loads(report).filter(|load| load.rate().is_none()).map(|load| load.to_string()).collect();
    let names = loads.iter().map(|load| load.trim_start_matches("udp-").to_owned());
    let mut lines = vec![[unit.to_owned()].into_iter().chain(names).collect::<Vec<_>>()];
    for placement in PLACEMENTS {
        let cells: Vec<String> =
            loads.iter().map(|load| cell(report, load, placement, metric)).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            lines.push([vec![placement.to_owned()], cells].concat());
        }
    }
    if lines.len() > 1 { align(&lines) } else { String::new() }
}

fn rates(report: &Report) -> String {
    let columns: Vec<_> = PLACEMENTS
        .into_iter()
        .filter(|name| has_rate(report, name))
        .map(|name| (name, name))
        .collect();
    let mut lines = vec![head("Mb/s: offered, echoed; loss, CPU, %", &columns)];
    for load in loads(report).filter(|load| load.rate().is_some()) {
        let name = load.to_string();
        let one = |placement: &str, metric: &str| {
            report.get(&name, placement, metric).map_or("-".into(), number)
        };
        let cell = |placement: &str| {
            let cells = ["offered_mbit_s", "mbit_s", "loss_percent", "busy_percent"]
                .map(|metric| one(placement, metric));
            format!("{:>5}  {:>5}  {:>5}  {:>5}", cells[0], cells[1], cells[2], cells[3])
        };
        let rate = (f64::from(load.rate().unwrap_or_default()) / 1e3).to_string();
        lines.push([vec![rate], columns.iter().map(|(name, _)| cell(name)).collect()].concat());
    }
    if lines.len() > 1 { align(&lines) } else { String::new() }
}

fn has_rate(report: &Report, placement: &str) -> bool {
    report.rows.iter().any(|row| row.placement == placement && row.metric == "offered_mbit_s")
}

/// The loads that were measured, in their order.
fn loads(report: &Report) -> impl Iterator<Item = Load> {
    let mut loads: Vec<Load> = Vec::new();
    for load in report.rows.iter().filter_map(|row| row.workload.parse().ok()) {
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    loads.sort_by_key(Load::rate);
    loads.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    #[test]
    fn costs_stand_beside_their_ratio_to_the_kernel_and_rates_below_each_other() {
        let one = |load: &str, placement: &str, metric: &str, value| {
            Measurement::new(1, load, placement).with(metric, value)
        };
        let rows = [
            one("udp-64-out", "kernel", "instructions_per_op", 6400.0),
            one("udp-64-out", "process", "instructions_per_op", 1600.0),
            one("udp-1024-echo-at100", "kernel", "offered_mbit_s", 101.0).with("mbit_s", 82.0),
            one("udp-1024-echo-at10", "kernel", "offered_mbit_s", 10.0)
                .with("mbit_s", 10.0)
                .with("busy_percent", 12.5),
        ];
        let text = render_packets(&Report::new(
            "udp-echo",
            Lab { mode: "instructions".into(), ..Lab::default() },
            &rows,
        ));
        let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word} is not in {text}"));
        assert!(text.contains("1600 0.25x") && text.contains("64-out"), "{text}");
        assert!(at("\n10 ") < at("\n100 ") && text.contains("12.5"), "{text}");
    }
}
