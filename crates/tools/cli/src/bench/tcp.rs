//! `ring3 bench tcp`: bytes per instruction of TCP in pieces of 64 KiB, with a card's driver in the
//! kernel and behind an interface.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use ring3_bench::disk::Event;
use ring3_bench::net::{STREAM_PLACEMENTS, STREAM_USUAL, Way, measure_stream};
use ring3_bench::report::Measurement;
use ring3_bench::table::render_streams;

use super::cards::guest::{hosts, measure, two_cards, with_hosted};
use super::cards::here::{Interface, address, host, method, network, rounds, tell};
use super::cards::{Card, Choice, Options, Study, Task};
use crate::job::Job;
use crate::leave;
use crate::run::net::Engine;

/// Options of `ring3 bench tcp`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// The card in the guest.
    #[arg(long, value_enum, default_value = "e1000e")]
    card: Card,
    #[command(flatten)]
    choice: Choice<Tcp>,
}

/// What is measured.
#[derive(Clone)]
struct Tcp;

impl Study for Tcp {
    type Load = Way;
    const LOADS: &'static str = "tcp-64k-out or tcp-64k-in. Default: both";
    const PLACEMENTS: &'static [&'static str] = &STREAM_PLACEMENTS;
    const USUAL_PLACEMENTS: &'static str = "Default: all but hosted (Linux's driver, unmodified, \
        in a process)";
    const MILLIS: (u64, u64) = (500, 100);

    fn loads(_: &Options) -> Vec<Way> {
        Way::ALL.to_vec()
    }

    fn placements() -> Vec<&'static str> {
        STREAM_PLACEMENTS[..STREAM_USUAL].to_vec()
    }
}

/// Measures, and writes report and figure.
pub fn run(args: &Args) -> Result<ExitCode> {
    leave::nothing_behind()?;
    let folder = tempfile::tempdir()?;
    let wires = hosts(folder.path())?;
    let (choice, options) = (&args.choice, &args.choice.options);
    let guest = two_cards("tcp", args.card, options, &wires);
    let mut guest = with_hosted(guest, args.card, &choice.placements())?;
    guest.time_limit = choice.time_limit(Duration::from_secs(300), Duration::from_secs(10));
    let report = measure("tcp", options, args.card, guest, &|first| {
        Job::Tcp(choice.task(first).of(args.card))
    })?;
    options.write(&report, true, render_streams)?;
    Ok(ExitCode::SUCCESS)
}

/// Up to which round trip the kernel makes segments as long as it can, as a power of two in
/// microseconds: a slow processor's would be short otherwise, and those of who is slower shorter.
/// [Linux ip-sysctl, tcp_tso_rtt_log]
const LONG_SEGMENTS: (&str, &str) = ("/proc/sys/net/ipv4/tcp_tso_rtt_log", "20");

/// The rounds, in the guest.
pub fn here(task: &Task) -> Result<()> {
    fs::write(LONG_SEGMENTS.0, LONG_SEGMENTS.1).context(LONG_SEGMENTS.0)?;
    let (method, loads) = (method(task)?, task.loads::<Way>()?);
    address(task.interface(0)?, host(network("kernel"), 1))?;
    rounds(task, &mut |round, placement| {
        let network = network(placement);
        let _interface = match placement {
            "kernel" => None,
            "tap-null" => Some(Interface::null(Engine::Tap, host(network, 1))?),
            "vhost-null" => Some(Interface::null(Engine::Vhost, host(network, 1))?),
            _ => Some(Interface::export(task, placement, host(network, 1))?),
        };
        let suits = |way: &&Way| **way == Way::Out || !placement.ends_with("-null");
        for &way in loads.iter().filter(suits) {
            let into = Measurement::new(round, way, placement);
            let measured = measure_stream(way, host(network, 2), &method, into)?;
            tell(&Event::Measured(measured))?;
        }
        Ok(())
    })
}
