//! The reports of network cards as text.

use super::{Table, grid, joined, lines, notes, number, plain, several};
use crate::net::loopback::{LOOPBACK_PLACEMENTS, Loop};
use crate::net::{Forwarding, Kind, Load, PLACEMENTS, STREAM_PLACEMENTS, Way};
use crate::report::Report;

/// Who forwards, in the order of the rows.
pub const FORWARDERS: [&str; 2] = ["dpdk", "process-polled"];

/// What a packet costs in each placement, and what is echoed at each rate.
pub fn render_packets(report: &Report) -> String {
    joined([costs(report), rates(report)].into_iter()) + &notes(report)
}

/// From a cause to the kernel's handler, from there to the process, and the whole way, under each
/// condition.
pub fn render_delays(report: &Report) -> String {
    let metrics = [
        ("kernel_us_p50", "to the kernel, p50"),
        ("process_us_mean", "kernel to process, mean"),
        ("process_us_p50", "p50"),
        ("process_us_p99", "p99"),
        ("raise_us_p50", "whole, p50"),
        ("raise_us_p99", "p99"),
    ];
    let rows = report.rows.iter().filter(|row| row.metric == "raise_us_p50");
    let loads = rows.map(|row| (row.workload.clone(), row.placement.as_str()));
    lines(report, "us", &metrics, loads, plain) + &notes(report)
}

/// What a byte of TCP costs in each placement.
pub fn render_streams(report: &Report) -> String {
    let metrics = [
        ("bytes_per_instruction", "bytes per instruction"),
        ("mib_s", "MiB/s"),
        ("busy_percent", "CPU, %"),
    ];
    let columns = Way::ALL.iter().flat_map(|way| {
        metrics.map(|(metric, heading)| (format!("{way}: {heading}"), way.to_string(), metric))
    });
    grid(report, "", STREAM_PLACEMENTS, columns) + &notes(report)
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
    let loads = Loop::all()
        .into_iter()
        .flat_map(|load| LOOPBACK_PLACEMENTS.map(|placement| (load.to_string(), placement)));
    lines(report, "", &metrics, loads, plain) + &notes(report)
}

/// For each kind of forwarding what a packet cost whom, the smallest and the largest round in
/// brackets, and ours over DPDK's.
pub fn render_forward(report: &Report) -> String {
    let metrics =
        [("instructions_per_op", "instructions per packet"), ("packets_s", "packets a second")];
    let loads = Forwarding::ALL
        .into_iter()
        .flat_map(|kind| FORWARDERS.map(|placement| (kind.name().to_owned(), placement)));
    lines(report, "", &metrics, loads, against_dpdk) + &notes(report)
}

fn against_dpdk(report: &Report, workload: &str, placement: &str, metric: &str) -> String {
    let Some(found) = report.get(workload, placement, metric) else { return String::new() };
    let ratio = report.ratios.iter().find(|ratio| {
        ratio.workload == workload
            && ratio.placement == placement
            && ratio.baseline == FORWARDERS[0]
            && ratio.metric == metric
    });
    let ratio = ratio.map_or(String::new(), |ratio| format!(", {:.2}x", ratio.median));
    format!("{:.0} ({:.0} to {:.0}){ratio}", found.median, found.min, found.max)
}

/// The machine's busy share, and what was echoed, at each load in each placement; at idle, the
/// share of the driver's process.
pub fn render_cpu(report: &Report) -> String {
    let placements: Vec<_> = PLACEMENTS
        .into_iter()
        .filter(|name| report.rows.iter().any(|row| row.placement == *name))
        .collect();
    let mut table = Table::new("CPU, % (echoed, Mb/s; idle: the driver's process, %)", &placements);
    for load in loads(report) {
        let name = load.to_string();
        let beside = if load.kind == Kind::Idle { "driver_cpu_percent" } else { "mbit_s" };
        let one = |placement: &str, metric: &str| report.get(&name, placement, metric).map(number);
        let cell = |placement: &&str| match (one(placement, "busy_percent"), one(placement, beside))
        {
            (Some(busy), Some(beside)) => format!("{busy} ({beside})"),
            (busy, _) => busy.unwrap_or_default(),
        };
        table.line(&name, placements.iter().map(cell));
    }
    table.text() + &notes(report)
}

fn costs(report: &Report) -> String {
    let (metric, unit) = match report.lab.mode.as_str() {
        "instructions" => ("instructions_per_op", "instructions per packet"),
        _ => ("busy_us_per_op", "us per packet"),
    };
    let loads = loads(report).filter(|load| load.rate().is_none()).map(|load| load.to_string());
    let columns =
        loads.map(|load| (load.trim_start_matches("udp-").to_owned(), load.clone(), metric));
    grid(report, unit, PLACEMENTS, columns)
}

fn rates(report: &Report) -> String {
    let metrics = ["offered_mbit_s", "mbit_s", "loss_percent", "busy_percent"];
    let placements: Vec<_> = PLACEMENTS.into_iter().filter(|name| has_rate(report, name)).collect();
    let mut table = Table::new("Mb/s: offered, echoed; loss, CPU, %", &placements);
    for load in loads(report).filter(|load| load.rate().is_some()) {
        let (name, rate) = (load.to_string(), f64::from(load.rate().unwrap_or_default()) / 1e3);
        table
            .line(rate, placements.iter().map(|one| several(report, &name, one, &metrics, [5; 4])));
    }
    table.text()
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

    #[test]
    fn ours_stands_below_dpdks_with_its_ratio() {
        let one = |round, placement: &str, value| {
            Measurement::new(round, "macswap", placement).with("instructions_per_op", value)
        };
        let rows = [
            one(1, "dpdk", 100.0),
            one(2, "dpdk", 120.0),
            one(3, "dpdk", 110.0),
            one(1, "process-polled", 55.0),
        ];
        let text = render_forward(&Report::new("forward", Lab::default(), &rows));
        assert!(
            text.contains("110 (100 to 120)") && text.contains("55 (55 to 55), 0.50x"),
            "{text}"
        );
    }
}
