//! The card in the registry.

use std::sync::Arc;

use ring3_class::Saved;
use ring3_class::net::Nic;
use ring3_device::{Device, Error};
use ring3_spec::e1000::VENDOR;

use super::variant::DEVICES;
use super::{E1000, Options};
use crate::registry::{Driver, Match, Offer, Opened, Settings};

/// The driver of the family.
pub static DRIVER: Driver = Driver {
    name: "e1000",
    family: "e1000",
    what: "a network card of the e1000 family",
    commands: "ring3 net check, ring3 net info",
    matches: Match::AnyOf { vendor: VENDOR, devices: &DEVICES },
    address_bits: 64,
    throttles: true,
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
        poll: settings.poll.unwrap_or(usual.poll),
        throttle: settings.throttle.unwrap_or(usual.throttle),
        ..usual
    };
    Ok(opened(E1000::open(device, options)?))
}

fn resume(device: Arc<dyn Device>, settings: &Settings, saved: &Saved) -> Result<Opened, Error> {
    Ok(opened(E1000::resume(device, settings.poll, saved)?))
}

fn opened(card: E1000) -> Opened {
    let card = Arc::new(card);
    let offer: Arc<dyn Nic> = card.clone();
    Opened { offers: vec![Offer::Nic(offer)], refused: Vec::new(), controller: Box::new(card) }
}
