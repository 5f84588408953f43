//! `ring3 bench restart`: a supervised disk whose driver is killed, and replaced, under a load that
//! checks itself.

mod databases;
mod guest;
mod here;
mod series;
mod supervised;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use ring3_bench::disk::machine;
use ring3_bench::report::{Lab, Report};
use ring3_bench::restart::{Databases, Outcome};
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
    #[arg(long, default_value_t = 64, conflicts_with = "here", value_parser = clap::value_parser!(u16).range(2..=1024))]
    tags: u16,
    /// 5 kills and 3 upgrades.
    #[arg(long, conflicts_with_all = ["kills", "upgrades"])]
    quick: bool,
    /// All that docs/bench.md says of restarts, one after the other: kernels, controllers, every
    /// tag in flight, databases. What is in the folder already is not measured again.
    #[arg(long, conflicts_with_all = ["kills", "upgrades", "depth", "tags", "controller", "kernel", "expedited", "adopt", "instructions", "ext4", "databases", "here"])]
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
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["upgrades", "ext4", "here"], value_parser = clap::value_parser!(u32).range(5..=86_400))]
    databases: Option<u32>,
    /// Before the load: watch for so many seconds what the supervisor and the driver take while
    /// nobody uses the disk.
    #[arg(long, requires = "here", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
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

/// What one run has shown, in words and as a report.
struct Found {
    report: Report,
    figures: Figures,
}

/// What is in a report of this benchmark.
enum Figures {
    Load(Box<Outcome>),
    Databases(Databases),
}

impl Found {
    fn load(outcome: Outcome, lab: Lab) -> Result<Self> {
        let load = if outcome.ext4 { "ext4" } else { "disk" };
        let report = Report::of("restart", lab, (load, &outcome.controller), &outcome)?;
        Ok(Self { report, figures: Figures::Load(outcome.into()) })
    }

    fn databases(databases: Databases, lab: Lab) -> Result<Self> {
        let report = Report::of("restart-databases", lab, ("databases", "nvme"), &databases)?;
        Ok(Self { report, figures: Figures::Databases(databases) })
    }

    /// What an earlier run has written.
    fn read(path: &Path, databases: bool) -> Option<Self> {
        let report = Report::read(path).ok()?;
        let figures = match databases {
            true => Figures::Databases(report.own().ok()?),
            false => Figures::Load(report.own().ok()?),
        };
        Some(Self { report, figures })
    }

    /// Whether nobody has seen an error, nor anything wrong.
    fn is_right(&self) -> bool {
        match &self.figures {
            Figures::Load(outcome) => (outcome.errors, outcome.mismatches) == (0, 0),
            // A database that has lost something has ended the run.
            Figures::Databases(databases) => databases.errors == 0,
        }
    }

    fn show(&self) {
        match &self.figures {
            Figures::Load(outcome) => show(outcome),
            Figures::Databases(databases) => databases::show(databases),
        }
    }
}

/// Measures, and fails if a request failed or a block was wrong.
pub fn run(args: &Args) -> Result<ExitCode> {
    leave::nothing_behind()?;
    if args.series {
        return series::run(args);
    }
    let found = measure(args)?;
    if !args.here {
        let name = if args.databases.is_some() { "databases.json" } else { "restart.json" };
        found.report.write(&args.out.join(name))?;
    }
    if args.json {
        outln!("{}", serde_json::to_string(&found.report)?)
    } else {
        found.show()
    }
    Ok(if found.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(args: &Args) -> Result<Found> {
    match args.databases {
        Some(seconds) => databases::measure(args, seconds),
        None if args.here => Found::load(here::measure(args)?, machine(false)),
        None => guest::measure(args),
    }
}

impl Args {
    fn counts(&self) -> (u32, u32) {
        if self.quick { (5, 3) } else { (self.kills, self.upgrades) }
    }
}

fn show(outcome: &Outcome) {
    let Outcome { controller, kernel, depth, kills, upgrades, errors, mismatches, .. } = outcome;
    outln!(
        "{controller} on Linux {kernel}, {depth} requests in flight: {kills} drivers killed, \
        {upgrades} replaced"
    );
    outln!("{errors} requests failed, {mismatches} blocks were wrong");
    if *kills > 0 {
        let [p50, p99, max] = [outcome.outage_ms_p50, outcome.outage_ms_p99, outcome.outage_ms_max];
        outln!(
            "from a kill to the first request that ended after it: p50 {p50:.1} ms, p99 {p99:.1} \
            ms, longest {max:.1} ms"
        );
        let [fence, driver, export] =
            [outcome.fence_ms_p50, outcome.driver_ms_p50, outcome.export_ms_p50];
        outln!(
            "{} of them adopted; from the supervisor's seeing it, p50: fenced {fence:.1} ms, \
            driver ready {driver:.1} ms, export given back {export:.1} ms",
            outcome.adopted
        );
    }
    if let (Some(calm), Some(killed), Some(ratio)) =
        (outcome.iops, outcome.iops_killed, outcome.iops_ratio)
    {
        outln!(
            "{:.0} requests a second undisturbed, {:.0} with a kill each second: {:.1} %",
            calm.median,
            killed.median,
            ratio * 100.0
        );
    }
    if let (Some(mib), Some(supervisor), Some(driver)) =
        (outcome.supervisor_mib, outcome.supervisor_idle_percent, outcome.driver_idle_percent)
    {
        outln!(
            "the supervisor has {mib:.1} MiB; of a processor, idle, it takes {supervisor:.2} % and \
            the driver {driver:.2} %"
        );
    }
    if *upgrades > 0 {
        let [p50, p99, max] =
            [outcome.upgrade_ms_p50, outcome.upgrade_ms_p99, outcome.upgrade_ms_max];
        outln!(
            "nothing ended during a replacement for: p50 {p50:.1} ms, p99 {p99:.1} ms, longest \
            {max:.1} ms"
        );
    }
}
