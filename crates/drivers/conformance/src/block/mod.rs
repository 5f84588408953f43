//! What every disk must do, whoever drives it: the same suite on a model, on QEMU's device, in a
//! guest and on hardware.
//!
//! **It destroys the content of the disk**, but for its [reading part](run_reading), which writes
//! nothing.
//!
//! Each [`Check`] is one sentence. [`run`] opens its own queues, so nobody else may use the disk
//! meanwhile; it never waits longer than [`Options::patience`] for one answer.

mod data;
mod front;
mod handover;
mod limits;
mod pattern;
mod queue;
mod reading;
mod several;
mod subject;

use std::time::Duration;

use ring3_class::block::Disk;

pub use crate::report::{Finding, Report, Verdict};
use crate::step::Step;
use subject::Subject;

/// How thorough to be.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Requests of the checks that keep many in flight.
    pub requests: u32,
    /// Requests in flight of these.
    pub depth: u16,
    /// The longest wait for one answer; then the check has failed.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { requests: 2000, depth: 32, patience: Duration::from_secs(20) }
    }
}

/// One fact about disks.
pub struct Check {
    /// The fact, as a sentence.
    pub name: &'static str,
    run: fn(&Subject<'_>) -> Step,
}

/// All checks, in the order in which they run.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    [
        data::CHECKS,
        limits::CHECKS,
        queue::READING,
        queue::CHECKS,
        several::CHECKS,
        several::READING,
        handover::CHECKS,
        front::CHECKS,
    ]
    .into_iter()
    .flatten()
}

/// The checks that only read, in the order in which they run: those of the suite, and some that
/// know nothing of what the disk holds, but that it stays the same.
pub fn reading_checks() -> impl Iterator<Item = &'static Check> {
    [queue::READING, several::READING, reading::CHECKS].into_iter().flatten()
}

/// Runs all checks on `disk`, whose content is lost.
pub fn run(disk: &dyn Disk, options: &Options) -> Report {
    run_with(disk, options, |_| {})
}

/// Runs all checks on `disk`, whose content is lost, and shows each finding at once.
pub fn run_with(disk: &dyn Disk, options: &Options, show: impl FnMut(&Finding)) -> Report {
    run_these(checks(), disk, options, show)
}

/// Runs the checks that only read. The disk must not change meanwhile.
pub fn run_reading(disk: &dyn Disk, options: &Options, show: impl FnMut(&Finding)) -> Report {
    run_these(reading_checks(), disk, options, show)
}

fn run_these(
    checks: impl Iterator<Item = &'static Check>,
    disk: &dyn Disk,
    options: &Options,
    mut show: impl FnMut(&Finding),
) -> Report {
    let subject = Subject::new(disk, options);
    let findings = checks.map(|check| {
        let finding = Finding::of(check.name, || (check.run)(&subject));
        show(&finding);
        finding
    });
    Report { subject: disk.name(), findings: findings.collect() }
}

#[cfg(test)]
mod small;
#[cfg(test)]
mod tests;
