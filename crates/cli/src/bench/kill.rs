//! `ring3 bench kill`: a model that is served here, and drivers in processes of their own, which are killed.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ring3_bench::disk::Waiting;
use ring3_bench::kill::{ARENA, Journal, Outcome, Word, drive, now};
use ring3_model::vfio_user::Server;

use super::open::open_disk;
use crate::driving::Protection;
use crate::model;

/// What a model has that is named without options: requests are under way long enough to be killed.
const USUAL: &str = "size=16M,delay=50us";
/// How long a driver may take to check its disk.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at the journal.
const LOOK: Duration = Duration::from_micros(200);
/// Every so many kills, one meets a driver that starts.
const START: u32 = 8;

/// Options of `ring3 bench kill`.
#[derive(clap::Args)]
pub struct Args {
    /// The model: nvme, ahci or ide, with size=16M,delay=50us; or with options of your own, as behind sim:.
    #[arg(long, default_value = "nvme")]
    model: String,
    /// Drivers to kill.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    times: u32,
    /// Kill 50 drivers only.
    #[arg(long, conflicts_with = "times")]
    quick: bool,
    /// Print the outcome as a JSON object.
    #[arg(long)]
    json: bool,
    /// Be a driver with this journal: what is killed.
    #[arg(long, hide = true, requires_all = ["device", "life"])]
    journal: Option<PathBuf>,
    #[arg(long, hide = true)]
    device: Option<String>,
    #[arg(long, hide = true)]
    life: Option<u32>,
}

/// Kills drivers, and fails if a block was wrong.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let (Some(journal), Some(device), Some(life)) = (&args.journal, &args.device, args.life) {
        let disk = open_disk(device, ARENA, Waiting::Interrupt(Duration::ZERO), Protection { unprotected: false })?;
        drive(&*disk, &Journal::open(journal)?, life)?;
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || flag.store(true, Ordering::Release)).context("taking signals")?;
    let words = if args.model.contains(',') { args.model.clone() } else { format!("{},{USUAL}", args.model) };
    let folder = tempfile::tempdir().context("making a folder for the socket")?;
    let (uri, device) = model::open(&words)?;
    let socket = folder.path().join("socket");
    let _server = Server::bind(&socket, device)?.spawn()?;
    let mut killer = Killer {
        device: model::name(&socket)?,
        path: folder.path().join("journal"),
        journal: Journal::create(&folder.path().join("journal"))?,
        life: 0,
        killed: None,
        recoveries: Vec::new(),
    };
    let times = if args.quick { 50 } else { args.times };
    let bar = progress(times);
    let mut outcome = Outcome { model: uri.to_string(), ..Outcome::default() };
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
    }
    Ok(if outcome.mismatches == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts drivers and kills them.
struct Killer {
    device: String,
    path: PathBuf,
    journal: Journal,
    life: u32,
    /// When the last one was killed, by the journal's clock.
    killed: Option<u64>,
    recoveries: Vec<Duration>,
}

impl Killer {
    fn kill_one(&mut self, at_start: bool) -> Result<()> {
        self.life += 1;
        let mut driver = Driver(spawn(&self.path, &self.device, self.life)?);
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
        Ok(Outcome { writes, reads, mismatches, ..outcome }.recovered(self.recoveries))
    }
}

/// A driver, which does not survive its killer's errors.
struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(journal: &Path, device: &str, life: u32) -> Result<Child> {
    let program = std::env::current_exe().context("finding this program, which is the driver, too")?;
    let mut command = Command::new(program);
    command.args(["bench", "kill", "--device", device, "--life", &life.to_string()]).arg("--journal").arg(journal);
    // In a group of its own, so that control-C ends the whole and not the driver first.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("starting a driver")
}
