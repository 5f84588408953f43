//! Reports as text for a terminal.

mod cards;
mod hosted;
mod ping;
mod printer;

pub use cards::{
    FORWARDERS, render_cpu, render_delays, render_forward, render_loopback, render_packets,
    render_streams,
};
pub use hosted::render_hosted;
pub use ping::render_pings;
pub use printer::Table;

use crate::disk::{Placement, timeline, work};
use crate::plot::utilisation_at;
use crate::report::{Report, TOO_SHORT};
use crate::stats::Summary;
use crate::trace::timeline::STEPS;
use crate::workload::Workload;

/// Columns of the tables: heading, workload, metric.
type Columns = &'static [(&'static str, &'static str, &'static str)];

/// What can be had, what it costs, and what is said of the driver.
const TABLES: [Columns; 3] = [
    &[
        ("instructions per read, QD1", "randread-4k-qd1", "instructions_per_op"),
        ("QD32", "randread-4k-qd32", "instructions_per_op"),
        ("per write, QD32", "randwrite-4k-qd32", "instructions_per_op"),
        ("per 128 KiB", "seqread-128k-qd8", "instructions_per_op"),
    ],
    &[
        ("IOPS, QD1", "randread-4k-qd1", "iops"),
        ("QD32", "randread-4k-qd32", "iops"),
        ("writes, QD32", "randwrite-4k-qd32", "iops"),
        ("MiB/s, 128 KiB", "seqread-128k-qd8", "mib_s"),
    ],
    &[
        ("latency p50, QD1, us", "randread-4k-qd1", "latency_us_p50"),
        ("p99, us", "randread-4k-qd1", "latency_us_p99"),
        ("CPU per read, QD32, us", "randread-4k-qd32", "cpu_us_per_op"),
        ("claim to first read, ms", "driver", "startup_ms"),
        ("driver, MiB", "driver", "driver_peak_mib"),
        ("idle, % CPU", "driver", "driver_idle_cpu_percent"),
    ],
];

/// The placements with the headings of their columns.
const COLUMNS: [(&str, &str); 7] = [
    ("kernel", "kernel"),
    ("process", "in process, by interrupt"),
    ("process-polled", "in process, polled"),
    ("process-adaptive", "ring3 in process"),
    ("process-threads", "in process, interrupt thread"),
    ("export", "ring3 export"),
    ("ublk-null", "ublk null"),
];

/// Placements below each other, with what they had and cost: medians, half of what lies between the
/// smallest and the largest round, and the ratio to the kernel's best. What was not measured is
/// left out.
pub fn render(report: &Report) -> String {
    let placements = || Placement::ALL.iter().map(|one| one.name());
    let table = |columns: &Columns| {
        let columns = columns.iter().map(|(heading, load, metric)| (*heading, *load, *metric));
        grid(report, "", placements(), columns)
    };
    let mut text = joined(TABLES.iter().map(table));
    if report.ratios.iter().any(|ratio| ratio.best) {
        text += "\n* the kernel's best, by which the ratios (x) are; under fio the best under fio. \
                 +-: half of what lies between the smallest and the largest round\n";
    }
    text + &facts(report, "scheduler", "schedulers")
        + &facts(report, "left out", "LEFT OUT")
        + &interrupts(report)
        + &notes(report)
}

/// All figures of a report below each other, and its facts: of what has no table of its own.
pub fn render_figures(report: &Report) -> String {
    let lab = &report.lab;
    let mut table = Table::new("", ["median", "unit", "smallest", "largest"]).left(&[2]);
    for row in &report.rows {
        let Summary { min, median, max, rounds } = row.summary;
        let ends = if rounds > 1 { [min, max].map(counted) } else { Default::default() };
        let [least, most] = ends;
        let unit = if row.unit == "1" { String::new() } else { row.unit.clone() };
        let name = format!("{}, {}: {}", row.workload, row.placement, row.metric);
        table.line(name, [counted(median), unit, least, most]);
    }
    let facts = report.facts.iter().map(|fact| {
        let crate::report::Fact { placement, fact, value } = fact;
        format!("{placement}: {fact} {value}\n")
    });
    let (kernel, qemu, mode) = (&lab.kernel, &lab.qemu, &lab.mode);
    format!("{}: Linux {kernel}, QEMU {qemu}, {mode} clock\n", report.bench)
        + &table.text()
        + &facts.collect::<String>()
}

