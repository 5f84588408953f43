//! What every disk must do, whoever drives it: the same suite on a model, on QEMU's device, in a guest and on hardware.
//!
//! **It destroys the content of the disk.**
//!
//! Each [`Check`] is one sentence. [`run`] opens its own queues, so nobody else may use the disk meanwhile; it never waits longer than
//! [`Options::patience`] for one answer.

mod data;
mod front;
mod handover;
mod limits;
mod pattern;
mod queue;
mod several;
mod subject;

use std::fmt;
use std::time::{Duration, Instant};

use ring3_class::block::Disk;
use subject::{Subject, Trouble};

/// How thorough to be.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Requests of the checks that keep many in flight.
    pub requests: u32,
    /// Requests in flight of these.
    pub depth: u16,
    /// The longest wait for one answer; then the check has failed.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { requests: 2000, depth: 32, patience: Duration::from_secs(20) }
    }
}

/// One fact about disks.
pub struct Check {
    /// The fact, as a sentence.
    pub name: &'static str,
    run: fn(&Subject<'_>) -> Result<(), Trouble>,
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The fact holds.
    Passed,
    /// It does not, and this was seen instead.
    Failed(String),
    /// This disk cannot show it, because of this.
    Skipped(String),
}

/// One line of a report.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The check's sentence.
    pub name: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took.
    pub took: Duration,
}

/// What the suite found out about one disk.
#[derive(Clone, Debug)]
pub struct Report {
    /// The disk's name.
    pub disk: String,
    /// One finding per check, in order.
    pub findings: Vec<Finding>,
}

/// All checks, in the order in which they run.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    [data::CHECKS, limits::CHECKS, queue::CHECKS, several::CHECKS, handover::CHECKS, front::CHECKS].into_iter().flatten()
}

/// Runs all checks on `disk`, whose content is lost.
pub fn run(disk: &dyn Disk, options: &Options) -> Report {
    run_with(disk, options, |_| {})
}

/// Runs all checks on `disk`, whose content is lost, and shows each finding at once.
pub fn run_with(disk: &dyn Disk, options: &Options, mut show: impl FnMut(&Finding)) -> Report {
    let subject = Subject::new(disk, options);
    let findings = checks().map(|check| {
        let finding = check.apply(&subject);
        show(&finding);
        finding
    });
    Report { disk: disk.name(), findings: findings.collect() }
}

impl Check {
    fn apply(&self, subject: &Subject<'_>) -> Finding {
        let start = Instant::now();
        let verdict = match (self.run)(subject) {
            Ok(()) => Verdict::Passed,
            Err(Trouble::Failed(what)) => Verdict::Failed(what),
            Err(Trouble::Skipped(why)) => Verdict::Skipped(why),
        };
        Finding { name: self.name, verdict, took: start.elapsed() }
    }
}

impl Report {
    /// Whether no check failed.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// The findings that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| matches!(finding.verdict, Verdict::Failed(_)))
    }

    /// How many checks this disk could not show.
    pub fn skipped(&self) -> usize {
        self.findings.iter().filter(|finding| matches!(finding.verdict, Verdict::Skipped(_))).count()
    }

    /// What came of it, in a line.
    pub fn summary(&self) -> String {
        let (failed, all, skipped) = (self.failures().count(), self.findings.len(), self.skipped());
        format!("{}: {failed} of {all} checks failed, {skipped} skipped", self.disk)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, what) = match &self.verdict {
            Verdict::Passed => ("ok", ""),
            Verdict::Failed(what) => ("FAILED", what.as_str()),
            Verdict::Skipped(why) => ("skipped", why.as_str()),
        };
        write!(f, "{word:7} {} ({} ms)", self.name, self.took.as_millis())?;
        if what.is_empty() { Ok(()) } else { write!(f, ": {what}") }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))?;
        f.write_str(&self.summary())
    }
}

#[cfg(test)]
mod small;
#[cfg(test)]
mod tests;
