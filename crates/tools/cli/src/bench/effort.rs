//! `ring3 bench effort`: the source lines that hosting drivers takes, part by part, as Weisbach's
//! Table 4.3 has them. Counted by cloc: lines that are neither empty nor comments.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use ring3_bench::disk::machine;
use ring3_bench::report::{Measurement, Report};
use ring3_bench::table::Table;
use ring3_lab::{Cache, DEFAULT_KERNEL, Need, prepare};
use serde::Serialize;

use crate::dde;

/// Arguments of `ring3 bench effort`.
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

/// One part, and its files.
#[derive(Debug, Serialize)]
struct Part {
    part: String,
    licence: &'static str,
    lines: u64,
    files: BTreeMap<String, u64>,
}

/// A driver: what had to be written for it, and what of the kernel it is.
#[derive(Debug, Serialize)]
struct Driver {
    driver: String,
    /// Lines of its list, its configuration and its description.
    written: u64,
    kernel_files: usize,
    kernel_lines: u64,
}

/// A figure of somebody else's.
#[derive(Clone, Copy, Debug, Serialize)]
struct Other {
    project: &'static str,
    part: &'static str,
    lines: u64,
    source: &'static str,
}

#[derive(Debug, Serialize)]
struct Effort {
    kernel: String,
    counter: String,
    parts: Vec<Part>,
    /// Lines of all parts.
    written: u64,
    drivers: Vec<Driver>,
    /// Files of the kernel below the drivers, compiled as they are.
    kernel_files: usize,
    kernel_lines: u64,
    others: &'static [Other],
}

const THESIS: &str = "Weisbach 2011, Table 4.3, by SLOCCount";
const GENODE: &str =
    "Genode's repository as it was read for this project, rounded to hundreds; all architectures";

/// Not counted here.
const OTHERS: [Other; 12] = [
    Other { project: "DDEKit-Linux", part: "user space", lines: 2736, source: THESIS },
    Other {
        project: "DDEKit-Linux",
        part: "dma_mem, a module of the kernel",
        lines: 301,
        source: THESIS,
    },
    Other {
        project: "DDEKit-Linux",
        part: "dma_map, a module of the kernel",
        lines: 380,
        source: THESIS,
    },
    Other { project: "DDEKit-Linux", part: "UIO, of Linux", lines: 725, source: THESIS },
    Other {
        project: "DDEKit-Linux",
        part: "uio_pci_generic, of Linux",
        lines: 139,
        source: THESIS,
    },
    Other { project: "DDEKit-Linux", part: "all", lines: 4281, source: THESIS },
    Other { project: "Genode", part: "lx_kit, C++", lines: 1800, source: GENODE },
    Other { project: "Genode", part: "lx_kit, headers", lines: 1000, source: GENODE },
    Other {
        project: "Genode",
        part: "lx_emul, C, of which 5,200 replace files of the kernel",
        lines: 11000,
        source: GENODE,
    },
    Other {
        project: "Genode",
        part: "lx_emul, headers, of which 2,400 replace headers of the kernel",
        lines: 3400,
        source: GENODE,
    },
    Other { project: "Genode", part: "for PCs", lines: 1000, source: GENODE },
    Other {
        project: "Genode",
        part: "for network cards, generated dummies included",
        lines: 3100,
        source: GENODE,
    },
];

/// Parts by the folders or files that they are of, from the repository's root on, and files below
/// that are another part's.
const PARTS: [(&str, &str, &[&str]); 10] = [
    ("ddekit", "MIT OR Apache-2.0", &["dde/ddekit/src", "dde/ddekit/include"]),
    ("ddekit's tests", "MIT OR Apache-2.0", &["dde/ddekit/tests"]),
    (
        "emulation of the kernel",
        "GPL-2.0-only",
        &["dde/linux/emul", "dde/linux/include/dde.h", "dde/linux/include/dde_version.h"],
    ),
    ("glue between classes", "GPL-2.0-only", &["dde/linux/glue", "dde/linux/include/dde_net.h"]),
    ("programs", "GPL-2.0-only", &["dde/linux"]),
    (
        "build",
        "GPL-2.0-only",
        &["dde/linux/Makefile", "dde/linux/stubs.awk", "dde/linux/order.lds"],
    ),
    ("ring3 dde", "MIT OR Apache-2.0", &["crates/tools/cli/src/dde"]),
    (
        "interface for C",
        "MIT OR Apache-2.0",
        &["crates/tools/capi/src", "crates/tools/capi/include"],
    ),
    ("lwIP's place", "MIT OR Apache-2.0", &["dde/lwip"]),
    ("fuzzer's device", "MIT OR Apache-2.0", &["dde/ddekit/fuzz"]),
];

