//! `ring3 plot`: a report as a figure.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use ring3_bench::plot;
use ring3_bench::report::Report;

/// Options of `ring3 plot`.
#[derive(clap::Args)]
pub struct Args {
    /// Reports of one benchmark: what its `--json` prints, or the file that it writes. More than
    /// one are drawn in one figure.
    #[arg(required = true, value_name = "REPORT")]
    reports: Vec<PathBuf>,
    /// The figure, instead of standard output: SVG.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Draws.
pub fn run(args: &Args) -> Result<ExitCode> {
    let reports =
        args.reports.iter().map(|path| Report::read(path)).collect::<Result<Vec<_>, _>>()?;
    let mut kinds = reports.iter().map(|report| report.bench.split('-').next());
    let first = kinds.next();
    ensure!(
        kinds.all(|kind| Some(kind) == first),
        "these reports are of different benchmarks: draw each alone"
    );
    let figure = plot::draw(&reports)?;
    match &args.out {
        Some(path) => {
            fs::write(path, figure).with_context(|| format!("writing {}", path.display()))?;
        }
        None => crate::output::write(format_args!("{figure}")),
    }
    Ok(ExitCode::SUCCESS)
}
