//! Disks on which one fault comes after the other, and whose faults what was seen is put down to.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use ring3_faults::symbols::Symbols;
use ring3_faults::{Kind, Model, Report, Spec, mutate};

use super::bench::{Bench, Keep, Place};
use super::life::Orders;
use super::trial::{self, Seen};

/// How often a driver that does not come up is tried, before its disk counts as lost.
const TRIES: u32 = 4;
/// What no driver may change.
const CANARY: usize = 64 << 10;

/// The disks of one lane.
pub struct Disks<'a> {
    seed: u64,
    folder: &'a Path,
    name: String,
    symbols: &'a Symbols,
    /// ring3d holds its devices.
    supervised: bool,
    benches: [Option<Bench>; Model::ALL.len()],
    canary: Vec<u8>,
}

impl<'a> Disks<'a> {
    /// None of them is there yet.
    pub fn new(
        seed: u64,
        folder: &'a Path,
        name: String,
        symbols: &'a Symbols,
        supervised: bool,
    ) -> Self {
        Self {
            seed,
            folder,
            name,
            symbols,
            supervised,
            benches: [const { None }; Model::ALL.len()],
            canary: vec![0xa5; CANARY],
        }
    }

    fn bench(&mut self, model: Model) -> Result<&mut Bench> {
        let name = format!("{}-{model:?}", self.name);
        let place = &mut self.benches[model as usize];
        if place.is_none() {
            *place = Some(Bench::new(
                model,
                self.seed,
                Place { folder: self.folder, name: &name, supervised: self.supervised },
            )?);
        }
        place.as_mut().context("there is no disk")
    }

    /// Lets `spec` happen, and puts what was seen into `report`.
    pub fn inject(&mut self, spec: Spec, report: &mut Report) -> Result<Seen> {
        let symbols = self.symbols;
        let code = match spec.kind {
            Kind::Code => mutate::code_addresses(&spec, |word| symbols.pick(word)),
            _ => Vec::new(),
        };
        let orders = Orders { spec, code };
        report.of(spec.kind).injected += 1;
        report.under_ring3d += u64::from(self.supervised);
        for _ in 0..TRIES {
            let bench = self.bench(spec.model)?;
            let ran = catch_unwind(AssertUnwindSafe(|| trial::run(bench, &orders)));
            let seen = match ran {
                Err(_) => {
                    report.of(spec.kind).supervisor_deaths += 1;
                    report.fail(name_of(&spec), format!("the supervisor has panicked at {spec}"));
                    self.benches[spec.model as usize] = None;
                    return Ok(Seen::default());
                }
                Ok(Err(error)) => {
                    self.lose(&spec, &format!("{error:#}"), report);
                    return Ok(Seen::default());
                }
                Ok(Ok(seen)) => seen,
            };
            self.note(&spec, &seen, report)?;
            if seen.injected {
                return Ok(seen);
            }
        }
        self.lose(&spec, "no driver came up any more", report);
        Ok(Seen::default())
    }

    /// What a life has shown of the faults before, and of its own.
    fn note(&mut self, spec: &Spec, seen: &Seen, report: &mut Report) -> Result<()> {
        if self.canary.iter().any(|&byte| byte != 0xa5) {
            self.canary.fill(0xa5);
            report.of(spec.kind).damage += 1;
            report.fail(name_of(spec), "the supervisor's memory has changed".into());
        }
        let bench = self.bench(spec.model)?;
        if std::mem::take(&mut bench.spilled) {
            bench.application.doubt();
        }
        let mut pending = std::mem::take(&mut bench.pending);
        let is_own = matches!(bench.keep, Keep::Own(_));
        let micros = |outage: Duration| outage.as_micros().min(u128::from(u32::MAX)) as u32;
        if let Some(outage) = seen.outage.filter(|_| !is_own && seen.injected) {
            report.of(spec.kind).outages_us.push(micros(outage));
        }
        if let Some(guilty) = guilty(&pending) {
            wrong(guilty, (seen.inherited, &seen.evidence), report);
            if let Some(outage) = seen.outage.filter(|_| is_own) {
                report.of(guilty.kind).outages_us.push(micros(outage));
            }
        }
        if let Some(doubt) = &bench.doubt {
            wrong(doubt, (seen.stale, ""), report);
        }
        if seen.checked {
            pending.drain(..).for_each(|fault| report.of(fault.kind).recovered += 1);
        }
        if seen.injected {
            wrong(spec, (seen.wrong, &seen.evidence), report);
            let by = seen.by.unwrap_or("nothing");
            *report.of(spec.kind).detected.entry(by.into()).or_default() += 1;
            pending.push(*spec);
            if !spec.kind.is_promised() {
                bench.application.doubt();
                bench.spilled = seen.died;
                bench.doubt = Some(*spec);
            }
        }
        bench.pending = pending;
        Ok(())
    }

    /// A disk that no driver works with since `spec` at the latest.
    fn lose(&mut self, spec: &Spec, why: &str, report: &mut Report) {
        let Some(bench) = self.benches[spec.model as usize].take() else { return };
        let guilty = bench.pending.last().unwrap_or(spec);
        report.of(guilty.kind).hangs += 1;
        report.fail(name_of(guilty), format!("{why}, after {guilty}; {}", bench.said().trim()));
    }

    /// Lets one more driver come to each disk, to see what the last fault has left.
    pub fn settle(&mut self, report: &mut Report) -> Result<()> {
        for model in Model::ALL
            .into_iter()
            .filter(|model| self.benches[*model as usize].is_some())
            .collect::<Vec<_>>()
        {
            // A plain kill, which is no part of the campaign.
            let last = Spec { seed: 0, index: 0, kind: Kind::Kill, model, at: Some(0), random: 0 };
            let mut own = Report::default();
            self.inject(last, &mut own)?;
            own.under_ring3d = 0;
            let kill = own.of(Kind::Kill);
            kill.injected -= 1;
            kill.detected.clear();
            kill.outages_us.clear();
            report.absorb(&own);
        }
        Ok(())
    }
}

/// Whose wrong blocks are found by the first life after several: those of a fault that may make
/// some, if there is one.
fn guilty(pending: &[Spec]) -> Option<&Spec> {
    pending.iter().find(|fault| !fault.kind.is_promised()).or(pending.last())
}

/// Puts blocks that are wrong after `fault`, how many and what is known of them, into `report`: a
/// promise is broken, or it was silent.
pub fn wrong(fault: &Spec, (blocks, evidence): (u64, &str), report: &mut Report) {
    if blocks == 0 {
        return;
    }
    let tally = report.of(fault.kind);
    if fault.kind.is_promised() {
        tally.mismatches += blocks;
        report.fail(name_of(fault), format!("{blocks} wrong blocks after {fault}; {evidence}"));
    } else {
        tally.silent += blocks;
        tally.silent_faults += 1;
    }
}

/// As `--reproduce` takes it.
pub fn name_of(fault: &Spec) -> String {
    format!("{}:{}", fault.seed, fault.index)
}
