//! `ring3 bench instructions`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use ring3_backend::OpenOptions;
use ring3_bench::disk::machine;
use ring3_bench::instructions::{BATCHES, Scope, Subject, count, drive};
use ring3_bench::packets::{self, Card};
use ring3_bench::report::{Measurement, Report};
use ring3_bench::stats::Summary;
use ring3_bench::table::Table;
use ring3_driver::{Interrupts, ata, e1000, virtio};
use ring3_model::{Model, SimHandle};

use super::open::first_disk;
use crate::job::Job;

/// Reads of one count.
const READS: u64 = 3200;
/// Packets of one count.
const PACKETS: u64 = 3200;

/// Options of `ring3 bench instructions`.
#[derive(clap::Args)]
pub struct Args {
    /// How often each batch size is counted, from 1 to 100.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Write instructions.json into this folder.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Counts, and fails if what a user of the NVMe driver pays for a read is more than is wanted, in
/// batches of any size. What a packet costs in a card's driver is shown beside what is wanted of
/// it, and decides nothing.
pub fn run(args: &Args) -> Result<ExitCode> {
    let program =
        std::env::current_exe().context("finding this program, which runs under callgrind")?;
    let mut counts = Vec::new();
    for round in 1..=args.rounds {
        for (subject, (batch, _)) in
            Subject::ALL.into_iter().flat_map(|subject| BATCHES.map(|batch| (subject, batch)))
        {
            let words = Job::Drive { subject: subject.placement().into(), batch }.words()?;
            let mut counted = Measurement::new(round, workload(batch), subject.placement());
            for scope in Scope::ALL {
                let per_read = count(&program, &words, scope.functions())? as f64
                    / READS.next_multiple_of(batch.into()) as f64;
                counted = counted.with(scope.metric(), per_read);
            }
            counts.push(counted);
        }
        for card in Card::ALL {
            let words = Job::Drive { subject: card.placement().into(), batch: 32 }.words()?;
            let per_packet = count(&program, &words, &Card::FUNCTIONS)? as f64 / PACKETS as f64;
            let counted = Measurement::new(round, Card::WORKLOAD, card.placement());
            counts.push(counted.with(Scope::Driver.metric(), per_packet));
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
    if let Some(folder) = &args.out {
        report.write(&folder.join("instructions.json"))?;
    }
    if args.json {
        crate::output::write(format_args!("{}", report.text()?));
        return Ok(());
    }
    let spread = |counted: &Summary| format!("+-{:.1}", (counted.max - counted.min) / 2.0);
    let heads = ["all that a user pays", "", "wanted", "driver and class", "counts"];
    let mut reads = Table::new("instructions per 4 KiB read", heads);
    for (subject, (batch, wanted)) in
        Subject::ALL.into_iter().flat_map(|subject| BATCHES.map(|batch| (subject, batch)))
    {
        let (workload, placement) = (workload(batch), subject.placement());
        let [driver, user] =
            Scope::ALL.map(|scope| report.get(&workload, placement, scope.metric()));
        let (Some(driver), Some(user)) = (driver, user) else { continue };
        let wanted = if subject == Subject::Nvme { format!("{wanted:.0}") } else { "-".into() };
        let [paid, own] = [user, driver].map(|counted| format!("{:.1}", counted.median));
        let cells = [paid, spread(user), wanted, own, user.rounds.to_string()];
        reads.line(format!("{placement}, {workload}"), cells);
    }
    let heads = ["driver", "", "wanted", "counts"];
    let mut packets =
        Table::new("instructions per packet of 64 bytes, sent and received, by 32", heads);
    for card in Card::ALL {
        let counted = report.get(Card::WORKLOAD, card.placement(), Scope::Driver.metric());
        if let Some(counted) = counted {
            let [paid, wanted] = [counted.median, card.wanted()].map(|count| format!("{count:.1}"));
            let cells = [paid, spread(counted), wanted, counted.rounds.to_string()];
            packets.line(card.placement(), cells);
        }
    }
    crate::output::write(format_args!("{}\n{}", reads.text(), packets.text()));
    Ok(())
}

/// Drives what that subject is, and prints nothing.
pub fn drive_one(subject: &str, batch: u16) -> Result<()> {
    if let Some(card) = Card::named(subject) {
        return drive_card(card);
    }
    let disk = Subject::named(subject).with_context(|| format!("{subject} is no subject"))?;
    drive_simulated(disk, batch)
}

/// The driver over a simulated disk, which does its work only between submission and reaping.
fn drive_simulated(subject: Subject, batch: u16) -> Result<()> {
    if subject == Subject::Ahci {
        let device = ring3_model::ahci::open(&"sim:ahci".parse()?, OpenOptions::default())?;
        let handle = device.handle();
        let controller = ata::Controller::open(Arc::new(device), ata::Options::default())?;
        let disk = controller
            .members()
            .into_iter()
            .next()
            .context("the simulated controller has no drive")?
            .disk;
        return recorded(&handle, |work| drive(&*disk, subject, batch, READS, work));
    }
    let device = ring3_model::nvme::open(&"sim:nvme".parse()?, OpenOptions::default())?;
    let handle = device.handle();
    let disk = first_disk(Arc::new(device))?;
    recorded(&handle, |work| drive(&*disk, subject, batch, READS, work))
}

/// A card's driver over its model, which does its work only between what is provided and what is
/// returned.
fn drive_card(card: Card) -> Result<()> {
    let (uri, rounds) = (card.model().parse()?, PACKETS / packets::BATCH as u64);
    match card {
        Card::E1000 => {
            let device = ring3_model::e1000::open(&uri, OpenOptions::default())?;
            let handle = device.handle();
            let options = e1000::Options { interrupts: Interrupts::Polled, ..Default::default() };
            let nic = e1000::E1000::open(Arc::new(device), options)?;
            recorded(&handle, |work| packets::drive(&nic, rounds, work))
        }
        Card::VirtioSplit | Card::VirtioPacked => {
            let device = ring3_model::virtio::net::open(&uri, OpenOptions::default())?;
            let handle = device.handle();
            let options =
                virtio::net::Options { interrupts: Interrupts::Polled, ..Default::default() };
            let nic = virtio::net::Card::open(Arc::new(device), options)?;
            recorded(&handle, |work| packets::drive(&nic, rounds, work))
        }
    }
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
