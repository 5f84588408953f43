//! Delays of interrupts under different conditions: bars of means, with what 99 % are not above.

use super::bars::Bars;
use crate::report::Report;
use crate::table::rounded;

/// Draws what lies between the kernel's handler and the process.
pub fn draw(report: &Report) -> String {
    let bars = Bars {
        title: "From the kernel's handler of an interrupt to the process, us",
        source: "after Weisbach 2011, Table 4.2; means, and 99 %",
        metric: "process_us_mean",
        name: |row| row.workload.clone(),
        label: |report, row| {
            let late = report
                .get(&row.workload, &row.placement, "process_us_p99")
                .map_or(0.0, |late| late.median);
            format!("{} (99 %: {})", rounded(row.summary.median), rounded(late))
        },
    };
    bars.draw(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    #[test]
    fn each_condition_has_a_bar_with_its_mean_and_what_most_are_below() {
        let one = Measurement::new(1, "irq-idle", "process")
            .with("process_us_mean", 20.8)
            .with("process_us_p99", 31.0);
        let text = draw(&Report::new("irq-delay", Lab::default(), &[one]));
        assert!(text.contains(">irq-idle<") && text.contains("20.8 (99 %: 31.0)"), "{text}");
        assert!(draw(&Report::new("irq-delay", Lab::default(), &[])).ends_with("</svg>\n"));
    }
}