/// Counts, and prints.
pub fn run(args: &Args) -> Result<ExitCode> {
    let root = dde::root()?;
    let top = fs::canonicalize(root.join("..")).context("opening the folder of ring3's source")?;
    let cache = Cache::open()?;
    prepare(&cache, &[Need::Hosting, Need::Cloc], &mut |line| errln!("{line}"))?;
    let effort = measure(&top, &cache)?;
    match args.json {
        true => outln!("{}", serde_json::to_string(&report(&effort)?)?),
        false => show(&effort),
    }
    Ok(ExitCode::SUCCESS)
}

/// As all benchmarks tell their results: lines of each part, and of each driver.
fn report(effort: &Effort) -> Result<Report> {
    let lines = |workload: &str, name: &str, lines: u64| {
        Measurement::new(1, workload, name).with("lines", lines as f64)
    };
    let parts = effort.parts.iter().map(|part| lines("written", &part.part, part.lines));
    let drivers = effort.drivers.iter().flat_map(|driver| {
        let written = lines("written", &driver.driver, driver.written);
        [written, lines("of the kernel", &driver.driver, driver.kernel_lines)]
    });
    let all: Vec<_> = parts.chain(drivers).collect();
    Ok(Report::new("effort", machine(false), &all).with_own(effort)?)
}

fn measure(top: &Path, cache: &Cache) -> Result<Effort> {
    let counter = Counter { program: cache.path("cloc/bin/cloc") };
    let parts = PARTS
        .into_iter()
        .map(|(part, licence, places)| -> Result<Part> {
            let files = counter.count(&sources(top, part, places)?)?;
            let named = files.into_iter().map(|(file, lines)| {
                (file.strip_prefix(top).unwrap_or(&file).display().to_string(), lines)
            });
            let files: BTreeMap<_, _> = named.collect();
            Ok(Part { part: part.into(), licence, lines: files.values().sum(), files })
        })
        .filter(|part| !matches!(part, Ok(Part { files, .. }) if files.is_empty()))
        .collect::<Result<Vec<_>>>()?;
    let source = cache.path(format!("sources/{DEFAULT_KERNEL}/source"));
    let linux = top.join("dde/linux");
    let mut drivers = Vec::new();
    for driver in dde::names(&top.join("dde"))? {
        let folder = linux.join("drivers").join(&driver);
        let written = entries(&folder.join("driver.list"))?.len()
            + entries(&folder.join("driver.config"))?.len()
            + entries(&folder.join("driver.toml"))?.len();
        let kernel = counter.kernel(&source, &objects(&folder.join("driver.list"))?)?;
        drivers.push(Driver {
            driver,
            written: written as u64,
            kernel_files: kernel.len(),
            kernel_lines: kernel.values().sum(),
        });
    }
    let mut below = Vec::new();
    for list in
        fs::read_dir(linux.join("lists")).context("reading the lists of the kernel's files")?
    {
        below.extend(objects(&list?.path())?);
    }
    below.sort();
    below.dedup();
    let below = counter.kernel(&source, &below)?;
    let release = cache.path(format!("sources/{DEFAULT_KERNEL}/release"));
    Ok(Effort {
        kernel: fs::read_to_string(&release)
            .with_context(|| format!("reading {}", release.display()))?
            .trim()
            .into(),
        counter: counter.name()?,
        written: parts.iter().map(|part| part.lines).sum(),
        parts,
        drivers,
        kernel_files: below.len(),
        kernel_lines: below.values().sum(),
        others: &OTHERS,
    })
}

