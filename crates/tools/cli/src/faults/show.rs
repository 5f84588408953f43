//! A report for people and for programs.

use std::process::ExitCode;

use anyhow::Result;
use ring3_bench::disk::machine;
use ring3_bench::report::{Lab, Measurement, Report as Told};
use ring3_bench::table::Table;
use ring3_faults::{Report, Share, Tally};
use serde_json::{Map, Value, json};

/// How a report is printed.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Form {
    /// Print the report as a JSON object (docs/campaign.md).
    #[arg(long)]
    json: bool,
    /// Print the report as a Markdown table.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

/// Prints it; no success if something was seen that must not be.
pub fn show(report: &Report, form: Form) -> Result<ExitCode> {
    match form {
        Form { json: true, .. } => outln!("{}", serde_json::to_string(&in_json(report)?)?),
        Form { markdown: true, .. } => {
            crate::output::write(format_args!("{}", table(report).markdown()));
        }
        Form { .. } => in_words(report),
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// As all benchmarks tell their results: a kind of fault is a workload.
fn in_json(report: &Report) -> Result<Told> {
    let placement = if report.guest.is_some() { "guest" } else { "models" };
    let measured = |(name, tally): (&str, Tally)| {
        let mut one = Measurement::new(1, name, placement);
        let numbers = figures(&tally).into_iter();
        one.values.extend(numbers.filter_map(|(name, value)| Some((name, value.as_f64()?))));
        let seen = tally.detected.into_iter();
        one.values.extend(seen.map(|(by, count)| (format!("detected_by_{by}"), count as f64)));
        one
    };
    let rows: Vec<_> = lines(report).into_iter().map(measured).collect();
    let here = machine(false);
    let kernel = report.guest.clone().unwrap_or(here.kernel.clone());
    let told = Told::new("faults", Lab { kernel, ..here }, &rows);
    Ok(told.with_own(&named(report))?)
}

/// What was seen under the names that docs/campaign.md has.
fn named(report: &Report) -> Value {
    let mut all = figures(&report.total());
    let kinds = report.kinds.iter().map(|(kind, tally)| {
        let mut figures = figures(tally);
        figures.insert("promised".into(), kind.is_promised().into());
        (kind.name().to_owned(), Value::Object(figures))
    });
    all.insert("by_kind".into(), Value::Object(kinds.collect()));
    all.insert("seed".into(), report.seed.into());
    all.insert("guest".into(), json!(report.guest));
    all.insert("hosted".into(), report.hosted.into());
    all.insert("under_ring3d".into(), report.under_ring3d.into());
    all.insert("count".into(), report.count.into());
    all.insert("failures".into(), json!(report.failures));
    Value::Object(all)
}

fn figures(tally: &Tally) -> Map<String, Value> {
    let Tally {
        injected,
        detected,
        recovered,
        mismatches,
        silent,
        silent_faults,
        damage,
        hangs,
        supervisor_deaths,
        ..
    } = tally;
    let [p50, p99, max] = tally.outage_ms();
    let share = |count: u64| json!(Share::new(count, *injected));
    let Value::Object(figures) = json!({
        "injected": injected, "detected": detected, "recovered": recovered,
        "mismatches": mismatches, "silent": silent,
        "damage": damage, "hangs": hangs, "supervisor_deaths": supervisor_deaths,
        "outage_ms_p50": p50, "outage_ms_p99": p99, "outage_ms_max": max,
        "recovered_share": share(*recovered), "silent_share": share(*silent_faults),
        "hang_share": share(*hangs),
    }) else {
        return Map::new();
    };
    figures
}

/// A line for each kind. Shares of all are intervals of 95 %.
fn table(report: &Report) -> Table {
    let heads = [
        "injected",
        "recovered",
        "mismatches",
        "faults with silently wrong blocks",
        "damage",
        "hangs",
        "outage p50 / p99 / max, ms",
        "seen first by",
    ];
    let mut table = Table::new("kind", heads).left(&[8]);
    for (name, tally) in lines(report) {
        let outage = tally.outage_ms().map(|ms| format!("{ms:.0}")).join(" / ");
        let share = Share::new(tally.silent_faults, tally.injected);
        let [low, high] = [share.low, share.high].map(|share| share * 100.0);
        let by: Vec<_> = tally.detected.iter().map(|(by, count)| format!("{by} {count}")).collect();
        let Tally { injected, recovered, mismatches, silent_faults, damage, hangs, .. } = tally;
        let silent = format!("{silent_faults} ({low:.1} to {high:.1} %)");
        let [injected, recovered, mismatches, damage, hangs] =
            [injected, recovered, mismatches, damage, hangs].map(|count| count.to_string());
        let cells = [injected, recovered, mismatches, silent, damage, hangs, outage, by.join(", ")];
        table.line(format!("`{name}`"), cells);
    }
    table
}

/// Of each kind, and of all.
fn lines(report: &Report) -> Vec<(&'static str, Tally)> {
    let kinds = report
        .kinds
        .iter()
        .filter(|(_, tally)| tally.injected > 0)
        .map(|(kind, tally)| (kind.name(), tally.clone()));
    kinds.chain([("all", report.total())]).collect()
}

fn in_words(report: &Report) {
    crate::output::write(format_args!("{}", table(report).text().replace('`', "")));
    let total = report.total();
    let share = Share::new(
        total.mismatches + total.damage + total.hangs + total.supervisor_deaths,
        total.injected,
    );
    let promised = report.kinds.keys().filter(|kind| kind.is_promised()).map(|kind| kind.name());
    let promised: Vec<_> = promised.collect();
    outln!(
        "right data are promised after {}; after other faults the driver itself may write wrong \
         data (docs/campaign.md)",
        if promised.is_empty() { "none of these".into() } else { promised.join(", ") }
    );
    outln!(
        "under ring3d: {} of {}; supervisor deaths: {}; of all faults, {} broke a promise (95 % \
        interval to {:.3} %)",
        report.under_ring3d,
        total.injected,
        total.supervisor_deaths,
        share.count,
        share.high * 100.0
    );
    report
        .failures
        .iter()
        .take(20)
        .for_each(|failure| outln!("{}: {}", failure.fault, failure.what));
}
