//! `ring3 bench restart`: a supervised disk whose driver is killed, and replaced, under a load that
//! checks itself.

mod databases;
mod guest;
mod here;
mod series;
mod supervised;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use ring3_bench::disk::machine;
use ring3_bench::report::{Lab, Report};
use ring3_bench::restart::{Databases, Outcome};
use ring3_bench::table::render_figures;
use ring3_lab::DEFAULT_KERNEL;

use crate::leave;

pub use supervised::Supervised;

/// Options of `ring3 bench restart`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// Drivers to kill, one a second.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    kills: u32,
    /// Drivers to replace by a hand-over.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    upgrades: u32,
    /// Requests in flight.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Requests that the disk takes from the kernel at once: the depth of its export. A larger
    /// `--depth` keeps all of them in flight.
    #[arg(
        long, default_value_t = 64, conflicts_with = "here",
        value_parser = clap::value_parser!(u16).range(2..=1024),
    )]
    tags: u16,
    /// 5 kills and 3 upgrades.
    #[arg(long, conflicts_with_all = ["kills", "upgrades"])]
    quick: bool,
    /// All that docs/bench.md says of restarts, one after the other: kernels, controllers, every
    /// tag in flight, databases. What is in the folder already is not measured again.
    #[arg(
        long,
        conflicts_with_all = [
            "kills", "upgrades", "depth", "tags", "controller", "kernel", "expedited", "adopt",
            "instructions", "ext4", "databases", "here",
        ],
    )]
    series: bool,
    /// The controller in the guest.
    #[arg(long, value_enum, default_value = "nvme")]
    controller: Controller,
    /// The guest's kernel, by version prefix.
    #[arg(long, default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// Have the supervisor expedite RCU, which belongs to the whole system, while a driver is
    /// restarted.
    #[arg(long)]
    expedited: bool,
    /// Have each driver adopt the controller of the one that was killed, without a reset:
    /// `[restart] adopt = true`.
    #[arg(long, conflicts_with = "here")]
    adopt: bool,
    /// Measure by the instruction clock: one processor of 125 million instructions a second, to
    /// which no other load of this machine counts.
    #[arg(long, conflicts_with_all = ["here", "databases"])]
    instructions: bool,
    /// Put ext4 on the disk, the load into a file of it, and fio's verification beside that; fsck
    /// at the end.
    #[arg(long)]
    ext4: bool,
    /// Instead: run PostgreSQL and sqlite on the disk for so many seconds, with kills at random
    /// times, then their own checks.
    #[arg(
        long, value_name = "SECONDS", conflicts_with_all = ["upgrades", "ext4", "here"],
        value_parser = clap::value_parser!(u32).range(5..=86_400),
    )]
    databases: Option<u32>,
    /// Before the load: watch for so many seconds what the supervisor and the driver take while
    /// nobody uses the disk.
    #[arg(
        long, requires = "here", value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(1..=86_400),
    )]
    idle: Option<u32>,
    /// Folder for restart.json; databases.json; those of the series are called restart-NAME.json.
    #[arg(long, default_value = "out")]
    out: PathBuf,
    /// Print the outcome as a JSON object.
    #[arg(long)]
    json: bool,
    /// Measure a device that a supervisor on this machine has; `--disk` is overwritten.
    #[arg(long, requires_all = ["disk", "overwrite"])]
    here: bool,
    /// The block device, or a file on it.
    #[arg(long, requires = "here")]
    disk: Option<PathBuf>,
    /// What is on it may be lost.
    #[arg(long)]
    overwrite: bool,
    /// What the supervisor's manifest calls the device.
    #[arg(long, default_value = "bench")]
    name: String,
    /// Where the supervisor listens.
    #[arg(long, default_value = ring3_control::admin::SOCKET)]
    socket: PathBuf,
}

/// What the supervised controller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Controller {
    /// NVMe.
    Nvme,
    /// Serial ATA.
    Ahci,
}

impl Controller {
    fn name(self) -> &'static str {
        match self {
            Self::Nvme => "nvme",
            Self::Ahci => "ahci",
        }
    }
}

/// The report of a load that checks itself.
fn of_load(outcome: &Outcome, lab: Lab) -> Result<Report> {
    let load = if outcome.ext4 { "ext4" } else { "disk" };
    Ok(Report::of("restart", lab, (load, &outcome.controller), outcome)?)
}

/// What the report of databases is called.
const DATABASES: &str = "restart-databases";

/// The report of databases.
fn of_databases(databases: &Databases, lab: Lab) -> Result<Report> {
    Ok(Report::of(DATABASES, lab, ("databases", "nvme"), databases)?)
}

/// Whether nobody has seen an error, nor anything wrong. A database that has lost something has
/// ended the run.
fn is_right(report: &Report) -> bool {
    match report.bench.as_str() {
        DATABASES => report.has_none_of(&["errors"]),
        _ => report.has_none_of(&["errors", "mismatches"]),
    }
}

/// Measures, and fails if a request failed or a block was wrong.
pub fn run(args: &Args) -> Result<ExitCode> {
    leave::nothing_behind()?;
    if args.series {
        return series::run(args);
    }
    let report = measure(args)?;
    if !args.here {
        let name = if args.databases.is_some() { "databases.json" } else { "restart.json" };
        report.write(&args.out.join(name))?;
    }
    match args.json {
        true => outln!("{}", serde_json::to_string(&report)?),
        false => crate::output::write(format_args!("{}", render_figures(&report))),
    }
    Ok(if is_right(&report) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(args: &Args) -> Result<Report> {
    match args.databases {
        Some(seconds) => databases::measure(args, seconds),
        None if args.here => of_load(&here::measure(args)?, machine(false)),
        None => guest::measure(args),
    }
}

impl Args {
    fn counts(&self) -> (u32, u32) {
        if self.quick { (5, 3) } else { (self.kills, self.upgrades) }
    }
}
