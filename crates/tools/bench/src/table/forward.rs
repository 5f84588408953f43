//! The report of `bench forward` as text.

use super::align;
use crate::net::Forwarding;
use crate::report::Report;

/// Metrics with their headings.
const COLUMNS: [(&str, &str); 2] =
    [("instructions_per_op", "instructions per packet"), ("packets_s", "packets a second")];

/// Who forwards, in the order of the rows.
pub const FORWARDERS: [&str; 2] = ["dpdk", "process-polled"];

/// For each kind of forwarding what a packet cost whom, the smallest and the largest round in
/// brackets, and ours over DPDK's.
pub fn render_forward(report: &Report) -> String {
    let mut lines = vec![
        [""].into_iter()
            .chain(COLUMNS.map(|(_, heading)| heading))
            .map(str::to_owned)
            .collect::<Vec<_>>(),
    ];
    for workload in Forwarding::ALL.map(Forwarding::name) {
        for placement in FORWARDERS {
            let cells = COLUMNS.map(|(metric, _)| cell(report, workload, placement, metric));
            if cells.iter().any(|cell| !cell.is_empty()) {
                lines.push([vec![format!("{workload}, {placement}")], cells.into()].concat());
            }
        }
    }
    align(&lines) + &super::notes(report)
}

fn cell(report: &Report, workload: &str, placement: &str, metric: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

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
