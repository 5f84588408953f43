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

use killer::Killer;
pub use life::live;
use served::{Served, serve};

/// Every so many kills, one meets a driver that starts.
const START: u32 = 8;

/// Options of `ring3 bench kill`.
#[derive(clap::Args)]
pub struct Args {
    /// The model: nvme, ahci or ide, with size=16M,delay=50us; or with options of your own, as
    /// behind sim:.
    #[arg(long, default_value = "nvme", conflicts_with = "device")]
    model: String,
    /// A device instead of a model, by vfio: or vfio-user:.
    #[arg(long, requires = "overwrite")]
    device: Option<Uri>,
    /// The first 512 blocks of that device's first disk may be overwritten.
    #[arg(long)]
    overwrite: bool,
    /// Instead of killing them, let drivers leave the disk to the next one, with what is in flight.
    #[arg(long)]
    hand_over: bool,
    /// Drivers to kill.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    times: u32,
    /// Kill 50 drivers only.
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
    if args.device.is_some() {
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
        let code = show_hand_overs(&killer.hand_overs(outcome)?, args.json)?;
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
    let code = show(&killer.outcome(Outcome { kills: done, ..outcome })?, args.json)?;
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

fn show(outcome: &Outcome, json: bool) -> Result<ExitCode> {
    if json {
        let report = Report::of("kill", machine(false), ("kill", &outcome.model), outcome)?;
        outln!("{}", serde_json::to_string(&report)?);
    } else {
        let Outcome { model, kills, kills_at_start, writes, reads, mismatches, .. } = outcome;
        outln!("{model}: {kills} drivers killed, {kills_at_start} of them while they started");
        outln!("{writes} writes acknowledged, {reads} blocks read and right, {mismatches} wrong");
        let [p50, p99, max] =
            [outcome.recovery_ms_p50, outcome.recovery_ms_p99, outcome.recovery_ms_max];
        outln!(
            "from a kill to the next driver's first request done: p50 {p50:.1} ms, p99 {p99:.1} \
            ms, longest {max:.1} ms"
        );
        let Outcome { fence_ms_p50, fence_ms_max, function_resets, .. } = outcome;
        outln!(
            "of that, the fence: p50 {fence_ms_p50:.2} ms, longest {fence_ms_max:.2} ms, \
            {function_resets} by a function reset"
        );
    }
    Ok(if outcome.mismatches == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show_hand_overs(outcome: &HandOvers, json: bool) -> Result<ExitCode> {
    if json {
        let whose = ("hand-over", &outcome.model[..]);
        let report = Report::of("kill", machine(false), whose, outcome)?;
        outln!("{}", serde_json::to_string(&report)?);
    } else {
        let HandOvers { model, hand_overs, in_flight, writes, reads, mismatches, resets, .. } =
            outcome;
        outln!(
            "{model}: {hand_overs} drivers left it to the next one, with {in_flight} requests in \
            flight; {resets} resets"
        );
        outln!("{writes} writes acknowledged, {reads} blocks read and right, {mismatches} wrong");
        let [p50, p99, max] = [outcome.stall_ms_p50, outcome.stall_ms_p99, outcome.stall_ms_max];
        outln!(
            "from the last request that one has seen end to the first of the next: p50 {p50:.1} \
            ms, p99 {p99:.1} ms, longest {max:.1} ms"
        );
    }
    Ok(if (outcome.mismatches, outcome.resets) == (0, 0) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
