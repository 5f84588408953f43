//! `ring3 hardware list`: files of tests, as a table.
//!
//! # Trust
//! A file comes from somebody else: it is read up to a size, must have the form of a report, and
//! nothing of it is printed but through `outln!`, which shows no control characters. What is no
//! report is named with its reason, and the others are shown all the same.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use ring3_bench::table::Table;
use serde_json::json;

use super::report::{FORMAT, Kind, Measured, Report, SCHEMA};

/// The files that come with ring3.
const SHIPPED: &[(&str, &str)] = &[
    ("qtest-e1000.json", include_str!("../../../../../hardware/qtest-e1000.json")),
    ("qtest-e1000e.json", include_str!("../../../../../hardware/qtest-e1000e.json")),
    ("qtest-ich9-ahci.json", include_str!("../../../../../hardware/qtest-ich9-ahci.json")),
    ("qtest-nvme.json", include_str!("../../../../../hardware/qtest-nvme.json")),
    ("qtest-piix3-ide.json", include_str!("../../../../../hardware/qtest-piix3-ide.json")),
    (
        "qtest-virtio-blk-pci.json",
        include_str!("../../../../../hardware/qtest-virtio-blk-pci.json"),
    ),
    (
        "qtest-virtio-net-pci.json",
        include_str!("../../../../../hardware/qtest-virtio-net-pci.json"),
    ),
    ("sim-ahci.json", include_str!("../../../../../hardware/sim-ahci.json")),
    ("sim-e1000.json", include_str!("../../../../../hardware/sim-e1000.json")),
    ("sim-ide.json", include_str!("../../../../../hardware/sim-ide.json")),
    ("sim-nvme.json", include_str!("../../../../../hardware/sim-nvme.json")),
    ("sim-virtio-blk.json", include_str!("../../../../../hardware/sim-virtio-blk.json")),
    ("sim-virtio-net.json", include_str!("../../../../../hardware/sim-virtio-net.json")),
    ("vfio-ahci.json", include_str!("../../../../../hardware/vfio-ahci.json")),
    ("vfio-nvme.json", include_str!("../../../../../hardware/vfio-nvme.json")),
];

/// Options of `ring3 hardware list`.
#[derive(clap::Args)]
pub struct Args {
    /// A folder with files of ring3 hardware test, or one such file. Default: the list that comes
    /// with ring3.
    path: Option<PathBuf>,
    /// Print a JSON list, one object for each file.
    #[arg(long)]
    json: bool,
}

/// Bytes of a file, and files of a folder, at most.
const LARGEST: u64 = 256 << 10;
const MOST: usize = 10_000;
/// Letters of a cell, and of the reason why a file is no report, at most.
const WIDEST: usize = 44;
const LONGEST: usize = 200;

/// What is kept of the files while they are read, one at a time.
#[derive(Default)]
struct List {
    /// Cells of those that are reports.
    lines: Vec<[String; 8]>,
    /// Names of the others, and why they are none.
    wrong: Vec<(String, String)>,
    /// Whether each is printed as JSON instead, and how many were.
    json: bool,
    printed: usize,
}

/// Prints the list. The exit code is 1 if a file is no report.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut list = List { json: args.json, ..List::default() };
    match &args.path {
        None => {
            for (file, text) in SHIPPED {
                list.add((*file).to_owned(), parse(text.as_bytes()))?;
            }
        }
        Some(path) if path.is_dir() => {
            for path in in_folder(path)? {
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                list.add(file, read(&path))?;
            }
        }
        Some(path) => list.add(path.display().to_string(), read(path))?,
    }
    Ok(list.end())
}

impl List {
    /// Adds a file, or prints it.
    fn add(&mut self, file: String, report: Result<Report>) -> Result<()> {
        let why = report.as_ref().err().map(|why| shortened(&crate::explain(why), LONGEST));
        if self.json {
            let value = json!({ "file": file, "report": report.ok(), "problem": why });
            let text = serde_json::to_string_pretty(&value)?.replace('\n', "\n  ");
            let start = if self.printed == 0 { "[" } else { "," };
            crate::output::write(format_args!("{start}\n  {text}"));
            self.printed += 1;
        } else if let Ok(report) = &report {
            self.lines.push(cells(report).map(|text| cut(&text)));
        }
        self.wrong.extend(why.map(|why| (file, why)));
        Ok(())
    }

