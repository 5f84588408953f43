//! `ring3 blk check`: the conformance suite, on any disk.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use ring3_conformance::block::{self as conformance, Options};

use super::target::Target;
use crate::dde::{Hosted, Name, Tools};
use crate::findings;

/// Arguments of `ring3 blk check`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// The disk's driver: dde:nvme, a driver of Linux in a separate process. It is built if
    /// necessary. Default: ring3's own driver.
    #[arg(long, value_name = "dde:NAME")]
    driver: Option<Name>,
    /// Confirm that the content of the disk may be lost. The suite writes everywhere on the disk.
    #[arg(long)]
    destroy: bool,
    /// Run only the checks that read, which change nothing. They need no --destroy. Nobody may
    /// write to the disk meanwhile.
    #[arg(long, conflicts_with = "destroy")]
    read_only: bool,
    /// Number of requests in the checks that keep many in flight.
    #[arg(
        long, default_value_t = 2000,
        value_parser = clap::value_parser!(u32).range(1..=100_000_000),
    )]
    requests: u32,
    /// Requests in flight in these checks.
    #[arg(long, default_value_t = 32)]
    depth: u16,
    /// Seconds to wait for one request, from 1 to 3600.
    #[arg(
        long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=3600),
    )]
    patience: u64,
    /// Print one JSON object for each check, and one for the result.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tools: Tools,
}

/// Bytes of the arena for the suite's buffers.
const BUFFERS: usize = 64 << 20;
/// Queues of the check that uses several.
const QUEUES: u16 = 4;

/// Runs the suite; the exit code says whether it passed.
pub fn run(args: &Args) -> Result<ExitCode> {
    if !args.destroy && !args.read_only {
        bail!(
            "the suite destroys the content of the disk: add --destroy if that is meant, or \
            --read-only for the checks that only read"
        );
    }
    let mut target = args.target.clone();
    let hosted = args.driver.as_ref().map(|name| target.hosted(name, &args.tools)).transpose()?;
    let disk = target.open(QUEUES, BUFFERS)?;
    let options = Options {
        requests: args.requests,
        depth: args.depth.max(1),
        patience: Duration::from_secs(args.patience),
    };
    let show = |finding: &_| findings::show(finding, args.json);
    let report = match args.read_only {
        true => conformance::run_reading(&*disk, &options, show),
        false => conformance::run_with(&*disk, &options, show),
    };
    let verdict = findings::conclude(&report, "disk", args.json);
    drop(disk);
    // Of a driver that fails when it lets go of its disk, not all is well.
    let coverage = hosted.map(Hosted::end).transpose()?.flatten();
    coverage
        .zip(args.tools.coverage())
        .map(|(coverage, path)| coverage.tell(path, args.json))
        .transpose()?;
    Ok(verdict)
}
