//! Packets per second between two cards, a bar for each load and placement, with the latency of
//! most.

use super::bars::Bars;
use crate::report::Report;
use crate::table::rounded;

/// Draws medians.
pub fn draw(report: &Report) -> String {
    let bars = Bars {
        title: "Two cards cabled together: packets a second",
        source: "after Enea; medians, and what 99 % of the latencies are not above",
        metric: "packets_s",
        name: |row| format!("{}, {}", row.workload, row.placement),
        label: |report, row| match report.get(&row.workload, &row.placement, "latency_us_p99") {
            Some(late) => {
                format!("{} (99 %: {} us)", rounded(row.summary.median), rounded(late.median))
            }
            None => rounded(row.summary.median),
        },
    };
    bars.draw(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    #[test]
    fn kernel_ring3_and_dpdk_have_a_colour_each_and_rounds_a_line() {
        let one = |placement: &str, value| {
            Measurement::new(1, "loop-60-stream", placement).with("packets_s", value)
        };
        let all = ["kernel", "process", "dpdk"].map(|placement| one(placement, 500.0));
        let text = draw(&Report::new("loopback", Lab::default(), &all));
        let mut colours: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("<rect"))
            .filter_map(|line| line.split("fill=").nth(1))
            .collect();
        colours.dedup();
        assert!(colours.len() >= 3, "{text}");
        assert_eq!(text.matches("#000000").count(), 3, "{text}");
    }

    #[test]
    fn a_bar_has_the_latency_of_most_if_that_is_known() {
        let one = |placement: &str| {
            Measurement::new(1, "loop-60-stream", placement).with("packets_s", 500.0)
        };
        let text = draw(&Report::new(
            "loopback",
            Lab::default(),
            &[one("kernel").with("latency_us_p99", 31.0), one("dpdk")],
        ));
        assert!(text.contains("500 (99 %: 31.0 us)") && text.contains(">500<"), "{text}");
    }
}
