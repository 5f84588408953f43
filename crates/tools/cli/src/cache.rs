//! `ring3 cache`: what is in the cache folder, and its removal.

mod entries;
mod prune;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use ring3_bench::table::Table;
use ring3_lab::Cache;
use serde_json::{Value, json};

use crate::sizes::human;
use entries::Entry;

/// Options of `ring3 cache`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print a JSON list, one object for each entry.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Delete old entries of the cache.
    ///
    /// Deletes only what ring3 can fetch or build again, and never follows a symbolic link. Stops
    /// while a guest runs or a setup is at work, and skips an entry that is being built.
    Prune(PruneArgs),
}

/// Options of `ring3 cache prune`.
#[derive(clap::Args)]
struct PruneArgs {
    /// Parts or entries to delete from, as `ring3 cache` names them: snapshots, kernels/6.1.
    /// Default: all.
    #[arg(value_name = "PART")]
    parts: Vec<String>,
    /// Only entries that were made, or last used if that is known, longer ago than this: a number
    /// and s, m, h, d or w.
    #[arg(long, value_name = "AGE", default_value = "30d", value_parser = age)]
    older_than: Duration,
    /// Only entries larger than this on disk: bytes, or a number and K, M, G or T.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = size)]
    larger_than: u64,
    /// Print what would be deleted, and delete nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Lists the cache, or deletes from it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let cache = Cache::open()?;
    match &args.command {
        Some(Command::Prune(args)) => delete(&cache, args),
        None => {
            list(&cache, args.json);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The cache, and where this user builds if the cache is another user's.
fn places(cache: &Cache) -> Vec<PathBuf> {
    let (root, own) = (cache.root().to_owned(), own(cache));
    if root == own { vec![root] } else { vec![root, own] }
}

fn own(cache: &Cache) -> PathBuf {
    // Joined with nothing, a path ends in a slash; its components are the same.
    cache.built("").components().collect()
}

fn list(cache: &Cache, json: bool) {
    let now = SystemTime::now();
    let mut objects = Vec::new();
    for place in places(cache) {
        let entries = entries::read(&place);
        if json {
            objects.extend(entries.iter().map(|entry| {
                json!({
                    "name": entry.name, "path": place.join(&entry.name), "bytes": entry.bytes,
                    "age_s": entry.age(now).as_secs(), "can_be_deleted": entry.can_be_deleted(),
                })
            }));
            continue;
        }
        outln!("{}", place.display());
        crate::output::write(format_args!("{}", table(&entries, now)));
    }
    if json {
        outln!("{}", Value::from(objects));
    }
}

/// A line for each part. The ages are those of its newest and its oldest entry.
fn table(entries: &[Entry], now: SystemTime) -> String {
    let mut table =
        Table::new("PART", ["ENTRIES", "SIZE", "NEWEST", "OLDEST", "CONTENT"]).left(&[5]);
    let mut parts: Vec<&[Entry]> = entries.chunk_by(|one, next| one.part == next.part).collect();
    let size = |entries: &[Entry]| entries.iter().map(|entry| entry.bytes).sum::<u64>();
    parts.sort_by_key(|entries| std::cmp::Reverse(size(entries)));
    for entries in parts {
        let ages = || entries.iter().map(|entry| entry.age(now));
        let shown = |age: Option<Duration>| age.map_or_else(String::new, days);
        table.line(
            &entries[0].part,
            [
                entries.len().to_string(),
                human(size(entries)),
                shown(ages().min()),
                shown(ages().max()),
                entries[0].content().to_owned(),
            ],
        );
    }
    table.line(
        "in all",
        [
            entries.len().to_string(),
            human(size(entries)),
            String::new(),
            String::new(),
            String::new(),
        ],
    );
    table.whole()
}

fn days(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

fn delete(cache: &Cache, args: &PruneArgs) -> Result<ExitCode> {
    let wanted = prune::Wanted {
        parts: args.parts.clone(),
        older_than: args.older_than,
        larger_than: args.larger_than,
    };
    let done = prune::prune(&own(cache), &wanted, args.dry_run)?;
    let verb = if args.dry_run { "would delete" } else { "deleted" };
    for entry in &done.deleted {
        outln!("{verb} {} ({})", entry.name, human(entry.bytes));
    }
    for (name, why) in &done.kept {
        errln!("ring3: {name} stays: {why}");
    }
    let bytes = done.deleted.iter().map(|entry| entry.bytes).sum();
    outln!("{verb} {} entries, {}", done.deleted.len(), human(bytes));
    Ok(if done.kept.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A number and a unit of time.
fn age(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no age: use a number and s, m, h, d or w, such as 30d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

/// A number and a binary unit.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: use bytes, or a number and K, M, G or T");
    let (number, shift) = match text.strip_suffix(['K', 'M', 'G', 'T']) {
        Some(number) if text.ends_with('K') => (number, 10),
        Some(number) if text.ends_with('M') => (number, 20),
        Some(number) if text.ends_with('G') => (number, 30),
        Some(number) => (number, 40),
        None => (text, 0),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_a_number_and_a_unit() {
        assert_eq!(age("30d").unwrap(), Duration::from_secs(30 * 86_400));
        assert_eq!(age("0s").unwrap(), Duration::ZERO);
        for wrong in ["", "d", "30", "3 d", "-1d", "1\u{fc}", "99999999999999999999d"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_size_is_bytes_or_a_number_and_a_unit() {
        assert_eq!([size("1G"), size("4096"), size("2T")], [Ok(1 << 30), Ok(4096), Ok(2 << 40)]);
        for wrong in ["", "G", "1X", "-1", "99999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
