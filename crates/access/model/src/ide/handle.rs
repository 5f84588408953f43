//! What a test does to a simulated IDE controller and its drives. Drives are counted from 0:
//! primary master, primary slave, secondary master, secondary slave.

use std::time::Duration;

use super::channel::Attached;
use super::controller::IdeModel;
use super::{Counters, Shape, Statistics};
use crate::ata::Drive;
use crate::disk::DiskModel;
use crate::fault::FaultPlan;
use crate::medium::Medium;
use crate::{Bus, SimHandle, Timing};

/// Places for drives.
const PLACES: usize = 4;

impl SimHandle<IdeModel> {
    /// What the controller is like.
    pub fn shape(&self) -> Shape {
        self.with(|model, _| model.shape.clone())
    }

    /// Pulls `drive` out, and with it its power: writes that were not durable are lost.
    pub fn unplug(&self, drive: usize) {
        self.with(|model, bus| {
            if drive < PLACES {
                let (channel, unit) = IdeModel::place(drive);
                model.unplug(bus, channel, unit);
            }
        });
    }

    /// Puts `drive` back.
    pub fn plug(&self, drive: usize) {
        self.with(|model, _| {
            if drive < PLACES {
                let (channel, unit) = IdeModel::place(drive);
                model.plug(channel, unit);
            }
        });
    }

    /// The transfer mode that `drive` was set to, as SET FEATURES says it; 0 if it was not, or
    /// there is none.
    pub fn transfer_mode(&self, drive: usize) -> u8 {
        self.with(|model, _| model.disk(drive).map_or(0, |drive| drive.mode))
    }

    /// `drive` says this of how often it was powered on, from now on.
    pub fn set_statistics(&self, drive: usize, statistics: Statistics) {
        self.with(|model, _| model.disk(drive).map(|drive| drive.shape.statistics = statistics));
    }

    /// The power of `drive` fails and comes back, and it has all settings that it had.
    pub fn lose_power_unseen(&self, drive: usize) {
        self.with(|model, _| model.disk(drive).map(Drive::lose_power));
    }
}

impl IdeModel {
    fn disk(&mut self, drive: usize) -> Option<&mut Drive> {
        let (channel, unit) = Self::place(drive);
        match &mut self.channels.get_mut(channel)?.units[unit].attached {
            Attached::Disk(drive) => Some(drive),
            _ => None,
        }
    }
}

impl DiskModel for IdeModel {
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
        self.held.take_first().map(|channel| self.begin(bus, channel)).is_some()
    }
    fn lose_power(&mut self, bus: &Bus) {
        (0..PLACES).filter_map(|drive| self.disk(drive).map(Drive::lose_power)).count();
        self.restart(bus);
    }
    fn reset_unasked(&mut self, bus: &Bus) {
        self.restart(bus);
    }
    fn counters(&self) -> Counters {
        self.record.counters
    }
    fn violations(&self) -> Vec<String> {
        self.record.violations()
    }
    fn medium(&mut self, number: usize) -> Option<&mut Medium> {
        self.disk(number).map(|drive| &mut drive.medium)
    }
}
