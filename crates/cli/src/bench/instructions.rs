//! `ring3 bench instructions`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use ring3_backend::OpenOptions;
use ring3_bench::disk::machine;
use ring3_bench::instructions::{BATCHES, Scope, TARGET, count, drive};
use ring3_bench::report::{Measurement, Report};

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
}

/// Counts, and fails if a batch of 32 costs more per read in driver and class than the target.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(batch) = args.drive {
        return drive_simulated(batch).map(|()| ExitCode::SUCCESS);
    }
    let program = std::env::current_exe().context("finding this program, which runs under callgrind")?;
    let mut counts = Vec::new();
    for round in 1..=args.rounds {
        for batch in BATCHES {
            let words = ["bench", "instructions", "--drive", &batch.to_string()].map(str::to_owned);
            let mut counted = Measurement::new(round, format!("read-4k-batch{batch}"), "process");
            for scope in Scope::ALL {
                let per_read = count(&program, &words, scope)? as f64 / READS.next_multiple_of(batch.into()) as f64;
                counted = counted.with(scope.metric(), per_read);
            }
            counts.push(counted);
        }
    }
    let report = Report::new("instructions", machine(true), &counts);
    show(&report, args)?;
    let worst = report.get("read-4k-batch32", "process", "instructions_per_op").map_or(f64::MAX, |summary| summary.max);
    Ok(if worst <= TARGET { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
    outln!(
        "instructions per 4 KiB read: in driver and class (at most {TARGET:.0} wanted in batches of 32); and all that a user pays,"
    );
    outln!("the building of the request and the taking back of its buffer included:");
    for batch in BATCHES {
        let workload = format!("read-4k-batch{batch}");
        let [driver, user] = Scope::ALL.map(|scope| report.get(&workload, "process", scope.metric()));
        let (Some(driver), Some(user)) = (driver, user) else { continue };
        outln!(
            "  {workload:<16} {:6.1} {:6.1}  (+-{:.1} in {} counts)",
            driver.median,
            user.median,
            (user.max - user.min) / 2.0,
            user.rounds
        );
    }
    Ok(())
}

/// The driver over a simulated disk, which does its work only between submission and reaping.
fn drive_simulated(batch: u16) -> Result<()> {
    let device = ring3_model::nvme::open(&"sim:nvme".parse()?, OpenOptions::default())?;
    let handle = device.handle();
    let disk = first_disk(Arc::new(device))?;
    handle.record(true);
    let driven = drive(&*disk, batch, READS, &mut || {
        handle.pump();
    });
    handle.record(false);
    Ok(driven?)
}
