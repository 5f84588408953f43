//! The faults themselves, in the guest that has the devices.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ring3_bench::restart::{Load, Seen, stalls};
use ring3_control::admin;
use ring3_faults::{Model, Report, Spec, Tally};

use super::super::lane::{name_of, wrong};
use super::super::life::Orders;
use super::faulty::{self, Fate};
use super::fio::Fio;
use super::{Line, Phases};
use crate::bench::restart::Supervised;

/// Bytes of a disk that our own load uses: few, so that all of them are read after each fault.
const REGION: u64 = 1 << 20;
/// Its requests in flight.
const DEPTH: u16 = 16;

/// A disk and its users.
struct Disk {
    device: Supervised,
    load: Load,
    fio: Fio,
    /// To what wrong blocks are put down that are found at the end: the last fault that has made
    /// some, and that is counted; before there is one, the last.
    suspect: Option<(Spec, bool)>,
}

/// Does what the file `plan` says, and says after each fault what was seen. It ends early if a
/// device or ring3d is lost.
pub fn run(plan: &Path) -> Result<()> {
    let phases: Phases =
        serde_json::from_slice(&std::fs::read(plan)?).context("reading what is to be done")?;
    for (phase, specs) in phases.iter().enumerate().filter(|(_, specs)| !specs.is_empty()) {
        let mut disks = [Disk::begin(Model::Nvme)?, Disk::begin(Model::Ahci)?];
        let say = |done, report: Report| -> Result<()> {
            outln!("{}", serde_json::to_string(&Line { phase, done, report })?);
            Ok(())
        };
        for orders in specs {
            let mut report = Report::default();
            let met = meet(&mut disks, orders, &mut report);
            if let Err(error) = &met {
                lose(&orders.spec, error, &mut report);
            }
            say(1, report)?;
            met?;
        }
        let mut report = Report::default();
        disks.into_iter().try_for_each(|disk| disk.end(&mut report))?;
        say(0, report)?;
    }
    Ok(())
}

/// No driver works any more, or ring3d does not.
fn lose(spec: &Spec, error: &anyhow::Error, report: &mut Report) {
    // It answers as long as it lives, whatever it says.
    let dead = Path::new("/tmp/ring3d.code").exists();
    let tally = report.of(spec.kind);
    (tally.supervisor_deaths, tally.hangs) = (u64::from(dead), u64::from(!dead));
    report.fail(name_of(spec), format!("{spec}: {error:#}"));
}

/// Lets what is in `orders` happen to one of the `disks`.
fn meet(disks: &mut [Disk; 2], orders: &Orders, report: &mut Report) -> Result<()> {
    let spec = &orders.spec;
    let (place, other) = if spec.model == Model::Nvme { (0, 1) } else { (1, 0) };
    let before = disks[other].ends()?;
    report.of(spec.kind).injected += 1;
    report.under_ring3d += 1;
    let (fate, seen) = disks[place].meet(orders)?;
    let after = disks[other].ends()?;
    if before != after && after.1 {
        report.of(spec.kind).damage += 1;
        report.fail(name_of(spec), format!("{spec}: the driver of the other disk has ended"));
    }
    note(spec, &fate, &seen, report);
    Ok(())
}

/// Puts what was seen of one fault into `report`.
fn note(spec: &Spec, fate: &Fate, seen: &Seen, report: &mut Report) {
    let by = match seen {
        _ if fate.by.is_some() => fate.by,
        Seen { errors: 1.., .. } => Some("error"),
        Seen { mismatches: 1.., .. } => Some("stamp"),
        _ => None,
    };
    let outage = stalls(&seen.pauses, &[fate.since]).first().map_or(0.0, |ms| ms * 1e3) as u32;
    let Tally { detected, recovered, outages_us, .. } = report.of(spec.kind);
    *detected.entry(by.unwrap_or("nothing").into()).or_default() += 1;
    *recovered += 1;
    outages_us.push(outage);
    // A request that fails is as bad as a block that is wrong: the disk was to be there.
    let failed = if spec.kind.is_promised() { seen.errors } else { 0 };
    wrong(
        spec,
        (seen.mismatches + failed, &format!("{failed} of them requests that failed")),
        report,
    );
}

impl Disk {
    fn begin(model: Model) -> Result<Self> {
        let name = format!("{model:?}").to_lowercase();
        let device = Supervised::connect(Path::new(admin::SOCKET), &name)?;
        let path = PathBuf::from(format!("/dev/ring3/{name}"));
        Ok(Self {
            device,
            load: Load::open(&path, DEPTH, REGION)?,
            fio: Fio::begin(&path)?,
            suspect: None,
        })
    }

    /// Lets what is in `orders` happen under load, and reads all of that afterwards.
    fn meet(&mut self, orders: &Orders) -> Result<(Fate, Seen)> {
        let device = &mut self.device;
        let (mut seen, fate) = self.load.beside(|| faulty::inject(device, orders))?;
        let left = self.load.check()?;
        // fio finds a block some time after it was written, or never touches it again before the
        // end: as far as it can be told, it was this fault.
        seen.mismatches += left.mismatches + self.fio.bad();
        seen.errors += left.errors;
        if seen.mismatches > 0 || !self.suspect.is_some_and(|(_, is_counted)| is_counted) {
            self.suspect = Some((orders.spec, seen.mismatches > 0));
        }
        Ok((fate, seen))
    }

    /// How many of its drivers have ended, and whether the last one did for another reason than a
    /// host that stood still.
    fn ends(&mut self) -> Result<(u64, bool)> {
        let restarts = self.device.ready(0)?.restarts;
        Ok((restarts, !faulty::stood_still(&mut self.device)?))
    }

    /// Puts what fio finds at the end into `report`.
    fn end(self, report: &mut Report) -> Result<()> {
        let bad = self.fio.end()?;
        match self.suspect {
            Some((spec, true)) if !spec.kind.is_promised() => report.of(spec.kind).silent += bad,
            Some((spec, _)) => wrong(&spec, (bad, "found by fio at the end"), report),
            None => {}
        }
        Ok(())
    }
}
