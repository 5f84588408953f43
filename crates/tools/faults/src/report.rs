//! What a campaign has seen.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::spec::Kind;

/// The version of the file.
const VERSION: u32 = 1;
/// Of failures, so many are kept in words.
const MOST_FAILURES: usize = 1000;

/// How many of how many, and between which shares the truth lies with 95 %, by Wilson's interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share {
    /// How many.
    pub count: u64,
    /// Of these.
    pub of: u64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Share {
    /// `count` of `of`.
    pub fn new(count: u64, of: u64) -> Self {
        // The 97.5th percentile of the normal distribution.
        let z = 1.959_964_f64;
        let n = of as f64;
        if of == 0 {
            return Self { count, of, low: 0.0, high: 1.0 };
        }
        let p = count as f64 / n;
        let (middle, scale) = (p + z * z / (2.0 * n), 1.0 + z * z / n);
        let width = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
        Self {
            count,
            of,
            low: ((middle - width) / scale).max(0.0),
            high: ((middle + width) / scale).min(1.0),
        }
    }
}

/// What was seen of one kind of fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Faults.
    pub injected: u64,
    /// By what each was seen first: `signal`, `exit`, `panic`, `heartbeat`, `progress`, `protocol`,
    /// `error`, `device`, `stamp`; `nothing` if it had no effect that could be seen.
    pub detected: BTreeMap<String, u64>,
    /// Faults after which the next driver has worked.
    pub recovered: u64,
    /// Blocks that did not hold what they must, though driver and device had done nothing wrong.
    pub mismatches: u64,
    /// Blocks that did not hold what they must after a driver or a device that was wrong itself.
    pub silent: u64,
    /// Faults with such blocks.
    pub silent_faults: u64,
    /// Faults that changed what is neither the driver's memory nor its disk.
    pub damage: u64,
    /// Faults after which no driver could work within the limit.
    pub hangs: u64,
    /// Faults that the supervisor did not survive.
    pub supervisor_deaths: u64,
    /// Microseconds from the last request that ended under one driver to the first of the next.
    pub outages_us: Vec<u32>,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.injected += other.injected;
        other
            .detected
            .iter()
            .for_each(|(by, count)| *self.detected.entry(by.clone()).or_default() += count);
        self.recovered += other.recovered;
        self.mismatches += other.mismatches;
        self.silent += other.silent;
        self.silent_faults += other.silent_faults;
        self.damage += other.damage;
        self.hangs += other.hangs;
        self.supervisor_deaths += other.supervisor_deaths;
        self.outages_us.extend(&other.outages_us);
    }

    /// Milliseconds that half, 99 % and all of the outages did not exceed.
    pub fn outage_ms(&self) -> [f64; 3] {
        let mut sorted = self.outages_us.clone();
        sorted.sort_unstable();
        [0.5, 0.99, 1.0].map(|share| {
            let index = (sorted.len() as f64 * share).ceil() as usize;
            sorted.get(index.saturating_sub(1)).map_or(0.0, |us| f64::from(*us) / 1e3)
        })
    }
}

/// Something that a campaign must not see.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Failure {
    /// `SEED:INDEX`, for `--reproduce`.
    pub fault: String,
    /// What was seen.
    pub what: String,
}

/// A campaign, or a shard of one, as far as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    version: u32,
    /// The seed.
    pub seed: u64,
    /// Faults of the whole campaign.
    pub count: u64,
    /// The one kind that was injected; all if `None`.
    pub only: Option<Kind>,
    /// Into how many shards it is cut.
    pub shards: u64,
    /// Of each shard that is in here, by its number from 1: how many faults each of its lanes is
    /// done with.
    pub done: BTreeMap<u64, Vec<u64>>,
    /// The kernel of the guest that it ran in, as its user named it; `None` if it ran on models.
    #[serde(default)]
    pub guest: Option<String>,
    /// Whether its drivers were Linux's own, in processes.
    #[serde(default)]
    pub hosted: bool,
    /// Of the faults, how many met a driver of ring3d's.
    #[serde(default)]
    pub under_ring3d: u64,
    /// What was seen.
    pub kinds: BTreeMap<Kind, Tally>,
    /// What must not be.
    pub failures: Vec<Failure>,
}

/// A report that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its file.
    #[error("{0}: {1}")]
    File(String, io::Error),
    /// What is in it.
    #[error("{0} is no report of a campaign: {1}")]
    Content(String, String),
    /// It is of something else.
    #[error("{0} is of another campaign or the same shard: {1}")]
    Other(String, String),
}

impl Report {
    /// Of a campaign that has not begun.
    pub fn new(seed: u64, count: u64, only: Option<Kind>, shards: u64) -> Self {
        Self { version: VERSION, seed, count, only, shards, ..Self::default() }
    }

