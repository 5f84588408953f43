//! How the latencies of `bench dde` are distributed, as in Figures 4.1 to 4.3 of Weisbach 2011.

use super::figure::{Curve, Curves, Figure, Panel, RED};
use crate::Error;
use crate::report::{Fact, Report};

/// Microseconds of a bin.
const BIN: f64 = 4.0;
/// Of all, so many are drawn: what hardly any took is left out, so that the others can be seen.
const SHOWN: f64 = 0.999;

/// What a fact of this name says, by placement, and of which load.
fn facts<'a>(report: &'a Report, kind: &str) -> Vec<(&'a Fact, &'a str)> {
    let prefix = format!("{kind} of ");
    report.facts.iter().filter_map(|fact| Some((fact, fact.fact.strip_prefix(&prefix)?))).collect()
}

/// Draws, for each placement and load, how many requests took how long, and beside it the longest
/// of each part of the run.
///
/// # Errors
/// plotters refuses.
pub fn draw_distributions(report: &Report) -> Result<String, Error> {
    distributions(report).draw()
}

/// The figure of them.
pub fn distributions(report: &Report) -> Figure {
    let courses = facts(report, "course");
    let row = |(fact, load): (&Fact, &str)| {
        let same = |(other, of): &&(&Fact, &str)| other.placement == fact.placement && *of == load;
        let title = format!("{load}, {}", fact.placement);
        let named = |course| Curves { title: format!("{title}: its course"), ..course };
        let course = courses.iter().find(same).map(|(course, _)| named(run(&course.value)));
        [Some(Curves { title, ..histogram(&fact.value) }), course]
            .into_iter()
            .flatten()
            .map(Panel::Curves)
            .collect()
    };
    Figure {
        title: "Round trips: how many took how long, and the longest of each part of the run, in \
                microseconds"
            .into(),
        rows: facts(report, "distribution").into_iter().map(row).collect(),
        ..Figure::default()
    }
}

fn histogram(text: &str) -> Curves {
    let bins = text.split(' ').filter_map(|bin| bin.split_once(':'));
    let bins: Vec<(f64, f64)> =
        bins.filter_map(|(at, count)| Some((at.parse().ok()?, count.parse().ok()?))).collect();
    let all: f64 = bins.iter().map(|bin| bin.1).sum();
    let mut seen = 0.0;
    let shown = bins.iter().take_while(|bin| {
        let before = seen;
        seen += bin.1;
        before < SHOWN * all
    });
    let columns: Vec<_> = shown.map(|&(at, count)| (at, at + BIN, count)).collect();
    let ends = (columns.first().map_or(0.0, |one| one.0), columns.last().map_or(BIN, |one| one.1));
    let axes = ["us".into(), "requests".into(), String::new()];
    Curves { axes, ends, columns, ..Curves::default() }
}

fn run(text: &str) -> Curves {
    let values = text.split(' ').filter_map(|value| value.parse().ok());
    let points: Vec<_> = values.enumerate().map(|(at, value)| (at as f64, value)).collect();
    let axes = ["part of the run".into(), "longest, us".into(), String::new()];
    let ends = (0.0, points.len().saturating_sub(1) as f64);
    let curve = Curve { points, ranges: Vec::new(), colour: RED, dashes: None, percent: true };
    Curves { axes, ends, curves: vec![curve], ..Curves::default() }
}

#[cfg(test)]
mod tests {
    use super::super::tests::texts;
    use super::*;
    use crate::report::{Lab, Measurement};

    #[test]
    fn each_load_and_placement_has_a_panel_with_as_many_columns_as_bins() {
        let mut one = Measurement::new(1, "icmp-56", "hosted-raw");
        one.facts.insert("distribution of icmp-56".into(), "80:10 84:300 96:2".into());
        one.facts.insert("course of icmp-56".into(), "85.0 99.9 84.0".into());
        let figure = draw_distributions(&Report::new("dde", Lab::default(), &[one])).unwrap();
        assert!(texts(&figure).contains(&"icmp-56, hosted-raw") && figure.contains("polyline"));
        assert_eq!(figure.matches("#0072B2").count(), 3, "{figure}");
    }

    #[test]
    fn what_hardly_any_took_is_not_drawn() {
        assert_eq!(histogram("80:10 84:9990 900:1").ends, (80.0, 88.0));
    }
}
