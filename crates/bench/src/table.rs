//! Reports as text for a terminal.

use std::fmt::Write;

use crate::disk::{timeline, work};
use crate::plot::utilisation_at;
use crate::report::Report;
use crate::stats::Summary;
use crate::trace::timeline::STEPS;
use crate::workload::Workload;

/// One line of the table: what is shown of which workload.
const LINES: [(&str, &str, &str); 12] = [
    ("IOPS at QD1", "randread-4k-qd1", "iops"),
    ("IOPS at QD32", "randread-4k-qd32", "iops"),
    ("IOPS at QD32, writes", "randwrite-4k-qd32", "iops"),
    ("MiB/s at 128 KiB", "seqread-128k-qd8", "mib_s"),
    ("latency p50 at QD1, us", "randread-4k-qd1", "latency_us_p50"),
    ("latency p99 at QD1, us", "randread-4k-qd1", "latency_us_p99"),
    ("CPU per read at QD32, us", "randread-4k-qd32", "cpu_us_per_op"),
    ("instructions per read, QD1", "randread-4k-qd1", "instructions_per_op"),
    ("instructions per read, QD32", "randread-4k-qd32", "instructions_per_op"),
    ("claim to first read, ms", "driver", "startup_ms"),
    ("driver memory, MiB", "driver", "driver_peak_mib"),
    ("idle driver, % of a CPU", "driver", "driver_idle_cpu_percent"),
];

/// The placements' columns and their headings.
const COLUMNS: [(&str, &str); 8] = [
    ("kernel", "kernel"),
    ("kernel-fio", "kernel, fio"),
    ("process", "ring3 in process"),
    ("process-polled", "in process, polled"),
    ("process-threads", "in process, interrupt thread"),
    ("export", "ring3 export"),
    ("export-fio", "ring3 export, fio"),
    ("ublk-null", "ublk null"),
];

/// Medians of the placements side by side, with their ratio to the kernel where there is one. Columns and lines that were not
/// measured are left out.
pub fn render(report: &Report) -> String {
    let columns = columns(report);
    let mut lines = vec![head("", &columns)];
    for (name, workload, metric) in LINES {
        let cells: Vec<String> = columns.iter().map(|(placement, _)| cell(report, workload, placement, metric)).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            lines.push([vec![name.to_owned()], cells].concat());
        }
    }
    align(&lines)
}

/// What a request takes of the machine: what is told, and under which load.
const COUNTS: [(&str, &str, &str); 6] = [
    ("system calls", "randread-4k-qd1", "calls_per_op"),
    ("context switches", "randread-4k-qd1", "switches_per_op"),
    ("interrupts", "randread-4k-qd1", "interrupts_per_op"),
    ("register accesses", "randread-4k-qd1", "accesses_per_op"),
    ("system calls, 32 in flight", "randread-512-qd32", "calls_per_op"),
    ("register accesses, 32 in flight", "randread-512-qd32", "accesses_per_op"),
];

/// Each placement's steps in microseconds, and what a request takes.
pub fn render_steps(report: &Report) -> String {
    let columns = columns(report);
    let steps = STEPS.iter().map(|(metric, name)| (format!("{name}, us"), timeline::LOADS[0], *metric));
    let counts = COUNTS.iter().map(|(name, load, metric)| ((*name).to_owned(), *load, *metric));
    let mut lines = vec![head("", &columns)];
    for (name, load, metric) in steps.chain(counts) {
        let cell = |placement| report.get(load, placement, metric).map_or(String::new(), number);
        let cells: Vec<String> = columns.iter().map(|(placement, _)| cell(*placement)).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            lines.push([vec![name], cells].concat());
        }
    }
    align(&lines)
}