/// A count has no places behind its point.
fn counted(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { rounded(value) }
}

/// Those tables that have lines, with an empty line between them.
fn joined(tables: impl Iterator<Item = String>) -> String {
    tables.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
}

/// A line for each placement and a column for each heading, load and metric, of those that were
/// measured.
fn grid<'a, H: std::fmt::Display, L: AsRef<str>>(
    report: &Report,
    corner: &str,
    placements: impl IntoIterator<Item = &'a str>,
    columns: impl Iterator<Item = (H, L, &'a str)>,
) -> String {
    let columns: Vec<_> = columns
        .filter(|(_, load, metric)| {
            let same =
                |row: &crate::report::Row| row.workload == load.as_ref() && row.metric == *metric;
            report.rows.iter().any(same)
        })
        .collect();
    let mut table = Table::new(corner, columns.iter().map(|(heading, ..)| heading));
    for name in placements {
        let cell = |(_, load, metric): &(H, L, &str)| cell(report, load.as_ref(), name, metric);
        table.line(name, columns.iter().map(cell));
    }
    table.text()
}

/// A line for each load and placement, of those that were measured, and a column for each metric
/// with its heading.
fn lines<'a>(
    report: &Report,
    corner: &str,
    metrics: &[(&str, &str)],
    loads: impl Iterator<Item = (String, &'a str)>,
    cell: impl Fn(&Report, &str, &str, &str) -> String,
) -> String {
    let mut table = Table::new(corner, metrics.iter().map(|(_, heading)| heading));
    for (load, placement) in loads {
        let cells = metrics.iter().map(|(metric, _)| cell(report, &load, placement, metric));
        table.line(format!("{load}, {placement}"), cells);
    }
    table.text()
}

/// What was so of the placements: which scheduler their block devices had, why one has no figures.
fn facts(report: &Report, name: &str, heading: &str) -> String {
    let facts = report.facts.iter().filter(|fact| fact.fact == name);
    let found: Vec<String> =
        facts.map(|fact| format!("{} {}", fact.placement, fact.value)).collect();
    if found.is_empty() { String::new() } else { format!("{heading}: {}\n", found.join("; ")) }
}

/// Where a guest's processor has to wait for the host's, a sleep or two run to their deadline by
/// themselves.
const FEW: f64 = 2.0;

/// Rounds in which interrupts did not wake who slept on them, which is nothing that a driver takes.
fn interrupts(report: &Report) -> String {
    let count = |metric: &'static str| {
        let found =
            report.rows.iter().filter(move |row| row.metric == metric && row.summary.max > FEW);
        found.map(|row| {
            format!("{} {} (up to {} in a round)", row.placement, row.workload, row.summary.max)
        })
    };
    let line = |found: Vec<String>, what: &str| match found.is_empty() {
        true => String::new(),
        false => format!(
            "INTERRUPTS {what}: {}; its slowest rounds say little of the driver\n",
            found.join(", ")
        ),
    };
    line(count("interrupts_lost").collect(), "WERE LOST")
        + &line(count("interrupts_late").collect(), "CAME TOO LATE")
}

/// Of the host's processors, so much may be taken by others before it is called busy, in percent.
const BUSY: f64 = 10.0;

/// What is below every table of packets: what was too short, and what others took of the host.
fn notes(report: &Report) -> String {
    let quick = match report.lab.quick {
        true => {
            "QUICK: one short round, which shows that each step runs. Its figures are no \
            measurement, and are compared with nothing\n"
        }
        false => "",
    };
    quick.to_owned() + &facts(report, TOO_SHORT, "TOO SHORT FOR A COST") + &host(report)
}

