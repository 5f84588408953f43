//! `ring3 suites`: test suites of others, on the kernel's disk or card and on ring3's in turn.
//!
//! # Shape
//! `suite` knows what there is and reads verdicts; `guest` boots guests, in which `machine.sh`,
//! with `disks.sh` or `cards.sh`, makes the device, and `suite.sh`, with the suite's own script,
//! runs the tests; `stream` reads what they say; `results` keeps it; `table` sums it up.

mod guest;
mod results;
mod stream;
mod suite;
mod table;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use ring3_lab::{Cache, DEFAULT_KERNEL, Size, prepare};
use serde_json::Value;

use crate::leave;
use guest::Round;
use results::{Record, Results};
use suite::{Placement, Suite, Verdict};

/// Options of `ring3 suites`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The suites. Default: all.
    suites: Vec<Suite>,
    /// Where the driver of the device is.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "kernel,exported,supervised,killed"
    )]
    on: Vec<Placement>,
    /// Run these tests of one suite.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["group", "quick"])]
    tests: Vec<String>,
    /// Run this group of the suite's: device or all of liburing, device of blktests, quick, auto
    /// and others of xfstests, card, drivers, forwarding or all of selftests, quick, schedule or
    /// all of postgres, quick, veryquick or all of sqlite. Default: device, quick or card.
    #[arg(long, conflicts_with = "quick")]
    group: Option<String>,
    /// Run three tests of each suite.
    #[arg(long)]
    quick: bool,
    /// Seconds after which a test is ended. Default: 120 of liburing and blktests, 300 of
    /// xfstests, 600 of the others.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    limit: Option<u32>,
    /// Folder of the results. A test with a result there is not run again.
    #[arg(long, default_value = "out/suites")]
    out: PathBuf,
    /// Run those tests again that have a result there and did not pass.
    #[arg(long)]
    again: bool,
    /// Print counts and differences as JSON.
    #[arg(long)]
    json: bool,
}

/// Tests of one guest: what is lost if it stands still is bounded.
const AT_ONCE: usize = 25;
/// Bytes of the disk that a file system is tested on.
const SIZE: Size = Size(2 << 30);

/// Runs the command. The exit code is 1 if a device of ring3's did worse than the kernel's.
pub fn run(args: &Args) -> Result<ExitCode> {
    leave::nothing_behind()?;
    ensure!(
        args.tests.is_empty() || args.suites.len() == 1,
        "--tests are of one suite: name it, as in `ring3 suites xfstests --tests generic/001`"
    );
    let cache = Cache::open()?;
    let suites = match &args.suites[..] {
        [] => Suite::value_variants(),
        some => some,
    };
    for suite in suites {
        prepare(&cache, &[suite.need()], &mut |line| errln!("{line}"))?;
    }
    let mut results = Results::open(&args.out)?;
    if args.again {
        results.forget_failed();
    }
    for &suite in suites {
        let tests = args.choose(&cache, suite)?;
        // In turn, so that a run that is ended early has compared something.
        for (tests, &placement) in
            tests.chunks(AT_ONCE).flat_map(|some| args.on.iter().map(move |one| (some, one)))
        {
            let missing = results.missing(suite, placement, tests).len();
            errln!("{} on {}: {missing} tests", suite.name(), placement.name());
            let limit = args.limit.unwrap_or(suite.usual_limit());
            let round = Round { suite, placement, limit, kernel: DEFAULT_KERNEL, size: SIZE.0 };
            round.run(&cache, tests, &mut results, &mut |record| errln!("{}", line(record)))?;
        }
    }
    print(&results, args.json)?;
    Ok(if is_worse(results.records()) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl Args {
    /// The tests of `suite` that are asked for.
    fn choose(&self, cache: &Cache, suite: Suite) -> Result<Vec<String>> {
        if !self.tests.is_empty() {
            return Ok(self.tests.clone());
        }
        if self.quick {
            return Ok(suite.few().iter().map(ToString::to_string).collect());
        }
        let path = cache.path(format!("{}/{}", suite.part(), suite.name()));
        let list = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let group = self.group.as_deref().unwrap_or(suite.usual_group());
        let tests = of_group(&list, group);
        ensure!(!tests.is_empty(), "{} has no group {group}", suite.name());
        Ok(tests)
    }
}

/// The tests of `group` in a list with a test and its groups in each line.
fn of_group(list: &str, group: &str) -> Vec<String> {
    list.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let test = words.next()?;
            words.any(|word| word == group).then(|| test.to_string())
        })
        .collect()
}

