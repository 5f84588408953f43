//! What the results come to: counts for each suite and placement, and each test that differs from
//! the kernel's disk.

use std::collections::{BTreeMap, BTreeSet};

use super::results::Record;
use super::suite::{Placement, Suite, Verdict};

/// The results of one suite on one disk.
#[derive(Debug, Default, PartialEq, serde::Serialize)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    pub timed_out: usize,
    pub died: usize,
    pub not_run: usize,
    /// Deaths of the driver meanwhile.
    pub kills: u64,
    /// I/O errors that the kernel has logged.
    pub errors: u64,
    pub seconds: f64,
}

/// A test whose verdicts are not the same on all disks.
#[derive(Debug, PartialEq, serde::Serialize)]
pub struct Difference {
    pub suite: Suite,
    pub test: String,
    pub verdicts: BTreeMap<Placement, Verdict>,
}

/// Counts by suite and placement.
pub fn counts(records: &[Record]) -> BTreeMap<(Suite, Placement), Counts> {
    let mut all: BTreeMap<_, Counts> = BTreeMap::new();
    for record in records {
        let counts = all.entry((record.suite, record.placement)).or_default();
        *match record.verdict {
            Verdict::Passed => &mut counts.passed,
            Verdict::Failed => &mut counts.failed,
            Verdict::TimedOut => &mut counts.timed_out,
            Verdict::Died => &mut counts.died,
            Verdict::NotRun => &mut counts.not_run,
        } += 1;
        counts.kills += u64::from(record.kills);
        counts.errors += u64::from(record.errors);
        counts.seconds += record.seconds;
    }
    all
}

/// Tests that ran on several disks and came to different verdicts.
pub fn differences(records: &[Record]) -> Vec<Difference> {
    let mut tests: BTreeMap<(Suite, &str), BTreeMap<Placement, Verdict>> = BTreeMap::new();
    for record in records {
        let verdicts = tests.entry((record.suite, &record.test)).or_default();
        verdicts.insert(record.placement, record.verdict);
    }
    let differ = |verdicts: &BTreeMap<_, Verdict>| {
        verdicts.values().any(|one| Some(one) != verdicts.values().next())
    };
    tests
        .into_iter()
        .filter(|(_, verdicts)| differ(verdicts))
        .map(|((suite, test), verdicts)| Difference { suite, test: test.into(), verdicts })
        .collect()
}

/// Both as a page of Markdown.
pub fn render(records: &[Record]) -> String {
    let mut text = String::from(
        "| suite | disk | passed | failed | timed out | died | not run | kills | I/O errors | \
         minutes |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for ((suite, placement), counts) in counts(records) {
        let Counts { passed, failed, timed_out, died, not_run, kills, errors, seconds } = counts;
        text += &format!(
            "| {} | {} | {passed} | {failed} | {timed_out} | {died} | {not_run} | {kills} | \
             {errors} | {:.1} |\n",
            suite.name(),
            placement.name(),
            seconds / 60.0
        );
    }
    let differences = differences(records);
    if differences.is_empty() {
        return text;
    }
    let placements: BTreeSet<Placement> = records.iter().map(|record| record.placement).collect();
    let row = |words: Vec<&str>| format!("| {} |\n", words.join(" | "));
    let names = placements.iter().map(|placement| placement.name());
    text += &format!("\n{}", row(["differs"].into_iter().chain(names).collect()));
    text += &row(vec!["---"; placements.len() + 1]);
    for difference in &differences {
        let words = placements
            .iter()
            .map(|placement| difference.verdicts.get(placement).map_or("", |one| one.word()));
        text += &row([&*difference.test].into_iter().chain(words).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(placement: Placement, test: &str, verdict: Verdict) -> Record {
        Record {
            suite: Suite::Xfstests,
            placement,
            test: test.into(),
            verdict,
            seconds: 30.0,
            kills: u32::from(placement == Placement::Killed) * 7,
            errors: 0,
            kernel: "6.12".into(),
        }
    }

    #[test]
    fn the_table_counts_each_disk_and_names_what_differs() {
        let records = [
            record(Placement::Kernel, "generic/001", Verdict::Passed),
            record(Placement::Kernel, "generic/002", Verdict::Passed),
            record(Placement::Killed, "generic/001", Verdict::Passed),
            record(Placement::Killed, "generic/002", Verdict::TimedOut),
        ];
        let text = render(&records);
        assert!(text.contains("| xfstests | kernel | 2 | 0 | 0 | 0 | 0 | 0 | 0 | 1.0 |"), "{text}");
        assert!(
            text.contains("| xfstests | killed | 1 | 0 | 1 | 0 | 0 | 14 | 0 | 1.0 |"),
            "{text}"
        );
        assert!(text.contains("| generic/002 | passed | timed out |"), "{text}");
        assert_eq!(differences(&records).len(), 1);
    }

    #[test]
    fn a_test_that_ran_on_one_disk_alone_differs_from_nothing() {
        assert_eq!(differences(&[record(Placement::Killed, "a", Verdict::Failed)]), []);
    }
}
