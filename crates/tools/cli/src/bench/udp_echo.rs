//! `ring3 bench udp-echo`: UDP through a network card, its driver in the kernel, in the
//! application's process, and behind an interface.

mod here;

pub use here::run as here;

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use ring3_bench::disk::Event;
use ring3_bench::net::{Ask, Host, Load, PLACEMENTS, SWEEP, USUAL, Wire, ask_for};
use ring3_bench::report::{Measurement, Report};
use ring3_bench::table::{render_cpu, render_packets};
use ring3_lab::Guest;

use super::cards::guest::{self, INTERFACE, mac, measure, peers, two_cards, with_hosted};
use super::cards::{Card, Choice, Options, Study, dpdk};
use super::guest::NAME;
use crate::job::Job;
use crate::leave;

/// Rates of the short form, in Mb/s.
const FEW: [u32; 2] = [10, 60];

/// Options of `ring3 bench udp-echo`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// The card in the guest.
    #[arg(long, value_enum, default_value = "e1000e")]
    card: Card,
    /// Instead, measure the use of the processor at idle and at 1, 10, 50 and 100 % of the rate of
    /// the kernel's driver, beside DPDK. Writes net-cpu.json.
    #[arg(long, conflicts_with = "loads")]
    cpu: bool,
    #[command(flatten)]
    choice: Choice<Echo>,
}

/// What is measured.
#[derive(Clone)]
struct Echo;

impl Study for Echo {
    type Load = Load;
    const LOADS: &'static str = "udp-64-out, udp-64-in, udp-64-echo-qd1, or udp-1024-echo-atN \
        with N Mb/s. Default: all of the figure";
    const PLACEMENTS: &'static [&'static str] = &PLACEMENTS;
    const USUAL_PLACEMENTS: &'static str = "Default: all but export-tap and export-vhost (export \
        with one engine), export-vduse, export-adaptive (--throttle adaptive), dpdk (testpmd), and \
        hosted (Linux's driver, unmodified, in a process behind an interface)";
    const MILLIS: (u64, u64) = (1000, 100);

    fn loads(options: &Options) -> Vec<Load> {
        let rates: &[u32] = if options.quick { &FEW } else { &SWEEP };
        Load::closed().into_iter().chain(rates.iter().map(|&mbit| Load::at(mbit))).collect()
    }

    fn placements() -> Vec<&'static str> {
        PLACEMENTS[..USUAL].to_vec()
    }
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

/// What was chosen; with --cpu, what that is made of.
fn choice(args: &Args) -> Choice<Echo> {
    if args.cpu { args.choice.or(&CPU_LOADS, &CPU_PLACEMENTS) } else { args.choice.clone() }
}

/// Measures, and writes report and figure.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (choice, options) = (choice(args), &args.choice.options);
    let placements = choice.placements();
    if choice.loads().iter().all(|load| load.rate().is_some()) && placements == ["tap-null"] {
        bail!("tap-null has no rates: its peer would take the processor that is measured");
    }
    leave::nothing_behind()?;
    let folder = tempfile::tempdir()?;
    let wires = peers(folder.path())?;
    let guest = two_cards("udp-echo", args.card, options, &wires);
    let mut guest = with_hosted(guest, args.card, &placements)?;
    guest.time_limit = choice.time_limit(Duration::from_secs(300), Duration::from_secs(3));
    let job = |first| Job::UdpEcho(choice.task(first).of(args.card));
    let report = match args.cpu || placements.iter().any(|name| name == DPDK) {
        false => measure("udp-echo", options, args.card, guest, &job)?,
        true => forwarded(args, dpdk::with(guest)?, &wires[1], &job)?,
    };
    let table = if args.cpu { render_cpu } else { render_packets };
    options.write(&report, !args.cpu, table)?;
    Ok(ExitCode::SUCCESS)
}

/// With DPDK, which sends back all that it receives: the peer at the other end of its card's `wire`
/// is asked from here, when the guest says so.
fn forwarded(args: &Args, guest: Guest, wire: &Wire, job: &dyn Fn(u32) -> Job) -> Result<Report> {
    let card = Host { mac: mac(2), ip: ends(DPDK).here };
    let command = |first| Ok(format!("{NAME}{INTERFACE}{}{}", dpdk::ROOT, job(first).command()?));
    let name = if args.cpu { "net-cpu" } else { "udp-echo" };
    guest::run(name, &args.choice.options, args.card, guest, &command, &|line| {
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
