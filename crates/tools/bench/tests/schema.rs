//! docs/report.md and docs/bench.md say what the results mean: they must name each field, metric
//! and placement, and none that does not exist. docs/report.schema.json has their form.

mod conforms;

use std::collections::BTreeSet;

use ring3_bench::disk::Placement;
use ring3_bench::report::{Lab, METRICS, Measurement, Report};
use serde_json::Value;

const DOCUMENT: &str = include_str!("../../../../docs/bench.md");
const FIELDS: &str = include_str!("../../../../docs/report.md");

/// First cells, without their back-ticks, of the table whose head begins with `head`.
fn table(document: &str, head: &str) -> Vec<Vec<String>> {
    let lines =
        document.lines().skip_while(|line| !line.starts_with(&format!("| {head} |"))).skip(2);
    let cells = |line: &str| {
        line.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().trim_matches('`').to_owned())
            .collect()
    };
    lines.take_while(|line| line.starts_with('|')).map(cells).collect()
}

fn first_cells(document: &str, head: &str) -> BTreeSet<String> {
    table(document, head).into_iter().filter_map(|cells| cells.into_iter().next()).collect()
}

fn fields(value: &Value, prefix: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            object.iter().for_each(|(name, value)| fields(value, &format!("{prefix}.{name}"), into))
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, prefix, into)),
        _ => drop(into.insert(prefix.trim_start_matches('.').to_owned())),
    }
}

fn report() -> Report {
    let one =
        |placement, value| Measurement::new(1, "randread-4k-qd1", placement).with("iops", value);
    let mut kernel = one(Placement::Kernel, 2.0);
    kernel.facts.insert("scheduler".into(), "none".into());
    Report::new("disk", Lab::default(), &[kernel, one(Placement::Export, 1.0)])
}

#[test]
fn every_field_of_a_report_is_documented_and_every_documented_field_exists() {
    let mut found = BTreeSet::new();
    fields(&serde_json::to_value(report()).unwrap(), "", &mut found);
    assert_eq!(found, first_cells(FIELDS, "field"));
}

#[test]
fn a_report_is_as_the_schema_says() {
    let lab = Lab { mode: "wall".into(), vcpus: 2, ..Lab::default() };
    let mut report = serde_json::to_value(Report { lab, ..report() }).unwrap();
    assert_eq!(conforms::check(&report), Ok(()));
    report["rows"][0]["median"] = "many".into();
    assert!(conforms::check(&report).unwrap_err().contains("/rows/0/median"));
}

#[test]
fn every_metric_is_documented_with_its_unit() {
    let documented: BTreeSet<_> = table(DOCUMENT, "metric")
        .into_iter()
        .map(|cells| (cells[0].clone(), cells[1].clone()))
        .collect();
    let existing: BTreeSet<_> =
        METRICS.into_iter().map(|(name, unit)| (name.to_owned(), unit.to_owned())).collect();
    assert_eq!(documented, existing);
}

#[test]
fn every_placement_is_documented() {
    assert_eq!(
        first_cells(DOCUMENT, "placement"),
        Placement::ALL.iter().map(ToString::to_string).collect()
    );
}

#[test]
fn fields_stand_in_the_order_of_the_schema() {
    let text = serde_json::to_string(&report()).unwrap();
    let at = |name: &str| text.find(&format!("\"{name}\"")).unwrap();
    for pair in [
        "schema",
        "bench",
        "version",
        "provenance",
        "lab",
        "rows",
        "workload",
        "placement",
        "metric",
        "unit",
        "rounds",
        "min",
        "median",
        "max",
    ]
    .windows(2)
    {
        assert!(at(pair[0]) < at(pair[1]), "{pair:?}");
    }
}
