//! What a test does to a simulated AHCI controller and its drives.

use std::time::Duration;

use super::controller::AhciModel;
use super::port::Attached;
use super::{Counters, Shape};
use crate::fault::FaultPlan;
use crate::{SimHandle, Timing};

impl SimHandle<AhciModel> {
    /// The controller's fault hooks: rules can be added while a driver runs.
    pub fn plan(&self) -> FaultPlan {
        self.with(|model, _| model.faults.clone())
    }

    /// What the controller is like.
    pub fn shape(&self) -> Shape {
        self.with(|model, _| model.shape.clone())
    }

    /// When commands that are taken from now on are done.
    pub fn set_timing(&self, timing: Timing) {
        self.with(|model, _| model.shape.timing = timing);
    }

    /// How long resets take from now on.
    pub fn set_ready_time(&self, time: Duration) {
        self.with(|model, _| model.shape.ready = time);
    }

    /// How many commands were taken and wait.
    pub fn held(&self) -> usize {
        self.with(|model, _| model.held.len())
    }

    /// Does all commands that wait, oldest first; returns how many.
    pub fn release(&self) -> usize {
        (0..self.held()).filter(|_| self.release_one()).count()
    }

    /// Does the command that has waited longest; false if none waits.
    pub fn release_one(&self) -> bool {
        self.with(|model, bus| match model.held.take_first() {
            Some(job) => {
                model.run(bus, &job, None);
                true
            }
            None => false,
        })
    }

    /// Does the queued command `tag` of `port`, whichever came before it; false if it does not wait.
    pub fn release_tag(&self, port: usize, tag: u8) -> bool {
        self.with(|model, bus| match model.held.take_one(|job| job.port == port && job.slot == tag) {
            Some(job) => {
                model.run(bus, &job, None);
                true
            }
            None => false,
        })
    }

    /// The power goes and comes back: writes that were not durable are lost, the controller is as after power-on.
    pub fn lose_power(&self) {
        self.with(|model, bus| {
            for port in &mut model.ports {
                if let Attached::Disk(drive) = &mut port.attached {
                    drive.medium.lose_power();
                }
            }
            model.restart_unasked(bus);
        });
    }

    /// The function is reset behind the driver's back, as through sysfs or with its bus: media and caches stay as they are.
    pub fn reset_function(&self) {
        self.with(|model, bus| model.restart_unasked(bus));
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

    /// What the host did so far.
    pub fn counters(&self) -> Counters {
        self.with(|model, _| model.record.counters)
    }

    /// The rules that the driver broke, in words, the first 64.
    pub fn complaints(&self) -> Vec<String> {
        self.with(|model, _| model.record.complaints())
    }

    /// Reads the medium of the drive in `port` at byte `at`, past the driver; false if there is nothing there.
    pub fn peek(&self, port: usize, at: u64, bytes: &mut [u8]) -> bool {
        self.with(|model, _| match model.ports.get(port).map(|port| &port.attached) {
            Some(Attached::Disk(drive)) => drive.medium.peek(at, bytes),
            _ => false,
        })
    }

    /// Writes the medium of the drive in `port` at byte `at`, past the driver and durably; false if there is nothing there.
    pub fn poke(&self, port: usize, at: u64, bytes: &[u8]) -> bool {
        self.with(|model, _| match model.ports.get_mut(port).map(|port| &mut port.attached) {
            Some(Attached::Disk(drive)) => drive.medium.poke(at, bytes),
            _ => false,
        })
    }
}
