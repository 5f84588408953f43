//! All faults of a part, a few at a time, and what is kept of them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use ring3_faults::symbols::Symbols;
use ring3_faults::{Kind, Report, Spec};

use super::Shard;
use super::lane::Disks;

/// How often what was seen is written.
const KEEP: Duration = Duration::from_secs(2);
/// Functions whose names contain this are a driver's.
pub const DRIVER: &str = "ring3_driver";

/// A part of a campaign.
pub struct Campaign {
    shard: Shard,
    lanes: usize,
    /// Of a hundred lanes, so many have ring3d hold their devices.
    ring3d: usize,
    path: Option<PathBuf>,
    report: Mutex<(Report, Instant)>,
    symbols: Symbols,
    stop: Arc<AtomicBool>,
    bar: ProgressBar,
}

impl Campaign {
    /// `new`, or what of it is already in the file at `path`; `lanes` faults at a time.
    pub fn new(
        new: Report,
        shard: Shard,
        lanes: usize,
        ring3d: usize,
        path: Option<PathBuf>,
    ) -> Result<Self> {
        let mut report = resumed(new, shard.number, path.as_deref())?;
        let done = report.done.entry(shard.number).or_insert_with(|| vec![0; lanes]);
        let lanes = done.len();
        let symbols = Symbols::read(&std::env::current_exe()?, DRIVER)
            .context("reading this program's symbols")?;
        ensure!(
            symbols.bytes() > 0,
            "this program has no symbols, so that no fault of a driver's code can be placed: do \
            not strip it"
        );
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        ctrlc::set_handler(move || flag.store(true, Ordering::Release))
            .context("taking signals")?;
        let bar = progress_bar(report.count / report.shards, report.injected());
        Ok(Self {
            shard,
            lanes,
            ring3d,
            path,
            report: Mutex::new((report, Instant::now())),
            symbols,
            stop,
            bar,
        })
    }

    /// Injects what was not yet injected; also says whether somebody has interrupted it.
    pub fn run(self) -> Result<(Report, bool)> {
        let folder = tempfile::tempdir().context("making a folder for sockets")?;
        let lanes: Vec<Result<()>> = std::thread::scope(|scope| {
            let start = |lane| {
                scope.spawn({
                    let (this, folder) = (&self, folder.path());
                    move || this.lane(lane, folder)
                })
            };
            let lanes: Vec<_> = (0..self.lanes).map(start).collect();
            lanes
                .into_iter()
                .map(|lane| {
                    lane.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a lane has ended")))
                })
                .collect()
        });
        self.bar.finish_and_clear();
        self.keep(true)?;
        lanes.into_iter().collect::<Result<()>>()?;
        let report = self.report.into_inner().unwrap_or_else(PoisonError::into_inner).0;
        Ok((report, self.stop.load(Ordering::Acquire)))
    }

    fn report(&self) -> MutexGuard<'_, (Report, Instant)> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what was seen, if it is time or `now`.
    fn keep(&self, now: bool) -> Result<()> {
        let mut report = self.report();
        if let Some(path) = &self.path
            && (now || report.1.elapsed() >= KEEP)
        {
            report.0.write(path)?;
            report.1 = Instant::now();
        }
        Ok(())
    }

    /// Every so many faults of this part.
    fn lane(&self, lane: usize, folder: &Path) -> Result<()> {
        let (seed, count, only, mut done) = {
            let report = &self.report().0;
            (report.seed, report.count, report.only, report.done[&self.shard.number][lane])
        };
        let (name, supervised) = (format!("lane{lane}"), is_supervised(lane, self.ring3d));
        let mut disks = Disks::new(seed ^ lane as u64, folder, name, &self.symbols, supervised);
        loop {
            let index =
                (done * self.lanes as u64 + lane as u64) * self.shard.of + (self.shard.number - 1);
            let over = index >= count || self.stop.load(Ordering::Acquire);
            let mut part = Report::default();
            if over {
                disks.settle(&mut part)?;
            } else {
                disks.inject(Spec::of(seed, index, only), &mut part)?;
                done += 1;
            }
            {
                let report = &mut self.report().0;
                report.absorb(&part);
                if let Some(lanes) = report.done.get_mut(&self.shard.number) {
                    lanes[lane] = done;
                }
                self.bar.set_position(report.injected());
            }
            self.keep(false)?;
            if over {
                return Ok(());
            }
        }
    }
}

/// Whether ring3d holds what `lane` drives, if it is to have so many of a `hundred` lanes.
fn is_supervised(lane: usize, hundred: usize) -> bool {
    (lane + 1) * hundred / 100 > lane * hundred / 100
}

/// `new`, or what of it is already in the file at `path`.
pub fn resumed(new: Report, shard: u64, path: Option<&Path>) -> Result<Report> {
    let Some(path) = path.filter(|path| path.exists()) else { return Ok(new) };
    let old = Report::read(path)?;
    ensure!(
        old.is_of(&new) && old.done.keys().eq([&shard]),
        "{} is of another campaign or part: say another file, or the same seed, count, kind, \
        shard, guest and drivers",
        path.display()
    );
    Ok(old)
}

/// How far a campaign of `count` faults is, and how long it will take.
pub fn progress_bar(count: u64, done: u64) -> ProgressBar {
    let bar = ProgressBar::new(count);
    let style =
        ProgressStyle::with_template("{bar:30} {pos} of {len} faults, {elapsed} left {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_position(done);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Lets one fault happen to a driver of a new disk, and says what was seen.
pub fn reproduce(seed: u64, index: u64, only: Option<Kind>, supervised: bool) -> Result<ExitCode> {
    let symbols = Symbols::read(&std::env::current_exe()?, DRIVER)?;
    let folder = tempfile::tempdir().context("making a folder for sockets")?;
    let mut disks = Disks::new(seed, folder.path(), "one".into(), &symbols, supervised);
    let (spec, mut report) = (Spec::of(seed, index, only), Report::default());
    outln!("{spec}");
    let seen = disks.inject(spec, &mut report)?;
    outln!("seen by: {}", seen.by.unwrap_or("nothing"));
    outln!("its driver: {}", seen.end);
    disks.settle(&mut report)?;
    let tally = report.total();
    outln!(
        "recovered: {}; wrong blocks: {}, of a driver or device that was wrong itself: {}",
        tally.recovered,
        tally.mismatches,
        tally.silent
    );
    report.failures.iter().for_each(|failure| outln!("{}: {}", failure.fault, failure.what));
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
