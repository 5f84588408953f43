//! What a test does to a simulated disk.

use std::time::Duration;

use ring3_spec::nvme::event::AsyncEvent;

use super::controller::{Counters, NvmeModel};
use crate::fault::FaultPlan;
use crate::{SimHandle, Timing};

impl SimHandle<NvmeModel> {
    /// The disk's fault hooks: rules can be added while a driver runs.
    pub fn plan(&self) -> FaultPlan {
        self.with(|model, _| model.faults.clone())
    }

    /// When I/O commands that are taken from now on are done.
    pub fn set_timing(&self, timing: Timing) {
        self.with(|model, _| model.shape.timing = timing);
    }

    /// How long the controller takes from now on to become ready and to stop.
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
            Some(waiting) => {
                model.run(bus, waiting.queue, &waiting.command, None);
                true
            }
            None => false,
        })
    }

    /// Fatal status, now: the controller stops and says so.
    pub fn fail(&self) {
        self.with(|model, _| model.fail());
    }

    /// The power goes and comes back: writes that were not durable are lost, the controller is disabled.
    pub fn lose_power(&self) {
        self.with(|model, bus| model.lose_power(bus));
    }

    /// The function is reset behind the driver's back, as through sysfs or with its bus: media and cache stay as they are.
    pub fn reset_function(&self) {
        self.with(|model, bus| model.restart_unasked(bus));
    }

    /// Where the host broke a rule of the specification, in words; empty at the end of a driver's test.
    pub fn complaints(&self) -> Vec<String> {
        self.with(|model, _| model.complaints.all())
    }

    /// Reports an asynchronous event.
    pub fn event(&self, event: AsyncEvent) {
        self.with(|model, bus| model.post_event(bus, event));
    }

    /// Sets the critical warning bits of the SMART log.
    pub fn set_critical_warning(&self, bits: u8) {
        self.with(|model, _| model.logs.critical_warning = bits);
    }

    /// What the host did so far.
    pub fn counters(&self) -> Counters {
        self.with(|model, _| model.counters)
    }

    /// Reads the medium of `namespace` (1 and up) at byte `at`, past the driver; false if there is nothing there.
    pub fn peek(&self, namespace: u32, at: u64, bytes: &mut [u8]) -> bool {
        let index = namespace.wrapping_sub(1) as usize;
        self.with(|model, _| model.namespaces.get(index).is_some_and(|namespace| namespace.peek(at, bytes)))
    }

    /// Writes the medium of `namespace` at byte `at`, past the driver and durably; false if there is nothing there.
    pub fn poke(&self, namespace: u32, at: u64, bytes: &[u8]) -> bool {
        let index = namespace.wrapping_sub(1) as usize;
        self.with(|model, _| model.namespaces.get_mut(index).is_some_and(|namespace| namespace.poke(at, bytes)))
    }
}
