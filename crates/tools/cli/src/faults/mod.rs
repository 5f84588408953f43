//! `ring3 faults`: thousands of faults in drivers, on models that outlive them, and hundreds in a
//! guest.

mod bench;
mod campaign;
mod guest;
mod holder;
mod hunt;
mod kept;
mod lane;
pub mod life;
mod lone;
mod show;
mod trial;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use ring3_faults::{Kind, Report, Spec};
use ring3_lab::DEFAULT_KERNEL;

use campaign::Campaign;
pub use guest::in_guest;

/// Faults, unless it is said; and of a quick campaign.
const COUNT: u64 = 20_000;
const QUICK: u64 = 300;

/// Options of `ring3 faults`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Number of faults of the whole campaign. Default: 20000, or 300 with --guest.
    #[arg(long)]
    count: Option<u64>,
    /// Seed. Each fault depends on the seed and its own number alone.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Inject 300 faults only, or 24 with --guest, as a trial.
    #[arg(long, conflicts_with = "count")]
    quick: bool,
    /// Boot a guest, and inject faults into the sandboxed drivers of its ring3d, under fio's
    /// verification. The disks are NVMe and AHCI by turns. Faults of devices (registers, dma,
    /// device) are left out.
    #[arg(long, conflicts_with_all = ["shard", "jobs", "out", "ring3d", "record"])]
    guest: bool,
    /// Use Linux's drivers in processes, dde:nvme and dde:ahci. They are built if necessary.
    #[arg(long, requires = "guest")]
    hosted: bool,
    /// The guest's kernel, by version prefix: 6.1, 6.12 or 7.2.
    #[arg(long, requires = "guest", default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// Do one part of the campaign only: 3/8 is the third part of eight.
    #[arg(long, default_value = "1/1", value_name = "I/N")]
    shard: Shard,
    /// Inject this kind only: kill, stop, memory, code, registers, dma, device, no-memory,
    /// no-descriptors or protocol.
    #[arg(long)]
    only: Option<Kind>,
    /// Drivers at the same time, from 1 to 256. Default: six per processor, because a driver that
    /// hangs needs no processor.
    #[arg(long)]
    jobs: Option<usize>,
    /// Keep the results in this file, and continue from it if it exists.
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Write the report of this part into this folder, for `ring3 faults merge`.
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Percentage of drivers whose devices ring3d holds, with a standby for each. This command
    /// holds the others. Default: 50 for root, else 0, because only root can make ring3d's
    /// sandboxes.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    ring3d: Option<u8>,
    /// Inject this one fault, and print everything that happened.
    #[arg(long, value_name = "SEED:INDEX")]
    reproduce: Option<Fault>,
    /// With --reproduce of a device's fault: record one driver of that device into this file, for
    /// `ring3 replay`.
    #[arg(long, value_name = "FILE", requires = "reproduce")]
    record: Option<PathBuf>,
    #[command(flatten)]
    form: show::Form,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Merge the reports of a campaign's parts.
    Merge {
        /// Reports that --out or --resume wrote.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        form: show::Form,
    },
    /// Drive one faulty device in one thread, and check the data.
    ///
    /// One thread and one device, so that the run can be recorded and replayed.
    Lone(lone::Args),
    /// Run drivers against thousands of simulated devices that lie.
    Hunt(hunt::Args),
}

/// `I/N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub number: u64,
    pub of: u64,
}

impl FromStr for Shard {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text
            .split_once('/')
            .and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        let sound = |(number, of): &(u64, u64)| (1..=*of).contains(number);
        parts
            .filter(sound)
            .map(|(number, of)| Self { number, of })
            .ok_or_else(|| "I/N, with I from 1 to N".into())
    }
}

/// `SEED:INDEX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault(u64, u64);

impl FromStr for Fault {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text
            .split_once(':')
            .and_then(|(seed, index)| Some(Self(seed.parse().ok()?, index.parse().ok()?)));
        parts.ok_or_else(|| "SEED:INDEX, as a report has it".into())
    }
}

