//! `ring3 plot`: a report as a figure.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use ring3_bench::plot;
use ring3_bench::report::Report;

/// Options of `ring3 plot`.
#[derive(clap::Args)]
pub struct Args {
    /// Reports of one benchmark: the file that it writes, or the output of its --json. Several
    /// reports are drawn in one figure.
    #[arg(required = true, value_name = "REPORT")]
    reports: Vec<PathBuf>,
    /// The SVG file to write. Default: standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Draws.
pub fn run(args: &Args) -> Result<ExitCode> {
    let reports = args.reports.iter().map(|path| Report::read_all(path));
    let reports = reports.collect::<Result<Vec<_>, _>>()?.concat();
    let kinds: BTreeSet<_> = reports.iter().map(|report| plot::kind(&report.bench)).collect();
    ensure!(
        kinds.len() < 2,
        "these reports are of different benchmarks ({}): draw each alone",
        kinds.into_iter().collect::<Vec<_>>().join(", ")
    );
    // Names of a report may be anything, and not all of that is a character of XML.
    let figure = crate::output::visible(format_args!("{}", plot::draw(&reports)?));
    match &args.out {
        Some(path) => {
            fs::write(path, figure).with_context(|| format!("writing {}", path.display()))?;
        }
        None => crate::output::write(format_args!("{figure}")),
    }
    Ok(ExitCode::SUCCESS)
}
