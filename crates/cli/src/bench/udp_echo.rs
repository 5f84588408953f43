//! `ring3 bench udp-echo`: UDP through a network card, its driver in the kernel, in the application's process, and behind an interface.

mod here;

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use ring3_bench::net::{Load, PLACEMENTS, SWEEP, USUAL};
use ring3_bench::plot::draw_echo;
use ring3_bench::table::render_packets;

use super::cards::guest::{measure, peers, two_cards};
use super::cards::{Card, Options, null};
use crate::leave;

/// Rates of the short form, in Mb/s.
const FEW: [u32; 2] = [10, 60];

/// Options of `ring3 bench udp-echo`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// The card in the guest.
    #[arg(long, value_enum, default_value = "e1000e")]
    card: Card,
    /// Milliseconds of a load, by the guest's clock; a second if it is not given.
    #[arg(long, conflicts_with = "quick", value_parser = clap::value_parser!(u64).range(10..=600_000))]
    millis: Option<u64>,
    /// A load: udp-64-out, udp-64-in, udp-64-echo-qd1, udp-1024-echo-at60 (Mb/s). May be repeated; without it, all of the figure.
    #[arg(long = "load", value_name = "NAME")]
    loads: Vec<Load>,
    /// A placement. May be repeated; without it, all but export-tap and export-vhost, which are export with one of its engines.
    #[arg(long = "placement", value_name = "NAME", value_parser = PLACEMENTS)]
    placements: Vec<String>,
    /// Be an interface that answers itself, of this name, until it is killed.
    #[arg(long, hide = true, value_name = "NAME")]
    null: Option<String>,
    #[command(flatten)]
    options: Options,
}

/// A host on a cable, and who is at its other end.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The host.
    pub here: Ipv4Addr,
    /// The peer.
    pub peer: Ipv4Addr,
}

/// Each placement is a network of its own.
pub fn ends(placement: &str) -> Ends {
    let net = PLACEMENTS.iter().position(|name| *name == placement).unwrap_or_default() as u8;
    Ends { here: Ipv4Addr::new(10, 9, net, 1), peer: Ipv4Addr::new(10, 9, net, 2) }
}

impl Args {
    fn millis(&self) -> u64 {
        if self.options.quick { 100 } else { self.millis.unwrap_or(1000) }
    }

    fn loads(&self) -> Vec<Load> {
        let rates: &[u32] = if self.options.quick { &FEW } else { &SWEEP };
        let usual = Load::closed().into_iter().chain(rates.iter().map(|&mbit| Load::at(mbit)));
        if self.loads.is_empty() { usual.collect() } else { self.loads.clone() }
    }

    fn placements(&self) -> Vec<String> {
        let all = || PLACEMENTS[..USUAL].iter().map(|&name| name.into()).collect();
        if self.placements.is_empty() { all() } else { self.placements.clone() }
    }
}

/// Measures, and writes report and figure.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(name) = &args.null {
        return null::run(name);
    }
    if args.options.here {
        return here::run(args).map(|()| ExitCode::SUCCESS);
    }
    if args.loads().iter().all(|load| load.rate().is_some()) && args.placements() == ["tap-null"] {
        bail!("tap-null has no rates: its peer would take the processor that is measured");
    }
    leave::nothing_behind()?;
    let folder = tempfile::tempdir()?;
    let wires = peers(folder.path())?;
    let mut guest = two_cards("udp-echo", args.card, &args.options, &wires);
    let loads = args.loads().len() as u32 * args.placements().len() as u32 * args.options.rounds();
    guest.time_limit = Duration::from_secs(300) + loads * (Duration::from_secs(3) + 6 * Duration::from_millis(args.millis()));
    let report = measure("udp-echo", &args.options, args.card, guest, &words(args))?;
    let figure = draw_echo(std::slice::from_ref(&report));
    args.options.write(&report, Some(figure), render_packets)?;
    Ok(ExitCode::SUCCESS)
}

fn words(args: &Args) -> String {
    let mut words = format!("--millis {}", args.millis());
    args.loads().iter().for_each(|load| words += &format!(" --load {load}"));
    args.placements().iter().for_each(|placement| words += &format!(" --placement {placement}"));
    words
}
