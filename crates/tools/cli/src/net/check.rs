//! `ring3 net check`: the conformance suite, on any network card with a second one at the other end
//! of its cable.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use ring3_backend::Uri;
use ring3_conformance::net::{self as conformance, Options, Peer, Wire};

use super::target::Target;
use super::wire::Socket;
use crate::dde::Tools;
use crate::findings;
use crate::leave::Watch;

/// Arguments of `ring3 net check`.
#[derive(clap::Args)]
pub struct Args {
    /// The card: vfio:0000:01:00.0, uio:0000:01:00.0, vfio-user:PATH, sim:e1000,wire=cable/NAME or
    /// sim:virtio-net,wire=cable/NAME, or remote:PATH.
    #[arg(long, value_name = "URI")]
    device: Uri,
    /// The card at the other end of the cable. It can be any card that ring3 drives, and must be
    /// unused. Not needed for qtest: devices, whose other end is in this program.
    #[arg(long, value_name = "URI")]
    peer: Option<Uri>,
    #[command(flatten)]
    target: Target,
    /// Number of packets in the checks that send many.
    #[arg(
        long, default_value_t = 2000,
        value_parser = clap::value_parser!(u32).range(1..=100_000_000),
    )]
    packets: u32,
    /// Packets in flight in these checks, from 1 to 64. Use fewer for a card with little memory.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    burst: u32,
    /// Seconds to wait for a packet, from 1 to 3600.
    #[arg(
        long, value_name = "SECONDS", default_value_t = 20,
        value_parser = clap::value_parser!(u64).range(1..=3600),
    )]
    patience: u64,
    /// Print one JSON object for each check, and one for the result.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tools: Tools,
}

/// Runs the suite; the exit code says whether it passed.
pub fn run(args: &Args) -> Result<ExitCode> {
    let _watch = Watch::start()?;
    let socket = match &args.peer {
        Some(_) => None,
        // What is no card at all is told that, and not to name a second one.
        None => Some(
            Socket::new(&args.device)
                .or_else(|error| args.target.open(&args.device).and(Err(error)))?,
        ),
    };
    let (mut socket, device) = socket
        .map_or_else(|| (None, args.device.clone()), |(socket, device)| (Some(socket), device));
    let place = args.target.place_with(&device, &args.tools)?;
    let card = args.target.open(place.device())?;
    let other = args
        .peer
        .as_ref()
        .map(|peer| args.target.open(peer))
        .transpose()
        .context("the card at the other end")?;
    let mut peer = match (&other, &args.peer) {
        (Some(other), Some(name)) => Some(
            Peer::new(&**other, None)
                .with_context(|| format!("{name}: the card at the other end"))?,
        ),
        _ => None,
    };
    let wire: &mut dyn Wire = match (&mut peer, &mut socket) {
        (Some(peer), _) => peer,
        (None, Some(socket)) => socket,
        (None, None) => anyhow::bail!(
            "{}: nothing is at the other end of its cable: --peer names a card",
            args.device
        ),
    };
    let patience = Duration::from_secs(args.patience);
    let options =
        Options { packets: args.packets, burst: args.burst, patience, ..Options::default() };
    let report =
        conformance::run_with(&*card, wire, &options, |finding| findings::show(finding, args.json));
    let verdict = findings::conclude(&report, "card", args.json);
    drop(peer);
    drop(card);
    // Of a driver that fails when it closes its card, not all is well.
    let coverage = place.end()?;
    coverage
        .zip(args.tools.coverage())
        .map(|(coverage, path)| coverage.tell(path, args.json))
        .transpose()?;
    Ok(verdict)
}
