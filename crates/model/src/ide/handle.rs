//! What a test does to a simulated IDE controller and its drives. Drives are counted from 0: primary master, primary slave,
//! secondary master, secondary slave.

use std::time::Duration;

use super::channel::Attached;
use super::controller::IdeModel;
use super::{Counters, Shape};
use crate::fault::FaultPlan;
use crate::{SimHandle, Timing};

/// Places for drives.
const PLACES: usize = 4;

impl SimHandle<IdeModel> {
    /// The controller's fault hooks: rules can be added while a driver runs.
    pub fn plan(&self) -> FaultPlan {
        self.with(|model, _| model.faults.clone())
    }

    /// What the controller is like.
    pub fn shape(&self) -> Shape {
        self.with(|model, _| model.shape.clone())
    }

    /// When commands that are written from now on are done.
    pub fn set_timing(&self, timing: Timing) {
        self.with(|model, _| model.shape.timing = timing);
    }

    /// How long resets take from now on.
    pub fn set_ready_time(&self, time: Duration) {
        self.with(|model, _| model.shape.ready = time);
    }

    /// How many commands were written and wait.
    pub fn held(&self) -> usize {
        self.with(|model, _| model.held.len())
    }

    /// Begins all commands that wait, oldest first; returns how many.
    pub fn release(&self) -> usize {
        self.with(|model, bus| {
            let count = model.held.len();
            for _ in 0..count {
                if let Some(channel) = model.held.take_first() {
                    model.begin(bus, channel);
                }
            }
            count
        })
    }

    /// The power goes and comes back: writes that were not durable are lost, the controller is as after power-on.
    pub fn lose_power(&self) {
        self.with(|model, bus| {
            for unit in model.channels.iter_mut().flat_map(|channel| &mut channel.units) {
                if let Attached::Disk(drive) = &mut unit.attached {
                    drive.medium.lose_power();
                }
            }
            model.restart(bus);
        });
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

    /// What the host did so far.
    pub fn counters(&self) -> Counters {
        self.with(|model, _| model.record.counters)
    }

    /// The rules that the driver broke, in words, the first 64.
    pub fn complaints(&self) -> Vec<String> {
        self.with(|model, _| model.record.complaints())
    }

    /// The transfer mode that `drive` was set to, as SET FEATURES says it; 0 if it was not, or there is none.
    pub fn transfer_mode(&self, drive: usize) -> u8 {
        self.on(drive, |attached| match attached {
            Attached::Disk(drive) => drive.mode,
            _ => 0,
        })
        .unwrap_or(0)
    }

    /// Reads the medium of `drive` at byte `at`, past the driver; false if there is nothing there.
    pub fn peek(&self, drive: usize, at: u64, bytes: &mut [u8]) -> bool {
        self.on(drive, |attached| matches!(attached, Attached::Disk(drive) if drive.medium.peek(at, bytes))).unwrap_or(false)
    }

    /// Writes the medium of `drive` at byte `at`, past the driver and durably; false if there is nothing there.
    pub fn poke(&self, drive: usize, at: u64, bytes: &[u8]) -> bool {
        self.on(drive, |attached| match attached {
            Attached::Disk(drive) => drive.medium.poke(at, bytes),
            _ => false,
        })
        .unwrap_or(false)
    }

    fn on<T>(&self, drive: usize, f: impl FnOnce(&mut Attached) -> T) -> Option<T> {
        self.with(|model, _| {
            let (channel, unit) = IdeModel::place(drive);
            Some(f(&mut model.channels.get_mut(channel)?.units[unit].attached))
        })
    }
}
