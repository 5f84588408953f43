//! What a test does to a simulated card, and to the wire behind it.

use std::time::Duration;

use super::controller::{Counters, E1000Model};
use crate::fault::FaultPlan;
use crate::{SimHandle, Timing};

impl SimHandle<E1000Model> {
    /// A frame comes through the wire, without its FCS.
    pub fn inject(&self, frame: &[u8]) {
        self.with(|model, bus| model.arrive(bus, frame.to_vec()));
    }

    /// Takes the frames that were sent since the last call, without FCS; the last 4096 if they are
    /// more. With `wire=test` only.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        self.with(|model, _| model.wire.take_sent())
    }

    /// The link comes, or goes.
    pub fn set_link(&self, up: bool) {
        self.with(|model, bus| {
            model.shape.link = up;
            model.update_link(bus);
        });
    }

    /// The link is gone for `time`.
    pub fn flap_link(&self, time: Duration) {
        self.with(|model, bus| model.take_link(bus, time));
    }

    /// The transmitter does nothing any more until it is reset.
    pub fn hang(&self) {
        self.with(|model, _| model.senders.iter_mut().for_each(|sender| sender.hung = true));
    }

    /// The function is reset behind the driver's back, as through sysfs or with its bus.
    pub fn reset_function(&self) {
        self.with(E1000Model::restart_unasked);
    }

    /// The fault hooks: rules can be added while a driver runs.
    pub fn plan(&self) -> FaultPlan {
        self.with(|model, _| model.faults.clone())
    }

    /// When what is handed over from now on is sent.
    pub fn set_timing(&self, timing: Timing) {
        self.with(|model, _| model.shape.timing = timing);
    }

    /// How long a reset takes from now on.
    pub fn set_ready_time(&self, time: Duration) {
        self.with(|model, _| model.shape.ready = time);
    }

    /// Does what is held back, the oldest first; returns how much that was.
    pub fn release(&self) -> usize {
        self.with(|model, bus| {
            let count = model.held.len();
            for _ in 0..count {
                if let Some(late) = model.held.take_first() {
                    model.do_late(bus, late);
                }
            }
            count
        })
    }

    /// What the host did so far.
    pub fn counters(&self) -> Counters {
        self.with(|model, _| model.counters)
    }

    /// Where the host broke a rule of the data sheet, in words, the first 64; empty at the end of a
    /// driver's test.
    pub fn violations(&self) -> Vec<String> {
        self.with(|model, _| model.violations.all())
    }
}
