//! What of a device survives ring3d, and how the next one goes on with it.
//!
//! Two records: the claim's, which the claim changes before a driver can know of it, and the
//! keeper's, which follows what it does. A driver that served goes on. Any other process that was
//! on its way is ended, and the device is fenced: that costs users no more than a driver that dies.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring3_backend::{Claim, SavedClaim};
use ring3_control::drive::{Offered, OfferedDisk, OfferedNic};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Keeper;
use super::device::ClaimedDevice;
use crate::export::{Export, StatusSource};
use crate::manifest;
use crate::process::Process;
use crate::store::{Record, Store};

/// The form of [`SavedKeeper`]. Fields are only ever added, each with a default.
const VERSION: u32 = 1;
/// How long a process may take to end that was killed.
const END: Duration = Duration::from_secs(5);

/// Records of devices, as they were found.
pub type Records = BTreeMap<String, Record>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct SavedKeeper {
    version: u32,
    /// All that live, by number.
    processes: Vec<u32>,
    /// The one that serves; users have the disks.
    running: Option<u32>,
    /// A user has stopped it.
    stopped: bool,
    /// Those that users have.
    disks: Vec<OfferedDisk>,
    #[serde(default)]
    nics: Vec<OfferedNic>,
    /// Queues, depth, and KiB of a request that the users' disks were made with.
    shape: (u16, u16, u32),
    /// As [`StatusSource::saved`] has it; null if there are no users.
    export: Value,
}

/// Keeps what survives of one device. Nothing if nobody does.
pub struct StatePersistence {
    store: Arc<Store>,
    claim: String,
    keeper: String,
    last: Option<SavedKeeper>,
}

impl StatePersistence {
    /// Of device `name`. No name of a device has a `+`.
    pub fn new(store: &Arc<Store>, name: &str) -> Self {
        Self {
            store: store.clone(),
            claim: format!("{name}+claim"),
            keeper: format!("{name}+keeper"),
            last: None,
        }
    }

    /// Has `claim` tell what it needs to survive.
    pub fn watch(&self, claim: &Claim) {
        if !self.store.is_there() {
            return;
        }
        let (store, key) = (self.store.clone(), self.claim.clone());
        // Said when it changes: a driver has its claim change as often as it likes.
        let said = Mutex::new(String::new());
        claim.on_change(move |saved| {
            let kept =
                saved.map_err(|error| error.to_string()).and_then(|SavedClaim { facts, fds }| {
                    let fds: Vec<_> =
                        fds.iter().map(|(name, fd)| (name.as_str(), fd as &dyn AsFd)).collect();
                    store.keep(&key, &facts, &fds).map_err(|error| error.to_string())
                });
            if let Err(why) = kept {
                store.forget(&key);
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                if *said != why {
                    tracing::info!("if ring3d dies, this device's driver is started anew: {why}");
                    *said = why;
                }
            }
        });
    }

    /// What was found and not `adopted` is kept no longer: what comes has the same names.
    pub(super) fn begin(&mut self, adopted: Option<&Adopted>) {
        match adopted {
            None => self.forget(),
            Some(Adopted { held: None, .. }) => self.store.forget(&self.claim),
            Some(_) => {}
        }
    }

    /// Nothing survives of it any more.
    pub fn forget(&mut self) {
        self.store.forget(&self.keeper);
        self.store.forget(&self.claim);
        self.last = None;
    }

    fn keep(
        &mut self,
        kept: SavedKeeper,
        processes: &[&Process],
        export: impl FnOnce() -> Vec<(String, OwnedFd)>,
    ) {
        if self.last.as_ref() == Some(&kept) || !self.store.is_there() {
            return;
        }
        let names: Vec<_> =
            processes.iter().flat_map(|process| process.descriptors()).chain(export()).collect();
        let fds: Vec<_> = names.iter().map(|(name, fd)| (name.as_str(), fd as &dyn AsFd)).collect();
        let done = serde_json::to_value(&kept)
            .map_err(Into::into)
            .and_then(|facts| self.store.keep(&self.keeper, &facts, &fds));
        if let Err(error) = done {
            // What is kept from before is so no longer.
            self.store.forget(&self.keeper);
            tracing::warn!("{} does not survive ring3d: {error}", self.keeper);
        }
        self.last = Some(kept);
    }
}

