//! The device of a keeper: found, claimed, fenced, leased.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use ring3_backend::{Claim, Fenced, OpenOptions, Quiesce, claim};
use ring3_control::drive::SHARED_ARENA;
use ring3_device::Error;
use ring3_export::{tap, ublk};
use ring3_manifest::{Identity, Manifest};
use ring3_pci::{Address, Host, forges_interrupts};

use crate::find::find;
use crate::manifest::{self, Kind};

/// Addresses that keepers have, by the names of their devices.
#[derive(Clone, Debug, Default)]
pub struct Taken(Arc<Mutex<BTreeMap<String, Address>>>);

impl Taken {
    fn others(&self, name: &str) -> Vec<Address> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.iter().filter(|(other, _)| *other != name).map(|(_, address)| *address).collect()
    }

    /// `name` has the function at `address`, before it looks for another one.
    pub fn set(&self, name: &str, address: Option<Address>) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match address {
            Some(address) => drop(taken.insert(name.to_owned(), address)),
            None => drop(taken.remove(name)),
        }
    }
}

/// Said of a device whose interrupts the platform does not check.
pub const UNSAFE: &str = "this machine does not remap interrupts, so that the device, and with it \
                          its driver, can raise any interrupt of the machine";

/// A claimed device.
pub struct ClaimedDevice {
    claim: Claim,
    manifest: &'static Manifest,
    /// The driver of Linux that drives it, as its manifest has it.
    hosted: Option<String>,
}

impl ClaimedDevice {
    /// Claims what `device` says. The error says why it cannot be had (yet).
    pub fn claim(device: &manifest::Device, taken: &Taken) -> Result<Self, String> {
        let uri = find(device, &taken.others(&device.name))?;
        if uri.scheme == "vfio" {
            check_interrupts(&uri.to_string(), device)?;
        }
        // Before the claim, which says by its class which driver it needs: the widest that a driver
        // might do with.
        let class = ring3_backend::class_of(&uri);
        let known = class.and_then(|class| find_driver(NOBODY, class, device));
        let below = known.map_or(u64::MAX, Manifest::dma_limit);
        let options = OpenOptions { arena: arena_bytes(device), below, ..OpenOptions::default() };
        let claim = claim(&uri, options).map_err(|error| error.to_string())?;
        claim.release_pages();
        let manifest = find_driver(claim.ids(), claim.class(), device)
            .ok_or_else(|| unknown(&uri.to_string(), claim.class(), device))?;
        if manifest.dma_limit() < below {
            return Err(format!("{uri}: it is of another class than it said before"));
        }
        if uri.scheme == "vfio" {
            taken.set(&device.name, uri.target.parse().ok());
        }
        claim.limit_config(manifest.config.write.clone());
        claim.allow_mapped(device.lent_bytes() as usize);
        let hosted = device.hosted().and(device.driver.clone());
        Ok(Self { claim, manifest, hosted })
    }

    /// The device of a claim that another ring3d has had.
    pub fn adopt(claim: Claim, device: &manifest::Device) -> Result<Self, String> {
        let manifest = find_driver(claim.ids(), claim.class(), device);
        let manifest = manifest.ok_or_else(|| unknown(claim.name(), claim.class(), device))?;
        claim.release_pages();
        claim.limit_config(manifest.config.write.clone());
        claim.allow_mapped(device.lent_bytes() as usize);
        let hosted = device.hosted().and(device.driver.clone());
        Ok(Self { claim, manifest, hosted })
    }

    /// Looks whether it has raised more than `most` interrupts a second, and holds them back then;
    /// in words what was done.
    pub fn limit_interrupts(&self, most: u32) -> Option<String> {
        match self.claim.limit_interrupts(most.into()) {
            Ok(rate) => rate.map(|rate| {
                format!(
                    "it raises {rate} interrupts a second, and limits.irqs_per_s allows {most}: \
                    all are held back for a while"
                )
            }),
            Err(error) => Some(format!("its interrupts could not be limited: {error}")),
        }
    }

    /// Its claim.
    pub fn claim_of(&self) -> &Claim {
        &self.claim
    }

    /// As its user calls it.
    pub fn name(&self) -> &str {
        self.claim.name()
    }

    /// What its driver is called.
    pub fn driver(&self) -> &str {
        self.hosted.as_deref().unwrap_or(&self.manifest.driver.name)
    }

