//! The suites, the places of the disk, and what a test's output says.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A suite of tests.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Suite {
    /// The tests of liburing: requests of io_uring, one program a test.
    Liburing,
    /// blktests: the kernel's block layer.
    Blktests,
    /// xfstests: file systems, here ext4.
    Xfstests,
}

/// Where the driver of the disk under test is.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// In the kernel: its own driver.
    Kernel,
    /// In the process of `ring3 run`.
    Exported,
    /// In a process that ring3d supervises.
    Supervised,
    /// The same, and that process is killed each second.
    Killed,
    /// The same, and that process is replaced by the next one each second, as by an upgrade.
    Replaced,
}

/// What became of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Passed,
    Failed,
    /// The suite says that it does not apply to this disk or this machine.
    NotRun,
    /// It was ended at its time limit.
    TimedOut,
    /// The guest ended in it, twice.
    Died,
}

/// Exit code of a test that was ended at its time limit.
const TIMED_OUT: i32 = 124;
/// liburing's exit code of a test that does not apply.
const SKIPPED: i32 = 77;

impl Suite {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Liburing => "liburing",
            Self::Blktests => "blktests",
            Self::Xfstests => "xfstests",
        }
    }

    /// The group of tests that runs unless another is asked for.
    pub fn usual_group(self) -> &'static str {
        match self {
            Self::Liburing | Self::Blktests => "device",
            Self::Xfstests => "quick",
        }
    }

    /// A few tests of each kind, for `--quick`.
    pub fn few(self) -> &'static [&'static str] {
        match self {
            Self::Liburing => &["read-write", "iopoll", "fixed-seg"],
            Self::Blktests => &["block/004", "block/005", "block/042"],
            Self::Xfstests => &["generic/001", "generic/005", "generic/091"],
        }
    }

    /// Seconds that a test may take.
    pub fn usual_limit(self) -> u32 {
        match self {
            Self::Liburing | Self::Blktests => 120,
            Self::Xfstests => 300,
        }
    }

    /// What a test has come to that ended with `exit` and printed `output`.
    pub fn verdict(self, exit: i32, output: &str) -> Verdict {
        let says = |text: &str| output.lines().any(|line| line.contains(text));
        match (self, exit) {
            (_, TIMED_OUT) => Verdict::TimedOut,
            (Self::Liburing, 0) => Verdict::Passed,
            (Self::Liburing, SKIPPED) => Verdict::NotRun,
            (Self::Liburing, _) => Verdict::Failed,
            (Self::Blktests, _) if says("[failed]") => Verdict::Failed,
            (Self::Blktests, 0) if says("[passed]") => Verdict::Passed,
            (Self::Blktests, 0) if says("[not run]") => Verdict::NotRun,
            (Self::Xfstests, 0) if says("Not run: ") => Verdict::NotRun,
            (Self::Xfstests, 0) if says("Passed all ") => Verdict::Passed,
            (Self::Blktests | Self::Xfstests, _) => Verdict::Failed,
        }
    }
}

impl Placement {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Exported => "exported",
            Self::Supervised => "supervised",
            Self::Killed => "killed",
            Self::Replaced => "replaced",
        }
    }

    /// Whether the kernel's own driver has the disk.
    pub fn is_kernel(self) -> bool {
        self == Self::Kernel
    }
}

impl Verdict {
    /// The word in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotRun => "not run",
            Self::TimedOut => "timed out",
            Self::Died => "died",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_of_liburing_says_by_its_exit_code_what_became_of_it() {
        let verdict = |exit| Suite::Liburing.verdict(exit, "");
        assert_eq!(
            [0, 1, 77, 124, 139].map(verdict),
            [Verdict::Passed, Verdict::Failed, Verdict::NotRun, Verdict::TimedOut, Verdict::Failed]
        );
    }

    #[test]
    fn a_test_of_blktests_says_it_in_brackets() {
        let line = |word: &str| format!("block/004 => ublkb1 (a title)   [{word}]\n    runtime\n");
        let verdict = |exit, word| Suite::Blktests.verdict(exit, &line(word));
        assert_eq!(verdict(0, "passed"), Verdict::Passed);
        assert_eq!(verdict(1, "failed"), Verdict::Failed);
        assert_eq!(verdict(0, "not run"), Verdict::NotRun);
        assert_eq!(verdict(124, "passed"), Verdict::TimedOut);
        assert_eq!(Suite::Blktests.verdict(0, "no such test\n"), Verdict::Failed);
    }

    #[test]
    fn a_test_of_xfstests_says_it_in_its_last_lines() {
        let verdict = |exit, text| Suite::Xfstests.verdict(exit, text);
        assert_eq!(verdict(0, "Ran: generic/001\nPassed all 1 tests\n"), Verdict::Passed);
        assert_eq!(
            verdict(0, "Ran: generic/010\nNot run: generic/010\nPassed all 1 tests\n"),
            Verdict::NotRun
        );
        assert_eq!(verdict(1, "Failures: generic/001\nFailed 1 of 1 tests\n"), Verdict::Failed);
        assert_eq!(verdict(0, ""), Verdict::Failed);
    }
}
