//! Reports as figures (SVG), drawn by plotters.
//!
//! Bars are medians and start at zero; the thin line on a bar reaches from the smallest to the
//! largest round. Beside a bar stands its median, and its ratio to the best of the kernel's
//! placements, which has an asterisk. A report whose name is no benchmark's that has a figure of
//! its own is drawn as bars of all its metrics.

mod bars;
mod curves;
mod figure;
mod hosted;
mod narrow;
mod steps;

pub use curves::utilisation_at;
pub use hosted::draw_distributions;
pub use narrow::{Narrow, Pair, draw_narrow, draw_pairs};

use figure::Figure;

use crate::Error;
use crate::report::Report;
use crate::table::rounded;

/// Draws reports of one benchmark, which differ in their clock or their machine.
///
/// # Errors
/// plotters refuses.
pub fn draw(reports: &[Report]) -> Result<String, Error> {
    figure(reports).draw()
}

fn figure(reports: &[Report]) -> Figure {
    let name = reports.first().map_or("", |report| report.bench.as_str());
    match kind(name) {
        "leslie" => curves::sizes(reports),
        "timeline" => steps::figure(reports),
        "udp-echo" => curves::echo(reports),
        "split" => curves::delays(reports),
        _ => bars::special(name, reports).unwrap_or_else(|| bars::figure(reports)),
    }
}

/// What reports of the benchmark `name` are drawn as: those of one kind can be in one figure.
pub fn kind(name: &str) -> &str {
    let by_controller = ["leslie", "timeline"].into_iter();
    by_controller.into_iter().find(|kind| name.split('-').next() == Some(kind)).unwrap_or(name)
}

fn clock(report: &Report) -> String {
    match (report.lab.instruction_ns, report.lab.mode.as_str()) {
        (0, "instructions") => "instruction time".into(),
        (0, _) => "wall clock".into(),
        (nanos, _) => format!("instruction time, {nanos} ns each"),
    }
}

/// A median, with its ratio to the kernel's best, which has an asterisk.
fn label(report: &Report, workload: &str, placement: &str, metric: &str) -> String {
    let Some(summary) = report.get(workload, placement, metric) else { return String::new() };
    let by_fio = placement.ends_with("-fio");
    let mark = match report.ratio_to_best(workload, placement, metric) {
        Some(ratio) => format!(" ({ratio:.2}x)"),
        None if report.best_kernel(workload, metric, by_fio) == Some(placement) => " *".into(),
        None => String::new(),
    };
    rounded(summary.median) + &mark
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement, Row};

    /// All texts of a figure.
    pub fn texts(figure: &str) -> Vec<&str> {
        let ends = figure.split("</text>").filter_map(|part| part.rsplit('>').next());
        ends.map(str::trim).collect()
    }

    fn report(mode: &str, metric: &str) -> Report {
        let one = |placement: &str, value| {
            Measurement::new(1, "randread-4k-qd32", placement).with(metric, value)
        };
        let lab = Lab { mode: mode.into(), ..Lab::default() };
        Report::new("disk", lab, &[one("kernel", 43_000.0), one("process", 397_000.0)])
    }

    #[test]
    fn both_clocks_stand_in_one_figure_and_say_which_they_are() {
        let reports = [report("wall", "iops"), report("instructions", "instructions_per_op")];
        let figure = draw(&reports).unwrap();
        for text in [
            "randread-4k-qd32, wall clock",
            "randread-4k-qd32, instruction time",
            "requests, 1/s",
            "per request, instructions",
        ] {
            assert!(texts(&figure).contains(&text), "{text}: {:?}", texts(&figure));
        }
    }

    #[test]
    fn each_clock_has_its_own_number_of_rounds() {
        let again =
            |round| Measurement::new(round, "randread-4k-qd32", "kernel").with("iops", 43_000.0);
        let wall = Report::new("disk", Lab::default(), &[again(1), again(2)]);
        let figure = draw(&[report("instructions", "instructions_per_op"), wall]).unwrap();
        assert!(figure.contains("medians of rounds: 1 by instruction time, 2 by wall clock;"));
    }

    #[test]
    fn bars_have_names_and_values() {
        let figure = draw(&[report("wall", "iops")]).unwrap();
        let texts = texts(&figure);
        for text in ["process", "397.0 k (9.23x)", "43.0 k *"] {
            assert!(texts.contains(&text), "{text}: {texts:?}");
        }
    }

    #[test]
    fn every_report_has_a_figure_and_none_at_all_is_an_empty_one() {
        let mut report = report("wall", "recovery_ms_p50");
        for bench in ["kill", "disk", "leslie-ahci", "timeline-nvme", "udp-echo", "dde", "split"] {
            report.bench = bench.into();
            assert!(draw(std::slice::from_ref(&report)).unwrap().ends_with("</svg>\n"), "{bench}");
        }
        report.bench = "kill".into();
        report.rows.iter_mut().for_each(|row| row.workload = "kills".into());
        let figure = draw(&[report]).unwrap();
        assert!(texts(&figure).contains(&"recovery_ms_p50, ms"), "{:?}", texts(&figure));
        assert!(draw(&[]).unwrap().ends_with("</svg>\n"));
    }

    #[test]
    fn two_reports_of_one_benchmark_are_both_drawn() {
        for bench in ["tcp", "loopback", "irq-delay", "dde", "kill"] {
            let one = |load: &str| {
                let mut report = report("wall", "iops");
                report.bench = bench.into();
                for row in &mut report.rows {
                    row.workload = load.into();
                    row.metric = "iops".into();
                }
                let metrics =
                    ["bytes_per_instruction", "packets_s", "process_us_mean", "latency_us_mean"];
                let more: Vec<_> = metrics
                    .iter()
                    .flat_map(|metric| {
                        report
                            .rows
                            .iter()
                            .map(|row| Row { metric: (*metric).into(), ..row.clone() })
                    })
                    .collect();
                report.rows.extend(more);
                report
            };
            let figure = draw(&[one("first"), one("second")]).unwrap();
            let texts = texts(&figure).join("|");
            assert!(texts.contains("first") && texts.contains("second"), "{bench}: {texts}");
        }
    }

    #[test]
    fn a_figure_is_wide_enough_for_its_second_line() {
        let lab = Lab { kernel: "6.12.117+deb12-amd64".repeat(30), ..Lab::default() };
        let figure = draw(&[Report::new("udp-echo", lab.clone(), &[])]).unwrap();
        let width = figure.split("width=\"").nth(1).and_then(|rest| rest.split('"').next());
        let width: usize = width.unwrap().parse().unwrap();
        assert!(figure.contains(&lab.kernel) && width > 6 * lab.kernel.len(), "{width}");
    }

    #[test]
    fn text_cannot_become_markup() {
        let one = Measurement::new(1, "a<b & c", "kernel").with("iops", 1.0);
        let figure = draw(&[Report::new("kill", Lab::default(), &[one])]).unwrap();
        assert!(figure.contains("a&lt;b &amp; c"), "{figure}");
    }
}
