//! Revalidation after a reset: checks that the controller is still the same, with the same media.
//!
//! # Why
//! Requests in flight, writes included, are repeated after a reset. If the drive was replaced
//! meanwhile, or if a namespace was formatted or replaced by another one, these writes would
//! destroy other data. So the controller is identified again before any queue continues, while all
//! of them wait for the admin queue's lock.
//!
//! # What fails
//! Another controller fails all queues. A namespace that is gone, that has other blocks, or whose
//! unique id has changed fails alone: its requests complete with an error, and none of them is
//! repeated. A namespace that has grown continues with its old size.

use std::sync::Arc;
use std::time::Duration;

use ring3_device::{Deadline, Error};
use ring3_spec::nvme::identify::{self, cns};
use ring3_spec::nvme::{Submission, log};
use ring3_spec::text::Printable;

use super::admin::Admin;
use super::controller::{Controller, NvmeShared};
use super::event::Event;
use super::namespace::{Description, Unit};
use crate::disk::Controller as _;
use crate::disk::write_cache::PowerCount;
use crate::lifetime::lock;

/// How often namespaces that the controller refuses to describe are asked for again, all of them
/// together, and the pause before that. After a reset a namespace may not be ready for a moment,
/// and answers as one does that is gone. [NVMe 4.2.3, Namespace Not Ready] One that is gone has had
/// the others wait, too.
const REFUSALS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);
/// All namespaces are described within this. There may be thousands, each answer may take as long
/// as a command may, and all queues wait.
const LIMIT: Duration = Duration::from_secs(60);

/// How a namespace differs from what it was.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It has so many blocks, and had fewer.
    Grown(u64),
    /// It cannot be used any more.
    Over(String),
}

/// What all namespaces have together.
struct Budget {
    /// Refusals that are still waited for.
    refusals: u32,
    deadline: Deadline,
}

impl Budget {
    fn new() -> Self {
        Self { refusals: REFUSALS, deadline: Deadline::after(LIMIT) }
    }
}

impl Controller {
    /// Looks what has become of the namespaces. If one cannot be used any more, the controller is
    /// reset, which takes back what is in flight and [ends](NvmeShared::revalidate) it.
    pub(super) fn rescan(&self) -> Result<Vec<Event>, Error> {
        let shared = &self.shared;
        let generation = shared.generation();
        let units = shared.units();
        let look = |admin: &mut Admin| {
            let mut budget = Budget::new();
            let change = |unit: &Arc<Unit>| {
                Ok::<_, Error>((unit.id, shared.change_of(admin, unit, &mut budget)?))
            };
            units.iter().map(change).collect::<Result<Vec<_>, Error>>()
        };
        let mut events = Vec::new();
        for (id, change) in shared.command(look)? {
            match change {
                Some(Change::Grown(blocks)) => events.push(Event::NamespaceGrown { id, blocks }),
                Some(Change::Over(_)) => events.push(Event::NamespaceOver { id }),
                None => {}
            }
        }
        let over = |event: &&Event| matches!(event, Event::NamespaceOver { .. });
        if let Some(over) = events.iter().find(over) {
            shared.reset(generation, &over.to_string())?;
        }
        let known = |id: &u32| {
            lock(&shared.members).namespaces.iter().any(|unit| unit.id == *id)
                || self.refused.iter().any(|(refused, _)| refused == id)
        };
        let (ids, _) = shared.active_namespaces()?;
        events.extend(ids.into_iter().filter(|id| !known(id)).map(|id| Event::NamespaceNew { id }));
        Ok(events)
    }
}

impl NvmeShared {
    /// The namespaces that are used.
    fn units(&self) -> Vec<Arc<Unit>> {
        lock(&self.members).namespaces.iter().filter(|unit| !unit.is_over()).cloned().collect()
    }

