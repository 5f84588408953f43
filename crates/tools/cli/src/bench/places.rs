//! `ring3 bench places`: one device with its driver in the kernel, native, hosted and split, in one
//! table.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use ring3_bench::places::{self, render};
use ring3_bench::report::{Lab, Report};

use crate::report::list::PLACES;
use crate::report::parts::{Folder, Found};

/// Options of `ring3 bench places`.
#[derive(clap::Args)]
pub struct Args {
    /// Measure fewer and shorter rounds, as a trial.
    #[arg(long)]
    quick: bool,
    /// Folder for places.json, places.md and the parts that they are made of. Created if it is
    /// missing. Parts that are there already, of this program and these options, are not measured
    /// again.
    #[arg(long, default_value = "out/places")]
    out: PathBuf,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Measures what is missing, and writes report and table.
pub fn run(args: &Args) -> Result<ExitCode> {
    let folder = Folder::open(&args.out, args.quick)?;
    let found = folder.complete(&PLACES)?;
    let report = table(&found, args.quick);
    report.write(&args.out.join("places.json"))?;
    let path = args.out.join("places.md");
    fs::write(&path, render(&report, true))
        .with_context(|| format!("writing {}", path.display()))?;
    match args.json {
        true => outln!("{}", serde_json::to_string(&report)?),
        false => crate::output::write(format_args!("{}", render(&report, true))),
    }
    let whole = found.iter().all(|(_, reports)| reports.is_ok());
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The report of the table that the parts make.
pub fn table(found: &Found, quick: bool) -> Report {
    let parts: Vec<places::Part<'_>> = found
        .iter()
        .map(|(name, reports)| (*name, reports.as_deref().map_err(String::as_str)))
        .collect();
    let measured = found.iter().filter_map(|(_, reports)| reports.as_ref().ok()?.first());
    let first = measured.clone().find(|report| report.lab.kernel.contains('.'));
    let lab = first.map_or_else(Lab::default, |report| report.lab.clone());
    // The parts differ in their clocks and their devices, which the page of each says.
    let lab = Lab { mode: "instructions".into(), vcpus: 1, disk: String::new(), quick, ..lab };
    places::table(&parts, lab)
}