impl Keeper {
    /// Saves the present state for the next ring3d.
    pub(super) fn persist(&mut self) {
        let processes: Vec<_> = [&self.driver, &self.standby].into_iter().flatten().collect();
        let kept = SavedKeeper {
            version: VERSION,
            processes: processes.iter().map(|process| process.pid()).collect(),
            running: self.driver.as_ref().filter(|_| self.machine.is_running()).map(Process::pid),
            stopped: self.machine.state() == ring3_control::status::State::Stopped,
            // What users have, and no other that a driver has offered beside it or in its place.
            disks: self.shown.clone(),
            nics: self.facts.nics.clone(),
            shape: {
                let export = &self.setup.device.export;
                (export.queues, export.depth, export.max_io_kib)
            },
            export: self.shared.saved(),
        };
        let shared = &self.shared;
        self.survival.keep(kept, &processes, || shared.descriptors());
    }
}

/// What the last ring3d has left of a device.
#[derive(Default)]
pub struct Adopted {
    /// The claim, if it has survived.
    pub(super) held: Option<ClaimedDevice>,
    /// The driver, which serves.
    pub(super) driver: Option<Process>,
    pub(super) stopped: bool,
    pub(super) offered: Offered,
    /// It has users.
    pub(super) look: Option<Arc<dyn StatusSource>>,
}

/// Users' disks stay what they are, whatever the manifest of `device` says by now.
pub fn keep_shape(device: &mut manifest::Device, records: &Records) {
    let kept = records
        .get(&format!("{}+keeper", device.name))
        .and_then(|record| serde_json::from_value::<SavedKeeper>(record.facts.clone()).ok());
    if let Some(SavedKeeper { shape, .. }) = kept.filter(|kept| !kept.export.is_null()) {
        let export = &mut device.export;
        (export.queues, export.depth, export.max_io_kib) = shape;
    }
}

/// Takes what `records` have of `device`; `None` if that is nothing. What of it cannot go on has
/// ended when this returns.
pub fn adopt(
    device: &manifest::Device,
    records: &mut Records,
    export: &mut dyn Export,
) -> Option<Adopted> {
    let (claim, keeper) = (
        records.remove(&format!("{}+claim", device.name)),
        records.remove(&format!("{}+keeper", device.name)),
    );
    let claim = claim.map(|Record { facts, fds }| {
        Claim::adopt(SavedClaim { facts, fds: fds.into_iter().collect() })
    });
    let claim = claim.transpose().unwrap_or_else(|error| {
        tracing::warn!(device = %device.name, "{error}");
        None
    });
    let Record { facts, mut fds } = keeper.unwrap_or_default();
    let kept: SavedKeeper = serde_json::from_value(facts).unwrap_or_default();
    let running = kept
        .running
        .filter(|_| kept.version == VERSION && claim.as_ref().is_some_and(Claim::is_leased));
    let mut driver = None;
    for process in kept.processes.iter().filter_map(|&pid| Process::adopt(pid, &mut fds)) {
        if Some(process.pid()) == running { driver = Some(process) } else { end(&process) }
    }
    let offered = Offered { disks: kept.disks, nics: kept.nics };
    let look = (!kept.export.is_null())
        .then(|| export.adopt(&kept.export, &offered, &mut fds))
        .transpose();
    let look = look.unwrap_or_else(|why| {
        tracing::warn!(device = %device.name, "what it was is lost to its users: {why}");
        None
    });
    if look.is_none() {
        driver.take().iter().for_each(end);
    }
    let held = claim.and_then(|claim| {
        ClaimedDevice::adopt(claim, device)
            .inspect_err(|why| tracing::warn!(device = %device.name, "{why}"))
            .ok()
    });
    if held.is_none() {
        driver.take().iter().for_each(end);
    }
    let nothing = held.is_none() && look.is_none();
    (!nothing).then_some(Adopted { held, driver, stopped: kept.stopped, offered, look })
}

/// Ends the processes of devices that no manifest names any more, and keeps nothing of them.
pub fn abandon(records: Records, store: &Store) {
    for (key, Record { facts, mut fds }) in records {
        tracing::warn!(
            "{key}: what the last ring3d has left of it is ended, as no manifest names it any more"
        );
        let kept: SavedKeeper = serde_json::from_value(facts).unwrap_or_default();
        kept.processes
            .iter()
            .filter_map(|&pid| Process::adopt(pid, &mut fds))
            .for_each(|process| end(&process));
        // Errors for their users rather than a wait without an end.
        crate::export::ublk::take_away(&kept.export);
        store.forget(&key);
    }
}

/// Kills a process, and waits until it is gone.
fn end(process: &Process) {
    process.kill();
    if !process.wait(END) {
        tracing::error!("process {} does not end though it was killed", process.pid());
    }
}

/// A descriptor of a process, by its name.
pub(crate) fn named(pid: u32, what: &str, fd: impl AsFd) -> Option<(String, OwnedFd)> {
    Some((format!("{pid}.{what}"), fd.as_fd().try_clone_to_owned().ok()?))
}
