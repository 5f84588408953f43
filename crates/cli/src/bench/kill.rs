//! `ring3 bench kill`: a claim that is held here, and drivers in processes of their own, which are killed.

use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use ring3_backend::{Claim, Lease, OpenOptions, Quiesce, Uri, attach, claim, class_of};
use ring3_bench::kill::{ARENA, Journal, Outcome, Word, clear, drive, now};
use ring3_driver::registry::{Driver, Offer, Settings};
use ring3_model::vfio_user::{Running, Server};

use crate::model;

/// What a model has that is named without options: requests are under way long enough to be killed.
const USUAL: &str = "size=16M,delay=50us";
/// How long a driver may take to check its disk.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at the journal.
const LOOK: Duration = Duration::from_micros(200);
/// Every so many kills, one meets a driver that starts.
const START: u32 = 8;
/// The life that makes an empty disk.
const CLEARS: u32 = 0;

/// Options of `ring3 bench kill`.
#[derive(clap::Args)]
pub struct Args {
    /// The model: nvme, ahci or ide, with size=16M,delay=50us; or with options of your own, as behind sim:.
    #[arg(long, default_value = "nvme", conflicts_with = "device")]
    model: String,
    /// A device instead of a model, by vfio: or vfio-user:.
    #[arg(long, requires = "overwrite")]
    device: Option<Uri>,
    /// The first 512 blocks of that device's first disk may be overwritten.
    #[arg(long)]
    overwrite: bool,
    /// Drivers to kill.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    times: u32,
    /// Kill 50 drivers only.
    #[arg(long, conflicts_with = "times")]
    quick: bool,
    /// Print the outcome as a JSON object.
    #[arg(long)]
    json: bool,
    /// Be a driver with this journal and the lease that is standard input: what is killed.
    #[arg(long, hide = true, requires = "life")]
    journal: Option<PathBuf>,
    #[arg(long, hide = true)]
    life: Option<u32>,
}

/// Kills drivers, and fails if a block was wrong.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let (Some(journal), Some(life)) = (&args.journal, args.life) {
        return live(&Journal::open(journal)?, life);
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Release)).context("taking signals")?;
    let folder = tempfile::tempdir().context("making a folder for the journal")?;
    let (name, uri, _server) = match &args.device {
        Some(uri) => (uri.to_string(), uri.clone(), None),
        None => serve(&args.model, &folder.path().join("socket"))?,
    };
    let mut killer = Killer::new(&uri, folder.path().join("journal"))?;
    if args.device.is_some() {
        killer.clear()?;
    }
    let times = if args.quick { 50 } else { args.times };
    let bar = progress(times);
    let mut outcome = Outcome { model: name, ..Outcome::default() };
    while outcome.kills < times && !interrupted.load(Ordering::Acquire) {
        let at_start = outcome.kills % START == START - 1;
        killer.kill_one(at_start)?;
        outcome.kills += 1;
        outcome.kills_at_start += u32::from(at_start);
        bar.inc(1);
    }
    // What the last one left is checked, too.
    killer.kill_one(false)?;
    bar.finish_and_clear();
    show(&killer.outcome(outcome)?, args.json)
}

/// Life number `life` of a driver, with the lease that is its standard input.
fn live(journal: &Journal, life: u32) -> Result<ExitCode> {
    let lease = Lease::from(stdin().as_fd().try_clone_to_owned().context("taking the lease")?);
    // As short a way as there is from the start to the first request: nothing is polled for.
    let settings = Settings { poll: Some(Duration::ZERO), ..Settings::default() };
    let opened = Driver::open(attach(lease, None)?, None, &settings)?;
    let Some(Offer::Disk(disk)) = opened.offers.first() else { bail!("it has no disk that can be used") };
    if life == CLEARS {
        clear(&**disk)?
    } else {
        drive(&**disk, journal, life)?
    }
    Ok(ExitCode::SUCCESS)
}

/// The model that a user calls `words`, on a socket: its name, its device's, and what serves it.
fn serve(words: &str, socket: &Path) -> Result<(String, Uri, Option<Running>)> {
    let words = if words.contains(',') { words.to_owned() } else { format!("{words},{USUAL}") };
    let (uri, device) = model::open(&words)?;
    let server = Server::bind(socket, device)?.spawn()?;
    Ok((uri.to_string(), model::name(socket)?.parse()?, Some(server)))
}