/// What others took of the host meanwhile.
fn host(report: &Report) -> String {
    let Some(others) = report.get("host", "host", "others_percent") else { return String::new() };
    let (median, max) = (rounded(others.median), rounded(others.max));
    match (others.max > BUSY, report.lab.mode.as_str()) {
        (false, _) => format!(
            "the host was idle otherwise: others took {median} % of its processors, {max} % at \
            most\n"
        ),
        (true, "instructions") if report.lab.quick => {
            format!(
                "the host was busy: others took {median} % of its processors, {max} % at most\n"
            )
        }
        (true, "instructions") => format!(
            "the host was busy: others took {median} % of its processors, {max} % at most; counts \
            of instructions do not mind, but for one request in flight: the interrupt then comes \
            before the sleep, and who polls looks longer\n"
        ),
        (true, _) => format!(
            "THE HOST WAS BUSY: others took {median} % of its processors, {max} % at most; by the \
            wall clock, these figures say little\n"
        ),
    }
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
    let steps =
        STEPS.iter().map(|(metric, name)| (format!("{name}, us"), timeline::LOADS[0], *metric));
    let counts = COUNTS.iter().map(|(name, load, metric)| ((*name).to_owned(), *load, *metric));
    let mut table = Table::new("", columns.iter().map(|(_, heading)| heading));
    for (name, load, metric) in steps.chain(counts) {
        table.line(name, columns.iter().map(|(name, _)| plain(report, load, name, metric)));
    }
    table.text()
}

/// Each distribution of work at each load: requests per second, utilisation, latency.
pub fn render_work(report: &Report) -> String {
    let metrics = ["iops", "busy_percent", "latency_us_p50", "latency_us_p99"];
    let columns = columns(report);
    let mut table = Table::new(
        "IOPS, CPU %, latency p50 and p99 in us",
        columns.iter().map(|(_, heading)| heading),
    );
    for load in work::LOADS {
        let cell = |name| several(report, load, name, &metrics, [7, 4, 6, 6]);
        table.line(load, columns.iter().map(|(name, _)| cell(name)));
    }
    table.text()
}

/// Some metrics in one cell, each as wide as in the other lines.
fn several<const N: usize>(
    report: &Report,
    load: &str,
    placement: &str,
    metrics: &[&str; N],
    widths: [usize; N],
) -> String {
    let one = |(metric, width): (&&str, usize)| {
        let text = report.get(load, placement, metric).map_or("-".into(), number);
        format!("{text:>width$}")
    };
    metrics.iter().zip(widths).map(one).collect::<Vec<_>>().join("  ")
}

/// The placements that were measured, and their headings.
fn columns(report: &Report) -> Vec<(&'static str, &'static str)> {
    COLUMNS
        .into_iter()
        .filter(|(placement, _)| report.rows.iter().any(|row| row.placement == *placement))
        .collect()
}

/// Throughput and utilisation of each placement at the sizes of `sectors` that were measured.
pub fn render_sizes(report: &Report, sectors: &[u32]) -> String {
    let columns = columns(report);
    let heads = columns.iter().map(|(_, heading)| format!("{heading}: MiB/s, CPU %, us CPU"));
    let mut table = Table::new("sectors", heads);
    for &size in sectors {
        let load = Workload::reading(size).to_string();
        table.line(size, columns.iter().map(|(name, _)| size_cell(report, &load, name)));
    }
    table.text()
}

fn size_cell(report: &Report, load: &str, placement: &str) -> String {
    let Some(throughput) = report.get(load, placement, "mib_s") else { return String::new() };
    let percent = utilisation_at(report, load, placement)
        .map_or("-".into(), |busy| format!("{:.1}", busy.median));
    let micros = report.get(load, placement, "busy_us_per_op").map_or("-".into(), number);
    format!("{}  {percent:>5}  {micros:>6}", number(throughput))
}

/// Median, spread if there is one, and the ratio to the kernel's best, which has an asterisk.
fn cell(report: &Report, workload: &str, placement: &str, metric: &str) -> String {
    let Some(summary) = report.get(workload, placement, metric) else { return String::new() };
    let best = report.best_kernel(workload, metric, placement.ends_with("-fio")) == Some(placement);
    let ratio = match report.ratio_to_best(workload, placement, metric) {
        Some(ratio) => format!(" {ratio:.2}x"),
        None if best => " *".into(),
        None => String::new(),
    };
    let spread = summary
        .spread()
        .filter(|_| summary.rounds > 1)
        .map_or(String::new(), |spread| format!(" +-{spread:.0}%"));
    format!("{}{spread}{ratio}", number(summary))
}

