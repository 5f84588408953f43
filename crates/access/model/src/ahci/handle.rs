//! What a test does to a simulated AHCI controller and its drives.

use std::time::Duration;

use super::controller::AhciModel;
use super::port::Attached;
use super::{Counters, Shape};
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

    /// The function is reset behind the driver's back, as through sysfs or with its bus: media and
    /// caches stay as they are.
    pub fn reset_function(&self) {
        self.with(AhciModel::restart_unasked);
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
        (0..self.ports.len()).filter_map(|port| self.medium(port).map(Medium::lose_power)).count();
        self.restart_unasked(bus);
    }
    fn counters(&self) -> Counters {
        self.record.counters
    }
    fn violations(&self) -> Vec<String> {
        self.record.violations()
    }
    fn medium(&mut self, number: usize) -> Option<&mut Medium> {
        match &mut self.ports.get_mut(number)?.attached {
            Attached::Disk(drive) => Some(&mut drive.medium),
            _ => None,
        }
    }
}