    /// Prints the table, and what is no report.
    fn end(self) -> ExitCode {
        if self.json {
            outln!("{}", if self.printed == 0 { "[]" } else { "\n]" });
        } else {
            print(&self.lines);
            for (file, why) in &self.wrong {
                errln!("ring3: {file}: {why}");
            }
        }
        if self.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// The files of a folder whose names end with `.json`, by name.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let name = || folder.display().to_string();
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(name)? {
        let path = entry.with_context(name)?.path();
        if path.extension().is_some_and(|end| end == "json") {
            paths.push(path);
        }
        ensure!(paths.len() <= MOST, "{}: more than {MOST} files", name());
    }
    ensure!(!paths.is_empty(), "{}: no file of ring3 hardware test is there (*.json)", name());
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Report> {
    let kind = fs::metadata(path).context("looking at it")?.file_type();
    ensure!(kind.is_file(), "it is no file");
    let mut bytes = Vec::new();
    let file = File::open(path).context("opening it")?;
    file.take(LARGEST + 1).read_to_end(&mut bytes).context("reading it")?;
    ensure!(
        bytes.len() as u64 <= LARGEST,
        "it has more than {} KiB, which no file of a test has",
        LARGEST >> 10
    );
    parse(&bytes)
}

fn parse(bytes: &[u8]) -> Result<Report> {
    let text = str::from_utf8(bytes).context("it is no text")?;
    // What it is comes first, so that another JSON file is not called a damaged report.
    #[derive(serde::Deserialize)]
    struct Head {
        format: Option<String>,
        schema: Option<u64>,
    }
    let head: Head = serde_json::from_str(text).context("it is no file of ring3 hardware test")?;
    match (head.format.as_deref(), head.schema) {
        (Some(FORMAT), Some(schema)) if schema == u64::from(SCHEMA) => {}
        (Some(FORMAT), Some(schema)) => {
            bail!("its fields have version {schema}, and this program reads version {SCHEMA}")
        }
        _ => bail!("it is no file of ring3 hardware test"),
    }
    serde_json::from_str(text).context("its fields are not those of ring3 hardware test")
}

fn print(lines: &[[String; 8]]) {
    let columns = ["DEVICE", "MODEL", "WHERE", "DAY", "RESULT", "READ", "KERNEL"];
    let mut table = Table::new("IDS", columns).left(&[1, 2, 3, 4, 5]);
    for line in lines {
        let [ids, cells @ ..] = line.clone();
        table.line(ids, cells);
    }
    if !lines.is_empty() {
        crate::output::write(format_args!("{}", table.whole()));
        outln!(
            "\nREAD and KERNEL: median latency of a read of 4 KiB with ring3's driver, and with"
        );
        outln!("the kernel's before, in microseconds.");
    }
}

/// The cells of a line.
fn cells(report: &Report) -> [String; 8] {
    let (device, machine) = (&report.device, &report.machine);
    let id = |id: Option<u16>| id.map_or_else(|| "????".into(), |id| format!("{id:04x}"));
    let identity = &device.identity;
    let identity = if identity.is_array() { &identity[0] } else { identity };
    let model = identity["model"].as_str().or(identity["drives"][0]["model"].as_str());
    let firmware = identity["firmware"].as_str().or(identity["drives"][0]["firmware"].as_str());
    let model = [model, firmware].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let latency = |driver| {
        let row = (report.performance.iter())
            .find(|row| row.driver == driver && row.workload == "randread-4k-qd1");
        row.and_then(|row| row.latency_us_p50).map_or_else(|| "-".into(), |us| format!("{us:.1}"))
    };
    let place = match (device.uri.split(':').next(), machine.virtual_machine) {
        (Some(scheme @ ("sim" | "qtest")), _) => scheme.to_owned(),
        (_, true) => format!("virtual machine, {}", machine.distribution),
        (_, false) => machine.distribution.clone(),
    };
    let failed: Vec<_> = report.failed().collect();
    let result = match (&failed[..], report.finished) {
        ([], true) => "passed".into(),
        ([], false) => "not finished".into(),
        (steps, _) => format!("FAILED: {}", steps.join(", ")),
    };
    let kind = match device.kind {
        Kind::Disk => "disk",
        Kind::Card => "card",
        Kind::Unknown => "device",
    };
    [
        format!("{}:{}", id(device.vendor), id(device.device)),
        format!("{kind}: {}", device.name),
        model,
        place,
        report.date.split('T').next().unwrap_or_default().to_owned(),
        result,
        latency(Measured::Ring3),
        latency(Measured::KernelBefore),
    ]
}

/// `text` as one cell: no line breaks, and no longer than a table can show.
fn cut(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    shortened(&text, WIDEST)
}

/// The first letters of `text`, `most` of them.
fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_repository_is_in_the_list_and_is_a_report() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../hardware");
        let mut files: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".json"))
            .collect();
        files.sort();
        let shipped: Vec<_> = SHIPPED.iter().map(|(name, _)| *name).collect();
        assert_eq!(files, shipped);
        for (name, text) in SHIPPED {
            let report = parse(text.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(report.finished, "{name}");
        }
    }

    #[test]
    fn what_is_no_report_is_refused_with_its_reason() {
        let deep = "[".repeat(100_000);
        for (bytes, why) in [
            (&b"\xff\xfe"[..], "it is no text"),
            (b"", "it is no file of ring3 hardware test"),
            (b"[]", "it is no file of ring3 hardware test"),
            (b"{\"bench\": 1}", "it is no file of ring3 hardware test"),
            (b"{\"format\": \"ring3-hardware\", \"schema\": 2}", "version 2"),
            (b"{\"format\": \"ring3-hardware\", \"schema\": 1}", "its fields are not those"),
            (deep.as_bytes(), "it is no file of ring3 hardware test"),
        ] {
            let error = format!("{:#}", parse(bytes).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_cell_has_one_line_and_an_end() {
        assert_eq!(cut("a\nb\x1b[2J"), "a?b?[2J");
        assert_eq!(cut(&"ä".repeat(100)).chars().count(), WIDEST + 1);
    }
}
