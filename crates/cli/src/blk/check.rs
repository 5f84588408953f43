//! `ring3 blk check`: the conformance suite, on any disk.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use ring3_conformance::block::{self as conformance, Finding, Options, Verdict};
use serde_json::json;

use super::target::Target;

/// Arguments of `ring3 blk check`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Say that the content of the disk may be lost: the suite writes all over it.
    #[arg(long)]
    destroy: bool,
    /// Requests of the checks that keep many in flight.
    #[arg(long, default_value_t = 2000)]
    requests: u32,
    /// Requests in flight of these.
    #[arg(long, default_value_t = 32)]
    depth: u16,
    /// Seconds to wait for one answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    /// Print one JSON object for each check, and one with the result.
    #[arg(long)]
    json: bool,
}

/// Bytes of the arena for the suite's buffers.
const BUFFERS: usize = 64 << 20;
/// Queues of the check that uses several.
const QUEUES: u16 = 4;

/// Runs the suite; the exit code says whether it passed.
pub fn run(args: &Args) -> Result<ExitCode> {
    if !args.destroy {
        bail!("the suite destroys the content of the disk: add --destroy if that is meant");
    }
    let disk = args.target.open(QUEUES, BUFFERS)?;
    let options =
        Options { requests: args.requests, depth: args.depth.max(1), patience: Duration::from_secs(args.patience.max(1)) };
    let show = |finding: &Finding| if args.json { outln!("{}", line(finding)) } else { outln!("{finding}") };
    let report = conformance::run_with(&*disk, &options, show);
    let (failed, all) = (report.failures().count(), report.findings.len());
    match args.json {
        true => outln!("{}", json!({ "disk": report.subject, "checks": all, "failed": failed, "skipped": report.skipped() })),
        false => outln!("{}", report.summary()),
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn line(finding: &Finding) -> serde_json::Value {
    let (verdict, detail) = match &finding.verdict {
        Verdict::Passed => ("passed", None),
        Verdict::Failed(what) => ("failed", Some(what)),
        Verdict::Skipped(why) => ("skipped", Some(why)),
    };
    json!({ "check": finding.name, "verdict": verdict, "detail": detail, "ms": finding.took.as_millis() as u64 })
}
