//! The card in the registry.

use std::sync::Arc;

use ring3_class::net::Nic;
use ring3_device::{Device, Error};
use ring3_spec::e1000::{DEVICE_82574L, VENDOR};

use super::{E1000, Options};
use crate::registry::{Driver, Match, Offer, Opened, Settings};

/// The driver of the 82574L.
pub static DRIVER: Driver = Driver {
    name: "e1000",
    family: "e1000",
    what: "an 82574L network card",
    commands: "ring3 net check, ring3 net info",
    matches: Match::Ids { vendor: VENDOR, device: DEVICE_82574L },
    address_bits: 64,
    manifest: include_str!("manifest.toml"),
    open: Some(open),
    resume: None,
    adopt: None,
};

fn open(device: Arc<dyn Device>, settings: &Settings) -> Result<Opened, Error> {
    let usual = Options::default();
    let options = Options { interrupts: settings.interrupts, poll: settings.poll.unwrap_or(usual.poll), ..usual };
    let card = Arc::new(E1000::open(device, options)?);
    let offer: Arc<dyn Nic> = card.clone();
    Ok(Opened { offers: vec![Offer::Nic(offer)], refused: Vec::new(), controller: Box::new(card) })
}
