//! `ring3 bench instructions`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use ring3_backend::OpenOptions;
use ring3_bench::disk::machine;
use ring3_bench::instructions::{BATCHES, Scope, Subject, count, drive};
use ring3_bench::report::{Measurement, Report};
use ring3_driver::ata;
use ring3_model::{Model, SimHandle};

use super::open::first_disk;

/// Reads of one count.
const READS: u64 = 3200;

/// Options of `ring3 bench instructions`.
#[derive(clap::Args)]
pub struct Args {
    /// Counts of each batch size.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Write instructions.json into this folder.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
    /// Put this many reads at a time through the driver and print nothing: what runs under callgrind.
    #[arg(long, hide = true)]
    drive: Option<u16>,
    /// The driver that is meant.
    #[arg(long, hide = true, default_value = "process")]
    subject: String,
}

/// Counts, and fails if what a user of the NVMe driver pays for a read is more than is wanted, in batches of any size.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(batch) = args.drive {
        let subject = Subject::named(&args.subject).with_context(|| format!("{} is no subject", args.subject))?;
        return drive_simulated(subject, batch).map(|()| ExitCode::SUCCESS);
    }
    let program = std::env::current_exe().context("finding this program, which runs under callgrind")?;
    let mut counts = Vec::new();
    for round in 1..=args.rounds {
        for (subject, (batch, _)) in Subject::ALL.into_iter().flat_map(|subject| BATCHES.map(|batch| (subject, batch))) {
            let words =
                ["bench", "instructions", "--drive", &batch.to_string(), "--subject", subject.placement()].map(str::to_owned);
            let mut counted = Measurement::new(round, workload(batch), subject.placement());
            for scope in Scope::ALL {
                let per_read = count(&program, &words, scope)? as f64 / READS.next_multiple_of(batch.into()) as f64;
                counted = counted.with(scope.metric(), per_read);
            }
            counts.push(counted);
        }
    }
    let report = Report::new("instructions", machine(true), &counts);
    show(&report, args)?;
    let reached = |&(batch, wanted): &(u16, f64)| {
        let paid = report.get(&workload(batch), Subject::Nvme.placement(), Scope::User.metric());
        paid.is_some_and(|paid| paid.max <= wanted)
    };
    if BATCHES.iter().all(reached) {
        return Ok(ExitCode::SUCCESS);
    }
    errln!("ring3: a read costs the user of the NVMe driver more than is wanted");
    Ok(ExitCode::FAILURE)
}

fn workload(batch: u16) -> String {
    format!("read-4k-batch{batch}")
}

fn show(report: &Report, args: &Args) -> Result<()> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    if let Some(folder) = &args.out {
        let path = folder.join("instructions.json");
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, &text))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if args.json {
        crate::output::write(format_args!("{text}"));
        return Ok(());
    }
    outln!("instructions per 4 KiB read: all that a user pays, what is wanted of that, and the share of driver and class:");
    for (subject, (batch, wanted)) in Subject::ALL.into_iter().flat_map(|subject| BATCHES.map(|batch| (subject, batch))) {
        let (workload, placement) = (workload(batch), subject.placement());
        let [driver, user] = Scope::ALL.map(|scope| report.get(&workload, placement, scope.metric()));
        let (Some(driver), Some(user)) = (driver, user) else { continue };
        let wanted = if subject == Subject::Nvme { format!("{wanted:.0}") } else { "-".into() };
        outln!(
            "  {placement:<15} {workload:<16} {:6.1} {wanted:>5} {:6.1}  (+-{:.1} in {} counts)",
            user.median,
            driver.median,
            (user.max - user.min) / 2.0,
            user.rounds
        );
    }
    Ok(())
}

/// The driver over a simulated disk, which does its work only between submission and reaping.
fn drive_simulated(subject: Subject, batch: u16) -> Result<()> {
    if subject == Subject::Ahci {
        let device = ring3_model::ahci::open(&"sim:ahci".parse()?, OpenOptions::default())?;
        let handle = device.handle();
        let controller = ata::Controller::open(Arc::new(device), ata::Options::default())?;
        let disk = controller.members().into_iter().next().context("the simulated controller has no drive")?.disk;
        return recorded(&handle, |work| drive(&*disk, subject, batch, READS, work));
    }
    let device = ring3_model::nvme::open(&"sim:nvme".parse()?, OpenOptions::default())?;
    let handle = device.handle();
    let disk = first_disk(Arc::new(device))?;
    recorded(&handle, |work| drive(&*disk, subject, batch, READS, work))
}

fn recorded<M: Model>(
    handle: &SimHandle<M>,
    drive: impl FnOnce(&mut dyn FnMut()) -> Result<(), ring3_bench::Error>,
) -> Result<()> {
    handle.record(true);
    let driven = drive(&mut || {
        handle.pump();
    });
    handle.record(false);
    Ok(driven?)
}
