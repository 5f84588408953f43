//! What the figures are to show, and whether they do.

use std::fmt;

use super::timeline;
use crate::plot::utilisation_at;
use crate::report::Report;
use crate::workload::Workload;

/// From so many sectors on, an export costs next to nothing.
const LARGE: u32 = 128;

/// A target, and what was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// What was wanted.
    pub wanted: &'static str,
    /// The worst that was found, and where; or what was found where nothing is wanted.
    pub found: String,
    /// Whether that is good enough; `None` for what is only said.
    pub met: Option<bool>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "said",
        };
        write!(f, "{verdict:<7}{}: {}", self.wanted, self.found)
    }
}

/// A size, and by how much the placement is worse there than the kernel's driver.
type Worst = Option<(u32, f64)>;

/// The targets of what a request takes. Those whose placements were not measured are left out.
pub fn call_targets(report: &Report) -> Vec<Target> {
    let [one, many] = timeline::LOADS;
    let calls = |wanted, load, placement, met: fn(f64) -> bool| {
        let found = report.get(load, placement, "calls_per_op")?.max;
        Some(Target { wanted, found: format!("{found:.3}"), met: Some(met(found)) })
    };
    let all = [
        calls(
            "in process by interrupt: at most one system call per request",
            one,
            "process",
            |calls| calls <= 1.0,
        ),
        calls("in process, polled: no system call", one, "process-polled", |calls| calls == 0.0),
        calls(
            "export, 32 in flight: less than one system call per request",
            many,
            "export",
            |calls| calls < 1.0,
        ),
    ];
    all.into_iter().flatten().collect()
}

/// The targets of the figure. Those whose placements were not measured are left out.
pub fn targets(report: &Report, sectors: &[u32]) -> Vec<Target> {
    let large: Vec<u32> = sectors.iter().copied().filter(|&size| size >= LARGE).collect();
    let lost = |placement: &'static str, sizes: &[u32]| {
        worst(sizes, |load| throughput_lost(report, load, placement))
    };
    let spent = |placement: &'static str, sizes: &[u32]| {
        worst(sizes, |load| utilisation_added(report, load, placement))
    };
    let all = [
        target(
            "in process: the throughput of the kernel's driver at every size (to 1 %)",
            lost("process-adaptive", sectors),
            "% less",
            Some(1.0),
        ),
        target(
            "in process: no more CPU than it at any size (to 0.5 points)",
            spent("process-adaptive", sectors),
            "points more",
            Some(0.5),
        ),
        target(
            "export: throughput within 3 % from 128 sectors on",
            lost("export", &large),
            "% less",
            Some(3.0),
        ),
        target(
            "export: CPU within 5 points from 128 sectors on",
            spent("export", &large),
            "points more",
            Some(5.0),
        ),
        target("export: throughput, worst of all sizes", lost("export", sectors), "% less", None),
        target(
            "export: CPU, worst of all sizes (paper: 9 points, 17 %)",
            spent("export", sectors),
            "points more",
            None,
        ),
    ];
    all.into_iter().flatten().collect()
}

fn target(wanted: &'static str, worst: Worst, unit: &str, limit: Option<f64>) -> Option<Target> {
    let (size, amount) = worst?;
    let found = format!("{amount:.1} {unit} at {size} sectors at worst");
    Some(Target { wanted, found, met: limit.map(|limit| amount <= limit) })
}

fn worst(sizes: &[u32], amount: impl Fn(&str) -> Option<f64>) -> Worst {
    let all = sizes
        .iter()
        .filter_map(|&size| Some((size, amount(&Workload::reading(size).to_string())?)));
    all.max_by(|a, b| a.1.total_cmp(&b.1))
}

/// In percent of the kernel's.
fn throughput_lost(report: &Report, load: &str, placement: &str) -> Option<f64> {
    let ratio =
        report.get(load, placement, "mib_s")?.ratio_to(report.get(load, "kernel", "mib_s")?)?;
    Some(100.0 * (1.0 - ratio))
}

/// In points of utilisation.
fn utilisation_added(report: &Report, load: &str, placement: &str) -> Option<f64> {
    Some(
        utilisation_at(report, load, placement)?.median
            - utilisation_at(report, load, "kernel")?.median,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Lab, Measurement};

    fn report(export_mib_s: f64, export_busy: f64) -> Report {
        let at = |placement: &str, mib_s, busy| {
            Measurement::new(1, Workload::reading(128), placement)
                .with("mib_s", mib_s)
                .with("busy_percent", busy)
        };
        Report::new(
            "leslie",
            Lab::default(),
            &[at("kernel", 50.0, 10.0), at("export", export_mib_s, export_busy)],
        )
    }

    #[test]
    fn an_export_that_keeps_up_meets_its_targets() {
        let found = targets(&report(49.0, 14.0), &[128]);
        assert!(found.iter().all(|target| target.met != Some(false)), "{found:?}");
    }

    #[test]
    fn an_export_that_does_not_is_said_to_miss_them() {
        let found = targets(&report(40.0, 16.0), &[128]);
        let missed: Vec<_> = found
            .iter()
            .filter(|target| target.met == Some(false))
            .map(|target| target.found.as_str())
            .collect();
        assert_eq!(
            missed,
            ["20.0 % less at 128 sectors at worst", "6.0 points more at 128 sectors at worst"]
        );
    }

    #[test]
    fn what_was_not_measured_is_neither_met_nor_missed() {
        assert!(
            targets(&report(50.0, 10.0), &[128])
                .iter()
                .all(|target| !target.wanted.starts_with("in process"))
        );
    }
}
