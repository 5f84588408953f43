//! The four-place table: one device, its driver in the kernel, native, hosted and split.
//!
//! # Shape
//! `LINES` says which figure of which part stands where. [`table`] takes the reports of the parts
//! and makes one report of them, in which a cell is a row, or, without a figure, a fact that says
//! why there is none. [`Cell::of`] reads them back, so that all who show the table show the same.

use crate::report::{Fact, Lab, Report, Row, unit};
use crate::stats::Summary;
use crate::table::{Table, rounded};

/// The places.
pub const PLACES: [&str; 4] = ["kernel", "native", "hosted", "split"];
/// The report's name.
pub const BENCH: &str = "places";

/// A line of the table.
struct Line {
    device: &'static str,
    what: &'static str,
    metric: &'static str,
    /// In the order of [`PLACES`].
    sources: [Source; 4],
}

/// Where a cell comes from.
#[derive(Clone, Copy)]
enum Source {
    /// A row's summary: part, workload, placement, metric.
    Row(&'static str, &'static str, &'static str, &'static str),
    /// That of the best of the kernel's placements.
    Best(&'static str, &'static str, &'static str),
    /// Instructions of the machine for each KiB that TCP has moved: what the processor did in a
    /// second by the instruction clock, idle time left out, over the bytes of that second.
    PerKib(&'static str, &'static str, &'static str),
    /// Microseconds of a packet's way there and back, of a load that has one under way: the peer's
    /// time and the cable's are in it.
    RoundTrip(&'static str, &'static str, &'static str),
    /// Instructions for a KiB where bytes per instruction were measured.
    OfBytes(&'static str, &'static str, &'static str),
    /// Nothing of the driver is in the kernel.
    Nothing,
    /// Pings that were lost, for each kill.
    Lost(&'static str),
    /// Errors and wrong blocks of a disk's users.
    Wrong(&'static str),
    /// How much of its throughput a load keeps while the driver is killed every two seconds.
    Kept(&'static str, &'static str),
    /// There is none, and this is why.
    No(&'static str),
    /// The same, with the lines that an automatic plan would leave in the kernel.
    NotSplit(&'static str),
    /// The same in the other lines of the device.
    Unsplit,
}

use Source::{
    Best, Kept, Lost, No, NotSplit, Nothing, OfBytes, PerKib, RoundTrip, Row as At, Unsplit, Wrong,
};

const KERNEL_DIES: &str = "not tried: a driver of the kernel has no process to kill";
const MACHINE: &str =
    "not tried: the kernel's memory is the driver's, and a crash is the machine's";
const USER_HALF: &str = "calls of ethtool, until the next user half is there; packets go on";
const NO_ECHO: &str = "not measured: ring3 split bench has no load with one packet under way";

const fn line(
    device: &'static str,
    what: &'static str,
    metric: &'static str,
    sources: [Source; 4],
) -> Line {
    Line { device, what, metric, sources }
}

const LINES: [Line; 22] = [
    line(
        "e1000",
        "TCP sent",
        "mbit_s",
        [
            At("split-e1000", "tcp-out", "original", "mbit_s"),
            At("split-e1000", "tcp-out", "native", "mbit_s"),
            At("split-e1000", "tcp-out", "hosted", "mbit_s"),
            At("split-e1000", "tcp-out", "split", "mbit_s"),
        ],
    ),
    line(
        "e1000",
        "TCP received",
        "mbit_s",
        [
            At("split-e1000", "tcp-in", "original", "mbit_s"),
            At("split-e1000", "tcp-in", "native", "mbit_s"),
            At("split-e1000", "tcp-in", "hosted", "mbit_s"),
            At("split-e1000", "tcp-in", "split", "mbit_s"),
        ],
    ),
    line(
        "e1000",
        "instructions for a KiB sent",
        "instructions_per_kib",
        [
            PerKib("split-e1000", "tcp-out", "original"),
            PerKib("split-e1000", "tcp-out", "native"),
            PerKib("split-e1000", "tcp-out", "hosted"),
            PerKib("split-e1000", "tcp-out", "split"),
        ],
    ),
    line(
        "e1000",
        "instructions for a KiB received",
        "instructions_per_kib",
        [
            PerKib("split-e1000", "tcp-in", "original"),
            PerKib("split-e1000", "tcp-in", "native"),
            PerKib("split-e1000", "tcp-in", "hosted"),
            PerKib("split-e1000", "tcp-in", "split"),
        ],
    ),
    line(
        "e1000",
        "UDP echo, one packet under way",
        "latency_us_mean",
        [
            RoundTrip("udp-e1000", "udp-64-echo-qd1", "kernel"),
            RoundTrip("udp-e1000", "udp-64-echo-qd1", "export"),
            RoundTrip("udp-e1000", "udp-64-echo-qd1", "hosted"),
            No(NO_ECHO),
        ],
    ),
    line(
        "e1000",
        "lines of the driver in the kernel",
        "kernel_lines",
        [
            At("plan-e1000", "plan", "e1000", "lines"),
            Nothing,
            Nothing,
            At("plan-e1000", "plan", "e1000", "kernel_lines"),
        ],
    ),
    line(
        "e1000",
        "silence when it is killed",
        "outage_ms_p50",
        [
            No(KERNEL_DIES),
            At("outage-e1000", "ping", "supervised", "outage_ms_p50"),
            At("outage-e1000-hosted", "ping", "hosted", "outage_ms_p50"),
            Kept("split-e1000", "tcp-out"),
        ],
    ),
    line(
        "e1000",
        "what a crash costs",
        "lost",
        [No(MACHINE), Lost("outage-e1000"), Lost("outage-e1000-hosted"), No(USER_HALF)],
    ),
    line(
        "e1000e",
        "TCP sent, peer outside of the guest",
        "mib_s",
        [
            At("tcp-e1000e", "tcp-64k-out", "kernel", "mib_s"),
            At("tcp-e1000e", "tcp-64k-out", "export", "mib_s"),
            At("tcp-e1000e", "tcp-64k-out", "hosted", "mib_s"),
            Unsplit,
        ],
    ),
    line(
        "e1000e",
        "TCP received, peer outside of the guest",
        "mib_s",
        [
            At("tcp-e1000e", "tcp-64k-in", "kernel", "mib_s"),
            At("tcp-e1000e", "tcp-64k-in", "export", "mib_s"),
            At("tcp-e1000e", "tcp-64k-in", "hosted", "mib_s"),
            Unsplit,
        ],
    ),
    line(
        "e1000e",
        "instructions for a KiB sent",
        "instructions_per_kib",
        [
            OfBytes("tcp-e1000e", "tcp-64k-out", "kernel"),
            OfBytes("tcp-e1000e", "tcp-64k-out", "export"),
            OfBytes("tcp-e1000e", "tcp-64k-out", "hosted"),
            Unsplit,
        ],
    ),
    line(
        "e1000e",
        "instructions for a KiB received",
        "instructions_per_kib",
        [
            OfBytes("tcp-e1000e", "tcp-64k-in", "kernel"),
            OfBytes("tcp-e1000e", "tcp-64k-in", "export"),
            OfBytes("tcp-e1000e", "tcp-64k-in", "hosted"),
            Unsplit,
        ],
    ),
    line(
        "e1000e",
        "UDP echo, one packet under way",
        "latency_us_mean",
        [
            RoundTrip("udp-e1000e", "udp-64-echo-qd1", "kernel"),
            RoundTrip("udp-e1000e", "udp-64-echo-qd1", "export"),
            RoundTrip("udp-e1000e", "udp-64-echo-qd1", "hosted"),
            Unsplit,
        ],
    ),
    line(
        "e1000e",
        "lines of the driver in the kernel",
        "kernel_lines",
        [At("plan-e1000e", "plan", "e1000e", "lines"), Nothing, Nothing, NotSplit("plan-e1000e")],
    ),
    line(
        "e1000e",
        "silence when it is killed",
        "outage_ms_p50",
        [
            No(KERNEL_DIES),
            At("outage-e1000e", "ping", "supervised", "outage_ms_p50"),
            At("outage-e1000e-hosted", "ping", "hosted", "outage_ms_p50"),
            Unsplit,
        ],
    ),
    line(
        "e1000e",
        "what a crash costs",
        "lost",
        [No(MACHINE), Lost("outage-e1000e"), Lost("outage-e1000e-hosted"), Unsplit],
    ),
    line(
        "NVMe",
        "4 KiB reads a second, 32 in flight",
        "iops",
        [
            Best("disk-nvme", "randread-4k-qd32", "iops"),
            At("disk-nvme", "randread-4k-qd32", "export", "iops"),
            At("disk-nvme-hosted", "randread-4k-qd32", "hosted", "iops"),
            Unsplit,
        ],
    ),
    line(
        "NVMe",
        "instructions for such a read",
        "instructions_per_op",
        [
            Best("disk-nvme", "randread-4k-qd32", "instructions_per_op"),
            At("disk-nvme", "randread-4k-qd32", "export", "instructions_per_op"),
            At("disk-nvme-hosted", "randread-4k-qd32", "hosted", "instructions_per_op"),
            Unsplit,
        ],
    ),
    line(
        "NVMe",
        "a read, one in flight (wall clock)",
        "latency_us_p50",
        [
            Best("latency-nvme", "randread-4k-qd1", "latency_us_p50"),
            At("latency-nvme", "randread-4k-qd1", "export", "latency_us_p50"),
            At("latency-nvme-hosted", "randread-4k-qd1", "hosted", "latency_us_p50"),
            Unsplit,
        ],
    ),
    line(
        "NVMe",
        "lines of the driver in the kernel",
        "kernel_lines",
        [At("plan-nvme", "plan", "nvme", "lines"), Nothing, Nothing, NotSplit("plan-nvme")],
    ),
    line(
        "NVMe",
        "silence when it is killed",
        "outage_ms_p50",
        [
            No(KERNEL_DIES),
            At("restart-nvme", "disk", "nvme", "outage_ms_p50"),
            At("restart-nvme-hosted", "disk", "dde:nvme", "outage_ms_p50"),
            Unsplit,
        ],
    ),
    line(
        "NVMe",
        "what a crash costs",
        "lost",
        [No(MACHINE), Wrong("restart-nvme"), Wrong("restart-nvme-hosted"), Unsplit],
    ),
];

/// The reports of a part, or why there are none.
pub type Part<'a> = (&'a str, Result<&'a [Report], &'a str>);

/// What stands in a cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A figure, and its ratio to the kernel's.
    Figure {
        /// Over the rounds.
        summary: Summary,
        /// Its unit, as in the row.
        unit: String,
        /// Of the medians.
        ratio: Option<f64>,
    },
    /// Words: why there is no figure, or what was seen.
    Words(String),
}

impl Cell {
    /// The cell of `place` in the line `what` of a table.
    pub fn of(report: &Report, what: &str, place: &str) -> Option<Self> {
        let at = |place: &str| {
            report.rows.iter().find(|row| row.workload == what && row.placement == place)
        };
        if let Some(row) = at(place) {
            let kernel = at(PLACES[0]).filter(|_| place != PLACES[0]);
            let ratio = kernel.and_then(|kernel| row.summary.ratio_to(&kernel.summary));
            return Some(Self::Figure { summary: row.summary, unit: row.unit.clone(), ratio });
        }
        report.fact(place, what).map(|words| Self::Words(words.into()))
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Words(words) => f.write_str(words),
            Self::Figure { summary, unit, ratio } => {
                let value = summary.median;
                let text = if value.fract() == 0.0 && value < 1e5 {
                    format!("{value}")
                } else {
                    rounded(value)
                };
                let unit = if unit == "1" { "" } else { unit };
                // What counts lines or instructions says so at the line's head.
                let unit = if ["instructions", "lines", "1/s"].contains(&unit) { "" } else { unit };
                write!(f, "{text}{}{unit}", if unit.is_empty() { "" } else { " " })?;
                match ratio {
                    Some(ratio) if value != 0.0 => write!(f, " ({ratio:.2}x)"),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// One report of the parts: a row for each cell with a figure, a fact for each other.
pub fn table(parts: &[Part<'_>], lab: Lab) -> Report {
    let mut report = Report::new(BENCH, lab, &[]);
    for line in &LINES {
        let name = format!("{}: {}", line.device, line.what);
        for (place, source) in PLACES.iter().zip(line.sources) {
            match cell(parts, source) {
                Ok(summary) => report.rows.push(Row {
                    workload: name.clone(),
                    placement: (*place).into(),
                    metric: line.metric.into(),
                    unit: unit(line.metric).into(),
                    summary,
                }),
                Err(words) => report.facts.push(Fact {
                    placement: (*place).into(),
                    fact: name.clone(),
                    value: words,
                }),
            }
        }
    }
    report
}

/// The names of the lines of a table, in their order: device, what, and both together as the report
/// has them.
pub fn lines() -> impl Iterator<Item = (&'static str, &'static str, String)> {
    LINES.iter().map(|line| (line.device, line.what, format!("{}: {}", line.device, line.what)))
}

/// The lines that say most, for who reads a few.
pub const BRIEF: [&str; 9] = [
    "e1000: lines of the driver in the kernel",
    "e1000: TCP sent",
    "e1000: TCP received",
    "e1000: UDP echo, one packet under way",
    "e1000: silence when it is killed",
    "NVMe: 4 KiB reads a second, 32 in flight",
    "NVMe: instructions for such a read",
    "NVMe: a read, one in flight (wall clock)",
    "NVMe: silence when it is killed",
];

/// The table as Markdown has it, or as text.
pub fn render(report: &Report, markdown: bool) -> String {
    let table = table_of(report, lines().map(|(_, _, name)| name));
    if markdown { table.markdown() } else { table.text() }
}

/// The lines of [`BRIEF`], as Markdown.
pub fn in_brief(report: &Report) -> String {
    table_of(report, BRIEF.map(Into::into)).markdown()
}

fn table_of(report: &Report, names: impl IntoIterator<Item = String>) -> Table {
    let mut table = Table::new("", PLACES).left(&[1, 2, 3, 4]);
    for name in names {
        let cell = |place: &str| {
            Cell::of(report, &name, place).map_or_else(String::new, |cell| cell.to_string())
        };
        table.line(&name, PLACES.map(cell));
    }
    table
}

/// A figure, or words in its place.
fn cell(parts: &[Part<'_>], source: Source) -> Result<Summary, String> {
    let of = |part: &str| {
        let (_, found) = parts.iter().find(|(name, _)| *name == part).ok_or("not run")?;
        found.map_err(|why| format!("no: the measurement failed ({})", brief(why)))
    };
    let get = |part: &str, workload: &str, placement: &str, metric: &str| {
        let reports = of(part)?;
        let found = reports.iter().find_map(|report| report.get(workload, placement, metric));
        found.copied().ok_or_else(|| format!("the part {part} has no {metric} of {workload}"))
    };
    match source {
        At(part, workload, placement, metric) => get(part, workload, placement, metric),
        Best(part, workload, metric) => {
            let reports = of(part)?;
            let best = reports.iter().find_map(|report| {
                let best = report.best_kernel(workload, metric, false)?;
                report.get(workload, best, metric)
            });
            best.copied().ok_or_else(|| format!("the part {part} has no {metric} of the kernel"))
        }
        PerKib(part, workload, placement) => {
            let reports = of(part)?;
            let lab = reports.first().map(|report| report.lab.instruction_ns);
            let clock = lab.filter(|nanos| *nanos > 0).ok_or("not by the instruction clock")?;
            let idle = get(part, workload, placement, "idle_percent")?.median;
            let speed = get(part, workload, placement, "mbit_s")?;
            let busy = 1e9 / f64::from(clock) * (1.0 - idle / 100.0);
            Ok(inverse(speed, |mbit| busy / (mbit * 1e6 / 8.0 / 1024.0)))
        }
        RoundTrip(part, workload, placement) => {
            let rate = get(part, workload, placement, "packets_s")?;
            Ok(inverse(rate, |rate| 1e6 / rate))
        }
        OfBytes(part, workload, placement) => {
            let bytes = get(part, workload, placement, "bytes_per_instruction")?;
            Ok(inverse(bytes, |bytes| 1024.0 / bytes))
        }
        Nothing => Ok(Summary { rounds: 1, min: 0.0, median: 0.0, max: 0.0 }),
        Lost(part) => Err(lost(of(part)?).unwrap_or_else(|| format!("the part {part} says not"))),
        Wrong(part) => Err(wrong(of(part)?).unwrap_or_else(|| format!("the part {part} says not"))),
        Kept(part, workload) => {
            let ratio = get(part, workload, "killed", "mbit_s_ratio")?;
            Err(format!(
                "none of packets: {:.3} of the throughput with a user half killed every 2 s",
                ratio.median
            ))
        }
        No(why) => Err(why.into()),
        Unsplit => Err("no: not split, see its lines in the kernel".into()),
        NotSplit(part) => {
            let driver = part.trim_start_matches("plan-");
            let lines = |metric| get(part, "plan", driver, metric).map(|lines| lines.median);
            let left = match (lines("kernel_lines"), lines("lines")) {
                (Ok(kernel), Ok(all)) => {
                    format!("; an automatic plan would leave {kernel} of {all} lines in the kernel")
                }
                _ => String::new(),
            };
            Err(format!("no: nobody has worked out a plan of {driver}{left}"))
        }
    }
}

/// Of a quantity that grows as `summary` falls.
fn inverse(summary: Summary, of: impl Fn(f64) -> f64) -> Summary {
    let Summary { rounds, min, median, max } = summary;
    Summary { rounds, min: of(max), median: of(median), max: of(min) }
}

fn own(reports: &[Report], name: &str) -> Option<f64> {
    reports.iter().find_map(|report| report.own.get(name)?.as_f64())
}

fn lost(reports: &[Report]) -> Option<String> {
    let [sent, answered, kills] = ["sent", "answered", "kills"].map(|name| own(reports, name));
    let lost = sent? - answered?;
    Some(format!("{lost} pings of {} in {} kills; the interface stays", sent?, kills?))
}

fn wrong(reports: &[Report]) -> Option<String> {
    let [errors, wrong, kills] = ["errors", "mismatches", "kills"].map(|name| own(reports, name));
    Some(format!(
        "{} errors and {} wrong blocks in {} kills; the block device stays",
        errors?, wrong?, kills?
    ))
}

/// The first words of why a part failed: all of it is in its log.
fn brief(why: &str) -> String {
    const MOST: usize = 120;
    let line = why.lines().next().unwrap_or_default();
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Measurement;

    fn tcp() -> Vec<Report> {
        let at = |placement: &str, mbit: f64| {
            let one = Measurement::new(1, "tcp-out", placement);
            one.with("mbit_s", mbit).with("idle_percent", 0.0)
        };
        let lab = Lab { instruction_ns: 16, ..Lab::default() };
        vec![Report::new("split", lab, &[at("original", 100.0), at("native", 50.0)])]
    }

    fn made() -> Report {
        let tcp = tcp();
        table(&[("split-e1000", Ok(&tcp)), ("udp-e1000", Err("a guest\nfailed"))], Lab::default())
    }

    fn cell(report: &Report, what: &str, place: &str) -> String {
        Cell::of(report, what, place).unwrap().to_string()
    }

    #[test]
    fn a_cell_has_its_ratio_to_the_kernels_driver_and_the_kernels_none() {
        let report = made();
        assert_eq!(cell(&report, "e1000: TCP sent", "kernel"), "100 Mb/s");
        assert_eq!(cell(&report, "e1000: TCP sent", "native"), "50 Mb/s (0.50x)");
    }

    #[test]
    fn instructions_for_a_kib_are_what_the_processor_did_meanwhile() {
        // 62.5 million instructions for 100 Mb, which are 12,207 KiB.
        let report = made();
        assert_eq!(cell(&report, "e1000: instructions for a KiB sent", "kernel"), "5120");
        assert_eq!(cell(&report, "e1000: instructions for a KiB sent", "native"), "10240 (2.00x)");
    }

    #[test]
    fn each_cell_has_a_figure_or_says_why_there_is_none() {
        let report = made();
        for (_, _, name) in lines() {
            for place in PLACES {
                assert!(Cell::of(&report, &name, place).is_some(), "{name}, {place}");
            }
        }
        let failed = cell(&report, "e1000: UDP echo, one packet under way", "kernel");
        assert_eq!(failed, "no: the measurement failed (a guest)");
        let missing = cell(&report, "e1000: TCP sent", "split");
        assert!(missing.starts_with("the part split-e1000 has no mbit_s"), "{missing}");
    }

    #[test]
    fn a_driver_that_was_not_split_says_how_many_lines_would_stay() {
        let plan = Measurement::new(1, "plan", "nvme");
        let plan = plan.with("kernel_lines", 2940.0).with("lines", 12577.0);
        let plan = vec![Report::new("split-plan", Lab::default(), &[plan])];
        let report = table(&[("plan-nvme", Ok(&plan))], Lab::default());
        let split = cell(&report, "NVMe: lines of the driver in the kernel", "split");
        assert!(split.starts_with("no:") && split.contains("2940 of 12577 lines"), "{split}");
        assert_eq!(cell(&report, "NVMe: lines of the driver in the kernel", "native"), "0");
    }

    #[test]
    fn the_brief_table_has_lines_of_the_whole_one() {
        let names: Vec<_> = lines().map(|(_, _, name)| name).collect();
        assert!(BRIEF.iter().all(|name| names.iter().any(|one| one == name)));
    }

    #[test]
    fn the_table_has_a_line_for_each_name_as_text_and_as_markdown() {
        let report = made();
        assert_eq!(render(&report, true).lines().count(), lines().count() + 2);
        assert_eq!(render(&report, false).lines().count(), lines().count() + 1);
    }
}
