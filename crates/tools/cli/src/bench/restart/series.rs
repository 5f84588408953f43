//! All that docs/bench.md says of restarts, one after the other.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use ring3_bench::report::Report;
use ring3_bench::restart::{Databases, Outcome, table};
use ring3_bench::table::render_figures;
use ring3_lab::{Cache, DEFAULT_KERNEL, Need, prepare};

use super::{Args, Controller, is_right, measure};

/// The newest kernel of the lab.
const NEWEST_KERNEL: &str = "7.2";
/// Seconds for which databases work.
const DATABASES: u32 = 600;

/// One run of the series.
struct Part {
    name: &'static str,
    kernel: &'static str,
    controller: Controller,
    depth: u16,
    kills: u32,
    upgrades: u32,
    expedited: bool,
    adopt: bool,
}

/// What the others are variations of: ext4 with fio's verification.
const USUAL: Part = Part {
    name: "nvme-6.12",
    kernel: DEFAULT_KERNEL,
    controller: Controller::Nvme,
    depth: 32,
    kills: 200,
    upgrades: 100,
    expedited: false,
    adopt: false,
};

const PARTS: [Part; 10] = [
    USUAL,
    Part { name: "nvme-7.2", kernel: NEWEST_KERNEL, kills: 50, ..USUAL },
    Part { name: "ahci-6.12", controller: Controller::Ahci, kills: 50, upgrades: 20, ..USUAL },
    // Twice as many as the disk takes.
    Part { name: "tags-6.12", depth: 128, kills: 50, upgrades: 20, ..USUAL },
    Part { name: "tags-7.2", kernel: NEWEST_KERNEL, depth: 128, kills: 50, upgrades: 20, ..USUAL },
    Part { name: "expedited-6.12", kills: 50, upgrades: 20, expedited: true, ..USUAL },
    Part { name: "expedited-7.2", kernel: NEWEST_KERNEL, kills: 50, expedited: true, ..USUAL },
    Part { name: "adopted-6.12", kills: 50, upgrades: 20, adopt: true, ..USUAL },
    Part {
        name: "adopted-7.2",
        kernel: NEWEST_KERNEL,
        kills: 50,
        upgrades: 20,
        adopt: true,
        ..USUAL
    },
    Part {
        name: "adopted-ahci-6.12",
        controller: Controller::Ahci,
        kills: 50,
        upgrades: 20,
        adopt: true,
        ..USUAL
    },
];

impl Part {
    /// The options of a command that does the same.
    fn args(&self, series: &Args) -> Args {
        let (kills, upgrades) = if series.quick { (5, 3) } else { (self.kills, self.upgrades) };
        Args {
            kernel: self.kernel.into(),
            controller: self.controller,
            depth: self.depth,
            expedited: self.expedited,
            adopt: self.adopt,
            ext4: true,
            quick: false,
            kills,
            upgrades,
            ..series.clone()
        }
    }
}

/// A name, and the options of each part.
fn parts(series: &Args) -> Vec<(String, Args)> {
    let load = PARTS.iter().map(|part| (part.name.to_owned(), part.args(series)));
    let seconds = if series.quick { 20 } else { DATABASES };
    let databases = Args { databases: Some(seconds), ..series.clone() };
    load.chain([("databases".to_owned(), databases)]).collect()
}

fn path(series: &Args, name: &str) -> PathBuf {
    series.out.join(format!("restart-{name}.json"))
}

/// What an earlier run has left of this part, if it was as long.
fn known(series: &Args, name: &str, args: &Args) -> Option<Report> {
    let report = Report::read(&path(series, name)).ok()?;
    let as_long = match args.databases {
        Some(seconds) => report.own::<Databases>().ok()?.seconds == seconds,
        None => {
            let Outcome { kills, upgrades, .. } = report.own().ok()?;
            (kills, upgrades) == (args.kills, args.upgrades)
        }
    };
    as_long.then_some(report)
}

