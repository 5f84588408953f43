//! Either host controller, behind one face.

use std::sync::Arc;

use ring3_class::block::Disk;
use ring3_device::irq::IrqKind;
use ring3_device::{Device, Error};
use ring3_spec::ide::DRIVES;

use super::AHCI;
use super::{Identity, Options, ahci, ide, quirks};
use crate::registry::Driver;

/// A controller of ATA drives.
pub enum Controller {
    /// PCI IDE.
    Ide(ide::Controller),
    /// Serial ATA by AHCI.
    Ahci(ahci::Controller),
}

/// A drive of a controller.
pub struct Member<'a> {
    /// Its number: the port of an AHCI controller; 0 to 3 for primary master, primary slave,
    /// secondary master and secondary slave.
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
    /// [`Error::Invalid`] if a word of the user's is no quirk.
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self, Error> {
        // A drive would be left out for it, each alone.
        let checked = options.quirks.overrides.check(quirks::table());
        checked.map_err(|why| Error::Invalid(format!("--quirk: {why}")))?;
        match Driver::of(&*device, Some(AHCI.family))?.name {
            name if name == AHCI.name => ahci::Controller::open(device, options).map(Self::Ahci),
            _ => ide::Controller::open(device, options).map(Self::Ide),
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
}
