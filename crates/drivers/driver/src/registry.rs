//! The drivers as data: which functions each drives, what it needs of them, and how it starts.
//! Whoever has a device and a registry needs to know no driver by name.
//!
//! The manifest beside each driver says the same for its sandbox; a test compares the two.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ring3_class::Saved;
use ring3_class::block::Disk;
use ring3_class::net::{Nic, Throttle};
use ring3_device::{Device, Error};
use ring3_quirks::{Board, Cards, Function, Overrides, Quirks, Strings, Table};
use ring3_spec::{pci, virtio as virtio_spec};

use crate::{Circumstances, Interrupts, ata, e1000, edu, hosted, nvme, virtio};

/// All drivers.
pub static DRIVERS: [&Driver; 7] = [
    &nvme::DRIVER,
    &ata::AHCI,
    &ata::IDE,
    &virtio::blk::DRIVER,
    &e1000::DRIVER,
    &virtio::net::DRIVER,
    &edu::DRIVER,
];

/// The tables of quirks, with the families of the drivers that have one.
pub fn quirks() -> impl Iterator<Item = (&'static str, &'static Table)> {
    // Drivers of a family share one.
    let tables = DRIVERS.into_iter().filter_map(|driver| Some((driver.family, driver.quirks?())));
    tables.collect::<BTreeMap<_, _>>().into_iter()
}

/// The network cards of the kernel's drivers, by who drives them.
pub fn cards() -> Vec<Cards> {
    let is_own = |Function { vendor, device }: Function| {
        Driver::find(None, |matches| matches.has(Identity { vendor, device, class: 0 })).is_some()
    };
    hosted::cards(is_own)
}

/// One driver.
pub struct Driver {
    /// Its name, and its manifest's.
    pub name: &'static str,
    /// The word by which users call it and its like: `ring3 run FAMILY`.
    pub family: &'static str,
    /// What it drives, in messages.
    pub what: &'static str,
    /// Commands for it, in messages.
    pub commands: &'static str,
    /// The functions that it drives.
    pub matches: Match,
    /// Address lines that its devices drive, at least: the arena must lie below 2 to the power of
    /// that.
    pub address_bits: u32,
    /// Its devices have interrupt throttles ([`Settings::throttle`]).
    pub throttles: bool,
    /// The manifest, a TOML document.
    pub manifest: &'static str,
    /// What it knows of devices that are otherwise than their specification; `None` for a driver
    /// that knows of none.
    pub quirks: Option<fn() -> &'static Table>,
    /// Takes a function over and starts it; `None` for a driver that offers nothing to others.
    pub open: Option<Open>,
    /// Goes on with a function that was detached; `None` for a driver that cannot.
    pub resume: Option<Resume>,
    /// Goes on with a function whose driver was killed; `None` for a driver that cannot.
    pub adopt: Option<Adopt>,
}

/// Takes a function over and starts it.
pub type Open = fn(Arc<dyn Device>, &Settings) -> Result<Opened, Error>;

/// Goes on with a function whose controller was [detached](Controller::detach): nothing is stopped,
/// started or asked. The settings that its memory was made for are those of the process that has
/// detached it.
///
/// What was saved is input: [`Error::Invalid`] if it cannot be of this function. The function goes
/// on then, and its memory stays taken.
pub type Resume = fn(Arc<dyn Device>, &Settings, &Saved) -> Result<Opened, Error>;

/// Goes on with a function whose driver was killed after it had [recorded](Controller::record)
/// that: what it had begun is ended, without a reset. All of the arena that nobody has claimed is
/// free afterwards, and whoever has adopted the arena releases it.
///
/// What was recorded is input. After an error nothing is known of the device: [opening](Open) it
/// stops it first.
pub type Adopt = fn(Arc<dyn Device>, &Settings, &Saved) -> Result<Opened, Error>;

