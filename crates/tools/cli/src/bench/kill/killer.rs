//! Who holds the claim: starts drivers, kills them and fences what they leave.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use ring3_backend::{Claim, Lease, OpenOptions, Quiesce, Uri, claim, class_of};
use ring3_bench::kill::{ARENA, HandOvers, Journal, Outcome, Word, now};
use ring3_driver::registry::Driver;

use super::life::{CLEARS, DriverProcess, SavedDriver, saved_driver, spawn};

/// How long a driver may take to check its disk.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at the journal.
const LOOK: Duration = Duration::from_micros(200);

/// Holds the claim, starts drivers and kills them.
pub struct Killer {
    pub claim: Claim,
    quiesce: Option<Quiesce>,
    path: PathBuf,
    journal: Journal,
    life: u32,
    /// When the last one was killed, by the journal's clock.
    killed: Option<u64>,
    recoveries: Vec<Duration>,
    fences: Vec<Duration>,
    stalls: Vec<Duration>,
    resets: u32,
    /// Drivers write nothing.
    pub read_only: bool,
}

impl Killer {
    pub fn new(uri: &Uri, path: PathBuf) -> Result<Self> {
        let below = Driver::dma_limit(class_of(uri), None);
        let claim = claim(uri, OpenOptions { arena: ARENA, below, ..OpenOptions::default() })?;
        let manifest =
            Driver::of_function(claim.ids(), claim.class()).map(|driver| driver.manifest);
        let quiesce = manifest
            .map_or(Ok(None), Quiesce::from_manifest)
            .map_err(|error| anyhow!("{error}"))?;
        let journal = Journal::create(&path)?;
        let [recoveries, fences, stalls] = [const { Vec::new() }; 3];
        Ok(Self {
            claim,
            quiesce,
            path,
            journal,
            life: CLEARS,
            killed: None,
            recoveries,
            fences,
            stalls,
            resets: 0,
            read_only: false,
        })
    }

    /// Lets a driver make an empty disk of what the others use.
    pub fn clear(&mut self) -> Result<()> {
        let mut driver = spawn(&self.path, self.claim.lease()?, CLEARS, false)?;
        ensure!(
            driver.0.wait()?.success(),
            "the disk cannot be cleared; what its driver said is above"
        );
        self.claim.quiesce(self.quiesce.as_ref())?;
        Ok(())
    }

    pub fn start(&mut self, lease: Lease) -> Result<DriverProcess> {
        self.life += 1;
        spawn(&self.path, lease, self.life, self.read_only)
    }

    /// Somewhere within the first milliseconds of a start, or of a load.
    fn moment(&self) -> Duration {
        Duration::from_micros(u64::from(self.life.wrapping_mul(0x9e37_79b9) >> 18))
    }

    /// Lets `driver` leave, and puts the next one in its place; returns how many requests were with
    /// the device meanwhile.
    pub fn hand_over(&mut self, driver: &mut DriverProcess) -> Result<u64> {
        sleep(self.moment());
        self.journal.set(Word::Leave, self.life.into())?;
        ensure!(
            driver.0.wait()?.success(),
            "driver {} has not left its disk; what it said is above",
            self.life
        );
        let left = self.journal.get(Word::LastEnd)?;
        let file = BufReader::new(
            File::open(saved_driver(&self.path)).context("looking at what a driver has left")?,
        );
        let SavedDriver { load, .. } =
            serde_json::from_reader(file).context("reading what a driver has left")?;
        *driver = {
            let lease = self.claim.hand_over()?;
            self.start(lease)?
        };
        self.wait_for(&mut driver.0, Word::Alive)?;
        self.stalls
            .push(Duration::from_nanos(self.journal.get(Word::FirstEnd)?.saturating_sub(left)));
        Ok(load.busy.len() as u64)
    }

    pub fn kill_one(&mut self, at_start: bool) -> Result<()> {
        let lease = self.claim.lease()?;
        let mut driver = self.start(lease)?;
        if !at_start {
            self.wait_for(&mut driver.0, Word::Underway)?;
        }
        sleep(self.moment());
        let alive = self.journal.get(Word::Alive)? == u64::from(self.life);
        if let Some(killed) = self.killed.filter(|_| alive) {
            self.recoveries.push(Duration::from_nanos(
                self.journal.get(Word::FirstEnd)?.saturating_sub(killed),
            ));
        }
        self.end(driver)
    }

    /// Kills `driver` and fences what it has started.
    pub fn end(&mut self, mut driver: DriverProcess) -> Result<()> {
        if driver.0.try_wait()?.is_some() {
            bail!("driver {} has ended by itself; what it said is above", self.life);
        }
        self.killed = Some(now());
        let _ = std::fs::remove_file(saved_driver(&self.path));
        driver.0.kill().context("killing a driver")?;
        driver.0.wait().context("waiting for a driver that was killed")?;
        let fenced = self.claim.quiesce(self.quiesce.as_ref())?;
        self.fences.push(fenced.took);
        self.resets += u32::from(fenced.reset);
        Ok(())
    }

    /// Waits until the journal says `word` of this life.
    pub fn wait_for(&self, driver: &mut Child, word: Word) -> Result<()> {
        let since = Instant::now();
        while self.journal.get(word)? != u64::from(self.life) {
            if driver.try_wait()?.is_some() {
                bail!("driver {} has ended by itself; what it said is above", self.life);
            }
            if since.elapsed() > PATIENCE {
                bail!(
                    "driver {} has not checked its disk within {} s",
                    self.life,
                    PATIENCE.as_secs()
                );
            }
            sleep(LOOK);
        }
        Ok(())
    }

    pub fn hand_overs(self, outcome: HandOvers) -> Result<HandOvers> {
        let number = |word| self.journal.get(word);
        let (writes, reads, mismatches) =
            (number(Word::Writes)?, number(Word::Reads)?, number(Word::Mismatches)?);
        Ok(HandOvers { writes, reads, mismatches, ..outcome }.timed(self.stalls))
    }

    pub fn outcome(self, outcome: Outcome) -> Result<Outcome> {
        let number = |word| self.journal.get(word);
        let (writes, reads, mismatches) =
            (number(Word::Writes)?, number(Word::Reads)?, number(Word::Mismatches)?);
        let function_resets = self.resets;
        Ok(Outcome { writes, reads, mismatches, function_resets, ..outcome }
            .timed(self.recoveries, self.fences))
    }
}
