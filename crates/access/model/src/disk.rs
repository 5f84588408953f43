//! What all models with disks have, and what a test does to any of them.

use std::time::Duration;

use super::fault::FaultPlan;
use super::medium::Medium;
use super::{Bus, Model, SimHandle, Timing};

/// A controller with disks. How its parts are called is in the model's own module.
pub trait DiskModel: Model {
    /// What it counts.
    type Counters: Copy;

    /// Its fault hooks.
    fn faults(&self) -> &FaultPlan;
    /// When commands about data are done, and how long a start, a stop or a reset takes.
    fn times(&mut self) -> (&mut Timing, &mut Duration);
    /// Commands that were taken and wait.
    fn held(&self) -> usize;
    /// Does the command that has waited longest; false if none waits.
    fn release_one(&mut self, bus: &Bus) -> bool;
    /// Media forget what was not durable, and the controller is as after power-on.
    fn lose_power(&mut self, bus: &Bus);
    /// The controller is as after power-on; media and caches stay as they are.
    fn reset_unasked(&mut self, bus: &Bus);
    /// What the host did so far.
    fn counters(&self) -> Self::Counters;
    /// Rules that the host broke.
    fn violations(&self) -> Vec<String>;
    /// The medium in place `number`.
    fn medium(&mut self, number: usize) -> Option<&mut Medium>;
}

impl<M: DiskModel> SimHandle<M> {
    /// The fault hooks: rules can be added while a driver runs.
    pub fn plan(&self) -> FaultPlan {
        self.with(|model, _| model.faults().clone())
    }

    /// When commands about data that are taken from now on are done.
    pub fn set_timing(&self, timing: Timing) {
        self.with(|model, _| *model.times().0 = timing);
    }

    /// How long the controller takes from now on to become ready and to stop, or a reset.
    pub fn set_ready_time(&self, time: Duration) {
        self.with(|model, _| *model.times().1 = time);
    }

    /// How many commands were taken and wait.
    pub fn held(&self) -> usize {
        self.with(|model, _| model.held())
    }

    /// Does the commands that wait now, oldest first; returns how many.
    pub fn release(&self) -> usize {
        (0..self.held()).filter(|_| self.release_one()).count()
    }

    /// Does the command that has waited longest; false if none waits.
    pub fn release_one(&self) -> bool {
        self.with(DiskModel::release_one)
    }

    /// The power goes and comes back: writes that were not durable are lost, the controller is as
    /// after power-on.
    pub fn lose_power(&self) {
        self.with(DiskModel::lose_power);
    }

    /// The function is reset behind the driver's back, as through sysfs or with its bus: media and
    /// caches stay as they are.
    pub fn reset_function(&self) {
        self.with(DiskModel::reset_unasked);
    }

    /// What the host did so far.
    pub fn counters(&self) -> M::Counters {
        self.with(|model, _| model.counters())
    }

    /// Where the host broke a rule of the specification, in words, the first 64; empty at the end
    /// of a driver's test.
    pub fn violations(&self) -> Vec<String> {
        self.with(|model, _| model.violations())
    }

    /// Reads the medium in place `number` (a namespace, a port, a drive) at byte `at`, past the
    /// driver; false if there is nothing there.
    pub fn peek(&self, number: usize, at: u64, bytes: &mut [u8]) -> bool {
        self.with(|model, _| model.medium(number).is_some_and(|medium| medium.peek(at, bytes)))
    }

    /// Writes it at byte `at`, past the driver and durably; false if there is nothing there.
    pub fn poke(&self, number: usize, at: u64, bytes: &[u8]) -> bool {
        self.with(|model, _| model.medium(number).is_some_and(|medium| medium.poke(at, bytes)))
    }
}
