//! Databases on a disk whose driver dies at random times, and their own judgement of what is left.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ring3_bench::report::{Lab, Report};
use ring3_bench::restart::Databases;
use ring3_lab::{Cache, Event, Need, prepare};

use super::guest::{guest, lab, script};
use super::{Args, of_databases};

/// What the guest does.
const RUN: &str = include_str!("databases.sh");

/// The script's exit code when a database has lost something, or its disk is damaged.
const LOST: i32 = 3;

/// Runs both for `seconds`.
pub fn measure(args: &Args, seconds: u32) -> Result<Report> {
    let cache = Cache::open()?;
    prepare(&cache, &[Need::Databases], &mut |line| errln!("{line}"))?;
    let mut guest = guest(args, "restart-databases")?
        .file("/databases.tar", &cache.path("databases/databases.tar"));
    guest.memory_mib = 1536;
    guest.time_limit = Duration::from_secs(900) + Duration::from_secs(u64::from(seconds) * 4);
    let guest =
        guest.variable("SECONDS_LONG", &seconds.to_string()).step("databases", &script(RUN));
    let outcome = guest.run(&cache, &mut |event| match event {
        Event::Progress(line) => errln!("{line}"),
        Event::Line(line) if !line.starts_with('{') => errln!("{line}"),
        _ => {}
    })?;
    ensure!(outcome.succeeded(), "{}", verdict(outcome.exit, &outcome.messages));
    let output = outcome.output();
    let line =
        output.lines().find(|line| line.starts_with('{')).context("the guest has found nothing")?;
    let databases: Databases =
        serde_json::from_str(line).context("reading what the guest has found")?;
    ensure!(databases.kills > 0 && databases.restarts > 0, "no driver was killed: {line}");
    let lab = Lab { kernel: args.kernel.clone(), ..lab(&outcome, args) };
    of_databases(&databases, lab)
}

/// What an exit code of the script says. A trial that came to no end is no loss.
fn verdict(exit: i32, messages: &str) -> String {
    match exit {
        LOST => format!("a database has lost something; what was found is above\n{messages}"),
        _ => format!(
            "the databases were not tried to the end (exit code {exit}), which says nothing of \
             their data; what stopped it is above: run it again, for longer on a slow \
             host\n{messages}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Exit code and output of a function of the script, with `stubs` in place of the databases.
    fn calls(stubs: &str, function: &str) -> (i32, String) {
        let functions = RUN.split("\nunpack; prepare;").next().unwrap();
        let quiet = "quietly() { :; }; as_nobody() { :; }; usleep() { :; }; sleep() { :; }; \
                     start_postgres() { :; }
            end_postgres() { :; }; kill_drivers() { :; }; work_sqlite() { :; }; \
                     fail() { echo \"$*\"; exit 1; }";
        let over = tempfile::tempdir().unwrap();
        let functions = functions.replace("/tmp/", &format!("{}/", over.path().display()));
        let script = format!("{functions}\n{quiet}\nSECONDS_LONG=1\n{stubs}\n{function}\n");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[test]
    fn a_benchmark_that_was_ended_without_a_count_is_no_loss() {
        let stubs = "bench() { [ $1 = 600 ] || echo 7; }; query() { echo 8; }";
        let (exit, said) = calls(stubs, "work");
        assert!(exit == 1 && said.contains("has not said how many"), "{exit}: {said}");
        assert!(verdict(exit, "").contains("says nothing of their data"));
    }

    #[test]
    fn what_both_runs_have_acknowledged_is_added() {
        let stubs = "bench() { [ $1 = 600 ] && echo 5 || echo 7; }; query() { echo 8; }";
        let (exit, said) = calls(stubs, "work; echo $acknowledged");
        assert_eq!((exit, said.trim()), (0, "12"));
    }

    #[test]
    fn transactions_that_were_acknowledged_and_are_not_there_are_a_loss() {
        let (exit, said) = calls("query() { echo 8; }; acknowledged=9", "check_postgres");
        assert!(
            exit == LOST && said.contains("has acknowledged 9 transactions and has 8"),
            "{exit}: {said}"
        );
        assert!(verdict(exit, "").contains("has lost something"));
    }

    #[test]
    fn a_database_that_does_not_answer_is_no_loss() {
        let (exit, said) = calls("query() { :; }; acknowledged=9", "check_postgres");
        assert!(exit == 1 && said.contains("does not answer"), "{exit}: {said}");
    }
}
