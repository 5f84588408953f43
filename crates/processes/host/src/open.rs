//! From a device's name to its disks and network cards, for use in this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ring3_backend::{OpenOptions, Uri, class_of};
use ring3_broker::client::Remote;
use ring3_class::block::Disk;
use ring3_class::net::Nic;
use ring3_device::Device;
use ring3_driver::registry::{Controller, Driver, Offer, Opened, Settings};

use crate::Error;

/// A device, and how to drive it.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Which.
    pub device: Uri,
    /// The user does without an IOMMU.
    pub unprotected: bool,
    /// The family of drivers that the user named; the driver for the device's class if `None`.
    pub family: Option<&'static str>,
    /// How to drive it. What the user of its offers will do with them comes on top, by
    /// [`Requirements`].
    pub settings: Settings,
}

/// What the user of the disks will do with them.
#[derive(Clone, Copy, Debug)]
pub struct Requirements {
    /// Queues that will be open at the same time, of all disks together.
    pub queues: u16,
    /// Bytes of DMA memory: buffers, and what the driver needs for its queues.
    pub arena: usize,
    /// Most bytes of one request, if it is known.
    pub max_transfer: Option<u32>,
    /// How long a wait polls at most before it sleeps; the driver's usual time if `None`.
    pub poll: Option<Duration>,
}

/// A device that is driven.
pub struct Attached {
    /// Its disks.
    pub disks: Vec<Arc<dyn Disk>>,
    /// Its network cards.
    pub nics: Vec<Arc<dyn Nic>>,
    /// The device and its driver; `None` for disks and cards without one. It is given back when
    /// this and the last of the disks are dropped.
    pub driven: Option<OpenedDevice>,
    /// What of it cannot be used, and why.
    pub(crate) refused: Vec<String>,
}

/// A device and its driver.
pub struct OpenedDevice {
    controller: Box<dyn Controller>,
    device: Arc<dyn Device>,
    /// Bytes of its arena before its driver had it grow.
    arena: usize,
}

impl OpenedDevice {
    /// Logs what the device has reported since the last call.
    pub fn log_events(&self) {
        match self.controller.poll_events() {
            Ok(events) => {
                events.iter().for_each(|event| tracing::warn!("the controller reports: {event}"))
            }
            Err(error) => tracing::warn!(%error, "the controller does not say how it is"),
        }
    }

    /// Bytes of its arena that are not its driver's alone.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.arena
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }
}

impl Attached {
    /// Logs what cannot be used.
    pub(crate) fn warn(&self) {
        self.refused.iter().for_each(|part| tracing::warn!("{part}"));
    }
}

impl Claim {
    /// All that `device` offers, behind an IOMMU, with the driver that fits it, as fast as it goes.
    pub fn new(device: Uri) -> Self {
        Self { device, unprotected: false, family: None, settings: Settings::default() }
    }

    /// Claims the device and starts its driver.
    pub fn open(&self, needs: &Requirements) -> Result<Attached, Error> {
        let attached = self.start(needs)?;
        attached.warn();
        Ok(attached)
    }

    /// As [`open`](Self::open), without a word.
    pub(crate) fn start(&self, needs: &Requirements) -> Result<Attached, Error> {
        let failed = |source| Error::Device { device: self.device.to_string(), source };
        if self.device.scheme == "remote" {
            return self.connect(needs).map_err(failed);
        }
        let below = Driver::dma_limit(class_of(&self.device), self.family);
        let memory =
            OpenOptions { arena: needs.arena, unprotected: self.unprotected, below, memory: None };
        let device = ring3_backend::open(&self.device, memory).map_err(failed)?;
        let Requirements { queues, max_transfer, poll, .. } = *needs;
        let quirks = self.settings.quirks.clone().here();
        let settings = Settings { queues, max_transfer, poll, quirks, ..self.settings.clone() };
        let arena = device.dma().arena().len();
        let Opened { offers, refused, controller } =
            Driver::open(device.clone(), self.family, &settings).map_err(failed)?;
        let (mut disks, mut nics) = (Vec::new(), Vec::new());
        for offer in offers {
            match offer {
                Offer::Disk(disk) => disks.push(disk),
                Offer::Nic(nic) => nics.push(nic),
            }
        }
        Ok(Attached {
            disks,
            nics,
            driven: Some(OpenedDevice { controller, device, arena }),
            refused,
        })
    }

    /// A disk or a network card that another process drives.
    fn connect(&self, needs: &Requirements) -> Result<Attached, ring3_device::Error> {
        self.device.only(&[])?;
        if let Some(family) = self.family {
            return Err(ring3_device::Error::Unsupported(format!(
                "driving it by {family}: its server's process drives it"
            )));
        }
        if self.settings.throttle.is_some() {
            return Err(ring3_device::Error::Unsupported(
                "--throttle: its server's process was told how often it interrupts".into(),
            ));
        }
        if !self.settings.quirks.overrides.is_empty() {
            return Err(ring3_device::Error::Unsupported(
                "--quirk: the driver is in the server's process; set `quirks` in the device's \
                manifest"
                    .into(),
            ));
        }
        let mut attached =
            Attached { disks: Vec::new(), nics: Vec::new(), driven: None, refused: Vec::new() };
        match Remote::connect(Path::new(&self.device.target), needs.arena)? {
            Remote::Disk(disk) => attached.disks.push(Arc::new(disk)),
            Remote::Card(card) => attached.nics.push(Arc::new(card)),
        }
        Ok(attached)
    }
}