/// Which functions a driver drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// By class codes (24 bits: base class, sub-class, interface) that agree with `code` in the
    /// bits of `mask`. [PCI 6.2.1]
    Class {
        /// The code.
        code: u32,
        /// The bits that count.
        mask: u32,
    },
    /// By ids, where the class says nothing. [PCI 6.2.1]
    Ids {
        /// Vendor.
        vendor: u16,
        /// Device.
        device: u16,
    },
    /// By ids, as a family of one maker.
    AnyOf {
        /// Vendor.
        vendor: u16,
        /// Devices.
        devices: &'static [u16],
    },
}

/// What a function says about itself in its configuration space. [PCI 6.2.1]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    vendor: u16,
    device: u16,
    class: u32,
}

/// What the user of a device wants. A driver takes what means something to it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How the device signals.
    pub interrupts: Interrupts,
    /// Queues that will be open at the same time, of all offers together.
    pub queues: u16,
    /// Most bytes of one request, if it is known.
    pub max_transfer: Option<u32>,
    /// How long a wait polls at most before it sleeps; the driver's usual time if `None`.
    pub poll: Option<Duration>,
    /// How often each queue of a network card may interrupt; as the driver thinks best if `None`.
    pub throttle: Option<Throttle>,
    /// The best way in which an ATA drive may move its data.
    pub level: ata::Level,
    /// The one offer that is wanted, by its number; all if `None`.
    pub part: Option<u32>,
    /// Most bytes of memory that an NVMe controller gets for itself; the driver's usual limit if
    /// `None`.
    pub host_memory: Option<u64>,
    /// How long an NVMe controller may take to leave a power state that it enters by itself, 0 to
    /// keep it awake; the driver's usual limit if `None`.
    pub power_latency: Option<Duration>,
    /// What the user and the machine add to the driver's table of quirks.
    pub quirks: Circumstances,
}

impl Default for Settings {
    /// Everything that there is, as fast as it goes.
    fn default() -> Self {
        let (interrupts, level) = (Interrupts::Auto, ata::Level::Queued);
        Self {
            interrupts,
            queues: 1,
            max_transfer: None,
            poll: None,
            throttle: None,
            level,
            part: None,
            host_memory: None,
            power_latency: None,
            quirks: Circumstances::default(),
        }
    }
}

/// A device that is driven.
pub struct Opened {
    /// What it offers.
    pub offers: Vec<Offer>,
    /// What of it cannot be used, and why.
    pub refused: Vec<String>,
    /// The whole of it.
    pub controller: Box<dyn Controller>,
}

/// What a part of a device is to those who use it.
pub enum Offer {
    /// A disk.
    Disk(Arc<dyn Disk>),
    /// A network card.
    Nic(Arc<dyn Nic>),
}

/// A device apart from what it offers.
pub trait Controller: Send {
    /// What it has reported by itself since the last call, in words; asks it, and returns soon.
    fn poll_events(&self) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// By what another process can [adopt](Driver::adopt) the device if this one is killed from now
    /// on.
    fn record(&self) -> Result<Saved, Error> {
        Err(Error::Unsupported("the driver's device cannot be adopted: it is fenced".into()))
    }

    /// Leaves the device, as it runs, to whoever [resumes](Driver::resume) it: nothing is stopped,
    /// and nothing of its memory is given back. All queues were detached or dropped before;
    /// [`Error::Busy`] otherwise. What the device offers takes nothing afterwards.
    ///
    /// Nothing has changed after an error.
    fn detach(&mut self) -> Result<Saved, Error> {
        Err(Error::Unsupported(
            "the driver cannot leave its device to another process: end it, and \
             open the device anew"
                .into(),
        ))
    }
}

