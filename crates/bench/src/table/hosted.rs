//! The report of `bench dde` as text: the thesis's table of latencies, and what a datagram costs.

use super::{align, cell, head, number};
use crate::net::hosted::{HOSTED_PLACEMENTS, HostedLoad, Kind};
use crate::report::Report;

/// Latencies (mean, and in parentheses the variance) and throughput in each placement, with the ratios to the kernel's driver.
pub fn render_hosted(report: &Report) -> String {
    let mut loads: Vec<HostedLoad> = Vec::new();
    for row in &report.rows {
        loads.extend(row.workload.parse().ok().filter(|load| !loads.contains(load)));
    }
    let tables = [latencies(report, &loads), costs(report, &loads)];
    tables.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n") + &super::host(report)
}

fn latencies(report: &Report, loads: &[HostedLoad]) -> String {
    let loads: Vec<_> = loads.iter().filter(|load| load.kind == Kind::Ping).map(ToString::to_string).collect();
    let heads: Vec<_> = loads.iter().map(|load| ("", load.as_str())).collect();
    let mut lines = vec![head("us: mean (variance)", &heads)];
    for placement in HOSTED_PLACEMENTS {
        let cells = loads.iter().map(|load| {
            let mean = cell(report, load, placement, "latency_us_mean");
            let variance = report.get(load, placement, "latency_us2_variance").map(number);
            variance.map_or_else(String::new, |variance| format!("{mean} ({variance})"))
        });
        push(&mut lines, placement, cells.collect());
    }
    if lines.len() > 1 { align(&lines) } else { String::new() }
}

fn costs(report: &Report, loads: &[HostedLoad]) -> String {
    let metric = if report.lab.mode == "instructions" { "instructions_per_op" } else { "busy_us_per_op" };
    let columns: Vec<_> = loads.iter().map(|load| (load.to_string(), metric)).collect();
    let streams = loads.iter().filter(|load| load.kind != Kind::Ping).map(|load| (load.to_string(), "mbit_s"));
    let calls = loads.iter().map(|load| (load.to_string(), "calls_per_op"));
    let columns: Vec<_> = columns.into_iter().chain(streams).chain(calls).collect();
    let unit = |metric: &str| match metric {
        "mbit_s" => "Mb/s",
        "calls_per_op" => "system calls",
        "instructions_per_op" => "instructions",
        _ => "us",
    };
    let heads: Vec<_> = columns.iter().map(|(load, metric)| format!("{load}, {}", unit(metric))).collect();
    let heads: Vec<_> = heads.iter().map(|head| ("", head.as_str())).collect();
    let mut lines = vec![head("per packet", &heads)];
    for placement in HOSTED_PLACEMENTS {
        push(&mut lines, placement, columns.iter().map(|(load, metric)| cell(report, load, placement, metric)).collect());
    }
    if lines.len() > 1 { align(&lines) } else { String::new() }
}

fn push(lines: &mut Vec<Vec<String>>, placement: &str, cells: Vec<String>) {
    if cells.iter().any(|cell| !cell.is_empty()) {
        lines.push([vec![placement.to_owned()], cells].concat());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    #[test]
    fn a_latency_has_its_variance_and_its_ratio_to_the_kernels_driver() {
        let one = |placement: &str, mean| {
            Measurement::new(1, "icmp-56", placement).with("latency_us_mean", mean).with("latency_us2_variance", 0.5)
        };
        let report = Report::new("dde", Lab::default(), &[one("kernel", 100.0), one("hosted-raw", 110.0)]);
        let text = render_hosted(&report);
        assert!(text.contains("hosted-raw") && text.contains("1.10x") && text.contains("(0.50)"), "{text}");
    }
}
