//! virtio disks in the registry.

use std::sync::Arc;

use ring3_class::Saved;
use ring3_device::{Device, Error};
use ring3_spec::virtio::{VENDOR, blk};

use super::{Disk, Options};
use crate::registry::{self, Driver, Match, Offer, Opened, Settings};

/// The driver of virtio disks.
pub static DRIVER: Driver = Driver {
    name: "virtio-blk",
    family: "virtio",
    what: "a virtio disk",
    commands: "ring3 run virtio, ring3 blk info",
    matches: Match::Ids { vendor: VENDOR, device: blk::DEVICE },
    address_bits: 64,
    throttles: false,
    manifest: include_str!("manifest.toml"),
    quirks: None,
    open: Some(open),
    resume: Some(resume),
    adopt: None,
};

fn open(device: Arc<dyn Device>, settings: &Settings) -> Result<Opened, Error> {
    let usual = Options::default();
    let options = Options {
        interrupts: settings.interrupts,
        max_queues: settings.queues,
        max_transfer: settings.max_transfer,
        poll: settings.poll.unwrap_or(usual.poll),
        ..usual
    };
    opened(Disk::open(device, options)?, settings)
}

fn resume(device: Arc<dyn Device>, settings: &Settings, saved: &Saved) -> Result<Opened, Error> {
    opened(Disk::resume(device, settings.poll, saved)?, settings)
}

fn opened(disk: Disk, settings: &Settings) -> Result<Opened, Error> {
    let disk = Arc::new(disk);
    if let Some(part) = settings.part.filter(|part| *part != 1) {
        return Err(Error::Invalid(format!(
            "a virtio device is one disk, number 1: there is no {part}"
        )));
    }
    Ok(Opened {
        offers: vec![Offer::Disk(disk.clone())],
        refused: Vec::new(),
        controller: Box::new(Whole(disk)),
    })
}

/// Of a device there is nothing beside its disk.
struct Whole(Arc<Disk>);

impl registry::Controller for Whole {
    fn poll_events(&self) -> Result<Vec<String>, Error> {
        self.0.poll_changes()
    }

    fn detach(&mut self) -> Result<Saved, Error> {
        self.0.detach()
    }
}
