//! What a test does to a simulated AHCI controller and its drives.

use std::time::Duration;

use super::controller::AhciModel;
use super::port::Port;
use super::{Counters, Shape, Statistics};
use crate::ata::Drive;
use crate::disk::DiskModel;
use crate::fault::FaultPlan;
use crate::medium::Medium;
use crate::{Bus, SimHandle, Timing};

impl SimHandle<AhciModel> {
    /// What the controller is like.
    pub fn shape(&self) -> Shape {
        self.with(|model, _| model.shape.clone())
    }

    /// Does the queued command `tag` of `port`, whichever came before it; false if it does not
    /// wait.
    pub fn release_tag(&self, port: usize, tag: u8) -> bool {
        self.with(|model, bus| {
            let wanted = model.held.take_one(|job| job.port == port && job.slot == tag);
            wanted.map(|job| model.run(bus, &job, None)).is_some()
        })
    }

    /// The drive of `port` says this of how often it was powered on, from now on.
    pub fn set_statistics(&self, port: usize, statistics: Statistics) {
        self.with_disk(port, |drive| drive.shape.statistics = statistics);
    }

    /// The generation of the link of `port`; 0 is none. [AHCI 3.3.10]
    pub fn link_speed(&self, port: usize) -> u32 {
        self.with(|model, _| model.ports.get(port).map_or(0, |port| port.link.speed()))
    }

    /// How often the link of `port` has come up.
    pub fn links(&self, port: usize) -> u64 {
        self.with(|model, _| model.ports.get(port).map_or(0, |port| port.links))
    }

    /// The link of `port` loses its drive, and stays without communication until the port is
    /// switched off and on (PCS).
    pub fn stick_link(&self, port: usize) {
        self.with(|model, bus| model.stick_link(bus, port));
    }

    /// The power of the drive of `port` fails and comes back, and its link does not show it.
    pub fn lose_power_unseen(&self, port: usize) {
        self.with_disk(port, |drive| {
            drive.lose_power();
            drive.restart();
        });
    }

    fn with_disk(&self, port: usize, what: impl FnOnce(&mut Drive)) {
        self.with(|model, _| model.ports.get_mut(port).and_then(Port::disk).map(what));
    }

    /// Pulls the drive of `port` out, and with it its power: writes that were not durable are lost.
    pub fn unplug(&self, port: usize) {
        self.with(|model, bus| {
            if port < model.ports.len() {
                model.unplug(bus, port);
            }
        });
    }

    /// Puts the drive of `port` back.
    pub fn plug(&self, port: usize) {
        self.with(|model, bus| {
            if port < model.ports.len() {
                model.plug(bus, port);
            }
        });
    }
}

/// Media are counted from 0, as ports are.
impl DiskModel for AhciModel {
    type Counters = Counters;

    fn faults(&self) -> &FaultPlan {
        &self.faults
    }
    fn times(&mut self) -> (&mut Timing, &mut Duration) {
        (&mut self.shape.timing, &mut self.shape.ready)
    }
    fn held(&self) -> usize {
        self.held.len()
    }
    fn release_one(&mut self, bus: &Bus) -> bool {
        self.held.take_first().map(|job| self.run(bus, &job, None)).is_some()
    }
    fn lose_power(&mut self, bus: &Bus) {
        // Its drives, whether or not they are in their places.
        self.ports.iter_mut().filter_map(Port::disk).for_each(Drive::lose_power);
        self.restart_unasked(bus);
    }
    fn reset_unasked(&mut self, bus: &Bus) {
        self.restart_unasked(bus);
    }
    fn counters(&self) -> Counters {
        self.record.counters
    }
    fn violations(&self) -> Vec<String> {
        self.record.violations()
    }
    fn medium(&mut self, number: usize) -> Option<&mut Medium> {
        Some(&mut self.ports.get_mut(number)?.disk()?.medium)
    }
}
