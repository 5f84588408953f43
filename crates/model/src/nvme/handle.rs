//! What a test does to a simulated disk.

use std::time::Duration;

use ring3_spec::nvme::event::AsyncEvent;

use super::controller::{Counters, NvmeModel};
use crate::disk::DiskModel;
use crate::fault::FaultPlan;
use crate::medium::Medium;
use crate::{Bus, SimHandle, Timing};

impl SimHandle<NvmeModel> {
    /// Fatal status, now: the controller stops and says so.
    pub fn fail(&self) {
        self.with(|model, _| model.fail());
    }

    /// The function is reset behind the driver's back, as through sysfs or with its bus: media and cache stay as they are.
    pub fn reset_function(&self) {
        self.with(NvmeModel::restart_unasked);
    }

    /// Reports an asynchronous event.
    pub fn event(&self, event: AsyncEvent) {
        self.with(|model, bus| model.post_event(bus, event));
    }

    /// Sets the critical warning bits of the SMART log.
    pub fn set_critical_warning(&self, bits: u8) {
        self.with(|model, _| model.logs.critical_warning = bits);
    }
}

/// Media are counted from 1, as namespaces are.
impl DiskModel for NvmeModel {
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
        let oldest = self.held.take_first();
        let released = oldest.map(|waiting| self.run(bus, waiting.queue, &waiting.command, None));
        released.is_some()
    }
    fn lose_power(&mut self, bus: &Bus) {
        Self::lose_power(self, bus);
    }
    fn counters(&self) -> Counters {
        self.counters
    }
    fn complaints(&self) -> Vec<String> {
        self.complaints.all()
    }
    fn medium(&mut self, number: usize) -> Option<&mut Medium> {
        self.namespaces.get_mut(number.wrapping_sub(1)).map(|namespace| &mut namespace.medium)
    }
}
