//! Databases on a disk whose driver dies at random times, and their own judgement of what is left.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ring3_bench::restart::Databases;
use ring3_lab::{Cache, Event, Need, prepare};

use super::Args;
use super::guest::{guest, script};

/// What the guest does.
const RUN: &str = include_str!("databases.sh");

/// Runs both for `seconds`.
pub fn measure(args: &Args, seconds: u32) -> Result<Databases> {
    let cache = Cache::open()?;
    prepare(&cache, &[Need::Databases], &mut |line| errln!("{line}"))?;
    let mut guest = guest(args, "restart-databases")?.file("/databases.tar", &cache.path("databases/databases.tar"));
    guest.memory_mib = 1536;
    guest.time_limit = Duration::from_secs(900) + Duration::from_secs(u64::from(seconds) * 4);
    let guest = guest.variable("SECONDS_LONG", &seconds.to_string()).step("databases", &script(RUN));
    let outcome = guest.run(&cache, &mut |event| match event {
        Event::Progress(line) => errln!("{line}"),
        Event::Line(line) if !line.starts_with('{') => errln!("{line}"),
        _ => {}
    })?;
    if !outcome.succeeded() {
        bail!(
            "a database has lost something, or did not run (exit code {}); what was said is above\n{}",
            outcome.exit,
            outcome.messages
        );
    }
    let output = outcome.output();
    let line = output.lines().find(|line| line.starts_with('{')).context("the guest has found nothing")?;
    let databases: Databases = serde_json::from_str(line).context("reading what the guest has found")?;
    ensure!(databases.kills > 0 && databases.restarts > 0, "no driver was killed: {line}");
    Ok(databases)
}

/// In words.
pub fn show(databases: &Databases) {
    let Databases { seconds, kills, postgres_acknowledged, postgres_found, sqlite_acknowledged, sqlite_found, .. } = databases;
    outln!("{kills} drivers killed in {seconds} s, {} errors of the disk", databases.errors);
    outln!("PostgreSQL: {postgres_acknowledged} transactions acknowledged, {postgres_found} found, tables and indices checked");
    outln!("sqlite: {sqlite_acknowledged} transactions acknowledged, {sqlite_found} found, integrity checked; ext4 is clean");
}