/// The median alone.
fn plain(report: &Report, workload: &str, placement: &str, metric: &str) -> String {
    report.get(workload, placement, metric).map_or(String::new(), number)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    fn report() -> Report {
        let iops = |placement: &str, value| {
            Measurement::new(1, "randread-4k-qd32", placement).with("iops", value)
        };
        Report::new("disk", Lab::default(), &[iops("kernel", 43_000.0), iops("process", 397_000.0)])
    }

    #[test]
    fn placements_stand_below_each_other_with_their_ratio_to_the_kernels_best() {
        let text = render(&report());
        let line =
            |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        assert!(line("kernel ").contains("43.0 k *"), "{text}");
        assert!(line("process ").contains("397.0 k 9.23x"), "{text}");
    }

    #[test]
    fn figures_without_a_table_of_their_own_stand_below_each_other() {
        let mut one = Measurement::new(1, "kill", "nvme").with("kills", 1000.0);
        one.facts.insert("model".into(), "small".into());
        let rounds = [
            one.with("stall_ms_p50", 9.04),
            Measurement::new(2, "kill", "nvme").with("stall_ms_p50", 10.0),
        ];
        let text = render_figures(&Report::new("kill", Lab::default(), &rounds));
        let words =
            |line: &str| line.split_whitespace().skip(2).map(str::to_owned).collect::<Vec<_>>();
        let lines: Vec<_> = text.lines().map(words).collect();
        assert_eq!(
            (&lines[2][..], &lines[3][..]),
            (
                &["kills", "1000"].map(String::from)[..],
                &["stall_ms_p50", "9.52", "ms", "9.04", "10"].map(String::from)[..]
            ),
            "{text}"
        );
        assert!(text.ends_with("nvme: model small\n"), "{text}");
    }

    #[test]
    fn what_was_not_measured_has_no_column_and_no_line() {
        let text = render(&report());
        assert!(!text.contains("ublk") && !text.contains("QD1"), "{text}");
    }

    #[test]
    fn rounds_that_differ_are_said_to() {
        let iops =
            |round, value| Measurement::new(round, "randread-4k-qd1", "kernel").with("iops", value);
        let text = render(&Report::new(
            "disk",
            Lab::default(),
            &[iops(1, 8700.0), iops(2, 10_000.0), iops(3, 14_900.0)],
        ));
        assert!(text.contains("10.0 k +-31%"), "{text}");
    }

    #[test]
    fn a_round_that_has_lost_interrupts_is_said_with_its_placement_and_load() {
        let lost = |round, count| {
            Measurement::new(round, "randread-4k-qd1", "process").with("interrupts_lost", count)
        };
        let text = render(&Report::new("disk", Lab::default(), &[lost(1, 0.0), lost(2, 31.0)]));
        assert!(
            text.contains("INTERRUPTS WERE LOST: process randread-4k-qd1 (up to 31 in a round)"),
            "{text}"
        );
        assert!(
            !render(&Report::new("disk", Lab::default(), &[lost(1, 2.0)])).contains("INTERRUPTS")
        );
    }

    #[test]
    fn a_busy_host_is_said_and_an_idle_one_too() {
        let host = |percent| Measurement::new(1, "host", "host").with("others_percent", percent);
        let text = |percent| {
            render(&Report::new(
                "disk",
                Lab { mode: "wall".into(), ..Lab::default() },
                &[host(percent)],
            ))
        };
        assert!(
            text(45.0).contains("THE HOST WAS BUSY") && text(45.0).contains("45.0 %"),
            "{}",
            text(45.0)
        );
        assert!(text(1.0).contains("idle otherwise"));
    }

    #[test]
    fn what_was_too_short_for_a_cost_is_said_and_a_quick_run_too() {
        let cost = |placement: &str, value| {
            Measurement::new(1, "udp-64-out", placement)
                .with("instructions_per_op", value)
                .with("packets_s", 9.0)
        };
        let lab = Lab { mode: "instructions".into(), quick: true, ..Lab::default() };
        let text = render_packets(&Report::new(
            "udp-echo",
            lab,
            &[cost("kernel", 50.0), cost("process", 0.0)],
        ));
        assert!(
            text.contains("TOO SHORT FOR A COST: process udp-64-out\n") && text.contains("QUICK: "),
            "{text}"
        );
        assert!(!text.contains("0.00"), "{text}");
    }

    #[test]
    fn a_placement_without_figures_is_named_with_the_reason() {
        let mut left = Measurement::new(1, "driver", "qemu-img");
        left.facts.insert("left out".into(), "it does not answer".into());
        let kernel = Measurement::new(1, "randread-4k-qd1", "kernel").with("iops", 1.0);
        let text = render(&Report::new("disk", Lab::default(), &[kernel, left]));
        assert!(text.contains("LEFT OUT: qemu-img it does not answer\n"), "{text}");
    }
}