impl Driver {
    /// The driver for functions of `class` (24 bits), among those of `family` if one is named.
    pub fn of_class(class: u32, family: Option<&str>) -> Option<&'static Self> {
        Self::find(family, |matches| matches.has_class(class))
    }

    /// The driver for functions that say this of themselves: vendor and device, and class code (24
    /// bits).
    pub fn of_function((vendor, device): (u16, u16), class: u32) -> Option<&'static Self> {
        Self::find(None, |matches| matches.has(Identity { vendor, device, class }))
    }

    /// The driver for `device`, or an error that says which command fits it. A driver looks at that
    /// before it looks at a register: those of another device mean something else, and where that
    /// device has nothing it answers all ones, like one that is gone.
    pub fn of(device: &dyn Device, family: Option<&str>) -> Result<&'static Self, Error> {
        let identity = Identity::read(device)?;
        Self::find(family, |matches| matches.has(identity))
            .ok_or_else(|| misfit(device.name(), identity))
    }

    /// The quirks of functions with the ids `vendor` and `device` in this machine, as far as they
    /// are known before one of them runs.
    pub fn quirks_of(&self, (vendor, device): (u16, u16)) -> Quirks {
        let (function, board) = (Function { vendor, device }, Board::this());
        let known = |table: fn() -> &'static Table| {
            let (strings, overrides) = (Strings::default(), Overrides::default());
            table().quirks(function, || None, strings, &board, &overrides).ok()
        };
        self.quirks.and_then(known).unwrap_or_default()
    }

    /// Takes `device` over and starts it, by the driver of `family`, if one is named, that fits it
    /// and offers something.
    pub fn open(
        device: Arc<dyn Device>,
        family: Option<&str>,
        settings: &Settings,
    ) -> Result<Opened, Error> {
        let driver = Self::of(&*device, family)?;
        if settings.throttle.is_some() && !driver.throttles {
            let (name, driver) = (device.name(), driver.name);
            return Err(Error::Unsupported(format!(
                "{name}: the driver {driver} knows no throttle (--throttle): leave it out"
            )));
        }
        if !settings.quirks.overrides.is_empty() && driver.quirks.is_none() {
            let (name, driver) = (device.name(), driver.name);
            return Err(Error::Unsupported(format!(
                "{name}: the driver {driver} knows no quirks (--quirk): leave them out"
            )));
        }
        let nvme = settings.host_memory.is_some() || settings.power_latency.is_some();
        if nvme && driver.family != nvme::DRIVER.family {
            let (name, driver) = (device.name(), driver.name);
            return Err(Error::Unsupported(format!(
                "{name}: the driver {driver} gives its device no memory and sets no power states \
                (--hmb, --power-latency): leave them out"
            )));
        }
        match driver.open {
            Some(open) => open(device, settings),
            None => Err(misfit(device.name(), Identity::read(&*device)?)),
        }
    }

    /// Goes on with `device`, as it was [detached](Controller::detach).
    pub fn resume(
        device: Arc<dyn Device>,
        settings: &Settings,
        saved: &Saved,
    ) -> Result<Opened, Error> {
        let driver = Self::of(&*device, None)?;
        match driver.resume {
            Some(resume) => resume(device, settings, saved),
            None => Err(Error::Unsupported(format!(
                "{}: the driver {} cannot resume it: open it anew",
                device.name(),
                driver.name
            ))),
        }
    }

    /// Goes on with `device`, whose driver was killed after it had [recorded](Controller::record)
    /// `saved`.
    pub fn adopt(
        device: Arc<dyn Device>,
        settings: &Settings,
        saved: &Saved,
    ) -> Result<Opened, Error> {
        let driver = Self::of(&*device, None)?;
        match driver.adopt {
            Some(adopt) => adopt(device, settings, saved),
            None => Err(Error::Unsupported(format!(
                "{}: the driver {} cannot adopt it: open it",
                device.name(),
                driver.name
            ))),
        }
    }

    /// Where the device addresses end that functions of `class` reach, as far as their driver
    /// knows. The driver looks again at the memory that it gets, so that a class that nobody could
    /// tell is no permission.
    pub fn dma_limit(class: Option<u32>, family: Option<&str>) -> u64 {
        let driver = class.and_then(|class| Self::of_class(class, family));
        driver.and_then(|driver| 1u64.checked_shl(driver.address_bits)).unwrap_or(u64::MAX)
    }

    /// Fails if `device` is none of its functions; says which driver fits.
    pub(crate) fn check(&self, device: &dyn Device) -> Result<(), Error> {
        let identity = Identity::read(device)?;
        if self.matches.has(identity) { Ok(()) } else { Err(misfit(device.name(), identity)) }
    }

    fn find(family: Option<&str>, fits: impl Fn(Match) -> bool) -> Option<&'static Self> {
        DRIVERS.into_iter().find(|driver| {
            fits(driver.matches) && family.is_none_or(|family| driver.family == family)
        })
    }
}

