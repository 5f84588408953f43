//! From a device's name to its disks, for use in this process.

use std::sync::Arc;
use std::time::Duration;

use ring3_backend::{OpenOptions, Uri, class_of};
use ring3_class::block::Disk;
use ring3_device::Device;
use ring3_device::irq::Irq;
use ring3_driver::{Interrupts, ata, class, nvme};
use ring3_spec::ide;

use crate::Error;

/// A device, and how to drive it.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Which.
    pub device: Uri,
    /// The user does without an IOMMU.
    pub unprotected: bool,
    /// The driver that the user named; the one for the device's class if `None`.
    pub driver: Option<Driver>,
    /// The one disk to use: an NVMe namespace's id, an ATA drive's place. All that can be used if `None`.
    pub part: Option<u32>,
    /// How the device signals.
    pub interrupts: Interrupts,
    /// The best way in which an ATA drive may move its data.
    pub level: ata::Level,
}

/// A driver of disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// NVMe controllers.
    Nvme,
    /// IDE and AHCI controllers.
    Ata,
}

/// What the user of the disks will do with them.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
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
    /// Its disks. The device is given back when the last of them, and the monitor, are dropped.
    pub disks: Vec<Arc<dyn Disk>>,
    /// Its own word on how it is, if it has one.
    pub monitor: Option<Box<dyn Monitor>>,
    /// What of it cannot be used, and why.
    pub(crate) left_out: Vec<String>,
}

impl Attached {
    /// Logs what cannot be used.
    pub(crate) fn warn(&self) {
        self.left_out.iter().for_each(|part| tracing::warn!("{part}"));
    }
}

/// What a device reports by itself, apart from requests.
pub trait Monitor {
    /// Logs what has come since the last call.
    fn look(&self);

    /// Signalled when the platform wants the device back; `None` where the backend cannot know.
    fn removal(&self) -> Option<&Irq>;

    /// Signalled when the bus reports an error of the device that it cannot correct; `None` where the backend cannot know.
    fn bus_errors(&self) -> Option<&Irq>;
}

impl Driver {
    /// The driver for functions of `class` (24 bits).
    fn of_class(class: u32) -> Option<Self> {
        match class {
            ring3_spec::nvme::CLASS => Some(Self::Nvme),
            _ if ata::drives_class(class) => Some(Self::Ata),
            _ => None,
        }
    }
}

impl Claim {
    /// All disks of `device`, behind an IOMMU, with the driver that fits it, as fast as it goes.
    pub fn new(device: Uri) -> Self {
        let interrupts = Interrupts::Auto;
        Self { device, unprotected: false, driver: None, part: None, interrupts, level: ata::Level::Queued }
    }

    /// Claims the device and starts its driver.
    pub fn open(&self, needs: &Needs) -> Result<Attached, Error> {
        let attached = self.start(needs)?;
        attached.warn();
        Ok(attached)
    }

    /// As [`open`](Self::open), without a word.
    pub(crate) fn start(&self, needs: &Needs) -> Result<Attached, Error> {
        let failed = |source| Error::Device { device: self.device.to_string(), source };
        let memory = OpenOptions { arena: needs.arena, unprotected: self.unprotected, ..OpenOptions::default() };
        let memory = OpenOptions { below: reach(class_of(&self.device)), ..memory };
        let device = ring3_backend::open(&self.device, memory).map_err(failed)?;
        self.drive(device, needs).map_err(failed)
    }
}

/// Device addresses that a function of `class` reaches: an IDE bus master drives 32 address lines. [BMIDE 1.2]
pub fn reach(class: Option<u32>) -> u64 {
    match class {
        Some(class) if class & ide::CLASS_MASK == ide::CLASS => 1 << 32,
        _ => u64::MAX,
    }
}

impl Claim {
    fn drive(&self, device: Arc<dyn Device>, needs: &Needs) -> Result<Attached, ring3_device::Error> {
        let class = class::of(&*device)?;
        match self.driver.or(Driver::of_class(class)) {
            Some(Driver::Nvme) => self.nvme(device, needs),
            Some(Driver::Ata) => self.ata(device, needs),
            None => Err(class::misfit(&*device, class)),
        }
    }

    fn nvme(&self, device: Arc<dyn Device>, needs: &Needs) -> Result<Attached, ring3_device::Error> {
        let usual = nvme::Options::default();
        let options = nvme::Options {
            interrupts: self.interrupts,
            max_queues: needs.queues,
            max_transfer: needs.max_transfer,
            poll: needs.poll.unwrap_or(usual.poll),
            ..usual
        };
        let controller = nvme::Controller::open(device, options)?;
        let (disks, left_out) = match self.part {
            Some(id) => (vec![controller.disk(id)?], Vec::new()),
            None => (
                controller.namespaces().iter().map(|namespace| Arc::new(namespace.clone()) as Arc<dyn Disk>).collect(),
                controller.refused().iter().map(|(id, error)| format!("namespace {id} is left out: {error}")).collect(),
            ),
        };
        Ok(Attached { disks, monitor: Some(Box::new(controller)), left_out })
    }

    fn ata(&self, device: Arc<dyn Device>, needs: &Needs) -> Result<Attached, ring3_device::Error> {
        let usual = ata::Options::default();
        let options = ata::Options {
            interrupts: self.interrupts,
            level: self.level,
            max_transfer: needs.max_transfer,
            poll: needs.poll.unwrap_or(usual.poll),
            ..usual
        };
        let controller = ata::Controller::open(device, options)?;
        let (disks, left_out) = match self.part {
            Some(place) => (vec![controller.disk(place)?], Vec::new()),
            None => (
                controller.members().into_iter().map(|member| member.disk).collect(),
                controller.refused().iter().map(|(drive, error)| format!("drive {drive} is left out: {error}")).collect(),
            ),
        };
        Ok(Attached { disks, monitor: Some(Box::new(controller)), left_out })
    }
}

/// An ATA controller says nothing by itself: what its drives meet, they log.
impl Monitor for ata::Controller {
    fn look(&self) {}

    fn removal(&self) -> Option<&Irq> {
        ata::Controller::removal(self)
    }

    fn bus_errors(&self) -> Option<&Irq> {
        ata::Controller::bus_errors(self)
    }
}

impl Monitor for nvme::Controller {
    fn look(&self) {
        match self.events() {
            Ok(events) => events.iter().for_each(|event| tracing::warn!(?event, "the controller reports")),
            Err(error) => tracing::warn!(%error, "the controller does not say how it is"),
        }
    }

    fn removal(&self) -> Option<&Irq> {
        nvme::Controller::removal(self)
    }

    fn bus_errors(&self) -> Option<&Irq> {
        nvme::Controller::bus_errors(self)
    }
}
