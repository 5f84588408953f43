//! `ring3 bench irq-delay`: how long an interrupt takes to a process.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use ring3_backend::OpenOptions;
use ring3_bench::disk::{Event, machine};
use ring3_bench::irq_delay::Card;
use ring3_bench::net::{Ask, Load, Sockets, User};
use ring3_bench::report::Measurement;
use ring3_bench::table::render_delays;

use super::cards::guest::{measure, peers, two_cards};
use super::cards::here::{address, tell};
use super::cards::stress::Competitor;
use super::cards::{Card as Model, Options, Task};
use super::udp_echo::ends;
use crate::job::Job;
use crate::leave;

/// Under what an interrupt comes: a name, and the niceness of a task that never sleeps.
const CONDITIONS: [(&str, Option<i32>); 5] = [
    ("irq-idle", None),
    ("irq-traffic", None),
    ("irq-minimal", Some(19)),
    ("irq-normal", Some(0)),
    ("irq-maximal", Some(-20)),
];
/// The one with traffic on the kernel's card meanwhile, in Mb/s.
const TRAFFIC: (&str, u32) = ("irq-traffic", 5);

/// Options of `ring3 bench irq-delay`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// Interrupts under each condition, from 10 to 10,000; 50 with --quick.
    #[arg(
        long, conflicts_with = "quick", default_value_t = 3000,
        value_parser = clap::value_parser!(u32).range(10..=10_000),
    )]
    runs: u32,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn runs(&self) -> u32 {
        if self.options.quick { 50 } else { self.runs }
    }
}

/// Measures, and writes report and figure.
pub fn run(args: &Args) -> Result<ExitCode> {
    leave::nothing_behind()?;
    let folder = tempfile::tempdir()?;
    let wires = peers(folder.path())?;
    let (options, rounds, runs) = (&args.options, args.options.rounds(), args.runs());
    let mut guest = two_cards("irq-delay", Model::E1000e, options, &wires);
    guest.instruction_shift = options.instructions().then_some(0);
    guest.time_limit = Duration::from_secs(300)
        + rounds * (Duration::from_secs(60) + runs * Duration::from_millis(60));
    let job = |first| Job::IrqDelay { runs, task: Task::new(options, first) };
    let report = measure("irq-delay", options, Model::E1000e, guest, &job)?;
    options.write(&report, true, render_delays)?;
    Ok(ExitCode::SUCCESS)
}

/// The rounds, in the guest.
pub fn here(runs: u32, task: &Task) -> Result<()> {
    let mut card = Card::open(ring3_backend::open(
        &task.device(0)?,
        OpenOptions { arena: 1 << 20, ..OpenOptions::default() },
    )?)?;
    address(task.interface(0)?, ends("kernel").here)?;
    tell(&Event::Begin(machine(task.instructions)))?;
    for round in task.first..=task.rounds {
        for (index, (name, nice)) in CONDITIONS.into_iter().enumerate() {
            let _competitor = nice.map(Competitor::start).transpose()?;
            let into = Measurement::new(round, name, "process");
            let id = round * CONDITIONS.len() as u32 + index as u32;
            let measured = if name == TRAFFIC.0 {
                with_traffic(id, || Ok(card.measure(runs, into)?))
            } else {
                Ok(card.measure(runs, into)?)
            };
            tell(&Event::Measured(measured.context(name)?))?;
        }
        let polled =
            card.measure_polled(runs, Measurement::new(round, "irq-idle", "process-polled"))?;
        tell(&Event::Measured(polled))?;
        tell(&Event::Round { round })?;
    }
    Ok(())
}

/// Does `work` while datagrams are echoed by way of the kernel's card; `id` is the load's number.
fn with_traffic<T>(id: u32, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let (ends, load, stop) = (ends("kernel"), Load::at(TRAFFIC.1), AtomicBool::new(false));
    let mut user = Sockets::open(ends.here, ends.peer)?;
    user.ask(&Ask::Begin(id, load))?;
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                user.work(&load, Duration::from_millis(100), &mut || {}, &mut || {})?;
            }
            user.ask(&Ask::Stop(id))
        });
        let done = work();
        stop.store(true, Ordering::Relaxed);
        echo.join()
            .map_err(|_| anyhow::anyhow!("the echo has panicked"))?
            .context("traffic on the kernel's card")?;
        done
    })
}
