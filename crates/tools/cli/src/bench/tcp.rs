//! `ring3 bench tcp`: bytes per instruction of TCP in pieces of 64 KiB, with a card's driver in the
//! kernel and behind an interface.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use ring3_bench::disk::Event;
use ring3_bench::net::{STREAM_PLACEMENTS, Way, measure_stream};
use ring3_bench::plot::draw_streams;
use ring3_bench::report::Measurement;
use ring3_bench::table::render_streams;

use super::cards::guest::{chosen, hosts, measure, two_cards};
use super::cards::here::{Interface, NAME, address, host, method, network, rounds, tell};
use super::cards::{Card, Options};
use crate::leave;

/// Options of `ring3 bench tcp`.
#[derive(Clone, clap::Args)]
pub struct Args {
    /// The card in the guest.
    #[arg(long, value_enum, default_value = "e1000e")]
    card: Card,
    /// Milliseconds of a load, by the guest's clock; 500 if it is not given.
    #[arg(long, conflicts_with = "quick", value_parser = clap::value_parser!(u64).range(10..=600_000))]
    millis: Option<u64>,
    /// A load: tcp-64k-out or tcp-64k-in. May be repeated; without it, both.
    #[arg(long = "load", value_name = "NAME")]
    loads: Vec<Way>,
    /// A placement. May be repeated; without it, all.
    #[arg(long = "placement", value_name = "NAME", value_parser = STREAM_PLACEMENTS)]
    placements: Vec<String>,
    #[command(flatten)]
    options: Options,
}

impl Args {
    fn millis(&self) -> u64 {
        if self.options.quick { 100 } else { self.millis.unwrap_or(500) }
    }

    fn loads(&self) -> Vec<Way> {
        if self.loads.is_empty() { Way::ALL.to_vec() } else { self.loads.clone() }
    }

    fn placements(&self) -> Vec<String> {
        let all = || STREAM_PLACEMENTS.map(str::to_owned).to_vec();
        if self.placements.is_empty() { all() } else { self.placements.clone() }
    }
}

/// Measures, and writes report and figure.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.options.here {
        return here(args).map(|()| ExitCode::SUCCESS);
    }
    leave::nothing_behind()?;
    let folder = tempfile::tempdir()?;
    let wires = hosts(folder.path())?;
    let mut guest = two_cards("tcp", args.card, &args.options, &wires);
    let loads = (args.loads().len() * args.placements().len()) as u32 * args.options.rounds();
    guest.time_limit = Duration::from_secs(300)
        + loads * (Duration::from_secs(10) + 10 * Duration::from_millis(args.millis()));
    let words = format!("--millis {}{}", args.millis(), chosen(&args.loads(), &args.placements()));
    let report = measure("tcp", &args.options, args.card, guest, &words)?;
    args.options.write(&report, Some(draw_streams(&report)), render_streams)?;
    Ok(ExitCode::SUCCESS)
}

/// Up to which round trip the kernel makes segments as long as it can, as a power of two in
/// microseconds: a slow processor's would be short otherwise, and those of who is slower shorter.
/// [Linux ip-sysctl, tcp_tso_rtt_log]
const LONG_SEGMENTS: (&str, &str) = ("/proc/sys/net/ipv4/tcp_tso_rtt_log", "20");

/// The rounds, in the guest.
fn here(args: &Args) -> Result<()> {
    fs::write(LONG_SEGMENTS.0, LONG_SEGMENTS.1).context(LONG_SEGMENTS.0)?;
    let method = method(&args.options, args.millis())?;
    if let Some(interface) = &args.options.interface {
        address(interface, host(network("kernel"), 1))?;
    }
    rounds(&args.options, &args.placements(), &mut |round, placement| {
        let network = network(placement);
        let null = |engine| {
            Interface::start(
                &["bench", "udp-echo", "--null", NAME, "--engine", engine],
                host(network, 1),
            )
        };
        let _interface = match placement {
            "kernel" => None,
            "tap-null" => Some(null("tap")?),
            "vhost-null" => Some(null("vhost")?),
            _ => Some(Interface::export(&args.options, placement, host(network, 1))?),
        };
        for way in
            args.loads().into_iter().filter(|way| *way == Way::Out || !placement.ends_with("-null"))
        {
            let measured = measure_stream(
                way,
                host(network, 2),
                &method,
                Measurement::new(round, way, placement),
            )?;
            tell(&Event::Measured(measured))?;
        }
        Ok(())
    })
}
