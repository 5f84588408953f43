//! The suites, the places of the driver, and what a test's output says.

use clap::ValueEnum;
use ring3_lab::Need;
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
    /// The kernel's own tests of network cards.
    Selftests,
    /// PostgreSQL's own tests, of a server with its data on the disk.
    Postgres,
    /// sqlite's own tests, with their databases on the disk.
    Sqlite,
}

/// What a suite is run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Devices {
    Disks,
    Cards,
}

/// Where the driver of the device under test is.
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
/// The same of the kernel's own tests. [kselftest.h, KSFT_SKIP]
const KSFT_SKIP: i32 = 4;

impl Suite {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Liburing => "liburing",
            Self::Blktests => "blktests",
            Self::Xfstests => "xfstests",
            Self::Selftests => "selftests",
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        }
    }

    /// What it is run on.
    pub fn devices(self) -> Devices {
        match self {
            Self::Selftests => Devices::Cards,
            _ => Devices::Disks,
        }
    }

    /// What of the cache has it.
    pub fn need(self) -> Need {
        match self {
            Self::Liburing | Self::Blktests | Self::Xfstests => Need::Suites,
            Self::Selftests => Need::SuitesNet,
            Self::Postgres | Self::Sqlite => Need::SuitesDb,
        }
    }

    /// The folder of the cache with the image of its root, and its list of tests.
    pub fn part(self) -> &'static str {
        match self {
            Self::Liburing | Self::Blktests | Self::Xfstests => "suites",
            Self::Selftests => "suites-net",
            Self::Postgres | Self::Sqlite => "suites-db",
        }
    }

    /// The shell functions that run it in the guest.
    pub fn script(self) -> &'static str {
        match self {
            Self::Liburing => include_str!("liburing.sh"),
            Self::Blktests => include_str!("blktests.sh"),
            Self::Xfstests => include_str!("xfstests.sh"),
            Self::Selftests => include_str!("selftests.sh"),
            Self::Postgres => include_str!("postgres.sh"),
            Self::Sqlite => include_str!("sqlite.sh"),
        }
    }

    /// The group of tests that runs unless another is asked for.
    pub fn usual_group(self) -> &'static str {
        match self {
            Self::Liburing | Self::Blktests => "device",
            Self::Xfstests | Self::Postgres | Self::Sqlite => "quick",
            Self::Selftests => "card",
        }
    }

    /// A few tests of each kind, for `--quick`.
    pub fn few(self) -> &'static [&'static str] {
        match self {
            Self::Liburing => &["read-write", "iopoll", "fixed-seg"],
            Self::Blktests => &["block/004", "block/005", "block/042"],
            Self::Xfstests => &["generic/001", "generic/005", "generic/091"],
            Self::Selftests => {
                &["drivers/net/ping.py", "net/netdevice.sh", "net/forwarding/router.sh"]
            }
            Self::Postgres => &["insert", "vacuum", "largeobject"],
            Self::Sqlite => &["wal", "savepoint", "vacuum"],
        }
    }

    /// Seconds that a test may take.
    pub fn usual_limit(self) -> u32 {
        match self {
            Self::Liburing | Self::Blktests => 120,
            Self::Xfstests => 300,
            Self::Selftests | Self::Postgres | Self::Sqlite => 600,
        }
    }

    /// What a test has come to that ended with `exit` and printed `output`.
    pub fn verdict(self, exit: i32, output: &str) -> Verdict {
        let says = |text: &str| output.lines().any(|line| line.contains(text));
        match (self, exit) {
            (_, TIMED_OUT) => Verdict::TimedOut,
            (Self::Liburing | Self::Postgres | Self::Sqlite, 0) => Verdict::Passed,
            (Self::Liburing, SKIPPED) => Verdict::NotRun,
            (Self::Blktests, _) if says("[failed]") => Verdict::Failed,
            (Self::Blktests, 0) if says("[passed]") => Verdict::Passed,
            (Self::Blktests, 0) if says("[not run]") => Verdict::NotRun,
            (Self::Xfstests, 0) if says("Not run: ") => Verdict::NotRun,
            (Self::Xfstests, 0) if says("Passed all ") => Verdict::Passed,
            (Self::Selftests, KSFT_SKIP) => Verdict::NotRun,
            // Of a test in Python, each part of which was skipped.
            (Self::Selftests, 0) if says("# Totals: pass:0 fail:0") => Verdict::NotRun,
            (Self::Selftests, 0) => Verdict::Passed,
            _ => Verdict::Failed,
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
    fn each_suite_has_the_functions_that_the_guest_calls() {
        for suite in Suite::value_variants() {
            for function in ["begin_", "run_"].map(|one| format!("{one}{}() ", suite.name())) {
                assert!(suite.script().contains(&function), "{function}");
            }
            assert!(suite.script().contains("present() "), "{}", suite.name());
        }
    }

    #[test]
    fn a_test_of_the_kernels_that_skipped_all_its_parts_has_not_run() {
        let verdict = |exit, text: &str| Suite::Selftests.verdict(exit, text);
        let totals =
            |pass| format!("# Totals: pass:{pass} fail:0 xfail:0 xpass:0 skip:3 error:0\n");
        assert_eq!(verdict(0, &totals(1)), Verdict::Passed);
        assert_eq!(verdict(0, &totals(0)), Verdict::NotRun);
        assert_eq!(verdict(4, "SKIP: jq not installed\n"), Verdict::NotRun);
        assert_eq!(verdict(1, &totals(2)), Verdict::Failed);
        assert_eq!(verdict(0, "TEST: ping [ OK ]\n"), Verdict::Passed);
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
