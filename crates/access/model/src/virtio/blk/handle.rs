//! What a test does to a simulated disk.

use std::time::Duration;

use super::controller::{Counters, VirtioBlkModel};
use crate::disk::DiskModel;
use crate::fault::FaultPlan;
use crate::medium::Medium;
use crate::{Bus, SimHandle, Timing};

/// What a disk says wrongly, as long as it is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// A request is used, and its status was not written; not that which asks for the disk's name.
    NoStatus,
    /// More bytes are said to be written than there is room for.
    WritesTooMuch,
    /// None.
    WritesTooLittle,
    /// A thousand entries more are said to be used than were. Of split virtqueues.
    LeapsAhead,
    /// The last queue has two entries, from the next reset on.
    ShortQueue,
}

impl SimHandle<VirtioBlkModel> {
    /// What it says wrongly from now on.
    pub fn lie(&self, how: Option<Lie>) {
        self.with(|model, _| model.lie = how);
    }

    /// From now on it is another disk, which is called `name`.
    pub fn replace(&self, name: &str) {
        self.with(|model, _| model.name = Some(name.into()));
    }

    /// It has `bytes` from now on, the first of them as they were, in blocks of two to the power of
    /// `block_shift`.
    pub fn reshape(&self, bytes: u64, block_shift: u32) {
        self.with(|model, bus| {
            (model.shape.bytes, model.shape.block_shift) = (bytes, block_shift);
            model.medium.resize(bytes);
            model.function.config_changed(bus);
        });
    }

    /// The disk says that it cannot go on without a reset.
    pub fn need_reset(&self) {
        self.with(|model, bus| model.function.need_reset(bus));
    }

    /// What a driver has told the disk: its status.
    pub fn status(&self) -> u8 {
        self.with(|model, _| model.function.status)
    }
}

/// There is one medium, number 1.
impl DiskModel for VirtioBlkModel {
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
        oldest.map(|taken| self.run(bus, &taken, None)).is_some()
    }
    fn lose_power(&mut self, _: &Bus) {
        self.medium.lose_power();
        self.restart();
    }
    fn reset_unasked(&mut self, _: &Bus) {
        self.restart();
    }
    fn counters(&self) -> Counters {
        self.counters
    }
    fn violations(&self) -> Vec<String> {
        self.violations.all()
    }
    fn medium(&mut self, number: usize) -> Option<&mut Medium> {
        (number == 1).then_some(&mut self.medium)
    }
}
