//! `ring3 bench kill`: a claim that is held here, and drivers in processes of their own, which are
//! killed, or leave.

mod killer;
mod life;
mod served;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use ring3_backend::Uri;
use ring3_bench::disk::machine;
use ring3_bench::kill::{HandOvers, Outcome, Word};
use ring3_bench::report::Report;
use ring3_bench::table::render_figures;
use serde::Serialize;

use killer::Killer;
pub use life::live;
use served::{Served, serve};

/// Every so many kills, one meets a driver that starts.
const START: u32 = 8;

/// Options of `ring3 bench kill`.
#[derive(clap::Args)]
pub struct Args {
    /// The simulated device, as after sim: (docs/sim.md): nvme, ahci or ide. Without options of its
    /// own it has size=16M,delay=50us.
    #[arg(long, default_value = "nvme", conflicts_with = "device")]
    model: String,
    /// A device instead of a simulated one: vfio:0000:01:00.0 or vfio-user:PATH.
    #[arg(long, requires = "allowed")]
    device: Option<Uri>,
    /// With --device: allow the first 512 blocks of its first disk to be overwritten.
    #[arg(long, group = "allowed")]
    overwrite: bool,
    /// With --device: only read the first 512 blocks of its first disk, which must stay the same.
    #[arg(long, group = "allowed", conflicts_with = "hand_over")]
    read_only: bool,
    /// Do not kill drivers: each hands the disk over to the next one, with the requests in flight.
    #[arg(long)]
    hand_over: bool,
    /// Number of drivers to kill, from 1 to 1,000,000.
    #[arg(
        long, default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
    )]
    times: u32,
    /// Kill 50 drivers only, as a trial.
    #[arg(long, conflicts_with = "times")]
    quick: bool,
    /// Print the outcome as a JSON object.
    #[arg(long)]
    json: bool,
}

/// Kills drivers, and fails if a block was wrong.
pub fn run(args: &Args) -> Result<ExitCode> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Release)).context("taking signals")?;
    let folder = tempfile::tempdir().context("making a folder for the journal")?;
    let served = match &args.device {
        Some(uri) => Served {
            name: uri.to_string(),
            uri: uri.clone(),
            starts: Box::new(|| 0),
            _server: None,
        },
        None => serve(&args.model, &folder.path().join("socket"))?,
    };
    let mut killer = Killer::new(&served.uri, folder.path().join("journal"))?;
    killer.read_only = args.read_only;
    if args.overwrite {
        killer.clear()?;
    }
    let times = if args.quick { 50 } else { args.times };
    let (bar, mut done) = (progress(times), 0);
    let more = |done| done < times && !interrupted.load(Ordering::Acquire);
    if args.hand_over {
        let mut driver = killer.start(killer.claim.lease()?)?;
        killer.wait_for(&mut driver.0, Word::Underway)?;
        let (starts, mut in_flight) = ((served.starts)(), 0);
        while more(done) {
            in_flight += killer.hand_over(&mut driver)?;
            done += 1;
            bar.inc(1);
        }
        let resets = (served.starts)() - starts;
        killer.end(driver)?;
        // What the last one left is checked, too.
        killer.kill_one(false)?;
        bar.finish_and_clear();
        let outcome = HandOvers {
            model: served.name.clone(),
            hand_overs: done,
            in_flight,
            resets,
            ..HandOvers::default()
        };
        let outcome = killer.hand_overs(outcome)?;
        let verdict = if outcome.mismatches == 0 && outcome.resets == 0 {
            format!("passed: {done} hand-overs, 0 wrong blocks, 0 resets of the controller")
        } else {
            format!(
                "failed: {done} hand-overs, {} wrong blocks, {} resets of the controller",
                outcome.mismatches, outcome.resets
            )
        };
        let code = show(("hand-over", &served.name), &outcome, &verdict, args.json)?;
        return whole(code, done, times);
    }
    let mut outcome = Outcome { model: served.name.clone(), ..Outcome::default() };
    while more(done) {
        let at_start = done % START == START - 1;
        killer.kill_one(at_start)?;
        outcome.kills_at_start += u32::from(at_start);
        done += 1;
        bar.inc(1);
    }
    killer.kill_one(false)?;
    bar.finish_and_clear();
    let outcome = killer.outcome(Outcome { kills: done, ..outcome })?;
    let verdict = match outcome.mismatches {
        0 if args.read_only => format!(
            "passed: {done} drivers killed, every block was read as before ({} reads)",
            outcome.reads
        ),
        0 => format!(
            "passed: {done} drivers killed, every acknowledged write was read back ({} reads)",
            outcome.reads
        ),
        wrong => format!("failed: {done} drivers killed, {wrong} wrong blocks were read"),
    };
    let code = show(("kill", &served.name), &outcome, &verdict, args.json)?;
    whole(code, done, times)
}

/// `code`, unless fewer drivers came and went than were asked for.
fn whole(code: ExitCode, done: u32, times: u32) -> Result<ExitCode> {
    ensure!(done == times, "interrupted after {done} of {times}; what was said is of these");
    Ok(code)
}

fn progress(times: u32) -> ProgressBar {
    let bar = ProgressBar::new(times.into());
    let style =
        ProgressStyle::with_template("{bar:30} {pos} of {len} killed, {elapsed} left {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Prints it; no success if a block was wrong, or a controller that was handed over was reset.
fn show(
    whose: (&str, &str),
    outcome: &impl Serialize,
    verdict: &str,
    json: bool,
) -> Result<ExitCode> {
    let report = Report::of("kill", machine(false), whose, outcome)?;
    match json {
        true => outln!("{}", serde_json::to_string(&report)?),
        false => crate::output::write(format_args!("{}{verdict}\n", render_figures(&report))),
    }
    let wrong: &[&str] =
        if whose.0 == "kill" { &["mismatches"] } else { &["mismatches", "resets"] };
    let is_right = report.has_none_of(wrong);
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