/// Runs what is not in the folder yet, and shows all of it. A part that fails is said, and the next
/// one follows.
pub fn run(series: &Args) -> Result<ExitCode> {
    let needs = [
        Need::Tools,
        Need::Fio,
        Need::Databases,
        Need::Kernel(DEFAULT_KERNEL.into()),
        Need::Kernel(NEWEST_KERNEL.into()),
    ];
    prepare(&Cache::open()?, &needs, &mut |line| errln!("{line}"))?;
    let (parts, mut rows, mut failed) = (parts(series), Vec::new(), Vec::new());
    for (number, (name, args)) in parts.iter().enumerate() {
        let place = path(series, name);
        let found = match known(series, name, args) {
            Some(found) => {
                errln!(
                    "{}/{} {name}: {} is there and as long; not measured again",
                    number + 1,
                    parts.len(),
                    place.display()
                );
                Ok(found)
            }
            None => {
                errln!("{}/{} {name}", number + 1, parts.len());
                measure(args).and_then(|report| {
                    report.write(&place)?;
                    Ok(report)
                })
            }
        };
        match found {
            Ok(found) => {
                failed.extend(
                    (!is_right(&found))
                        .then(|| format!("{name}: errors, or blocks that were wrong")),
                );
                rows.push((name.clone(), found));
            }
            Err(error) => failed.push(format!("{name}: {error:#}")),
        }
    }
    show(series, &rows)?;
    failed.iter().for_each(|why| errln!("{why}"));
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// As tables of docs/bench.md, or an object with each part's own.
fn show(series: &Args, rows: &[(String, Report)]) -> Result<()> {
    if series.json {
        let parts: BTreeMap<_, _> = rows.iter().map(|(name, report)| (name, report)).collect();
        outln!("{}", serde_json::to_string(&parts).context("writing the series as JSON")?);
        return Ok(());
    }
    let (databases, loads): (Vec<_>, Vec<_>) =
        rows.iter().partition(|(_, report)| report.bench == "restart-databases");
    let outcomes: Vec<(&str, Outcome)> = loads
        .iter()
        .map(|(name, report)| Ok((name.as_str(), report.own()?)))
        .collect::<Result<_>>()?;
    let loads: Vec<_> = outcomes.iter().map(|(name, outcome)| (*name, outcome)).collect();
    outln!("{}", table(&loads));
    for (_, report) in databases {
        crate::output::write(format_args!("{}", render_figures(report)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ring3_bench::report::Lab;

    use super::super::{of_databases, of_load};
    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn series(words: &[&str]) -> Args {
        Command::parse_from(["restart", "--series"].iter().chain(words)).args
    }

    #[test]
    fn every_part_of_the_series_has_a_name_and_a_file_of_its_own() {
        let parts = parts(&series(&[]));
        let mut names: Vec<_> = parts.iter().map(|(name, _)| name).collect();
        names.dedup();
        assert_eq!(names.len(), PARTS.len() + 1);
        assert!(
            parts.iter().all(|(_, args)| args.ext4 != args.databases.is_some()),
            "a file system in each"
        );
    }

    #[test]
    fn what_keeps_every_tag_in_flight_asks_for_more_than_the_disk_takes() {
        let series = series(&[]);
        let tags = PARTS.iter().filter(|part| part.name.starts_with("tags"));
        assert!(tags.map(|part| part.args(&series)).all(|args| args.depth > args.tags));
    }

    #[test]
    fn a_part_that_is_there_is_measured_again_only_if_it_was_shorter() {
        let folder = tempfile::tempdir().unwrap();
        let series = series(&["--out", folder.path().to_str().unwrap()]);
        let all = parts(&series);
        let known = |index: usize| known(&series, &all[index].0, &all[index].1).is_some();
        let (load, databases) = (0, all.len() - 1);
        assert!(!known(load) && !known(databases));
        let write = |kills| {
            let outcome = Outcome { kills, upgrades: 100, ..Outcome::default() };
            let report = of_load(&outcome, Lab::default()).unwrap();
            report.write(&path(&series, &all[load].0)).unwrap();
        };
        write(5);
        assert!(!known(load), "it was shorter");
        write(200);
        let found = Databases { seconds: DATABASES, ..Databases::default() };
        let report = of_databases(&found, Lab::default()).unwrap();
        report.write(&path(&series, "databases")).unwrap();
        assert!(known(load) && known(databases));
    }
}
