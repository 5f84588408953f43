//! `ring3 quirks`: what drivers know of devices that are otherwise than their specification.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ring3_driver::registry;
use ring3_quirks::{Cards, Class, Entry, Flag, Function, linux, page};
use serde::Serialize;

/// The exit code where a kernel's tables are other ones. An error has 1.
const DIFFERENT: u8 = 2;

/// What `ring3 quirks` does.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Show the quirks that drivers know, and what they do about each.
    Show {
        /// Print the page docs/quirks.md, with all devices.
        #[arg(long)]
        markdown: bool,
        /// Print JSON, with all devices.
        #[arg(long, conflicts_with = "markdown")]
        json: bool,
    },
    /// Compare the tables with those of a kernel's source.
    ///
    /// Says what the kernel has and ring3 has not, and the other way round, of quirks and of
    /// network cards. The order of entries is not compared, by which one of several that match a
    /// drive is chosen. The exit code is 2 if there is any difference.
    Compare {
        /// The root of the kernel's source.
        tree: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Does it.
pub fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Show { markdown: true, .. } => {
            let page = page(registry::quirks(), &registry::cards());
            crate::output::write(format_args!("{page}"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Show { json: true, .. } => {
            outln!("{}", serde_json::to_string_pretty(&shown())?);
            Ok(ExitCode::SUCCESS)
        }
        Command::Show { .. } => {
            show();
            Ok(ExitCode::SUCCESS)
        }
        Command::Compare { tree, json } => compare(&tree, json),
    }
}

fn show() {
    for (driver, table) in registry::quirks() {
        outln!("{driver}, after Linux {}", table.linux.version);
        let known = table.flags.iter().filter(|(_, flag)| flag.class != Class::Unconcerned);
        for (name, flag) in known {
            outln!("  {name:22} the device {}", flag.device);
            outln!("  {:22} ring3 {}", "", flag.answer());
        }
    }
    for Cards { driver, own, hosted, .. } in registry::cards() {
        outln!(
            "cards of Linux's {driver}: {} by ring3's own driver, {} by dde:{driver}",
            own.len(),
            hosted.len()
        );
    }
}

/// What `ring3 quirks show --json` prints.
#[derive(Serialize)]
struct Shown {
    tables: Vec<ShownTable>,
    cards: Vec<ShownCards>,
}

#[derive(Serialize)]
struct ShownTable {
    driver: &'static str,
    linux: &'static str,
    flags: Vec<ShownFlag>,
    entries: Vec<&'static Entry>,
}

#[derive(Serialize)]
struct ShownFlag {
    name: &'static str,
    #[serde(flatten)]
    flag: &'static Flag,
}

#[derive(Serialize)]
struct ShownCards {
    driver: &'static str,
    own: Vec<Function>,
    hosted: Vec<Function>,
}

fn shown() -> Shown {
    let tables = registry::quirks().map(|(driver, table)| ShownTable {
        driver,
        linux: &table.linux.version,
        flags: table.flags.iter().map(|(name, flag)| ShownFlag { name, flag }).collect(),
        entries: table.entries.iter().collect(),
    });
    let cards = registry::cards().into_iter();
    let cards = cards.map(|Cards { driver, own, hosted, .. }| ShownCards { driver, own, hosted });
    Shown { tables: tables.collect(), cards: cards.collect() }
}

/// A difference between a table of ring3's and one of a kernel's.
#[derive(Serialize)]
struct Difference {
    /// The family of drivers; `cards` for network cards.
    table: &'static str,
    difference: String,
}

fn compare(tree: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let found = differences(tree).map_err(anyhow::Error::msg)?;
    if json {
        outln!("{}", serde_json::to_string_pretty(&found)?);
    } else {
        for Difference { table, difference } in &found {
            outln!("{table}: {difference}");
        }
        if found.is_empty() {
            outln!("The tables have what the kernel's have.");
        }
    }
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

fn differences(tree: &Path) -> Result<Vec<Difference>, String> {
    let mut found = Vec::new();
    for (driver, table) in registry::quirks() {
        let theirs = linux::read(tree, &table.linux)?;
        let lines = linux::differences(&linux::facts_of(table), &theirs);
        found.extend(lines.into_iter().map(|difference| Difference { table: driver, difference }));
    }
    for cards in registry::cards() {
        let (ours, theirs) =
            (cards.all().collect::<BTreeSet<_>>(), linux::cards(tree, cards.table)?);
        let driver = cards.driver;
        let unknown =
            theirs.difference(&ours).map(|card| format!("{driver} {card}: ring3 does not know it"));
        let gone = ours
            .difference(&theirs)
            .map(|card| format!("{driver} {card}: the kernel does not have it"));
        let lines = unknown.chain(gone);
        found.extend(lines.map(|difference| Difference { table: "cards", difference }));
    }
    Ok(found)
}
