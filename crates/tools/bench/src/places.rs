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
    /// A quantity of a row: part, workload, placement.
    Of(Quantity, &'static str, &'static str, &'static str),
    /// The metric of a workload in the best of the kernel's placements.
    Best(&'static str, &'static str, &'static str),
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

/// How a figure follows from what was measured.
#[derive(Clone, Copy)]
enum Quantity {
    /// It is the summary of this metric.
    At(&'static str),
    /// Instructions of the machine for each KiB that TCP has moved: what the processor did in a
    /// second by the instruction clock, idle time left out, over the bytes of that second.
    PerKib,
    /// Microseconds of a packet's way there and back, of a load that has one under way: the peer's
    /// time and the cable's are in it.
    RoundTrip,
    /// Instructions for a KiB where bytes per instruction were measured.
    OfBytes,
}

use Quantity::{At, OfBytes, PerKib, RoundTrip};
use Source::{Best, Kept, Lost, No, NotSplit, Nothing, Of, Unsplit, Wrong};

const NO_ECHO: &str = "not measured: ring3 split bench has no load with one packet under way";
const KERNEL_DIES: Source = No("not tried: a driver of the kernel has no process to kill");
const MACHINE: Source =
    No("not tried: the kernel's memory is the driver's, and a crash is the machine's");
const USER_HALF: Source = No("calls of ethtool, until the next user half is there; packets go on");

const fn line(
    device: &'static str,
    what: &'static str,
    metric: &'static str,
    sources: [Source; 4],
) -> Line {
    Line { device, what, metric, sources }
}

/// A quantity of the part that measures all four places.
const fn four(quantity: Quantity, workload: &'static str) -> [Source; 4] {
    const PART: &str = "split-e1000";
    [
        Of(quantity, PART, workload, "original"),
        Of(quantity, PART, workload, "native"),
        Of(quantity, PART, workload, "hosted"),
        Of(quantity, PART, workload, "split"),
    ]
}

/// A quantity of a part that measures three places of a card, and the last cell.
const fn card(
    quantity: Quantity,
    part: &'static str,
    workload: &'static str,
    split: Source,
) -> [Source; 4] {
    [
        Of(quantity, part, workload, "kernel"),
        Of(quantity, part, workload, "export"),
        Of(quantity, part, workload, "hosted"),
        split,
    ]
}

/// A metric of the disk, whose hosted driver has a part of its own.
const fn disk(
    [part, hosted]: [&'static str; 2],
    workload: &'static str,
    metric: &'static str,
) -> [Source; 4] {
    [
        Best(part, workload, metric),
        Of(At(metric), part, workload, "export"),
        Of(At(metric), hosted, workload, "hosted"),
        Unsplit,
    ]
}

/// A line about the driver's lines that stay in the kernel.
const fn kept_lines(
    device: &'static str,
    part: &'static str,
    driver: &'static str,
    split: Source,
) -> Line {
    let all = Of(At("lines"), part, "plan", driver);
    let sources = [all, Nothing, Nothing, split];
    line(device, "lines of the driver in the kernel", "kernel_lines", sources)
}

/// A line about the outage after a kill: part, workload and placement of two places.
const fn silence(
    device: &'static str,
    native: [&'static str; 3],
    hosted: [&'static str; 3],
    split: Source,
) -> Line {
    const METRIC: &str = "outage_ms_p50";
    let native = Of(At(METRIC), native[0], native[1], native[2]);
    let hosted = Of(At(METRIC), hosted[0], hosted[1], hosted[2]);
    line(device, "silence when it is killed", METRIC, [KERNEL_DIES, native, hosted, split])
}

/// A line about what a crash costs the users.
const fn crash(device: &'static str, native: Source, hosted: Source, split: Source) -> Line {
    line(device, "what a crash costs", "lost", [MACHINE, native, hosted, split])
}

const KIB: &str = "instructions_per_kib";
const ECHO: &str = "UDP echo, one packet under way";
const ECHO_LOAD: &str = "udp-64-echo-qd1";
const OPERATIONS: [&str; 2] = ["disk-nvme", "disk-nvme-hosted"];
const LATENCY: [&str; 2] = ["latency-nvme", "latency-nvme-hosted"];

const LINES: [Line; 22] = [
    line("e1000", "TCP sent", "mbit_s", four(At("mbit_s"), "tcp-out")),
    line("e1000", "TCP received", "mbit_s", four(At("mbit_s"), "tcp-in")),
    line("e1000", "instructions for a KiB sent", KIB, four(PerKib, "tcp-out")),
    line("e1000", "instructions for a KiB received", KIB, four(PerKib, "tcp-in")),
    line("e1000", ECHO, "latency_us_mean", card(RoundTrip, "udp-e1000", ECHO_LOAD, No(NO_ECHO))),
    kept_lines(
        "e1000",
        "plan-e1000",
        "e1000",
        Of(At("kernel_lines"), "plan-e1000", "plan", "e1000"),
    ),
    silence(
        "e1000",
        ["outage-e1000", "ping", "supervised"],
        ["outage-e1000-hosted", "ping", "hosted"],
        Kept("split-e1000", "tcp-out"),
    ),
    crash("e1000", Lost("outage-e1000"), Lost("outage-e1000-hosted"), USER_HALF),
    line(
        "e1000e",
        "TCP sent, peer outside of the guest",
        "mib_s",
        card(At("mib_s"), "tcp-e1000e", "tcp-64k-out", Unsplit),
    ),
    line(
        "e1000e",
        "TCP received, peer outside of the guest",
        "mib_s",
        card(At("mib_s"), "tcp-e1000e", "tcp-64k-in", Unsplit),
    ),
    line(
        "e1000e",
        "instructions for a KiB sent",
        KIB,
        card(OfBytes, "tcp-e1000e", "tcp-64k-out", Unsplit),
    ),
    line(
        "e1000e",
        "instructions for a KiB received",
        KIB,
        card(OfBytes, "tcp-e1000e", "tcp-64k-in", Unsplit),
    ),
    line("e1000e", ECHO, "latency_us_mean", card(RoundTrip, "udp-e1000e", ECHO_LOAD, Unsplit)),
    kept_lines("e1000e", "plan-e1000e", "e1000e", NotSplit("plan-e1000e")),
    silence(
        "e1000e",
        ["outage-e1000e", "ping", "supervised"],
        ["outage-e1000e-hosted", "ping", "hosted"],
        Unsplit,
    ),
    crash("e1000e", Lost("outage-e1000e"), Lost("outage-e1000e-hosted"), Unsplit),
    line(
        "NVMe",
        "4 KiB reads a second, 32 in flight",
        "iops",
        disk(OPERATIONS, "randread-4k-qd32", "iops"),
    ),
    line(
        "NVMe",
        "instructions for such a read",
        "instructions_per_op",
        disk(OPERATIONS, "randread-4k-qd32", "instructions_per_op"),
    ),
    line(
        "NVMe",
        "a read, one in flight (wall clock)",
        "latency_us_p50",
        disk(LATENCY, "randread-4k-qd1", "latency_us_p50"),
    ),
    kept_lines("NVMe", "plan-nvme", "nvme", NotSplit("plan-nvme")),
    silence(
        "NVMe",
        ["restart-nvme", "disk", "nvme"],
        ["restart-nvme-hosted", "disk", "dde:nvme"],
        Unsplit,
    ),
    crash("NVMe", Wrong("restart-nvme"), Wrong("restart-nvme-hosted"), Unsplit),
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
        Of(At(metric), part, workload, placement) => get(part, workload, placement, metric),
        Best(part, workload, metric) => {
            let reports = of(part)?;
            let best = reports.iter().find_map(|report| {
                let best = report.best_kernel(workload, metric, false)?;
                report.get(workload, best, metric)
            });
            best.copied().ok_or_else(|| format!("the part {part} has no {metric} of the kernel"))
        }
        Of(PerKib, part, workload, placement) => {
            let reports = of(part)?;
            let lab = reports.first().map(|report| report.lab.instruction_ns);
            let clock = lab.filter(|nanos| *nanos > 0).ok_or("not by the instruction clock")?;
            let idle = get(part, workload, placement, "idle_percent")?.median;
            let speed = get(part, workload, placement, "mbit_s")?;
            let busy = 1e9 / f64::from(clock) * (1.0 - idle / 100.0);
            Ok(inverse(speed, |mbit| busy / (mbit * 1e6 / 8.0 / 1024.0)))
        }
        Of(RoundTrip, part, workload, placement) => {
            let rate = get(part, workload, placement, "packets_s")?;
            Ok(inverse(rate, |rate| 1e6 / rate))
        }
        Of(OfBytes, part, workload, placement) => {
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
