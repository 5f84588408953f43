//! virtio network cards in the registry.

use std::sync::Arc;

use ring3_class::Saved;
use ring3_device::{Device, Error};
use ring3_spec::virtio::{VENDOR, net};

use super::{Card, Options};
use crate::registry::{self, Driver, Match, Offer, Opened, Settings};

/// The driver of virtio network cards.
pub static DRIVER: Driver = Driver {
    name: "virtio-net",
    family: "virtio",
    what: "a virtio network card",
    commands: "ring3 net info, ring3 net check",
    matches: Match::Ids { vendor: VENDOR, device: net::DEVICE },
    address_bits: 64,
    throttles: false,
    manifest: include_str!("manifest.toml"),
    quirks: None,
    open: Some(open),
    resume: Some(resume),
    adopt: None,
};

fn open(device: Arc<dyn Device>, settings: &Settings) -> Result<Opened, Error> {
    DRIVER.check(&*device)?;
    let usual = Options::default();
    let options = Options {
        interrupts: settings.interrupts,
        poll: settings.poll.unwrap_or(usual.poll),
        ..usual
    };
    Ok(opened(Card::open(device, options)?))
}

fn resume(device: Arc<dyn Device>, settings: &Settings, saved: &Saved) -> Result<Opened, Error> {
    DRIVER.check(&*device)?;
    Ok(opened(Card::resume(device, settings.poll, saved)?))
}

fn opened(card: Card) -> Opened {
    let card = Arc::new(card);
    Opened {
        offers: vec![Offer::Nic(card.clone())],
        refused: Vec::new(),
        controller: Box::new(Whole(card)),
    }
}

/// Of a card there is nothing beside its port.
struct Whole(Arc<Card>);

impl registry::Controller for Whole {
    fn detach(&mut self) -> Result<Saved, Error> {
        self.0.detach()
    }
}
