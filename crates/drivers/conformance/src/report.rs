//! What a suite found out.

use std::fmt;
use std::time::{Duration, Instant};

use crate::step::{CheckFailure, Step};

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The fact holds.
    Passed,
    /// It does not, and this was seen instead.
    Failed(String),
    /// This subject cannot show it, because of this.
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

/// What a suite found out about one disk, or one card.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its name.
    pub subject: String,
    /// One finding per check, in order.
    pub findings: Vec<Finding>,
}

impl Finding {
    pub(crate) fn of(name: &'static str, run: impl FnOnce() -> Step) -> Self {
        let start = Instant::now();
        let verdict = match run() {
            Ok(()) => Verdict::Passed,
            Err(CheckFailure::Failed(what)) => Verdict::Failed(what),
            Err(CheckFailure::Skipped(why)) => Verdict::Skipped(why),
        };
        Self { name, verdict, took: start.elapsed() }
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

    /// How many checks the subject could not show.
    pub fn skipped(&self) -> usize {
        self.findings
            .iter()
            .filter(|finding| matches!(finding.verdict, Verdict::Skipped(_)))
            .count()
    }

    /// What came of it, in a line.
    pub fn summary(&self) -> String {
        let (failed, all, skipped) = (self.failures().count(), self.findings.len(), self.skipped());
        format!("{}: {failed} of {all} checks failed, {skipped} skipped", self.subject)
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
