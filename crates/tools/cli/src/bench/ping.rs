//! `ring3 bench ping`: how long a ping takes beside a load, with a card's driver in the kernel and
//! behind an interface.

use std::fs;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use ring3_bench::disk::Event;
use ring3_bench::net::{Beside, PING_PLACEMENTS, measure_ping};
use ring3_bench::report::{Measurement, Report};
use ring3_bench::table::render_pings;

use super::cards::guest::{hosts, measure, two_cards};
use super::cards::here::{Interface, address, host, network, rounds, tell};
use super::cards::{Card, Choice, Options, Study, Task};
use super::ring3d;
use crate::job::Job;
use crate::leave;

/// Placements that nobody gets without asking: each queue of theirs chooses by the load, or as the
/// TAP does.
const UNUSUAL: [&str; 2] = ["export", "export-vhost"];

/// Options of `ring3 bench ping`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// The card in the guest.
    #[arg(long, value_enum, default_value = "e1000e")]
    card: Card,
    /// A second kernel for the same table, by version prefix. none measures --kernel alone.
    #[arg(long, value_name = "VERSION", default_value = "7.2")]
    and_kernel: String,
    #[command(flatten)]
    choice: Choice<Ping>,
}

/// What is measured.
#[derive(Clone)]
struct Ping;

impl Study for Ping {
    type Load = Beside;
    const LOADS: &'static str =
        "The load beside the ping: idle, datagrams or streams. Default: datagrams and streams";
    const PLACEMENTS: &'static [&'static str] = &PING_PLACEMENTS;
    const USUAL_PLACEMENTS: &'static str = "Default: kernel, export-tap and export-vduse with each \
        priority of their threads, and export-tap-confined";
    const MILLIS: (u64, u64) = (2000, 500);
    const LIMITS: RangeInclusive<u64> = 100..=600_000;

    fn loads(_: &Options) -> Vec<Beside> {
        // The clock of a guest that sleeps is the host's, so that a ping alone says little of the
        // guest.
        vec![Beside::Datagrams, Beside::Streams]
    }

    fn placements() -> Vec<&'static str> {
        PING_PLACEMENTS.into_iter().filter(|name| !UNUSUAL.contains(name)).collect()
    }
}

/// Measures, and writes a report for each kernel.
pub fn run(args: &Args) -> Result<ExitCode> {
    leave::nothing_behind()?;
    let first = &args.choice.options.kernel;
    let second = Some(&args.and_kernel).filter(|kernel| *kernel != "none" && *kernel != first);
    let reports = [first]
        .into_iter()
        .chain(second)
        .map(|kernel| on(args, kernel))
        .collect::<Result<Vec<_>>>()?;
    let text = if args.choice.options.json {
        serde_json::to_string_pretty(&reports)? + "\n"
    } else {
        render_pings(&reports)
    };
    crate::output::write(format_args!("{text}"));
    Ok(ExitCode::SUCCESS)
}

/// On one kernel; writes ping-KERNEL.json.
fn on(args: &Args, kernel: &str) -> Result<Report> {
    let folder = tempfile::tempdir()?;
    let wires = hosts(folder.path())?;
    let (mut options, name) = (args.choice.options.clone(), format!("ping-{kernel}"));
    kernel.clone_into(&mut options.kernel);
    let mut machine =
        two_cards(&name, args.card, &options, &wires).program(&ring3d::beside(ring3d::DRIVERS)?);
    machine.time_limit = args.choice.time_limit(Duration::from_secs(300), Duration::from_secs(15));
    let job = |first| Job::Ping(args.choice.task(first));
    let report = measure(&name, &options, args.card, machine, &job)?;
    let path = options.out.join(format!("{name}.json"));
    report.write(&path)?;
    Ok(report)
}

/// The rounds, in the guest.
pub fn here(task: &Task) -> Result<()> {
    let (card, loads) = (task.interface(0)?, task.loads::<Beside>()?);
    address(card, host(network("kernel"), 1))?;
    rounds(task, &mut |round, placement| {
        let network = network(placement);
        let export = || Interface::export(task, placement, host(network, 1));
        let interface = (placement != "kernel").then(export).transpose()?;
        let name = interface.as_ref().map_or(card, Interface::name);
        for &beside in &loads {
            let before = dropped(name)?;
            let into = Measurement::new(round, beside, placement);
            let measured =
                measure_ping(beside, host(network, 2), Duration::from_millis(task.millis), into)?;
            let measured = measured.with("interface_dropped", (dropped(name)? - before) as f64);
            tell(&Event::Measured(measured))?;
        }
        Ok(())
    })
}

/// Packets that an interface has not sent. [sysfs-class-net-statistics]
fn dropped(interface: &str) -> Result<u64> {
    let path = format!("/sys/class/net/{interface}/statistics/tx_dropped");
    fs::read_to_string(&path).context(path.clone())?.trim().parse().context(path)
}
