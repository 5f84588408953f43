//! The reports of `bench ping` as text.

use super::{Table, notes, plain, rounded};
use crate::net::{Beside, PING_PLACEMENTS};
use crate::report::Report;

/// A ping in each placement beside each load, on each kernel, a report each.
pub fn render_pings(reports: &[Report]) -> String {
    let heads = [
        "p50, us (least to most of the rounds)",
        "to the kernel's",
        "p99",
        "slowest",
        "lost, %",
        "load, Mb/s",
        "interface dropped",
    ];
    let mut table = Table::new("kernel, load, placement", heads);
    for (report, beside) in
        reports.iter().flat_map(|report| Beside::ALL.map(|beside| (report, beside.to_string())))
    {
        for placement in PING_PLACEMENTS {
            let name = format!("{}, {beside}, {placement}", report.lab.kernel);
            table.line(name, cells(report, &beside, placement).unwrap_or_default());
        }
    }
    table.text() + &reports.iter().map(notes).collect::<String>()
}

fn cells(report: &Report, beside: &str, placement: &str) -> Option<[String; 7]> {
    let p50 = report.get(beside, placement, "latency_us_p50")?;
    let baseline = report
        .get(beside, "kernel", "latency_us_p50")
        .filter(|_| placement != "kernel" && !report.lab.quick);
    let ratio = baseline
        .and_then(|baseline| p50.ratio_to(baseline))
        .map_or(String::new(), |ratio| format!("{ratio:.2}x"));
    let most = report.get(beside, placement, "latency_us_max");
    let one = |metric| plain(report, beside, placement, metric);
    Some([
        format!("{} ({} to {})", rounded(p50.median), rounded(p50.min), rounded(p50.max)),
        ratio,
        one("latency_us_p99"),
        most.map_or(String::new(), |summary| rounded(summary.max)),
        one("loss_percent"),
        one("mbit_s"),
        one("interface_dropped"),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    #[test]
    fn each_kernel_has_its_lines_and_each_export_its_ratio_to_that_kernels_driver() {
        let report = |kernel: &str, export| {
            let one = |placement, value| {
                Measurement::new(1, Beside::Datagrams, placement).with("latency_us_p50", value)
            };
            let lab = Lab { kernel: kernel.into(), ..Lab::default() };
            Report::new("ping", lab, &[one("kernel", 500.0), one("export-tap", export)])
        };
        let text = render_pings(&[report("6.12", 1000.0), report("7.2", 1500.0)]);
        let line =
            |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(line("6.12, datagrams, export-tap").contains("1000 (1000 to 1000)"), "{text}");
        assert!(line("6.12, datagrams, export-tap").contains("2.00x"), "{text}");
        assert!(
            line("7.2, datagrams, export-tap").contains("3.00x")
                && !line("7.2, datagrams, kernel").contains('x'),
            "{text}"
        );
        assert!(!text.contains("streams"), "{text}");
    }

    #[test]
    fn a_quick_run_compares_nothing_and_says_so() {
        let one = |placement, value| {
            Measurement::new(1, Beside::Datagrams, placement).with("latency_us_p50", value)
        };
        let lab = Lab { quick: true, ..Lab::default() };
        let text = render_pings(&[Report::new(
            "ping",
            lab,
            &[one("kernel", 500.0), one("export-tap", 1000.0)],
        )]);
        assert!(text.contains("QUICK") && !text.contains("2.00x"), "{text}");
    }
}
