//! The measurement itself, on the machine that has the device.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ring3_bench::cpu::{process_time, resident_memory};
use ring3_bench::restart::{Load, Outcome, Seen, outages, percentile, stalls};
use ring3_bench::stats::Summary;
use ring3_control::status::Outage;

use super::Args;
use super::supervised::{Supervised, supervisor_of};

/// Bytes of the disk that are used: a quarter of the guest's disk, and small enough to be read
/// back.
const REGION: u64 = 64 << 20;

/// Between two kills.
const KILL: Duration = Duration::from_secs(1);
/// Between two hand-overs, from the end of one to the next.
const UPGRADE: Duration = Duration::from_millis(300);

/// Kills of a round; each is followed by as long a round without any.
const ROUND: u32 = 10;

/// What all rounds have shown so far.
#[derive(Default)]
struct Sums {
    errors: u64,
    mismatches: u64,
    longest_ms: f64,
    calm: Vec<f64>,
    killed: Vec<f64>,
    outages: Vec<f64>,
    upgrades: Vec<f64>,
    records: Vec<Outage>,
}

impl Sums {
    fn add(&mut self, seen: &Seen) {
        self.errors += seen.errors;
        self.mismatches += seen.mismatches;
        self.longest_ms = self.longest_ms.max(seen.longest_ms);
    }
}

/// Measures the device that `args` name.
pub fn measure(args: &Args) -> Result<Outcome> {
    let disk = args.disk.as_deref().context("which disk? --disk /dev/ring3/NAME")?;
    let mut device = Supervised::connect(&args.socket, &args.name)?;
    let idle = args
        .idle
        .map(|seconds| idle(&mut device, Duration::from_secs(seconds.into())))
        .transpose()?
        .unwrap_or_default();
    let mut load = Load::open(disk, args.depth, REGION)?;
    let ((kills, upgrades), mut sums) = (args.counts(), Sums::default());
    let mut left = kills;
    while left > 0 {
        let count = left.min(ROUND);
        let seen = load.beside(|| {
            std::thread::sleep(KILL * count);
            anyhow::Ok(())
        })?;
        sums.calm.push(seen.0.iops());
        sums.add(&seen.0);
        let (seen, times) =
            load.beside(|| kill_each_second(&mut device, count, &mut sums.records))?;
        sums.killed.push(seen.iops());
        sums.outages.extend(outages(&seen.pauses, &times));
        sums.add(&seen);
        left -= count;
        errln!("{} of {kills} killed", kills - left);
    }
    if upgrades > 0 {
        let (seen, times) = load.beside(|| upgrade_each(&mut device, upgrades))?;
        sums.upgrades.extend(stalls(&seen.pauses, &times));
        sums.add(&seen);
        errln!("{upgrades} replaced");
    }
    sums.add(&load.check()?);
    let [supervisor_idle_percent, driver_idle_percent] = idle.percent;
    Ok(Outcome {
        supervisor_mib: idle.mib,
        supervisor_idle_percent,
        driver_idle_percent,
        ..outcome(args, (kills, upgrades), sums)
    })
}

/// What supervision takes while there is nothing to do.
#[derive(Default)]
struct Idle {
    mib: Option<f64>,
    /// Of the supervisor, and of the driver.
    percent: [Option<f64>; 2],
}

fn idle(device: &mut Supervised, time: Duration) -> Result<Idle> {
    let driver = device.ready(0)?.pid;
    let supervisor = supervisor_of(driver);
    let processes = [supervisor, Some(driver)];
    // What the start has left to do is done before.
    std::thread::sleep(Duration::from_secs(2));
    let (before, start) = (processes.map(|pid| process_time(pid?)), Instant::now());
    std::thread::sleep(time);
    let (after, elapsed) = (processes.map(|pid| process_time(pid?)), start.elapsed());
    let percent = |at: usize| {
        Some(100.0 * after[at]?.saturating_sub(before[at]?).as_secs_f64() / elapsed.as_secs_f64())
    };
    let mib = supervisor.and_then(resident_memory).map(|bytes| bytes as f64 / f64::from(1 << 20));
    Ok(Idle { mib, percent: [percent(0), percent(1)] })
}

fn kill_each_second(
    device: &mut Supervised,
    count: u32,
    records: &mut Vec<Outage>,
) -> Result<Vec<u64>> {
    let (began, mut times) = (Instant::now(), Vec::new());
    for number in 0..count {
        let status = device.ready(0)?;
        // In the middle of each second, so that the last restart is in the round, too.
        std::thread::sleep((KILL * number + KILL / 2).saturating_sub(began.elapsed()));
        times.push(device.kill(&status)?);
        device.ready(status.restarts + status.upgrades + 1)?;
        records.extend(device.outage()?);
    }
    std::thread::sleep((KILL * count).saturating_sub(began.elapsed()));
    Ok(times)
}

fn upgrade_each(device: &mut Supervised, count: u32) -> Result<Vec<u64>> {
    let mut times = Vec::new();
    for _ in 0..count {
        std::thread::sleep(UPGRADE);
        let status = device.ready(0)?;
        times.push(device.upgrade()?);
        device.ready(status.restarts + status.upgrades + 1)?;
    }
    std::thread::sleep(UPGRADE);
    Ok(times)
}

fn outcome(args: &Args, (kills, upgrades): (u32, u32), sums: Sums) -> Outcome {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let record = |time: fn(&Outage) -> f64| {
        percentile(&sums.records.iter().map(time).collect::<Vec<_>>(), 0.5)
    };
    let [outage, upgrade] = [&sums.outages, &sums.upgrades]
        .map(|times| [0.5, 0.99, 1.0].map(|share| percentile(times, share)));
    let (iops, iops_killed) = (Summary::of(&sums.calm), Summary::of(&sums.killed));
    Outcome {
        kernel: kernel.trim().into(),
        controller: args.controller.name().into(),
        depth: args.depth,
        kills,
        upgrades,
        errors: sums.errors,
        mismatches: sums.mismatches,
        outage_ms_p50: outage[0],
        outage_ms_p99: outage[1],
        outage_ms_max: outage[2],
        fence_ms_p50: record(|outage| outage.fence_ms),
        adopted: sums.records.iter().filter(|outage| outage.adopted).count() as u32,
        driver_ms_p50: record(|outage| outage.driver_ms),
        export_ms_p50: record(|outage| outage.export_ms),
        upgrade_ms_p50: upgrade[0],
        upgrade_ms_p99: upgrade[1],
        upgrade_ms_max: upgrade[2],
        longest_request_ms: sums.longest_ms,
        iops_ratio: iops_killed.zip(iops).and_then(|(killed, calm)| killed.ratio_to(&calm)),
        iops,
        iops_killed,
        ..Outcome::default()
    }
}
