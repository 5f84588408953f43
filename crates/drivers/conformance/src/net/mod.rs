//! What every network card must do, whoever drives it: the same suite on a cable in memory, on a
//! model, and on two cards that are cabled together.
//!
//! The suite needs the [`Wire`] at the card's port, and has it for itself. It opens and drops the
//! card's queues.

mod filters;
mod frame;
mod framing;
mod handover;
mod offloads;
mod order;
mod ownership;
mod subject;
mod wire;

use std::time::Duration;

use ring3_class::net::Nic;

pub use crate::report::{Finding, Report, Verdict};
use crate::step::Step;
use subject::Subject;
pub use wire::{Peer, Quirks, Wire};

/// How thorough to be.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Packets of the checks that send many.
    pub packets: u32,
    /// Packets of those checks that are under way at once: fewer than the wire and the card's rings
    /// have room for.
    pub burst: u32,
    /// The longest wait for a packet; then the check has failed.
    pub patience: Duration,
    /// How long nothing must come for a packet to count as dropped.
    pub silence: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            packets: 2000,
            burst: 16,
            patience: Duration::from_secs(20),
            silence: Duration::from_millis(20),
        }
    }
}

/// One fact about network cards.
pub struct Check {
    /// The fact, as a sentence.
    pub name: &'static str,
    run: fn(&Subject<'_>) -> Step,
}

/// All checks, in the order in which they run.
pub fn checks() -> impl Iterator<Item = &'static Check> {
    [
        framing::CHECKS,
        order::CHECKS,
        offloads::CHECKS,
        filters::CHECKS,
        ownership::CHECKS,
        handover::CHECKS,
    ]
    .into_iter()
    .flatten()
}

/// Runs all checks on `nic`, at whose port is `wire`.
pub fn run(nic: &dyn Nic, wire: &mut dyn Wire, options: &Options) -> Report {
    run_with(nic, wire, options, |_| {})
}

/// The same, and shows each finding at once.
pub fn run_with(
    nic: &dyn Nic,
    wire: &mut dyn Wire,
    options: &Options,
    mut show: impl FnMut(&Finding),
) -> Report {
    let subject = Subject::new(nic, wire, options);
    // A card loses what comes before its link is up, which may take it seconds. One whose link does
    // not come up says so in the checks.
    let _ = filters::link(&subject, true);
    let findings = checks().map(|check| {
        let finding = Finding::of(check.name, || {
            subject.prepare()?;
            (check.run)(&subject)
        });
        show(&finding);
        finding
    });
    Report { subject: nic.name(), findings: findings.collect() }
}

#[cfg(test)]
mod tests;
