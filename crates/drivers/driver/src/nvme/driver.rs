//! The registry entry of the NVMe driver.

use std::sync::Arc;

use ring3_class::Saved;
use ring3_device::{Device, Error};
use ring3_spec::nvme::CLASS;

use super::quirks::table;
use super::{Controller, Options};
use crate::registry::{self, Driver, Match, Offer, Opened, Settings};

/// The driver of NVMe controllers: each namespace is a disk.
pub static DRIVER: Driver = Driver {
    name: "nvme",
    family: "nvme",
    what: "an NVMe controller",
    commands: "ring3 run nvme, ring3 nvme id",
    matches: Match::Class { code: CLASS, mask: 0xff_ff_ff },
    address_bits: 64,
    throttles: false,
    manifest: include_str!("manifest.toml"),
    quirks: Some(table),
    open: Some(open),
    resume: Some(resume),
    adopt: Some(adopt),
};

fn open(device: Arc<dyn Device>, settings: &Settings) -> Result<Opened, Error> {
    let usual = Options::default();
    let options = Options {
        interrupts: settings.interrupts,
        max_queues: settings.queues,
        max_transfer: settings.max_transfer,
        poll: settings.poll.unwrap_or(usual.poll),
        host_memory: settings.host_memory.unwrap_or(usual.host_memory),
        power_latency: settings.power_latency.unwrap_or(usual.power_latency),
        quirks: settings.quirks.clone(),
        ..usual
    };
    opened(Controller::open(device, options)?, settings)
}

fn resume(device: Arc<dyn Device>, settings: &Settings, saved: &Saved) -> Result<Opened, Error> {
    opened(Controller::resume(device, settings.poll, saved)?, settings)
}

fn adopt(device: Arc<dyn Device>, settings: &Settings, saved: &Saved) -> Result<Opened, Error> {
    opened(Controller::adopt(device, settings.poll, saved)?, settings)
}

fn opened(controller: Controller, settings: &Settings) -> Result<Opened, Error> {
    let (offers, refused) = match settings.part {
        Some(id) => (vec![Offer::Disk(controller.disk(id)?)], Vec::new()),
        None => (
            controller
                .namespaces()
                .iter()
                .map(|namespace| Offer::Disk(Arc::new(namespace.clone())))
                .collect(),
            controller
                .refused()
                .iter()
                .map(|(id, error)| format!("namespace {id} is left out: {error}"))
                .collect(),
        ),
    };
    Ok(Opened { offers, refused, controller: Box::new(controller) })
}

impl registry::Controller for Controller {
    fn poll_events(&self) -> Result<Vec<String>, Error> {
        Ok(self.events()?.iter().map(ToString::to_string).collect())
    }

    fn record(&self) -> Result<Saved, Error> {
        Self::record(self)
    }

    fn detach(&mut self) -> Result<Saved, Error> {
        Self::detach(self)
    }
}
