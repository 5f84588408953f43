//! How the papers' figures look, in files and on a terminal.

use ring3_bench::disk::leslie::SECTORS;
use ring3_bench::disk::{Target, call_targets, targets};
use ring3_bench::report::Report;
use ring3_bench::table::{render_sizes, render_steps, render_work};
use ring3_bench::workload::Workload;

use super::campaign::Look;

/// Sizes of the table: powers of two.
const SHOWN: [u32; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// Sizes, and the figure's targets below the table.
pub const CURVES: Look = show_curves;

/// Steps of a request, and what it takes.
pub const STEPS: Look = show_steps;

/// The distribution of work.
pub const WORK: Look = render_work;

fn show_curves(report: &Report) -> String {
    let sectors: Vec<u32> = SECTORS.into_iter().filter(|size| measured(report, *size)).collect();
    let shown: Vec<u32> = sectors.iter().copied().filter(|size| SHOWN.contains(size)).collect();
    render_sizes(report, &shown) + &lines(&targets(report, &sectors))
}

fn show_steps(report: &Report) -> String {
    render_steps(report) + &lines(&call_targets(report))
}

fn lines(targets: &[Target]) -> String {
    targets.iter().fold("\n".to_owned(), |text, target| format!("{text}{target}\n"))
}

fn measured(report: &Report, sectors: u32) -> bool {
    let load = Workload::reading(sectors).to_string();
    report.rows.iter().any(|row| row.workload == load)
}