/// Each distribution of work at each load: requests per second, utilisation, latency.
pub fn render_work(report: &Report) -> String {
    let columns = columns(report);
    let mut lines = vec![head("IOPS, CPU %, latency p50 and p99 in us", &columns)];
    for load in work::LOADS {
        let cell = |placement: &str| {
            let metrics = ["iops", "busy_percent", "latency_us_p50", "latency_us_p99"];
            let cells = metrics.map(|metric| report.get(load, placement, metric).map_or("-".into(), number));
            format!("{:>7}  {:>4}  {:>6}  {:>6}", cells[0], cells[1], cells[2], cells[3])
        };
        lines.push([vec![load.to_owned()], columns.iter().map(|(placement, _)| cell(placement)).collect()].concat());
    }
    align(&lines)
}

/// The placements that were measured, and their headings.
fn columns(report: &Report) -> Vec<(&'static str, &'static str)> {
    COLUMNS.into_iter().filter(|(placement, _)| report.rows.iter().any(|row| row.placement == *placement)).collect()
}

fn head(corner: &str, columns: &[(&str, &str)]) -> Vec<String> {
    [vec![corner.to_owned()], columns.iter().map(|(_, heading)| (*heading).to_owned()).collect()].concat()
}

/// Throughput and utilisation of each placement at the sizes of `sectors` that were measured.
pub fn render_sizes(report: &Report, sectors: &[u32]) -> String {
    let columns = columns(report);
    let heads = columns.iter().map(|(_, heading)| format!("{heading}: MiB/s, CPU %, us CPU"));
    let mut lines = vec![["sectors".to_owned()].into_iter().chain(heads).collect::<Vec<_>>()];
    for &size in sectors {
        let load = Workload::reading(size).to_string();
        let cells: Vec<String> = columns.iter().map(|(placement, _)| size_cell(report, &load, placement)).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            lines.push([vec![size.to_string()], cells].concat());
        }
    }
    align(&lines)
}

fn size_cell(report: &Report, load: &str, placement: &str) -> String {
    let Some(throughput) = report.get(load, placement, "mib_s") else { return String::new() };
    let percent = utilisation_at(report, load, placement).map_or("-".into(), |busy| format!("{:.1}", busy.median));
    let micros = report.get(load, placement, "busy_us_per_op").map_or("-".into(), number);
    format!("{}  {percent:>5}  {micros:>6}", number(throughput))
}

fn cell(report: &Report, workload: &str, placement: &str, metric: &str) -> String {
    let Some(summary) = report.get(workload, placement, metric) else { return String::new() };
    let kernel = report.get(workload, "kernel", metric).filter(|_| placement != "kernel");
    match kernel.and_then(|kernel| summary.ratio_to(kernel)) {
        Some(ratio) => format!("{} ({ratio:.2}x)", number(summary)),
        None => number(summary),
    }
}

fn number(summary: &Summary) -> String {
    rounded(summary.median)
}

/// With as many digits as mean something.
pub fn rounded(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.2} M", value / 1e6),
        size if size >= 1e4 => format!("{:.1} k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The first column to the left, the others to the right.
fn align(lines: &[Vec<String>]) -> String {
    let width =
        |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines.first().map_or(0, Vec::len)).map(width).collect();
    let mut text = String::new();
    for line in lines {
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = if column == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    fn report() -> Report {
        let iops = |placement: &str, value| Measurement::new(1, "randread-4k-qd32", placement).with("iops", value);
        Report::new("disk", Lab::default(), &[iops("kernel", 43_000.0), iops("process", 397_000.0)])
    }

    #[test]
    fn placements_stand_side_by_side_with_their_ratio_to_the_kernel() {
        let text = render(&report());
        let line = text.lines().find(|line| line.starts_with("IOPS at QD32")).unwrap();
        assert!(line.contains("43.0 k") && line.contains("397.0 k (9.23x)"), "{line}");
    }

    #[test]
    fn what_was_not_measured_has_no_column_and_no_line() {
        let text = render(&report());
        assert!(!text.contains("ublk") && !text.contains("QD1"), "{text}");
        assert_eq!(text.lines().count(), 2);
    }
}