    /// The one in the file at `path`.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let text = fs::read(path).map_err(|error| Error::File(name.clone(), error))?;
        let report: Self = serde_json::from_slice(&text)
            .map_err(|error| Error::Content(name.clone(), error.to_string()))?;
        if report.version != VERSION {
            return Err(Error::Content(
                name,
                format!("its version is {}, and {VERSION} is known", report.version),
            ));
        }
        Ok(report)
    }

    /// Puts it into the file at `path`, which is there as it was before or as it is now, whatever
    /// happens.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let (name, new) = (path.display().to_string(), path.with_extension("new"));
        let written = serde_json::to_vec(self).map_err(io::Error::other).and_then(|text| {
            let mut file = fs::File::create(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, path)
        });
        written.map_err(|error| Error::File(name, error))
    }

    /// The tally of `kind`.
    pub fn of(&mut self, kind: Kind) -> &mut Tally {
        self.kinds.entry(kind).or_default()
    }

    /// Notes what must not be.
    pub fn fail(&mut self, fault: String, what: String) {
        if self.failures.len() < MOST_FAILURES {
            self.failures.push(Failure { fault, what });
        }
    }

    /// Adds `other`, another shard of the same campaign, which `name` says where it is from.
    pub fn merge(&mut self, other: &Self, name: &str) -> Result<(), Error> {
        let refuse = |why: &str| Err(Error::Other(name.into(), why.into()));
        if !self.is_of(other) {
            return refuse(
                "seed, count, kind, number of shards, guest and drivers must be the same",
            );
        }
        if let Some(shard) = other.done.keys().find(|shard| self.done.contains_key(shard)) {
            return refuse(&format!("shard {shard} is there twice"));
        }
        self.done.extend(other.done.clone());
        self.absorb(other);
        Ok(())
    }

    /// Whether both are of one campaign.
    pub fn is_of(&self, other: &Self) -> bool {
        let identity = |report: &Self| {
            (
                report.seed,
                report.count,
                report.only,
                report.shards,
                report.guest.clone(),
                report.hosted,
            )
        };
        identity(self) == identity(other)
    }

    /// Adds what `other` has seen.
    pub fn absorb(&mut self, other: &Self) {
        for (kind, tally) in other.kinds.iter().filter(|(_, tally)| **tally != Tally::default()) {
            self.of(*kind).add(tally);
        }
        self.under_ring3d += other.under_ring3d;
        self.failures.extend(other.failures.iter().cloned());
        self.failures.sort();
        self.failures.truncate(MOST_FAILURES);
    }

    /// All kinds together.
    pub fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.kinds.values().for_each(|tally| total.add(tally));
        total
    }

    /// Faults so far.
    pub fn injected(&self) -> u64 {
        self.kinds.values().map(|tally| tally.injected).sum()
    }

    /// Whether nothing was seen that must not be.
    pub fn is_good(&self) -> bool {
        let total = self.total();
        (total.mismatches, total.damage, total.hangs, total.supervisor_deaths) == (0, 0, 0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_wilsons() {
        let share = Share::new(0, 20_000);
        assert!(share.low == 0.0 && (share.high - 0.000_192).abs() < 1e-6, "{share:?}");
        let half = Share::new(5, 10);
        assert!((half.low - 0.2366).abs() < 1e-4 && (half.high - 0.7634).abs() < 1e-4, "{half:?}");
        assert_eq!((Share::new(0, 0).low, Share::new(0, 0).high), (0.0, 1.0));
    }

    fn shard(number: u64) -> Report {
        let mut report = Report::new(7, 100, None, 2);
        report.done.insert(number, vec![25, 25]);
        let tally = report.of(Kind::Kill);
        (tally.injected, tally.recovered, tally.outages_us) =
            (50, 50, vec![1000 * number as u32, 3000]);
        tally.detected.insert("signal".into(), 50);
        report
    }

    #[test]
    fn shards_are_merged_once_each() {
        let mut one = shard(1);
        one.merge(&shard(2), "b").unwrap();
        let total = one.total();
        assert_eq!(
            (total.injected, total.detected["signal"], total.outage_ms()),
            (100, 100, [2.0, 3.0, 3.0])
        );
        assert!(
            one.merge(&shard(2), "b").unwrap_err().to_string().contains("shard 2 is there twice")
        );
        let other = Report { seed: 8, ..shard(2) };
        assert!(shard(1).merge(&other, "c").unwrap_err().to_string().contains("seed"));
    }

    #[test]
    fn a_report_is_what_it_was_when_it_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        shard(1).write(&path).unwrap();
        assert_eq!(Report::read(&path).unwrap(), shard(1));
        fs::write(&path, "{}").unwrap();
        assert!(Report::read(&path).unwrap_err().to_string().contains("is no report"));
    }
}