/// The files of a part. Of the folder of programs, those that lie there and not below.
fn sources(top: &Path, part: &str, places: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut places: Vec<_> = places.iter().map(|place| top.join(place)).collect();
    while let Some(place) = places.pop() {
        if !place.is_dir() {
            found.extend(place.is_file().then_some(place));
            continue;
        }
        for entry in fs::read_dir(&place).with_context(|| format!("reading {}", place.display()))? {
            let path = entry?.path();
            match path.is_dir() {
                true if part != "programs" => places.push(path),
                false
                    if part != "programs"
                        || path.extension().is_some_and(|extension| extension == "c") =>
                {
                    found.push(path)
                }
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The lines of a list that say something.
fn entries(list: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(list).with_context(|| format!("reading {}", list.display()))?;
    let said = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    Ok(said.filter(|line| !line.is_empty() && !line.starts_with('@')).map(str::to_owned).collect())
}

/// The files of the usual kernel's that a list has: a line may say of which kernel its file is.
fn objects(list: &Path) -> Result<Vec<String>> {
    let entries = entries(list)?;
    let of_kernel =
        entries.iter().filter_map(|line| match *line.split_whitespace().collect::<Vec<_>>() {
            [object] | [object, DEFAULT_KERNEL] if object.ends_with(".o") => {
                Some(object.to_owned())
            }
            _ => None,
        });
    Ok(of_kernel.collect())
}

/// cloc.
struct Counter {
    program: PathBuf,
}

impl Counter {
    fn name(&self) -> Result<String> {
        let output =
            Command::new(&self.program).arg("--version").output().context("starting cloc")?;
        Ok(format!("cloc {}", String::from_utf8_lossy(&output.stdout).trim()))
    }

    /// Lines of the files of `source` that the kernel's makefiles compile to `objects`.
    fn kernel(&self, source: &Path, objects: &[String]) -> Result<BTreeMap<PathBuf, u64>> {
        let files: Vec<_> =
            objects.iter().map(|object| source.join(object).with_extension("c")).collect();
        let counted = self.count(&files)?;
        match files.iter().find(|file| !counted.contains_key(*file)) {
            Some(missing) => {
                bail!("cloc has not counted {}: is it in the kernel's source?", missing.display())
            }
            None => Ok(counted),
        }
    }

    /// Lines of each of `files` in a language that cloc knows.
    fn count(&self, files: &[PathBuf]) -> Result<BTreeMap<PathBuf, u64>> {
        if files.is_empty() {
            return Ok(BTreeMap::new());
        }
        let list = tempfile::NamedTempFile::new().context("creating a list of files")?;
        let lines: String = files.iter().map(|file| format!("{}\n", file.display())).collect();
        fs::write(list.path(), lines).context("writing a list of files")?;
        let mut cloc = Command::new(&self.program);
        // Files that are equal count each; nothing is taken apart as an archive.
        cloc.args(["--json", "--by-file", "--quiet", "--skip-uniqueness", "--list-file"])
            .arg(list.path());
        let output = cloc.output().context("starting cloc")?;
        if !output.status.success() {
            bail!("cloc: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        parse(&output.stdout)
    }
}

fn parse(said: &[u8]) -> Result<BTreeMap<PathBuf, u64>> {
    // Of files that it knows no language of, it says nothing at all.
    if said.iter().all(u8::is_ascii_whitespace) {
        return Ok(BTreeMap::new());
    }
    let said: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(said).context("what cloc says")?;
    let counts = said.into_iter().filter(|(file, _)| file != "header" && file != "SUM");
    let count = |(file, count): (String, serde_json::Value)| {
        Some((PathBuf::from(file), count["code"].as_u64()?))
    };
    counts.map(|one| count(one).context("cloc gives no count")).collect()
}

fn show(effort: &Effort) {
    outln!("{} by {}\n", effort.kernel, effort.counter);
    let mut parts = Table::new("part", ["lines", "licence"]).left(&[2]);
    for Part { part, lines, files, licence } in &effort.parts {
        parts.line(part, [lines.to_string(), (*licence).into()]);
        for (file, lines) in files {
            parts.line(format!("  {file}"), [lines.to_string(), String::new()]);
        }
    }
    parts.line("all", [effort.written.to_string(), String::new()]);
    let mut drivers = Table::new("driver", ["written", "kernel files", "kernel lines"]);
    for Driver { driver, written, kernel_files, kernel_lines } in &effort.drivers {
        let cells = [*written, *kernel_files as u64, *kernel_lines];
        drivers.line(format!("dde:{driver}"), cells);
    }
    let below = [effort.kernel_files.to_string(), effort.kernel_lines.to_string()];
    drivers.line("the kernel below them", [vec![String::new()], below.into()].concat());
    let mut others = Table::new("project", ["part", "lines", "source"]).left(&[1, 3]);
    for Other { project, part, lines, source } in effort.others {
        others.line(project, [*part, &lines.to_string(), source]);
    }
    let tables = [parts, drivers, others].map(|table| table.text());
    crate::output::write(format_args!("{}", tables.join("\n")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_files_and_not_the_sum() {
        let said = br#"{"header": {"cloc_version": "1.96"},
            "a.c": {"blank": 1, "comment": 2, "code": 3, "language": "C"}, "SUM": {"code": 3}}"#;
        assert_eq!(parse(said).unwrap(), BTreeMap::from([(PathBuf::from("a.c"), 3)]));
        assert!(parse(b" \n").unwrap().is_empty());
    }

    #[test]
    fn a_file_belongs_to_one_part() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let mut all: Vec<_> = PARTS
            .iter()
            .flat_map(|(part, _, places)| sources(&top, part, places).unwrap())
            .collect();
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!((all.len(), count > 40), (count, true));
    }

    #[test]
    fn every_file_below_dde_that_is_a_program_is_of_a_part() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let counted: Vec<_> = PARTS
            .iter()
            .flat_map(|(part, _, places)| sources(&top, part, places).unwrap())
            .collect();
        let mut folders = vec![top.join("dde")];
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                let code = path.extension().is_some_and(|extension| {
                    ["c", "S", "awk", "lds"].iter().any(|known| extension == *known)
                });
                if path.is_dir() {
                    folders.push(path);
                } else if code {
                    assert!(counted.contains(&path), "{}", path.display());
                }
            }
        }
    }

    #[test]
    fn the_thesis_parts_are_its_sum() {
        let thesis: Vec<u64> = OTHERS
            .iter()
            .filter(|other| other.project == "DDEKit-Linux")
            .map(|other| other.lines)
            .collect();
        assert_eq!(thesis[..5].iter().sum::<u64>(), thesis[5]);
    }
}