fn progress(times: u32) -> ProgressBar {
    let bar = ProgressBar::new(times.into());
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len} killed, {elapsed} left {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn show(outcome: &Outcome, json: bool) -> Result<ExitCode> {
    if json {
        outln!("{}", serde_json::to_string(outcome)?);
    } else {
        let Outcome { model, kills, kills_at_start, writes, reads, mismatches, .. } = outcome;
        outln!("{model}: {kills} drivers killed, {kills_at_start} of them while they started");
        outln!("{writes} writes acknowledged, {reads} blocks read and right, {mismatches} wrong");
        let [p50, p99, max] = [outcome.recovery_ms_p50, outcome.recovery_ms_p99, outcome.recovery_ms_max];
        outln!("from a kill to the next driver's first request done: p50 {p50:.1} ms, p99 {p99:.1} ms, longest {max:.1} ms");
        let Outcome { fence_ms_p50, fence_ms_max, function_resets, .. } = outcome;
        outln!(
            "of that, the fence: p50 {fence_ms_p50:.2} ms, longest {fence_ms_max:.2} ms, {function_resets} by a function reset"
        );
    }
    Ok(if outcome.mismatches == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Holds the claim, starts drivers and kills them.
struct Killer {
    claim: Claim,
    quiesce: Option<Quiesce>,
    path: PathBuf,
    journal: Journal,
    life: u32,
    /// When the last one was killed, by the journal's clock.
    killed: Option<u64>,
    recoveries: Vec<Duration>,
    fences: Vec<Duration>,
    resets: u32,
}

impl Killer {
    fn new(uri: &Uri, path: PathBuf) -> Result<Self> {
        let below = Driver::reach(class_of(uri), None);
        let claim = claim(uri, OpenOptions { arena: ARENA, below, ..OpenOptions::default() })?;
        let manifest = Driver::of_class(claim.class(), None).map(|driver| driver.manifest);
        let quiesce = manifest.map_or(Ok(None), Quiesce::from_manifest).map_err(|error| anyhow!("{error}"))?;
        let journal = Journal::create(&path)?;
        let (recoveries, fences) = (Vec::new(), Vec::new());
        Ok(Self { claim, quiesce, path, journal, life: CLEARS, killed: None, recoveries, fences, resets: 0 })
    }

    /// Lets a driver make an empty disk of what the others use.
    fn clear(&mut self) -> Result<()> {
        let mut driver = Driven(spawn(&self.path, self.claim.lease()?, CLEARS)?);
        ensure!(driver.0.wait()?.success(), "the disk cannot be cleared; what its driver said is above");
        self.claim.quiesce(self.quiesce.as_ref())?;
        Ok(())
    }

    fn kill_one(&mut self, at_start: bool) -> Result<()> {
        self.life += 1;
        let mut driver = Driven(spawn(&self.path, self.claim.lease()?, self.life)?);
        // Somewhere within the first milliseconds of its start, or of its load.
        let moment = Duration::from_micros(u64::from(self.life.wrapping_mul(0x9e37_79b9) >> 18));
        if !at_start {
            self.wait_for(&mut driver.0, Word::Underway)?;
        }
        sleep(moment);
        let alive = self.journal.get(Word::Alive)? == u64::from(self.life);
        if let Some(killed) = self.killed.filter(|_| alive) {
            self.recoveries.push(Duration::from_nanos(self.journal.get(Word::FirstEnd)?.saturating_sub(killed)));
        }
        if driver.0.try_wait()?.is_some() {
            bail!("driver {} has ended by itself; what it said is above", self.life);
        }
        self.killed = Some(now());
        driver.0.kill().context("killing a driver")?;
        driver.0.wait().context("waiting for a driver that was killed")?;
        let fenced = self.claim.quiesce(self.quiesce.as_ref())?;
        self.fences.push(fenced.took);
        self.resets += u32::from(fenced.reset);
        Ok(())
    }

    /// Waits until the journal says `word` of this life.
    fn wait_for(&self, driver: &mut Child, word: Word) -> Result<()> {
        let since = Instant::now();
        while self.journal.get(word)? != u64::from(self.life) {
            if driver.try_wait()?.is_some() {
                bail!("driver {} has ended by itself; what it said is above", self.life);
            }
            if since.elapsed() > PATIENCE {
                bail!("driver {} has not checked its disk within {} s", self.life, PATIENCE.as_secs());
            }
            sleep(LOOK);
        }
        Ok(())
    }

    fn outcome(self, outcome: Outcome) -> Result<Outcome> {
        let number = |word| self.journal.get(word);
        let (writes, reads, mismatches) = (number(Word::Writes)?, number(Word::Reads)?, number(Word::Mismatches)?);
        let function_resets = self.resets;
        Ok(Outcome { writes, reads, mismatches, function_resets, ..outcome }.timed(self.recoveries, self.fences))
    }
}

/// A driver, which does not survive its killer's errors.
struct Driven(Child);

impl Drop for Driven {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(journal: &Path, lease: Lease, life: u32) -> Result<Child> {
    let program = std::env::current_exe().context("finding this program, which is the driver, too")?;
    let mut command = Command::new(program);
    command.args(["bench", "kill", "--life", &life.to_string()]).arg("--journal").arg(journal);
    // In a group of its own, so that control-C ends the whole and not the driver first.
    command.process_group(0).stdin(OwnedFd::from(lease)).stdout(Stdio::null()).spawn().context("starting a driver")
}
