//! The folder of results: `results.jsonl`, a line a test, and `logs/` with what the tests printed
//! that did not pass. A test with a result is not run again.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::suite::{Placement, Suite, Verdict};

/// One test on one disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub suite: Suite,
    pub placement: Placement,
    pub test: String,
    pub verdict: Verdict,
    pub seconds: f64,
    /// Deaths of the driver meanwhile, or its replacements.
    pub kills: u32,
    /// I/O errors that the kernel has logged of the disks under test.
    pub errors: u32,
    /// The guest's kernel, by version prefix.
    pub kernel: String,
}

/// The results of one folder.
pub struct Results {
    folder: PathBuf,
    file: File,
    records: Vec<Record>,
}

impl Results {
    /// Opens `folder`, with what is there already: of two results of a test the later one. A last
    /// line that was cut short when the program was killed is no result.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("results.jsonl");
        let about = || format!("the results in {}", path.display());
        fs::create_dir_all(folder).with_context(about)?;
        let mut file =
            File::options().create(true).read(true).append(true).open(&path).with_context(about)?;
        let mut text = String::new();
        file.read_to_string(&mut text).with_context(about)?;
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n").with_context(about)?;
        }
        let mut results = Self { folder: folder.to_owned(), file, records: Vec::new() };
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .for_each(|record| results.put(record));
        Ok(results)
    }

    fn put(&mut self, record: Record) {
        let key = |one: &Record| (one.suite, one.placement, one.test.clone());
        let wanted = key(&record);
        match self.records.iter_mut().find(|one| key(one) == wanted) {
            Some(old) => *old = record,
            None => self.records.push(record),
        }
    }

    /// Forgets those that failed in any way, so that these tests are run again.
    pub fn forget_failed(&mut self) {
        let kept = |record: &Record| matches!(record.verdict, Verdict::Passed | Verdict::NotRun);
        self.records.retain(kept);
    }

    /// Those of `tests` that have no result yet, in their order.
    pub fn missing(&self, suite: Suite, placement: Placement, tests: &[String]) -> Vec<String> {
        let done: HashSet<&str> = self
            .records
            .iter()
            .filter(|record| (record.suite, record.placement) == (suite, placement))
            .map(|record| &*record.test)
            .collect();
        tests.iter().filter(|test| !done.contains(&***test)).cloned().collect()
    }

    /// Keeps a result, and `output` unless the test passed and no I/O failed.
    pub fn add(&mut self, record: Record, output: &str) -> Result<()> {
        if record.verdict != Verdict::Passed || record.errors > 0 {
            let folder =
                self.folder.join("logs").join(record.suite.name()).join(record.placement.name());
            let path = folder.join(format!("{}.log", record.test.replace('/', "-")));
            fs::create_dir_all(&folder)
                .and_then(|()| fs::write(&path, output))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        let line = serde_json::to_string(&record)? + "\n";
        self.file.write_all(line.as_bytes()).context("writing a result")?;
        self.put(record);
        Ok(())
    }

    /// Keeps what a guest has said beside its tests: how its disk was made, and how that ended.
    pub fn note(&self, suite: Suite, placement: Placement, text: &str) -> Result<()> {
        let folder = self.folder.join("logs").join(suite.name()).join(placement.name());
        let path = folder.join("guests.log");
        fs::create_dir_all(&folder)
            .and_then(|()| File::options().create(true).append(true).open(&path))
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| format!("writing {}", path.display()))
    }

    /// All of them.
    pub fn records(&self) -> &[Record] {
        &self.records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(test: &str, verdict: Verdict) -> Record {
        Record {
            suite: Suite::Blktests,
            placement: Placement::Kernel,
            test: test.into(),
            verdict,
            seconds: 1.5,
            kills: 0,
            errors: 0,
            kernel: "6.12".into(),
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_test_that_has_a_result_is_not_run_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::open(folder.path()).unwrap();
        results.add(record("block/003", Verdict::Passed), "").unwrap();
        results.add(record("block/005", Verdict::Failed), "why\n").unwrap();
        drop(results);
        let results = Results::open(folder.path()).unwrap();
        let tests = names(&["block/003", "block/004", "block/005"]);
        let missing = |placement| results.missing(Suite::Blktests, placement, &tests);
        assert_eq!(missing(Placement::Kernel), names(&["block/004"]));
        assert_eq!(missing(Placement::Killed), tests);
        let log = folder.path().join("logs/blktests/kernel/block-005.log");
        assert_eq!(fs::read_to_string(log).unwrap(), "why\n");
    }

    #[test]
    fn a_test_that_failed_is_run_again_when_asked_for_and_its_last_result_counts() {
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::open(folder.path()).unwrap();
        results.add(record("a", Verdict::TimedOut), "").unwrap();
        results.add(record("b", Verdict::NotRun), "").unwrap();
        results.forget_failed();
        let tests = names(&["a", "b"]);
        let missing = results.missing(Suite::Blktests, Placement::Kernel, &tests);
        assert_eq!(missing, names(&["a"]));
        results.add(record("a", Verdict::Passed), "").unwrap();
        let results = Results::open(folder.path()).unwrap();
        let verdicts: Vec<_> = results.records().iter().map(|record| record.verdict).collect();
        assert_eq!(verdicts, [Verdict::Passed, Verdict::NotRun]);
    }

    #[test]
    fn a_result_that_was_cut_short_is_none_and_the_next_has_a_line_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::open(folder.path()).unwrap();
        results.add(record("a", Verdict::Passed), "").unwrap();
        let path = folder.path().join("results.jsonl");
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{whole}{}", &whole[..20])).unwrap();
        let mut results = Results::open(folder.path()).unwrap();
        results.add(record("b", Verdict::Passed), "").unwrap();
        let results = Results::open(folder.path()).unwrap();
        let tests: Vec<_> = results.records().iter().map(|record| &*record.test).collect();
        assert_eq!(tests, ["a", "b"]);
    }
}