fn line(record: &Record) -> String {
    let more = |count: u32, what: &str| match count {
        0 => String::new(),
        _ => format!(", {count} {what}"),
    };
    format!(
        "{:32} {:11} {:9} {:.1} s{}{}",
        record.test,
        record.placement.name(),
        record.verdict.word(),
        record.seconds,
        more(record.kills, "kills"),
        more(record.errors, "I/O errors")
    )
}

fn print(results: &Results, json: bool) -> Result<()> {
    let records = results.records();
    match json {
        true => outln!("{}", serde_json::to_string_pretty(&object(records))?),
        false => outln!("{}", table::render(records).trim_end()),
    }
    Ok(())
}

/// Counts, differences and results, as docs/output.schema.json has them.
fn object(records: &[Record]) -> Value {
    let counts: Vec<_> = table::counts(records)
        .into_iter()
        .map(|((suite, placement), counts)| {
            serde_json::json!({ "suite": suite, "placement": placement, "counts": counts })
        })
        .collect();
    serde_json::json!({
        "counts": counts, "differences": table::differences(records), "results": records,
    })
}

/// Whether a device of ring3's failed where the kernel's did not, or was not tried: a test did not
/// pass, or the kernel logged I/O errors, with which a test may pass all the same.
fn is_worse(records: &[Record]) -> bool {
    let bad = |record: &Record| !matches!(record.verdict, Verdict::Passed | Verdict::NotRun);
    records.iter().filter(|record| !record.placement.is_kernel()).any(|record| {
        let same = |other: &&Record| {
            other.placement.is_kernel()
                && (other.suite, &other.test) == (record.suite, &record.test)
        };
        let kernel = records.iter().find(same);
        bad(record) && !kernel.is_some_and(bad)
            || record.errors > kernel.map_or(0, |kernel| kernel.errors)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_on_ring3s_disk_alone_is_worse_and_so_is_a_pass_with_io_errors() {
        let record = |placement, verdict, errors| Record {
            suite: Suite::Liburing,
            placement,
            test: "a".into(),
            verdict,
            seconds: 1.0,
            kills: 0,
            errors,
            kernel: "6.12".into(),
        };
        let kernel = |verdict| record(Placement::Kernel, verdict, 0);
        let killed = |verdict, errors| record(Placement::Killed, verdict, errors);
        let (passed, failed) = (Verdict::Passed, Verdict::Failed);
        assert!(!is_worse(&[kernel(passed), killed(passed, 0)]));
        assert!(!is_worse(&[kernel(failed), killed(failed, 0)]));
        assert!(!is_worse(&[kernel(failed)]));
        assert!(is_worse(&[kernel(passed), killed(failed, 0)]));
        assert!(is_worse(&[killed(failed, 0)]), "nothing to compare with excuses nothing");
        assert!(is_worse(&[kernel(passed), killed(passed, 1)]));
    }

    #[test]
    fn what_is_printed_as_json_is_as_the_schema_has_it() {
        let record = |placement, verdict| Record {
            suite: Suite::Xfstests,
            placement,
            test: "generic/001".into(),
            verdict,
            seconds: 1.5,
            kills: 1,
            errors: 0,
            kernel: "6.12".into(),
        };
        let records = [
            record(Placement::Kernel, Verdict::NotRun),
            record(Placement::Killed, Verdict::TimedOut),
        ];
        let mut schema: Value =
            serde_json::from_str(include_str!("../../../../../docs/output.schema.json")).unwrap();
        schema["$ref"] = "#/$defs/suites".into();
        jsonschema::validate(&schema, &object(&records)).unwrap();
    }

    #[test]
    fn a_group_has_the_tests_that_name_it() {
        let list = "generic/001 rw auto quick\ngeneric/002 auto\n\ngeneric/003 quick\n";
        assert_eq!(of_group(list, "quick"), ["generic/001", "generic/003"]);
        assert!(of_group(list, "generic/001").is_empty());
    }
}
