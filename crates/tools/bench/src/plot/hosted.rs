//! The figures of `bench dde`: latencies and throughput as bars, and how latencies are distributed,
//! as in Figures 4.1 to 4.5 of Weisbach 2011.

use super::bars::Bars;
use super::svg::{Anchor, Svg};
use super::{rounded_tick, tick};
use crate::report::{Fact, Report};
use crate::table::rounded;

/// Draws the medians over rounds of what each placement has as its mean, and of its throughput.
pub fn draw(report: &Report) -> String {
    let bars = Bars {
        title: "A card by Linux's driver, in the kernel and in a process: instructions per round trip (icmp), datagram (udp) and segment (tcp)",
        source: "after Weisbach 2011; medians",
        metric: if report.lab.mode == "instructions" {
            "instructions_per_op"
        } else {
            "latency_us_mean"
        },
        name: |row| format!("{}, {}", row.workload, row.placement),
        label: |report, row| match report.ratio_to_best(&row.workload, &row.placement, &row.metric)
        {
            Some(ratio) => format!("{} ({ratio:.2}x)", rounded(row.summary.median)),
            None => rounded(row.summary.median),
        },
    };
    bars.draw(report)
}

const LEFT: f64 = 60.0;
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 110.0;
const HEAD: f64 = 60.0;
/// From one panel to the next.
const ROW: f64 = 170.0;
const MARGIN: f64 = 24.0;

/// What a fact of this name says, by placement, and of which load.
fn facts<'a>(report: &'a Report, kind: &str) -> Vec<(&'a Fact, &'a str)> {
    let prefix = format!("{kind} of ");
    report.facts.iter().filter_map(|fact| Some((fact, fact.fact.strip_prefix(&prefix)?))).collect()
}

/// Draws, for each placement and load, how many requests took how long, and beside it the longest
/// of each part of the run. [Weisbach 2011, Figures 4.1 to 4.3]
pub fn draw_distributions(report: &Report) -> String {
    let rows = facts(report, "distribution");
    let mut svg =
        Svg::new(2.0 * (LEFT + WIDTH) + 3.0 * MARGIN, HEAD + rows.len() as f64 * ROW + MARGIN);
    svg.text(
        (MARGIN, 26.0),
        16,
        Anchor::Start,
        "Round trips: how many took how long, and the longest of each part of the run, in \
        microseconds",
    );
    let courses = facts(report, "course");
    for (index, (fact, load)) in rows.into_iter().enumerate() {
        let y = HEAD + index as f64 * ROW;
        svg.text((MARGIN, y), 12, Anchor::Start, &format!("{load}, {}", fact.placement));
        histogram(&mut svg, (MARGIN + LEFT, y + 12.0), &fact.value);
        let course =
            courses.iter().find(|(other, of)| other.placement == fact.placement && of == &load);
        if let Some((course, _)) = course {
            run(&mut svg, (2.0 * (MARGIN + LEFT) + WIDTH, y + 12.0), &course.value);
        }
    }
    svg.finish()
}

fn histogram(svg: &mut Svg, (x, y): (f64, f64), bins: &str) {
    let number = |text: &str| text.parse::<f64>().ok();
    let bins: Vec<(f64, f64)> = bins
        .split(' ')
        .filter_map(|bin| bin.split_once(':'))
        .filter_map(|(at, count)| Some((number(at)?, number(count)?)))
        .collect();
    let all: f64 = bins.iter().map(|bin| bin.1).sum();
    let most = bins.iter().map(|bin| bin.1).fold(1.0, f64::max);
    // What hardly any took is not drawn, so that the others can be seen.
    let mut seen = 0.0;
    let shown: Vec<_> = bins
        .iter()
        .take_while(|bin| {
            let before = seen;
            seen += bin.1;
            before < 0.999 * all
        })
        .collect();
    let first = shown.first().map_or(0.0, |bin| bin.0);
    let end = shown.last().map_or(4.0, |bin| bin.0 + 4.0).max(first + 4.0);
    let at = |value: f64| x + (value - first) / (end - first) * WIDTH;
    for (from, count) in shown {
        let height = count / most * HEIGHT;
        svg.rect(
            at(*from),
            y + HEIGHT - height,
            (at(from + 4.0) - at(*from)).max(0.5),
            height,
            "#0072b2",
        );
    }
    svg.line((x, y + HEIGHT), (x + WIDTH, y + HEIGHT), "#555555");
    for part in 0..=4 {
        let value = first + (end - first) * f64::from(part) / 4.0;
        svg.text((at(value), y + HEIGHT + 14.0), 10, Anchor::Middle, &format!("{value:.0}"));
    }
    svg.text((x - 6.0, y + 10.0), 10, Anchor::End, &format!("{most:.0}"));
}

fn run(svg: &mut Svg, (x, y): (f64, f64), values: &str) {
    let values: Vec<f64> = values.split(' ').filter_map(|value| value.parse().ok()).collect();
    let largest = values.iter().copied().fold(1.0, f64::max);
    let end = (largest / tick(largest)).ceil().max(1.0) * tick(largest);
    let step = WIDTH / values.len().max(1) as f64;
    let points: Vec<_> = values
        .iter()
        .enumerate()
        .map(|(at, value)| (x + at as f64 * step, y + HEIGHT - value / end * HEIGHT))
        .collect();
    svg.curve(&points, "#d55e00", 1.0, "none");
    svg.line((x, y + HEIGHT), (x + WIDTH, y + HEIGHT), "#555555");
    svg.text((x - 6.0, y + 10.0), 10, Anchor::End, &rounded_tick(end));
    svg.text((x - 6.0, y + HEIGHT), 10, Anchor::End, "0");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    fn report() -> Report {
        let mut one =
            Measurement::new(1, "icmp-56", "hosted-raw").with("instructions_per_op", 5000.0);
        one.facts.insert("distribution of icmp-56".into(), "80:10 84:300 96:2".into());
        one.facts.insert("course of icmp-56".into(), "85.0 99.9 84.0".into());
        let kernel = Measurement::new(1, "icmp-56", "kernel").with("instructions_per_op", 4000.0);
        Report::new("dde", Lab { mode: "instructions".into(), ..Lab::default() }, &[kernel, one])
    }

    #[test]
    fn a_bar_has_its_ratio_to_the_kernels_driver() {
        assert!(draw(&report()).contains("1.25x"), "{}", draw(&report()));
    }

    #[test]
    fn each_load_and_placement_has_a_panel_with_as_many_bars_as_bins() {
        let text = draw_distributions(&report());
        assert!(text.contains(">icmp-56, hosted-raw<") && text.contains("polyline"), "{text}");
        assert_eq!(text.matches("#0072b2").count(), 3, "{text}");
        assert!(draw_distributions(&Report::new("dde", Lab::default(), &[])).ends_with("</svg>\n"));
    }
}
