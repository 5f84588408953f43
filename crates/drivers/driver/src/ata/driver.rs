//! Controllers of ATA drives in the registry.

use std::sync::Arc;

use ring3_class::Saved;
use ring3_device::{Device, Error};
use ring3_spec::{ahci as ahci_spec, ide as ide_spec};

use super::{Controller, Options, ahci, quirks};
use crate::registry::{self, Driver, Match, Offer, Opened, Settings};

/// The driver of AHCI controllers: each drive is a disk.
pub static AHCI: Driver = Driver {
    name: "ahci",
    family: "ata",
    what: "an AHCI controller",
    commands: "ring3 run ata, ring3 ata id",
    matches: Match::Class { code: ahci_spec::CLASS, mask: 0xff_ff_ff },
    address_bits: 64,
    throttles: false,
    manifest: include_str!("ahci/manifest.toml"),
    quirks: Some(quirks::table),
    open: Some(open),
    resume: Some(resume),
    adopt: Some(adopt),
};

/// The driver of PCI IDE controllers, whatever their interface: each drive is a disk. [PCI-IDE 2.0]
pub static IDE: Driver = Driver {
    name: "ide",
    family: "ata",
    what: "an IDE controller",
    commands: "ring3 run ata, ring3 ata id",
    matches: Match::Class { code: ide_spec::CLASS, mask: ide_spec::CLASS_MASK },
    address_bits: 32,
    throttles: false,
    manifest: include_str!("ide/manifest.toml"),
    quirks: Some(quirks::table),
    open: Some(open),
    resume: None,
    adopt: None,
};

fn open(device: Arc<dyn Device>, settings: &Settings) -> Result<Opened, Error> {
    let usual = Options::default();
    let options = Options {
        interrupts: settings.interrupts,
        level: settings.level,
        max_transfer: settings.max_transfer,
        poll: settings.poll.unwrap_or(usual.poll),
        quirks: settings.quirks.clone(),
        ..usual
    };
    opened(Controller::open(device, options)?, settings)
}

fn resume(device: Arc<dyn Device>, settings: &Settings, saved: &Saved) -> Result<Opened, Error> {
    opened(Controller::Ahci(ahci::Controller::resume(device, settings.poll, saved)?), settings)
}

fn adopt(device: Arc<dyn Device>, settings: &Settings, saved: &Saved) -> Result<Opened, Error> {
    opened(Controller::Ahci(ahci::Controller::adopt(device, settings.poll, saved)?), settings)
}

fn opened(controller: Controller, settings: &Settings) -> Result<Opened, Error> {
    let (offers, refused) = match settings.part {
        Some(place) => (vec![Offer::Disk(controller.disk(place)?)], Vec::new()),
        None => (
            controller.members().into_iter().map(|member| Offer::Disk(member.disk)).collect(),
            controller
                .refused()
                .iter()
                .map(|(drive, error)| format!("drive {drive} is left out: {error}"))
                .collect(),
        ),
    };
    Ok(Opened { offers, refused, controller: Box::new(controller) })
}

/// An ATA controller reports nothing by itself: what its drives meet, they log.
impl registry::Controller for Controller {
    fn record(&self) -> Result<Saved, Error> {
        match self {
            Self::Ahci(controller) => controller.record(),
            Self::Ide(_) => Err(Error::Unsupported(
                "the driver ide's device is not adopted: it is fenced".into(),
            )),
        }
    }

    fn detach(&mut self) -> Result<Saved, Error> {
        match self {
            Self::Ahci(controller) => controller.detach(),
            Self::Ide(_) => Err(Error::Unsupported(
                "the driver ide cannot leave its device to another process: end it, and open the \
                 device anew"
                    .into(),
            )),
        }
    }
}
