//! Either host controller, behind one face.

use std::sync::Arc;

use ring3_class::block::Disk;
use ring3_device::irq::{Irq, IrqKind};
use ring3_device::{Device, Error};
use ring3_spec::ide::DRIVES;
use ring3_spec::{ahci as ahci_spec, ide as ide_spec};

use super::{Identity, Options, ahci, ide};
use crate::class;

/// PCI class of a Serial ATA controller, whatever its interface; and of a RAID controller. [PCI appendix D]
const SERIAL_ATA: u32 = 0x01_06_00;
const RAID: u32 = 0x01_04_00;
/// Selects base class and sub-class.
const KIND: u32 = 0xff_ff_00;

/// Whether a function of `class` (24 bits) is a controller that is driven here.
pub fn drives_class(class: u32) -> bool {
    class == ahci_spec::CLASS || class & KIND == ide_spec::CLASS
}

/// A controller of ATA drives.
pub enum Controller {
    /// PCI IDE.
    Ide(ide::Controller),
    /// Serial ATA by AHCI.
    Ahci(ahci::Controller),
}

/// A drive of a controller.
pub struct Member<'a> {
    /// Its number: the port of an AHCI controller; 0 to 3 for primary master, primary slave, secondary master and secondary slave.
    pub place: u32,
    /// What it says about itself.
    pub identity: &'a Identity,
    /// How its data move: `queued, 32 commands`, `UDMA 2`, `PIO 4`.
    pub mode: String,
    /// It as a disk.
    pub disk: Arc<dyn Disk>,
}

impl Controller {
    /// Takes the function over by the interface that its class names, and looks for its drives.
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self, Error> {
        let class = class::of(&*device)?;
        match class & KIND {
            ide_spec::CLASS => ide::Controller::open(device, options).map(Self::Ide),
            _ if class == ahci_spec::CLASS => ahci::Controller::open(device, options).map(Self::Ahci),
            RAID | SERIAL_ATA => Err(Error::Unsupported(format!(
                "{}: its class {class:#08x} is no AHCI interface; if its firmware offers AHCI for it instead of RAID, choose that",
                device.name()
            ))),
            _ => Err(class::misfit(&*device, class)),
        }
    }

    /// The drives that are disks, by their places.
    pub fn members(&self) -> Vec<Member<'_>> {
        match self {
            Self::Ide(controller) => {
                let drives = controller.drives().iter().map(|drive| {
                    let (channel, number) = drive.place();
                    Member {
                        place: u32::from(channel) * u32::from(DRIVES) + u32::from(number),
                        identity: drive.identity(),
                        mode: drive.mode(),
                        disk: Arc::new(drive.clone()),
                    }
                });
                drives.collect()
            }
            Self::Ahci(controller) => {
                let drives = controller.drives().iter().map(|drive| Member {
                    place: drive.port().into(),
                    identity: drive.identity(),
                    mode: drive.mode(),
                    disk: Arc::new(drive.clone()),
                });
                drives.collect()
            }
        }
    }

    /// The disk at `place`, or an error that names those that there are.
    pub fn disk(&self, place: u32) -> Result<Arc<dyn Disk>, Error> {
        let members = self.members();
        let places: Vec<_> = members.iter().map(|member| member.place.to_string()).collect();
        let found = members.into_iter().find(|member| member.place == place);
        found.map(|member| member.disk).ok_or_else(|| {
            let there = if places.is_empty() { "none".into() } else { places.join(", ") };
            Error::Invalid(format!("it has no drive {place}; there are: {there}"))
        })
    }

    /// What is there and cannot be used, and why.
    pub fn refused(&self) -> &[(String, Error)] {
        match self {
            Self::Ide(controller) => controller.refused(),
            Self::Ahci(controller) => controller.refused(),
        }
    }

    /// How ends of commands are signalled; `None` if they are looked for.
    pub fn interrupts(&self) -> Option<IrqKind> {
        match self {
            Self::Ide(controller) => controller.interrupts(),
            Self::Ahci(controller) => controller.interrupts(),
        }
    }

    /// Signalled when the bus reports an error of the function that it cannot correct; `None` where the backend cannot know.
    pub fn bus_errors(&self) -> Option<&Irq> {
        match self {
            Self::Ide(controller) => controller.bus_errors(),
            Self::Ahci(controller) => controller.bus_errors(),
        }
    }

    /// Signalled when the platform wants the function back; `None` where the backend cannot know.
    pub fn removal(&self) -> Option<&Irq> {
        match self {
            Self::Ide(controller) => controller.removal(),
            Self::Ahci(controller) => controller.removal(),
        }
    }
}
