//! Echo throughput and processor utilisation over the offered load, as in Figure 4 of Leslie et al.
//! 2005: throughput rises on the left axis until something is exhausted, utilisation on the right
//! one.

use super::axes::{Figure, Key, Panel, THICK, THIN, round_up, ticks};
use super::rounded_tick;
use crate::net::Load;
use crate::report::Report;

/// The placements with their names, colours and dashes.
const PLACEMENTS: [Key; 3] = [
    ("kernel", "kernel's driver", "#555555", "none"),
    ("process", "ring3 in process", "#0072b2", "2 3"),
    ("export", "ring3 export", "#d55e00", "7 4"),
];

const FIGURE: Figure = Figure {
    title: "UDP echo: throughput (thick) and processor utilisation (thin)",
    source: "after Leslie et al. 2005, Figure 4; packets of 1024 bytes",
    rounds: "rounds",
    keys: &PLACEMENTS,
    gap: 60.0,
    units: ("echoed, Mb/s", "offered, Mb/s"),
};

/// Draws a panel for each report, one below the other.
pub fn draw(reports: &[Report]) -> String {
    FIGURE.draw(&reports.iter().map(panel).collect::<Vec<_>>(), 1)
}

/// The medians of a metric over the load that was offered, in its order.
fn curve(report: &Report, placement: &str, metric: &str) -> Vec<(f64, f64)> {
    let rows = report.rows.iter().filter(|row| row.placement == placement && row.metric == metric);
    let point = |workload: &str, value: f64| {
        workload.parse::<Load>().ok()?.rate()?;
        Some((report.get(workload, placement, "offered_mbit_s")?.median, value))
    };
    let mut curve: Vec<_> =
        rows.filter_map(|row| point(&row.workload, row.summary.median)).collect();
    curve.sort_by(|a, b| a.0.total_cmp(&b.0));
    curve
}

fn panel(report: &Report) -> Panel<'_> {
    let all = PLACEMENTS.iter().flat_map(|(name, ..)| curve(report, name, "mbit_s"));
    let most =
        all.fold((0.0_f64, 0.0_f64), |most, point| (most.0.max(point.0), most.1.max(point.1)));
    let (end, top) = (round_up(most.0), round_up(most.1));
    let of = |key: Key, metric: &str, top: f64, width| {
        let points = curve(report, key.0, metric)
            .into_iter()
            .map(|(offered, value)| (offered / end, value / top));
        (points.collect(), key, width)
    };
    let curves = PLACEMENTS
        .into_iter()
        .flat_map(|key| [of(key, "mbit_s", top, THICK), of(key, "busy_percent", 100.0, THIN)]);
    let ticks = ticks(end).map(|value| (value / end, rounded_tick(value))).collect();
    Panel { report, top, ticks, curves: curves.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    fn report() -> Report {
        let at = |mbit, offered, echoed| {
            let one = Measurement::new(1, Load::at(mbit), "kernel");
            one.with("offered_mbit_s", offered).with("mbit_s", echoed).with("busy_percent", 40.0)
        };
        let other = Measurement::new(1, "udp-64-out", "kernel").with("mbit_s", 5.0);
        let lab = Lab { disk: "e1000e".into(), instruction_ns: 8, ..Lab::default() };
        Report::new("udp-echo", lab, &[at(100, 99.0, 80.0), at(10, 9.9, 9.8), other])
    }

    #[test]
    fn what_was_echoed_stands_over_what_was_offered_and_not_over_what_was_asked_for() {
        assert_eq!(curve(&report(), "kernel", "mbit_s"), [(9.9, 9.8), (99.0, 80.0)]);
    }

    #[test]
    fn a_panel_says_which_card_and_which_clock_it_is() {
        let text = draw(&[report()]);
        assert!(
            text.contains("e1000e; instruction time, 8 ns each") && text.contains("polyline"),
            "{text}"
        );
    }

    #[test]
    fn a_figure_is_wide_enough_for_its_second_line() {
        let lab = Lab { kernel: "6.12.117+deb12-amd64".repeat(9), ..Lab::default() };
        let text = draw(&[Report::new("udp-echo", lab.clone(), &[])]);
        let width: f64 = text
            .split("width=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next())
            .unwrap()
            .parse()
            .unwrap();
        assert!(text.contains(&lab.kernel) && width > 6.0 * lab.kernel.len() as f64, "{width}");
    }

    #[test]
    fn a_report_without_rates_and_none_at_all_are_empty_figures() {
        assert!(draw(&[Report::new("udp-echo", Lab::default(), &[])]).ends_with("</svg>\n"));
        assert!(draw(&[]).ends_with("</svg>\n"));
    }
}
