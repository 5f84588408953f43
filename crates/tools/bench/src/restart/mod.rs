//! `bench restart`: what applications see of a driver that is killed, or replaced, under their
//! load.
//!
//! # Shape
//! [`Load`] reads and writes a supervised block device, knows what each block must hold, and
//! remembers where nothing ended for long. Whoever kills the driver knows when it did, and
//! [`outages`] joins the two. The clock is one for all processes: the guest's, in the lab.

mod load;

use serde::{Deserialize, Serialize};

pub use load::{BLOCK, Load, Pause, Seen};

use crate::stats::Summary;
use crate::table::Table;

/// What was seen. docs/bench.md describes the fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The running kernel's release.
    pub kernel: String,
    /// The controller.
    pub controller: String,
    /// The driver of Linux's that was hosted, such as `dde:nvme`; `None` for ring3's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Requests in flight.
    pub depth: u16,
    /// Requests that the disk takes from the kernel at once; 0 if it was not this command that set
    /// the disk up.
    #[serde(default)]
    pub tags: u16,
    /// Whether the load is a file of ext4 with fio's verification beside it, and not the disk
    /// itself.
    #[serde(default)]
    pub ext4: bool,
    /// Whether RCU was expedited while a driver was restarted.
    #[serde(default)]
    pub expedited: bool,
    /// Whether the clock was one of instructions, which other loads of the machine do not change.
    #[serde(default)]
    pub instructions: bool,
    /// Drivers that were killed.
    pub kills: u32,
    /// Of these, those whose controller the next one has adopted without a reset.
    #[serde(default)]
    pub adopted: u32,
    /// Drivers that were replaced by a hand-over.
    pub upgrades: u32,
    /// Requests that ended with an error, in all phases.
    pub errors: u64,
    /// Blocks that were read and wrong, in all phases and at the end.
    pub mismatches: u64,
    /// Milliseconds from a kill to the first request that ended after it: half of the kills took no
    /// longer.
    pub outage_ms_p50: f64,
    /// 99 % took no longer.
    pub outage_ms_p99: f64,
    /// None took longer.
    pub outage_ms_max: f64,
    /// Milliseconds of these that the supervisor says the fence took: the median.
    pub fence_ms_p50: f64,
    /// From the death being seen to the next driver's offers: the median.
    pub driver_ms_p50: f64,
    /// To the kernel having given the export back: the median.
    pub export_ms_p50: f64,
    /// Milliseconds in which nothing ended, of a hand-over: half of them took no longer.
    pub upgrade_ms_p50: f64,
    /// 99 % took no longer.
    pub upgrade_ms_p99: f64,
    /// None took longer.
    pub upgrade_ms_max: f64,
    /// The longest that one request took, in milliseconds.
    pub longest_request_ms: f64,
    /// The memory that the supervisor has resident before the first kill, in MiB; `None` if its
    /// process was not found.
    #[serde(default)]
    pub supervisor_mib: Option<f64>,
    /// Processor time of the supervisor while nobody used the disk, in percent of one processor.
    #[serde(default)]
    pub supervisor_idle_percent: Option<f64>,
    /// The same of the driver.
    #[serde(default)]
    pub driver_idle_percent: Option<f64>,
    /// Requests per second while nobody disturbs.
    pub iops: Option<Summary>,
    /// The same with one kill a second.
    pub iops_killed: Option<Summary>,
    /// The latter over the former: the medians.
    pub iops_ratio: Option<f64>,
}

/// What databases have made of a disk whose driver was killed at random times. docs/bench.md
/// describes the fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Databases {
    /// How long they worked, in seconds.
    pub seconds: u32,
    /// Drivers that were killed.
    pub kills: u32,
    /// Restarts that the supervisor counted.
    pub restarts: u32,
    /// Errors of the disk or of ext4 in the kernel's log.
    pub errors: u32,
    /// Transactions that PostgreSQL has acknowledged.
    pub postgres_acknowledged: u64,
    /// Transactions that were there after it was stopped in the middle of its work, and recovered:
    /// up to as many more as it had clients.
    pub postgres_found: u64,
    /// Transactions that sqlite has acknowledged.
    pub sqlite_acknowledged: u64,
    /// Transactions that were there.
    pub sqlite_found: u64,
}