/// Injects faults; no success if something was seen that must not be.
pub fn run(args: &Args) -> Result<ExitCode> {
    crate::bench::begin();
    match &args.command {
        Some(Command::Merge { files, form }) => return merge(files, *form),
        Some(Command::Lone(args)) => return lone::run(args),
        Some(Command::Hunt(args)) => return hunt::run(args),
        None => {}
    }
    if let Some(kind) = args.only.filter(|kind| args.guest && !kind.is_outer()) {
        bail!(
            "{kind} is a fault of a device's own, and those of a guest are QEMU's: leave --guest \
            out"
        );
    }
    if let Some(Fault(seed, index)) = args.reproduce {
        return match &args.record {
            None if args.guest => guest::reproduce(
                Spec::in_guest(seed, index, args.only),
                args.kernel.clone(),
                args.hosted,
            ),
            Some(file) => hunt::record(seed, index, args.only, file),
            None => campaign::reproduce(
                seed,
                index,
                args.only,
                args.ring3d.is_some_and(|percent| percent > 0),
            ),
        };
    }
    let (usual, quick) = if args.guest { (guest::COUNT, guest::QUICK) } else { (COUNT, QUICK) };
    let count = args.count.unwrap_or(if args.quick { quick } else { usual });
    ensure!(
        count >= args.shard.of,
        "--count {count} is too small: each of the {} parts of --shard takes one fault at least",
        args.shard.of
    );
    let mut new = Report::new(args.seed, count, args.only, args.shard.of);
    if args.guest {
        (new.guest, new.hosted) = (Some(args.kernel.clone()), args.hosted);
        return guest::run(new, args.resume.clone(), args.form);
    }
    let jobs = args
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from) * 6);
    ensure!((1..=256).contains(&jobs), "--jobs is from 1 to 256");
    let is_root = rustix::process::geteuid().is_root();
    let ring3d = args.ring3d.unwrap_or(if is_root { 50 } else { 0 });
    if !is_root && args.ring3d.is_none() {
        errln!("without root no driver runs under ring3d, so that all faults are in drivers alone");
    }
    let campaign = Campaign::new(new, args.shard, jobs, ring3d.into(), args.resume.clone())?;
    let (report, interrupted) = campaign.run()?;
    if let Some(folder) = &args.out {
        std::fs::create_dir_all(folder)?;
        report.write(
            &folder.join(format!("faults-{}-of-{}.json", args.shard.number, args.shard.of)),
        )?;
    }
    let code = show::show(&report, args.form)?;
    if interrupted {
        let done = report.total().injected;
        match &args.resume {
            Some(file) => bail!(
                "interrupted after {done} faults, which are kept in {}: the same command goes on",
                file.display()
            ),
            None => bail!(
                "interrupted after {done} faults, which are not kept: with --resume FILE they are"
            ),
        }
    }
    Ok(code)
}

fn merge(files: &[PathBuf], form: show::Form) -> Result<ExitCode> {
    let (first, others) = files.split_first().ok_or_else(|| anyhow::anyhow!("no reports"))?;
    let mut report = Report::read(first)?;
    for file in others {
        let other = Report::read(file)?;
        report.merge(&other, &file.display().to_string())?;
    }
    let missing =
        (1..=report.shards).filter(|shard| !report.done.contains_key(shard)).collect::<Vec<_>>();
    let code = show::show(&report, form)?;
    ensure!(missing.is_empty(), "of {} parts, these are missing: {missing:?}", report.shards);
    let injected = report.total().injected;
    ensure!(
        injected == report.count,
        "a part is not at its end: {injected} of {} faults; go on with it by --resume",
        report.count
    );
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_one_of_several() {
        assert_eq!("3/8".parse(), Ok(Shard { number: 3, of: 8 }));
        assert!(
            ["0/8", "9/8", "1", "1/0", "a/b"].iter().all(|text| text.parse::<Shard>().is_err())
        );
        assert_eq!("7:19".parse(), Ok(Fault(7, 19)));
    }
}
