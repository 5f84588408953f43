//! Bytes of TCP per instruction: a bar for each way and placement, with its ratio to the kernel's
//! driver.

use super::bars::Bars;
use crate::report::Report;
use crate::table::rounded;

/// Draws medians.
pub fn draw(report: &Report) -> String {
    let bars = Bars {
        title: "TCP in pieces of 64 KiB: bytes per instruction",
        source: "medians",
        metric: "bytes_per_instruction",
        name: |row| format!("{}, {}", row.workload, row.placement),
        label: |report, row| match report.ratio_to_best(&row.workload, &row.placement, &row.metric)
        {
            Some(ratio) => format!("{} ({ratio:.2}x)", rounded(row.summary.median)),
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
    fn a_bar_has_its_ratio_to_the_kernels_driver() {
        let one = |placement: &str, bytes| {
            Measurement::new(1, "tcp-64k-in", placement).with("bytes_per_instruction", bytes)
        };
        let text =
            draw(&Report::new("tcp", Lab::default(), &[one("kernel", 1.0), one("export", 0.9)]));
        assert!(text.contains(">tcp-64k-in, export<") && text.contains("0.90 (0.90x)"), "{text}");
    }
}