    /// The drivers' word for it.
    pub fn family(&self) -> &'static str {
        &self.manifest.driver.family
    }

    /// A warning, if the device is isolated less than others: it can forge interrupts.
    pub fn isolation_warning(&self) -> Option<&'static str> {
        (self.claim.name().starts_with(VFIO) && forges_interrupts(&Host::this())).then_some(UNSAFE)
    }

    /// Readable when the platform wants it back.
    pub fn removal(&self) -> Option<BorrowedFd<'_>> {
        self.claim.removal().map(AsFd::as_fd)
    }

    /// Whether it was wanted back since the last call.
    pub fn is_wanted_back(&self) -> bool {
        self.claim.removal().is_some_and(|irq| irq.take().is_ok_and(|count| count > 0))
    }

    /// Whether it has vanished, whatever a driver says.
    pub fn is_gone(&self) -> bool {
        self.claim.class() == 0xff_ff_ff
    }

    /// Makes sure that nothing of a dead driver goes on.
    pub fn fence(&self) -> Result<Fenced, Error> {
        let (vendor, device) = self.claim.ids();
        let identity = Identity { vendor, device, class: self.claim.class() };
        // How a controller is stopped is its own, whoever has driven it.
        let known = self
            .hosted
            .is_none()
            .then_some(self.manifest)
            .or_else(|| ring3_manifest::find(identity, None));
        let quiesce: Option<&Quiesce> = known.and_then(|manifest| manifest.quiesce.as_ref());
        self.claim.quiesce(quiesce)
    }

    /// The right to drive it; to go on with it as it `runs`, if it does.
    pub fn lease(&self, runs: bool) -> Result<OwnedFd, Error> {
        let lease = if runs { self.claim.hand_over() } else { self.claim.lease() };
        lease.map(OwnedFd::from)
    }
}

/// What the names of functions begin with that VFIO hands out.
const VFIO: &str = "vfio:";
/// Vendor and device of no function.
const NOBODY: (u16, u16) = (0, 0);
/// The base classes of functions that have disks, and of network cards. [PCI 6.2.1]
pub(crate) const STORAGE: u32 = 0x01;
const NETWORK: u32 = 0x02;

/// The driver for what `device` is to become, of a function with these ids and this class.
pub(crate) fn find_driver(
    (vendor, function): (u16, u16),
    class: u32,
    device: &manifest::Device,
) -> Option<&'static Manifest> {
    let manifest = match device.hosted() {
        Some(_) => Some(ring3_manifest::hosted()),
        None => ring3_manifest::find(
            Identity { vendor, device: function, class },
            device.driver.as_deref(),
        ),
    };
    let wanted = if device.export.kind.is_card() { NETWORK } else { STORAGE };
    manifest.filter(|_| class >> 16 == wanted)
}

/// Fails if `device` could raise any interrupt of the machine, unless its manifest knows.
pub(crate) fn check_interrupts(name: &str, device: &manifest::Device) -> Result<(), String> {
    if device.unsafe_interrupts || !forges_interrupts(&Host::this()) {
        return Ok(());
    }
    Err(format!(
        "{name}: {UNSAFE}: write unsafe_interrupts = true in its manifest if that is meant, or \
        switch allow_unsafe_interrupts off"
    ))
}

pub(crate) fn unknown(name: &str, class: u32, device: &manifest::Device) -> String {
    let other = match (device.export.kind, class >> 16) {
        (Kind::Ublk, NETWORK) => "write kind = \"tap\" in its [export] if it is a network card",
        (Kind::Tap, STORAGE) => {
            "write kind = \"ublk\" in its [export], or nothing, if it has disks"
        }
        _ => "ring3 run --help names what there is",
    };
    format!(
        "{name}: there is no driver of {} for class {class:#08x}; {other}",
        device.export.kind.what()
    )
}

/// Memory for what it offers, before anybody has counted that.
fn arena_bytes(device: &manifest::Device) -> usize {
    if device.hosted().is_some() {
        return ring3_manifest::hosted().memory.queue_bytes_max as usize;
    }
    let export = &device.export;
    let (queues, max_bytes) = (export.queues.min(crate::processors()), export.max_io_kib << 10);
    match export.kind {
        Kind::Ublk => {
            ublk::Options { queues, depth: export.depth, max_bytes, ..ublk::Options::default() }
                .arena_bytes(1)
        }
        Kind::Tap => tap::arena_bytes(queues),
        Kind::SharedDisk | Kind::SharedCard => SHARED_ARENA,
    }
}