impl Match {
    fn has(self, identity: Identity) -> bool {
        match self {
            Self::Class { .. } => self.has_class(identity.class),
            Self::Ids { vendor, device } => (vendor, device) == (identity.vendor, identity.device),
            Self::AnyOf { vendor, devices } => {
                vendor == identity.vendor && devices.contains(&identity.device)
            }
        }
    }

    fn has_class(self, class: u32) -> bool {
        matches!(self, Self::Class { code, mask } if class & mask == code)
    }
}

impl Identity {
    /// [`Error::Gone`] if `device` answers nothing.
    fn read(device: &dyn Device) -> Result<Self, Error> {
        let (ids, class) =
            (device.config_read(pci::VENDOR_ID, 4), device.config_read(pci::REVISION, 4));
        if ids == u32::MAX || class == u32::MAX {
            return Err(Error::Gone);
        }
        Ok(Self { vendor: ids as u16, device: (ids >> 16) as u16, class: class >> 8 })
    }
}

/// A Serial ATA controller, whatever its interface, and a RAID controller. [PCI appendix D]
const NO_AHCI: [u32; 2] = [0x01_06_00, 0x01_04_00];

/// The error for a function that the driver in question does not drive: what fits it.
fn misfit(name: &str, identity: Identity) -> Error {
    let Identity { vendor, device, class } = identity;
    let hosted = hosted::of_function((vendor, device), class);
    Error::Unsupported(match Driver::find(None, |matches| matches.has(identity)) {
        Some(Driver { what, family, commands, .. }) => {
            format!("{name}: it is {what}, whose driver is {family}: {commands}")
        }
        None if vendor == virtio_spec::VENDOR && virtio_spec::TRANSITIONAL.contains(&device) => {
            format!(
                "{name}: it is a transitional virtio device ({vendor:04x}:{device:04x}), and ring3 \
                 drives modern ones: give it disable-legacy=on, or a \
                 port of PCI Express"
            )
        }
        None if NO_AHCI.contains(&(class & 0xff_ff_00)) && hosted.is_none() => format!(
            "{name}: its class {class:#08x} is no AHCI interface; if its firmware offers AHCI for \
            it instead of RAID, choose that"
        ),
        None => {
            let next = match hosted {
                Some(driver) => format!(
                    "Linux's own can be hosted: --driver dde:{driver}, or driver = \
                     \"dde:{driver}\" in a manifest"
                ),
                None if class >> 8 == ETHERNET => {
                    "Linux's own is not among those that are hosted: ring3 dde list".into()
                }
                None => "ring3 run --help names what there is".into(),
            };
            format!(
                "{name}: no driver of ring3 fits it ({vendor:04x}:{device:04x}, class \
                {class:#08x}); {next}"
            )
        }
    })
}

/// An Ethernet controller, as base class and subclass. [PCI appendix D]
const ETHERNET: u32 = 0x02_00;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_only_a_hosted_driver_drives_is_refused_with_its_name() {
        let says =
            |vendor, device, class| misfit("here", Identity { vendor, device, class }).to_string();
        assert!(says(0x8086, 0x100c, 0x02_00_00).contains("--driver dde:e1000"));
        assert!(says(0x8086, 0x1533, 0x02_00_00).contains("driver = \"dde:igb\""));
        assert!(says(0x1000, 0x005b, 0x01_04_00).contains("--driver dde:megaraid_sas"));
        assert!(says(0x10ec, 0x8168, 0x02_00_00).contains("ring3 dde list"));
        assert!(says(0x10ec, 0x8168, 0x01_00_00).contains("ring3 run --help"));
    }
}
