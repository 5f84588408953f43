//! Where one request's time goes: a bar for each placement, its steps one after the other, as in
//! Figure 5 of Chubb 2004.

use plotters::style::RGBColor;

use super::figure::{Bar, Bars, Figure, Panel};
use crate::report::Report;
use crate::table::rounded;
use crate::trace::timeline::STEPS;

/// Colours of the steps, in their order; those of one kind are alike.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0xc8, 0x4c),
    RGBColor(0x4c, 0x9e, 0xd6),
    RGBColor(0xdd, 0xdd, 0xdd),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xe6, 0xc8, 0x4c),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0xc8, 0x4c),
    RGBColor(0x88, 0xc5, 0xe8),
];

/// The step that is the device's own, drawn shorter than it is: it is the disk's model, and no
/// driver changes it.
const DEVICE: &str = "device_us";
/// How long it is drawn, as a share of the longest of all other steps together.
const GAP: f64 = 0.05;
/// A step that is shorter than this share of the longest bar has no room for its number.
const ROOM: f64 = 0.04;

/// Of a placement: number of the step, and microseconds.
type Steps = Vec<(usize, f64)>;

/// A row with a bar for each placement, for each report.
pub fn figure(reports: &[Report]) -> Figure {
    let Some(first) = reports.first() else { return Figure::default() };
    let keys = STEPS.iter().zip(COLOURS).map(|((_, name), colour)| ((*name).into(), colour, None));
    Figure {
        title: "Where the time of a 4 KiB read goes".into(),
        source: format!(
            "after Chubb 2004, Figure 5; Linux {}, QEMU {}; medians; the device's own time (grey) \
            is not to scale; events cost time, too",
            first.lab.kernel, first.lab.qemu
        ),
        keys: keys.collect(),
        rows: reports.iter().map(|report| vec![Panel::Bars(bars(report))]).collect(),
    }
}

fn bars(report: &Report) -> Bars {
    let mut names: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !names.contains(&row.placement.as_str()) {
            names.push(&row.placement);
        }
    }
    let all: Vec<_> = names.into_iter().map(|name| (name, steps(report, name))).collect();
    let all: Vec<_> = all.into_iter().filter(|(_, steps)| !steps.is_empty()).collect();
    let longest = all.iter().map(|(_, steps)| own(steps)).fold(0.0, f64::max);
    let bar = |(slot, (_, steps)): (usize, &(&str, Steps))| {
        let part = |&(step, time): &(usize, f64)| {
            let length = if STEPS[step].0 == DEVICE { GAP * longest } else { time };
            let fits = length >= ROOM * longest || STEPS[step].0 == DEVICE;
            (length, COLOURS[step], if fits { rounded(time) } else { String::new() })
        };
        let label = format!("{} us without the device", rounded(own(steps)));
        Bar { slot, parts: steps.iter().map(part).collect(), range: None, label }
    };
    let clock = match report.lab.instruction_ns {
        0 => "wall clock",
        _ => "instruction time, 1 us = 1000 instructions",
    };
    Bars {
        title: format!("{}; {clock}", report.lab.disk),
        axis: "us".into(),
        bars: all.iter().enumerate().map(bar).collect(),
        extra: 400,
        names: all.iter().map(|(name, _)| (*name).to_owned()).collect(),
        ..Bars::default()
    }
}

fn steps(report: &Report, placement: &str) -> Steps {
    let load = crate::disk::timeline::LOADS[0];
    let step = |(index, (metric, _)): (usize, &(&str, &str))| {
        Some((index, report.get(load, placement, metric)?.median))
    };
    STEPS.iter().enumerate().filter_map(step).collect()
}

/// All of them but the device's.
fn own(steps: &[(usize, f64)]) -> f64 {
    steps.iter().filter(|(step, _)| STEPS[*step].0 != DEVICE).map(|(_, time)| time).sum()
}

#[cfg(test)]
mod tests {
    use super::super::draw;
    use super::super::tests::texts;
    use super::*;
    use crate::report::{Lab, Measurement};

    #[test]
    fn each_placement_has_a_bar_with_its_own_steps() {
        let at = |placement: &str| {
            Measurement::new(1, "randread-4k-qd1", placement)
                .with("queue_us", 5.0)
                .with("device_us", 100.0)
        };
        let rows = [
            at("kernel"),
            at("process").with("handler_us", 2.0),
            Measurement::new(1, "driver", "kernel").with("startup_ms", 1.0),
        ];
        let report = Report::new("timeline-nvme", Lab::default(), &rows);
        let found = bars(&report);
        assert_eq!(found.bars.iter().map(|bar| bar.parts.len()).collect::<Vec<_>>(), [2, 3]);
        let figure = draw(&[report]).unwrap();
        let texts = texts(&figure);
        assert!(texts.contains(&"7.00 us without the device") && texts.contains(&"queue new work"));
    }
}