    /// Fails if the controller is another one than before. A namespace that is another one than
    /// before is ended.
    pub(super) fn revalidate(&self, admin: &mut Admin) -> Result<(), Error> {
        let found = identify::Controller(
            admin.fetch("identify controller", Submission::identify(cns::CONTROLLER, 0))?,
        );
        let text = |bytes| Printable(bytes).to_string();
        let (before, now) = (&self.traits.identity, (text(found.serial()), text(found.model())));
        if (&before.serial, &before.model) != (&now.0, &now.1) {
            let (serial, model) = now;
            let (was, of) = (&before.serial, &before.model);
            return Err(Error::Fatal(format!(
                "another controller has come back: {model:?} with serial number {serial:?}, and it \
                was {of:?} with {was:?}"
            )));
        }
        let mut budget = Budget::new();
        for unit in self.units() {
            match self.change_of(admin, &unit, &mut budget)? {
                Some(Change::Over(why)) => self.end_namespace(&unit, why),
                Some(Change::Grown(blocks)) => {
                    tracing::warn!(
                        "{} namespace {}: it has grown to {blocks} blocks",
                        self.device.name(),
                        unit.id
                    );
                }
                None => {}
            }
        }
        Ok(())
    }

    fn end_namespace(&self, unit: &Unit, why: String) {
        tracing::error!(
            "{} namespace {}: {why}: its requests end with errors",
            self.device.name(),
            unit.id
        );
        unit.end(why);
    }

    /// What has become of a namespace. Fails only if the controller does. One that is not described
    /// within the `budget` cannot be used: nobody knows what it is now.
    fn change_of(
        &self,
        admin: &mut Admin,
        unit: &Unit,
        budget: &mut Budget,
    ) -> Result<Option<Change>, Error> {
        if budget.deadline.expired() {
            return Ok(Some(Change::Over(format!(
                "the controller did not describe its namespaces within {LIMIT:?}"
            ))));
        }
        let mut look =
            || self.read_namespace(admin, unit.id).and_then(|structures| self.judge(&structures));
        let mut found = look();
        while budget.refusals > 0 && matches!(found, Err(Error::Unsupported(_))) {
            budget.refusals -= 1;
            std::thread::sleep(PAUSE);
            found = look();
        }
        match found {
            Ok(now) => Ok(compare(unit, &now)),
            Err(why @ (Error::Unsupported(_) | Error::Invalid(_) | Error::Protocol(_))) => {
                Ok(Some(Change::Over(format!("it is gone, or cannot be used any more: {why}"))))
            }
            Err(error) => Err(error),
        }
    }
}

/// How the namespace `now` differs from the `unit` that it was.
fn compare(unit: &Unit, now: &Description) -> Option<Change> {
    let over = |why: String| Some(Change::Over(why));
    if unit.unique.is_known() && unit.unique != now.unique {
        return over("there is another namespace in its place (NGUID, EUI64)".into());
    }
    if unit.protection != now.protection {
        return over("it was formatted with other protection information".into());
    }
    let (before, now) = (&unit.info, &now.info);
    if before.block_size != now.block_size {
        return over(format!(
            "it was formatted: blocks of {} bytes, and it had blocks of {}",
            now.block_size, before.block_size
        ));
    }
    if before.read_only != now.read_only && now.read_only {
        return over("it is write protected, and was not".into());
    }
    match now.blocks.cmp(&before.blocks) {
        std::cmp::Ordering::Less => {
            over(format!("it has shrunk to {} blocks from {}", now.blocks, before.blocks))
        }
        std::cmp::Ordering::Greater => Some(Change::Grown(now.blocks)),
        std::cmp::Ordering::Equal => None,
    }
}

/// How often the controller says that it has lost its power: power cycles, and unsafe shutdowns.
/// [NVMe 5.1.12.1.3]
pub(super) fn power_count(admin: &mut Admin) -> Result<PowerCount, Error> {
    let command = Submission::get_log_page(log::SMART, log::Smart::SIZE as u32, true);
    match admin.fetch("the SMART log", command).map(log::Smart) {
        // The greatest numbers are of no interest, and 128 bits of none.
        Ok(smart) => Ok(PowerCount([smart.power_cycles() as u64, smart.unsafe_shutdowns() as u64])),
        Err(Error::Unsupported(_)) => Ok(PowerCount::UNKNOWN),
        Err(error) => Err(error),
    }
}
