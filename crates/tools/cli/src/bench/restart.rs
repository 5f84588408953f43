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
    /// Number of drivers to kill, one per second, up to 100,000.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    kills: u32,
    /// Number of drivers to replace by an upgrade, up to 100,000.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    upgrades: u32,
    /// Requests in flight, from 1 to 1024.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    depth: u16,
    /// Depth of the disk's queue, from 2 to 1024. A larger --depth keeps all of its tags in flight.
    #[arg(
        long, default_value_t = 64, conflicts_with = "here",
        value_parser = clap::value_parser!(u16).range(2..=1024),
    )]
    tags: u16,
    /// Do 5 kills and 3 upgrades only, as a trial.
    #[arg(long, conflicts_with_all = ["kills", "upgrades"])]
    quick: bool,
    /// Measure everything that docs/bench.md reports on restarts: kernels, controllers, all tags in
    /// flight, databases. Skips what is already in the folder --out. Takes about an hour.
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
    /// A driver of Linux's, hosted in the process that is killed, such as dde:nvme. Built if
    /// necessary. It cannot be replaced without a fence, so there are no upgrades.
    #[arg(
        long, value_name = "dde:NAME", value_parser = hosted_driver,
        conflicts_with_all = ["here", "series", "adopt", "databases"],
    )]
    driver: Option<String>,
    /// The guest's kernel, by version prefix: 6.1, 6.12 or 7.2.
    #[arg(long, default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// Let ring3d expedite RCU while a driver is restarted. This affects the whole guest.
    #[arg(long)]
    expedited: bool,
    /// Let each driver adopt the running controller of the killed one, without a reset (`adopt =
    /// true` in the manifest).
    #[arg(long, conflicts_with = "here")]
    adopt: bool,
    /// Measure by instructions, on one processor of 125 million instructions per second. The load
    /// of this machine then does not affect the result.
    #[arg(long, conflicts_with_all = ["here", "databases"])]
    instructions: bool,
    /// Put ext4 on the disk and the load into a file, with fio's verification beside it. Runs fsck
    /// at the end.
    #[arg(long)]
    ext4: bool,
    /// Run PostgreSQL and sqlite on the disk instead, for 5 to 86,400 seconds, with kills at random
    /// times. Then run their own checks.
    #[arg(
        long, value_name = "SECONDS", conflicts_with_all = ["upgrades", "ext4", "here"],
        value_parser = clap::value_parser!(u32).range(5..=86_400),
    )]
    databases: Option<u32>,
    /// Before the load, measure for this time what ring3d and the driver consume while the disk is
    /// idle: from 1 to 86,400 seconds.
    #[arg(
        long, requires = "here", value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(1..=86_400),
    )]
    idle: Option<u32>,
    /// Folder for the report: restart.json, databases.json, or with --series restart-NAME.json.
    #[arg(long, default_value = "out")]
    out: PathBuf,
    /// Print the outcome as a JSON object.
    #[arg(long)]
    json: bool,
    /// Measure a device that a ring3d of this machine holds. --disk is overwritten.
    #[arg(long, requires_all = ["disk", "overwrite"])]
    here: bool,
    /// With --here: the block device, or a file on it.
    #[arg(long, requires = "here")]
    disk: Option<PathBuf>,
    /// With --here: allow the content of --disk to be overwritten.
    #[arg(long)]
    overwrite: bool,
    /// The device's name in ring3d's manifest.
    #[arg(long, default_value = "bench")]
    name: String,
    /// The socket of ring3d.
    #[arg(long, default_value = ring3_control::admin::SOCKET)]
    socket: PathBuf,
}

fn hosted_driver(text: &str) -> Result<String, String> {
    let name = text.strip_prefix("dde:").filter(|name| !name.is_empty());
    name.map(str::to_owned).ok_or_else(|| "a hosted driver is dde:NAME; `ring3 dde list`".into())
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
    let driver = outcome.driver.as_ref().unwrap_or(&outcome.controller);
    Ok(Report::of("restart", lab, (load, driver), outcome)?)
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
        let (kills, upgrades) = if self.quick { (5, 3) } else { (self.kills, self.upgrades) };
        (kills, if self.driver.is_some() { 0 } else { upgrades })
    }
}