/// For each of `times`, ascending: milliseconds from it to the end of the longest pause that ended
/// before the next one.
pub fn outages(pauses: &[Pause], times: &[u64]) -> Vec<f64> {
    let ends = times.iter().skip(1).copied().chain([u64::MAX]);
    let outage = |(&time, end): (&u64, u64)| {
        let within = pauses
            .iter()
            .filter(|pause| pause.until > time && pause.until <= end && pause.from < end);
        let longest = within.max_by_key(|pause| pause.until - pause.from);
        // Without a pause that was long enough to be remembered nobody has noticed anything.
        longest.map_or(0.0, |pause| (pause.until - time) as f64 / 1e6)
    };
    times.iter().zip(ends).map(outage).collect()
}

/// The table of docs/bench.md: a line for each name.
pub fn table(outcomes: &[(&str, &Outcome)]) -> String {
    let heads = [
        "kills",
        "errors, mismatches",
        "outage p50 / p99 / max, ms",
        "fence, driver, export p50, ms",
        "IOPS with a kill a second",
        "replacements",
        "stall p50 / p99 / max, ms",
    ];
    let mut table = Table::new("", heads);
    for (name, outcome) in outcomes {
        let Outcome { kills, errors, mismatches, upgrades, .. } = outcome;
        let [outage, own, stall] = [
            [outcome.outage_ms_p50, outcome.outage_ms_p99, outcome.outage_ms_max],
            [outcome.fence_ms_p50, outcome.driver_ms_p50, outcome.export_ms_p50],
            [outcome.upgrade_ms_p50, outcome.upgrade_ms_p99, outcome.upgrade_ms_max],
        ]
        .map(|times| times.map(|time| format!("{time:.0}")).join(" / "));
        let ratio =
            outcome.iops_ratio.map_or(String::new(), |ratio| format!("{:.1} %", ratio * 100.0));
        let failures = format!("{errors}, {mismatches}");
        let cells = [kills.to_string(), failures, outage, own, ratio, upgrades.to_string(), stall];
        table.line(format!("`{name}`"), cells);
    }
    table.markdown()
}

/// For each of `times`, ascending: milliseconds of the longest pause that began after it and before
/// the next one. Whoever is replaced serves until the next one is ready, so that the time itself is
/// nothing to count from.
pub fn stalls(pauses: &[Pause], times: &[u64]) -> Vec<f64> {
    let ends = times.iter().skip(1).copied().chain([u64::MAX]);
    let stall = |(&time, end): (&u64, u64)| {
        let within = pauses.iter().filter(|pause| pause.until > time && pause.from < end);
        within.map(|pause| (pause.until - pause.from) as f64 / 1e6).fold(0.0, f64::max)
    };
    times.iter().zip(ends).map(stall).collect()
}

/// The value that `share` of `values` do not exceed; 0 of none.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_lasts_from_the_kill_to_the_end_of_the_pause_after_it() {
        let pauses = [
            Pause { from: 900_000, until: 50_000_000 },
            Pause { from: 60_000_000, until: 66_000_000 },
        ];
        assert_eq!(outages(&pauses, &[1_000_000]), [49.0]);
        assert_eq!(outages(&pauses, &[1_000_000, 61_000_000, 100_000_000]), [49.0, 5.0, 0.0]);
    }

    #[test]
    fn the_table_has_a_line_for_each_outcome_and_no_ratio_that_was_not_measured() {
        let outcome = Outcome { kills: 3, errors: 1, outage_ms_max: 9.6, ..Outcome::default() };
        let text = table(&[("a", &outcome)]);
        let cells: Vec<_> = text.lines().last().unwrap().split('|').map(str::trim).collect();
        let wanted = ["", "`a`", "3", "1, 0", "0 / 0 / 10", "0 / 0 / 0", "", "0", "0 / 0 / 0", ""];
        assert_eq!(cells, wanted, "{text}");
    }

    #[test]
    fn a_stall_is_the_longest_pause_before_the_next_one_whenever_it_began() {
        let pauses = [
            Pause { from: 90_000_000, until: 120_000_000 },
            Pause { from: 160_000_000, until: 166_000_000 },
        ];
        assert_eq!(stalls(&pauses, &[1_000_000]), [30.0]);
        assert_eq!(stalls(&pauses, &[1_000_000, 150_000_000, 200_000_000]), [30.0, 6.0, 0.0]);
    }

    #[test]
    fn a_percentile_is_a_value_that_was_there() {
        assert_eq!(
            (
                percentile(&[3.0, 1.0, 2.0], 0.5),
                percentile(&[3.0, 1.0, 2.0], 0.99),
                percentile(&[], 0.5)
            ),
            (2.0, 3.0, 0.0)
        );
    }
}
