//! The report of `bench dde` as text: the thesis's table of latencies, and what a datagram costs.

use super::{Table, cell, grid, joined, notes, number};
use crate::net::hosted::{HOSTED_PLACEMENTS, HostedLoad, Kind};
use crate::report::Report;

/// The tables behind that of latencies: their titles and metrics.
const GRIDS: [(&str, &str); 6] = [
    ("instructions a packet", "instructions_per_op"),
    ("us of the processor a packet", "busy_us_per_op"),
    ("Mb/s", "mbit_s"),
    ("system calls a packet", "calls_per_op"),
    ("system calls a second", "calls_s"),
    ("(un)maps of the IOMMU a packet", "maps_per_op"),
];

/// Latencies (mean, and in parentheses the variance) and throughput in each placement, with the
/// ratios to the kernel's driver.
pub fn render_hosted(report: &Report) -> String {
    let mut loads: Vec<HostedLoad> = Vec::new();
    for row in &report.rows {
        loads.extend(row.workload.parse().ok().filter(|load| !loads.contains(load)));
    }
    let grids = GRIDS.iter().map(|(title, metric)| {
        let columns = loads.iter().map(|load| (load, load.to_string(), *metric));
        grid(report, title, HOSTED_PLACEMENTS, columns)
    });
    joined(std::iter::once(latencies(report, &loads)).chain(grids)) + &notes(report)
}

fn latencies(report: &Report, loads: &[HostedLoad]) -> String {
    let loads: Vec<_> =
        loads.iter().filter(|load| load.kind == Kind::Ping).map(ToString::to_string).collect();
    let mut table = Table::new("us: mean (variance)", &loads);
    for placement in HOSTED_PLACEMENTS {
        let cells = loads.iter().map(|load| {
            let mean = cell(report, load, placement, "latency_us_mean");
            let variance = report.get(load, placement, "latency_us2_variance").map(number);
            variance.map_or_else(String::new, |variance| format!("{mean} ({variance})"))
        });
        table.line(placement, cells);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    #[test]
    fn a_latency_has_its_variance_and_its_ratio_to_the_kernels_driver() {
        let one = |placement: &str, mean| {
            Measurement::new(1, "icmp-56", placement)
                .with("latency_us_mean", mean)
                .with("latency_us2_variance", 0.5)
        };
        let report =
            Report::new("dde", Lab::default(), &[one("kernel", 100.0), one("hosted-raw", 110.0)]);
        let text = render_hosted(&report);
        assert!(
            text.contains("hosted-raw") && text.contains("1.10x") && text.contains("(0.50)"),
            "{text}"
        );
    }

    #[test]
    fn a_load_stands_only_in_tables_of_what_was_measured_of_it() {
        let ping = Measurement::new(1, "icmp-56", "hosted-raw-polled").with("calls_per_op", 0.0);
        let stream = Measurement::new(1, "tcp-1460-in", "kernel").with("mbit_s", 7.0);
        let text = render_hosted(&Report::new("dde", Lab::default(), &[ping, stream]));
        let calls = text.split("system calls a packet").nth(1).unwrap();
        assert!(calls.contains("icmp-56") && !calls.contains("tcp-1460-in"), "{text}");
        assert!(!text.contains("maps"), "{text}");
    }
}
