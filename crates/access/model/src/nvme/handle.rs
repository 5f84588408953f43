//! What a test does to a simulated disk.

use std::time::Duration;

use ring3_spec::nvme::event::AsyncEvent;
use ring3_spec::nvme::log;

use super::controller::{Counters, NvmeModel};
use super::host_memory::HostMemoryCounters;
use super::namespace::Namespace;
use super::power::PowerCounters;
use super::shape::NamespaceShape;
use crate::disk::DiskModel;
use crate::fault::FaultPlan;
use crate::medium::Medium;
use crate::{Bus, SimHandle, Timing};

/// What becomes of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has so many bytes, the first of them as they were.
    Resized(u64),
    /// It is gone.
    Detached,
    /// It is there, and so, without anything on it: after it was formatted, deleted and created, or
    /// attached.
    Attached(NamespaceShape),
    /// It says that its NGUID and EUI64 are these.
    Unique([u8; 24]),
}

impl SimHandle<NvmeModel> {
    /// Fatal status, now: the controller stops and says so.
    pub fn fail(&self) {
        self.with(|model, _| model.fail());
    }

    /// Reports an asynchronous event.
    pub fn event(&self, event: AsyncEvent) {
        self.with(|model, bus| model.post_event(bus, event));
    }

    /// It says of itself that it was powered on 0 times, as a controller that is a program does.
    pub fn count_no_power(&self) {
        self.with(|model, _| model.logs.counts_power = false);
    }

    /// From now on it is another controller, which is called `serial`.
    pub fn replace(&self, serial: &str) {
        self.with(|model, _| model.serial = Some(serial.into()));
    }

    /// A write to block `from` of namespace `id` has gone to block `to` instead, with its metadata.
    pub fn misplace(&self, id: u32, from: u64, to: u64) {
        self.with(|model, _| {
            let place = model.namespaces.get_mut(id.wrapping_sub(1) as usize);
            place.into_iter().for_each(|namespace| namespace.misplace(from, to));
        });
    }

    /// Changes namespace `id`, and says so; nothing if there is none.
    pub fn change(&self, id: u32, change: Change) {
        self.with(|model, bus| {
            let cache = model.shape.cache;
            if id as usize == model.namespaces.len() + 1
                && let Change::Attached(shape) = change
            {
                model.namespaces.push(Namespace::new(shape, cache));
            }
            let Some(namespace) = model.namespaces.get_mut(id.wrapping_sub(1) as usize) else {
                return;
            };
            match change {
                Change::Resized(bytes) => namespace.resize(bytes),
                Change::Detached => namespace.attached = false,
                Change::Attached(shape) => {
                    let unique = namespace.unique;
                    *namespace = Namespace::new(shape, cache);
                    namespace.unique = unique;
                }
                Change::Unique(unique) => namespace.unique = unique,
            }
            model.changed.push(id);
            model.post_event(
                bus,
                AsyncEvent::new(
                    AsyncEvent::NOTICE,
                    AsyncEvent::NAMESPACE_CHANGED,
                    log::CHANGED_NAMESPACES,
                ),
            );
        });
    }

    /// What became of reads and of the memory that it has of the host.
    pub fn host_memory(&self) -> HostMemoryCounters {
        self.with(|model, _| model.mapping.counters)
    }

    /// It forgets that it has memory of the host.
    pub fn forget_host_memory(&self) {
        self.with(|model, _| model.mapping.stop());
    }

    /// What its power states were.
    pub fn power(&self) -> PowerCounters {
        self.with(|model, _| model.power.counters.clone())
    }

    /// It begins to activate new firmware, and says so, or has done so: meanwhile it takes no
    /// commands.
    pub fn pause(&self, paused: bool) {
        self.with(|model, bus| model.pause(bus, paused));
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
    fn reset_unasked(&mut self, bus: &Bus) {
        self.restart_unasked(bus);
    }
    fn counters(&self) -> Counters {
        self.counters
    }
    fn violations(&self) -> Vec<String> {
        self.violations.all()
    }
    fn medium(&mut self, number: usize) -> Option<&mut Medium> {
        self.namespaces.get_mut(number.wrapping_sub(1)).map(|namespace| &mut namespace.medium)
    }
}
