//! `ring3 bench udp-echo`: UDP through a network card, its driver in the kernel, in the
//! application's process, and behind an interface.

mod here;

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use ring3_bench::disk::Event;
use ring3_bench::net::{Ask, Host, Load, PLACEMENTS, SWEEP, USUAL, Wire, ask_for};
use ring3_bench::plot::draw_echo;
use ring3_bench::report::{Measurement, Report};
use ring3_bench::table::{render_cpu, render_packets};
use ring3_lab::Guest;

use super::cards::guest::{self, INTERFACE, chosen, mac, measure, peers, two_cards};
use super::cards::{Card, Options, dpdk, null};
use super::guest::NAME;
use crate::leave;
use crate::run::net::Engine;

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
    /// A load: udp-64-out, udp-64-in, udp-64-echo-qd1, udp-1024-echo-at60 (Mb/s). May be repeated;
    /// without it, all of the figure.
    #[arg(long = "load", value_name = "NAME")]
    loads: Vec<Load>,
    /// A placement. May be repeated; without it, all but export-tap and export-vhost, which are
    /// export with one of its engines, export-vduse, export-adaptive (interrupts throttled as the
    /// traffic is), and dpdk (testpmd).
    #[arg(long = "placement", value_name = "NAME", value_parser = PLACEMENTS)]
    placements: Vec<String>,
    /// Be an interface that answers itself, of this name, until it is killed.
    #[arg(long, hide = true, value_name = "NAME")]
    null: Option<String>,
    /// The engine of that interface.
    #[arg(long, hide = true, value_enum, requires = "null", default_value = "auto")]
    engine: Engine,
    /// CPU at idle, and at 1, 10, 50 and 100 % of what the kernel's driver echoes, DPDK beside it,
    /// instead of costs and figure; writes net-cpu.json.
    #[arg(long, conflicts_with = "loads")]
    cpu: bool,
    #[command(flatten)]
    options: Options,
}

/// The placement that is no driver of anybody's kernel.
pub const DPDK: &str = "dpdk";
/// Before a question that this side asks the peer of ring3's card.
pub const ASK: &str = "ask ";
/// The number of a load, in a measurement of [`DPDK`].
pub const LOAD: &str = "load";

/// Of 40 Mb/s, which is about what the kernel's driver echoes at most on a processor of 62.5
/// million instructions a second: 0, 1, 10, 50 and 100 %.
const CPU_LOADS: [Load; 5] =
    [Load::IDLE, Load::at_kbit(400), Load::at(4), Load::at(20), Load::at(40)];
const CPU_PLACEMENTS: [&str; 6] =
    ["kernel", "process", "export", "export-tap", "export-vhost", DPDK];

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
        if self.cpu {
            return CPU_LOADS.to_vec();
        }
        let rates: &[u32] = if self.options.quick { &FEW } else { &SWEEP };
        let usual = Load::closed().into_iter().chain(rates.iter().map(|&mbit| Load::at(mbit)));
        if self.loads.is_empty() { usual.collect() } else { self.loads.clone() }
    }

    fn placements(&self) -> Vec<String> {
        let all = || PLACEMENTS[..USUAL].iter().map(|&name| name.into()).collect();
        if self.placements.is_empty() && self.cpu {
            return CPU_PLACEMENTS.map(str::to_owned).to_vec();
        }
        if self.placements.is_empty() { all() } else { self.placements.clone() }
    }
}

/// Measures, and writes report and figure.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(name) = &args.null {
        return null::run(name, args.engine);
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
    guest.time_limit = Duration::from_secs(300)
        + loads * (Duration::from_secs(3) + 6 * Duration::from_millis(args.millis()));
    let report = match args.cpu || args.placements().iter().any(|name| name == DPDK) {
        false => measure("udp-echo", &args.options, args.card, guest, &words(args))?,
        true => forwarded(args, dpdk::with(guest)?, &wires[1])?,
    };
    let (figure, table): (_, fn(&Report) -> String) = if args.cpu {
        (None, render_cpu)
    } else {
        (Some(draw_echo(std::slice::from_ref(&report))), render_packets)
    };
    args.options.write(&report, figure, table)?;
    Ok(ExitCode::SUCCESS)
}

/// With DPDK, which sends back all that it receives: the peer at the other end of its card's `wire`
/// is asked from here, when the guest says so.
fn forwarded(args: &Args, guest: Guest, wire: &Wire) -> Result<Report> {
    let card = Host { mac: mac(2), ip: ends(DPDK).here };
    let words = format!("udp-echo {}{}", words(args), if args.cpu { " --cpu" } else { "" });
    let command = |first| {
        format!("{NAME}{INTERFACE}{}{}", dpdk::ROOT, guest::here(&args.options, &words, first))
    };
    let name = if args.cpu { "net-cpu" } else { "udp-echo" };
    guest::run(name, &args.options, args.card, guest, &command, &|line| {
        if let Some(ask) = line.strip_prefix(ASK).and_then(|ask| serde_json::from_str(ask).ok()) {
            // Without an answer there is nothing to echo, which the figures show.
            let _ = ask_for(wire, card, &ask);
            return None;
        }
        let event = serde_json::from_str(line).ok()?;
        Some(match event {
            Event::Measured(measured) if measured.placement == DPDK => {
                Event::Measured(echoed(measured, wire, card))
            }
            event => event,
        })
    })
}

/// With what the peer has seen of the load.
fn echoed(mut measured: Measurement, wire: &Wire, card: Host) -> Measurement {
    let id = measured.values.remove(LOAD).unwrap_or_default() as u32;
    let load: Option<Load> = measured.workload.parse().ok();
    let Some(kbit) = load.and_then(|load| load.rate()) else { return measured };
    let Ok(tally) = ask_for(wire, card, &Ask::Tell(id)) else { return measured };
    let (kept, offered) =
        (tally.received.min(tally.sent) as f64 / tally.sent.max(1) as f64, f64::from(kbit) / 1e3);
    let measured = measured.with("offered_mbit_s", offered).with("mbit_s", offered * kept);
    measured.with("loss_percent", 100.0 * (1.0 - kept))
}

fn words(args: &Args) -> String {
    let loads = if args.cpu { Vec::new() } else { args.loads() };
    format!("--millis {}{}", args.millis(), chosen(&loads, &args.placements()))
}
