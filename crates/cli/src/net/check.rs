//! `ring3 net check`: the conformance suite, on any network card with a second one at the other end of its cable.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use ring3_backend::Uri;
use ring3_conformance::net::{self as conformance, Options, Peer};

use super::target::Target;
use crate::findings;

/// Arguments of `ring3 net check`.
#[derive(clap::Args)]
pub struct Args {
    /// The card: vfio:0000:01:00.0, uio:0000:01:00.0, vfio-user:PATH, sim:e1000,wire=cable/NAME or sim:virtio-net,wire=cable/NAME, or remote:PATH.
    #[arg(long, value_name = "URI")]
    device: Uri,
    /// The card at the other end of its cable, which nobody else may use: of any kind that ring3 drives.
    #[arg(long, value_name = "URI")]
    peer: Uri,
    #[command(flatten)]
    target: Target,
    /// Packets of the checks that send many.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    packets: u32,
    /// Seconds to wait for a packet.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
    /// Print one JSON object for each check, and one with the result.
    #[arg(long)]
    json: bool,
}

/// Runs the suite; the exit code says whether it passed.
pub fn run(args: &Args) -> Result<ExitCode> {
    let card = args.target.open(&args.device)?;
    let other = args.target.open(&args.peer).context("the card at the other end")?;
    let mut peer = Peer::new(&*other, None).with_context(|| format!("{}: the card at the other end", args.peer))?;
    let options = Options { packets: args.packets, patience: Duration::from_secs(args.patience), ..Options::default() };
    let report = conformance::run_with(&*card, &mut peer, &options, |finding| findings::show(finding, args.json));
    Ok(findings::conclude(&report, "card", args.json))
}
