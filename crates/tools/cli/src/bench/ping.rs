//! `ring3 bench ping`: how long a ping takes beside a load, with a card's driver in the kernel and
//! behind an interface.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use ring3_bench::disk::Event;
use ring3_bench::net::{Beside, PING_PLACEMENTS, measure_ping};
use ring3_bench::report::{Measurement, Report};
use ring3_bench::table::render_pings;

use super::cards::guest::{self, INTERFACE, chosen, hosts, two_cards};
use super::cards::here::{Interface, address, host, network, rounds, tell};
use super::cards::{Card, Options};
use super::guest::NAME;
use super::ring3d;
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
    /// Milliseconds of a load, by the guest's clock; 2000 if it is not given.
    #[arg(long, conflicts_with = "quick", value_parser = clap::value_parser!(u64).range(100..=600_000))]
    millis: Option<u64>,
    /// What goes on beside the ping: idle, datagrams or streams. May be repeated; without it, the
    /// last two.
    #[arg(long = "load", value_name = "NAME")]
    loads: Vec<Beside>,
    /// A placement. May be repeated; without it, kernel, and export-tap and export-vduse with
    /// each priority of their threads, and export-tap-confined.
    #[arg(long = "placement", value_name = "NAME", value_parser = PING_PLACEMENTS)]
    placements: Vec<String>,
    /// A second kernel, for the same table; none measures --kernel alone.
    #[arg(long, value_name = "VERSION", default_value = "7.2")]
    and_kernel: String,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn millis(&self) -> u64 {
        if self.options.quick { 500 } else { self.millis.unwrap_or(2000) }
    }

    fn loads(&self) -> Vec<Beside> {
        // The clock of a guest that sleeps is the host's, so that a ping alone says little of the
        // guest.
        if self.loads.is_empty() {
            vec![Beside::Datagrams, Beside::Streams]
        } else {
            self.loads.clone()
        }
    }

    fn placements(&self) -> Vec<String> {
        let usual = || {
            PING_PLACEMENTS
                .iter()
                .filter(|name| !UNUSUAL.contains(name))
                .map(|name| (*name).to_owned())
                .collect()
        };
        if self.placements.is_empty() { usual() } else { self.placements.clone() }
    }
}

/// Measures, and writes a report for each kernel.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.options.here {
        return here(args).map(|()| ExitCode::SUCCESS);
    }
    leave::nothing_behind()?;
    let first = &args.options.kernel;
    let second = Some(&args.and_kernel).filter(|kernel| *kernel != "none" && *kernel != first);
    let reports = [first]
        .into_iter()
        .chain(second)
        .map(|kernel| on(args, kernel))
        .collect::<Result<Vec<_>>>()?;
    let text = if args.options.json {
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
    let (mut options, name) = (args.options.clone(), format!("ping-{kernel}"));
    kernel.clone_into(&mut options.kernel);
    let mut machine =
        two_cards(&name, args.card, &options, &wires).program(&ring3d::beside(ring3d::DRIVERS)?);
    let loads = (args.loads().len() * args.placements().len()) as u32 * options.rounds();
    machine.time_limit = Duration::from_secs(300)
        + loads * (Duration::from_secs(15) + 10 * Duration::from_millis(args.millis()));
    let words =
        format!("ping --millis {}{}", args.millis(), chosen(&args.loads(), &args.placements()));
    let command = |first| format!("{NAME}{INTERFACE}{}", guest::here(&options, &words, first));
    let report = guest::run(&name, &options, args.card, machine, &command, &|line| {
        serde_json::from_str(line).ok()
    })?;
    let path = options.out.join(format!("{name}.json"));
    fs::write(&path, serde_json::to_string_pretty(&report)? + "\n")
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(report)
}

/// The rounds, in the guest.
fn here(args: &Args) -> Result<()> {
    let card = args.options.interface.as_deref().context("no interface was named")?;
    address(card, host(network("kernel"), 1))?;
    rounds(&args.options, &args.placements(), &mut |round, placement| {
        let network = network(placement);
        let export = || Interface::export(&args.options, placement, host(network, 1));
        let interface = (placement != "kernel").then(export).transpose()?;
        let name = interface.as_ref().map_or(card, Interface::name);
        for beside in args.loads() {
            let before = dropped(name)?;
            let into = Measurement::new(round, beside, placement);
            let measured =
                measure_ping(beside, host(network, 2), Duration::from_millis(args.millis()), into)?;
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
