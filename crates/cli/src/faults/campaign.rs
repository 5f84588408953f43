//! All faults of a part, a few at a time, and what is kept of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use ring3_faults::symbols::Symbols;
use ring3_faults::{Kind, Model, Report, Spec, mutate};

use super::Shard;
use super::bench::{Bench, Keep, Place};
use super::life::Orders;
use super::trial::{self, Seen};

/// How often a driver that does not come up is tried, before its disk counts as lost.
const TRIES: u32 = 4;
/// How often what was seen is written.
const KEEP: Duration = Duration::from_secs(2);
/// What no driver may change.
const CANARY: usize = 64 << 10;
/// Functions whose names contain this are a driver's.
const DRIVER: &str = "ring3_driver";

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
    pub fn new(new: Report, shard: Shard, lanes: usize, ring3d: usize, path: Option<PathBuf>) -> Result<Self> {
        let mut report = match &path {
            Some(path) if path.exists() => {
                let old = Report::read(path)?;
                let identity = |report: &Report| (report.seed, report.count, report.only, report.shards);
                ensure!(
                    identity(&old) == identity(&new) && old.done.keys().eq([&shard.number]),
                    "{} is of another campaign or part: say another file, or the same seed, count, kind and shard",
                    path.display()
                );
                old
            }
            _ => new,
        };
        let done = report.done.entry(shard.number).or_insert_with(|| vec![0; lanes]);
        let lanes = done.len();
        let symbols = Symbols::read(&std::env::current_exe()?, DRIVER).context("reading this program's symbols")?;
        ensure!(
            symbols.bytes() > 0,
            "this program has no symbols, so that no fault of a driver's code can be placed: do not strip it"
        );
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        ctrlc::set_handler(move || flag.store(true, Ordering::Release)).context("taking signals")?;
        let bar = progress(report.count / report.shards, report.injected());
        Ok(Self { shard, lanes, ring3d, path, report: Mutex::new((report, Instant::now())), symbols, stop, bar })
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
            lanes.into_iter().map(|lane| lane.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a lane has ended")))).collect()
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
        let mut keeper =
            Keeper::new(seed ^ lane as u64, folder, format!("lane{lane}"), &self.symbols, is_supervised(lane, self.ring3d));
        loop {
            let index = (done * self.lanes as u64 + lane as u64) * self.shard.of + (self.shard.number - 1);
            let over = index >= count || self.stop.load(Ordering::Acquire);
            let mut part = Report::default();
            if over {
                keeper.settle(&mut part)?;
            } else {
                keeper.inject(Spec::of(seed, index, only), &mut part)?;
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

fn progress(count: u64, done: u64) -> ProgressBar {
    let bar = ProgressBar::new(count);
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} faults, {elapsed} left {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_position(done);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// The disks of one lane.
struct Keeper<'a> {
    seed: u64,
    folder: &'a Path,
    name: String,
    symbols: &'a Symbols,
    /// ring3d holds its devices.
    supervised: bool,
    benches: [Option<Bench>; Model::ALL.len()],
    canary: Vec<u8>,
}

impl<'a> Keeper<'a> {
    fn new(seed: u64, folder: &'a Path, name: String, symbols: &'a Symbols, supervised: bool) -> Self {
        Self { seed, folder, name, symbols, supervised, benches: [const { None }; 3], canary: vec![0xa5; CANARY] }
    }

    fn bench(&mut self, model: Model) -> Result<&mut Bench> {
        let name = format!("{}-{model:?}", self.name);
        let place = &mut self.benches[model as usize];
        if place.is_none() {
            *place = Some(Bench::new(model, self.seed, Place { folder: self.folder, name: &name, supervised: self.supervised })?);
        }
        place.as_mut().context("there is no disk")
    }

    /// Lets `spec` happen, and puts what was seen into `report`.
    fn inject(&mut self, spec: Spec, report: &mut Report) -> Result<Seen> {
        let symbols = self.symbols;
        let code = match spec.kind {
            Kind::Code => mutate::code_addresses(&spec, |word| symbols.pick(word)),
            _ => Vec::new(),
        };
        let orders = Orders { spec, code };
        report.of(spec.kind).injected += 1;
        report.under_ring3d += u64::from(self.supervised);
        for _ in 0..TRIES {
            let bench = self.bench(spec.model)?;
            let ran = catch_unwind(AssertUnwindSafe(|| trial::run(bench, &orders)));
            let seen = match ran {
                Err(_) => {
                    report.of(spec.kind).supervisor_deaths += 1;
                    report.fail(name_of(&spec), format!("the supervisor has panicked at {spec}"));
                    self.benches[spec.model as usize] = None;
                    return Ok(Seen::default());
                }
                Ok(Err(error)) => {
                    self.lose(&spec, &format!("{error:#}"), report);
                    return Ok(Seen::default());
                }
                Ok(Ok(seen)) => seen,
            };
            self.note(&spec, &seen, report)?;
            if seen.injected {
                return Ok(seen);
            }
        }
        self.lose(&spec, "no driver came up any more", report);
        Ok(Seen::default())
    }

    /// What a life has shown of the faults before, and of its own.
    fn note(&mut self, spec: &Spec, seen: &Seen, report: &mut Report) -> Result<()> {
        if self.canary.iter().any(|&byte| byte != 0xa5) {
            self.canary.fill(0xa5);
            report.of(spec.kind).damage += 1;
            report.fail(name_of(spec), "the supervisor's memory has changed".into());
        }
        let bench = self.bench(spec.model)?;
        let mut pending = std::mem::take(&mut bench.pending);
        let is_own = matches!(bench.keep, Keep::Own(_));
        let micros = |outage: Duration| outage.as_micros().min(u128::from(u32::MAX)) as u32;
        if let Some(outage) = seen.outage.filter(|_| !is_own && seen.injected) {
            report.of(spec.kind).outages_us.push(micros(outage));
        }
        if let Some(guilty) = guilty(&pending) {
            wrong(guilty, (seen.inherited, &seen.evidence), report);
            if let Some(outage) = seen.outage.filter(|_| is_own) {
                report.of(guilty.kind).outages_us.push(micros(outage));
            }
        }
        if let Some(doubt) = &bench.doubt {
            wrong(doubt, (seen.stale, ""), report);
        }
        if seen.checked {
            pending.drain(..).for_each(|fault| report.of(fault.kind).recovered += 1);
        }
        if seen.injected {
            wrong(spec, (seen.wrong, &seen.evidence), report);
            let by = seen.by.unwrap_or("nothing");
            *report.of(spec.kind).detected.entry(by.into()).or_default() += 1;
            pending.push(*spec);
            if !spec.kind.is_promised() {
                bench.application.doubt();
                bench.doubt = Some(*spec);
            }
        }
        bench.pending = pending;
        Ok(())
    }

    /// A disk that no driver works with since `spec` at the latest.
    fn lose(&mut self, spec: &Spec, why: &str, report: &mut Report) {
        let Some(bench) = self.benches[spec.model as usize].take() else { return };
        let guilty = bench.pending.last().unwrap_or(spec);
        report.of(guilty.kind).hangs += 1;
        report.fail(name_of(guilty), format!("{why}, after {guilty}; {}", bench.said().trim()));
    }

    /// Lets one more driver come to each disk, to see what the last fault has left.
    fn settle(&mut self, report: &mut Report) -> Result<()> {
        for model in Model::ALL.into_iter().filter(|model| self.benches[*model as usize].is_some()).collect::<Vec<_>>() {
            // A plain kill, which is no part of the campaign.
            let last = Spec { seed: 0, index: 0, kind: Kind::Kill, model, at: Some(0), random: 0 };
            let mut own = Report::default();
            self.inject(last, &mut own)?;
            own.under_ring3d = 0;
            let kill = own.of(Kind::Kill);
            kill.injected -= 1;
            kill.detected.clear();
            kill.outages_us.clear();
            report.absorb(&own);
        }
        Ok(())
    }
}

/// Whose wrong blocks are found by the first life after several: those of a fault that may make some, if there is one.
fn guilty(pending: &[Spec]) -> Option<&Spec> {
    pending.iter().find(|fault| !fault.kind.is_promised()).or(pending.last())
}

fn wrong(fault: &Spec, (blocks, evidence): (u64, &str), report: &mut Report) {
    if blocks == 0 {
        return;
    }
    let tally = report.of(fault.kind);
    if fault.kind.is_promised() {
        tally.mismatches += blocks;
        report.fail(name_of(fault), format!("{blocks} wrong blocks after {fault}; {evidence}"));
    } else {
        tally.silent += blocks;
        tally.silent_faults += 1;
    }
}

fn name_of(fault: &Spec) -> String {
    format!("{}:{}", fault.seed, fault.index)
}

/// Lets one fault happen to a driver of a new disk, and says what was seen.
pub fn reproduce(seed: u64, index: u64, only: Option<Kind>, supervised: bool) -> Result<ExitCode> {
    let symbols = Symbols::read(&std::env::current_exe()?, DRIVER)?;
    let folder = tempfile::tempdir().context("making a folder for sockets")?;
    let mut keeper = Keeper::new(seed, folder.path(), "one".into(), &symbols, supervised);
    let (spec, mut report) = (Spec::of(seed, index, only), Report::default());
    outln!("{spec}");
    let seen = keeper.inject(spec, &mut report)?;
    outln!("seen by: {}", seen.by.unwrap_or("nothing"));
    outln!("its driver: {}", seen.end);
    keeper.settle(&mut report)?;
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
