//! How commands end, and how ports stop. [AHCI 5.3, 6.2, SATA 13.6]

use std::time::Instant;

use ring3_spec::ahci::port::Interrupts;
use ring3_spec::ata::ErrorBits;

use super::controller::AhciModel;
use super::process::{BUSY, Job};
use crate::Bus;
use crate::ata::{End, Plan, Protocol};
use crate::fault::Action;

/// Interrupts that a storm sends at a time.
const STORM_BURST: u32 = 64;

impl AhciModel {
    /// Tells the end of a command, as the fault wants it.
    pub(super) fn finish(
        &mut self,
        bus: &Bus,
        job: &Job,
        plan: Option<&Plan>,
        end: &End,
        fault: Option<Action>,
    ) {
        let p = job.port;
        if fault == Some(Action::Drop) {
            return;
        }
        if end.failed() {
            return self.fail(bus, job, end);
        }
        self.ports[p].queued &= !job.bit();
        if fault != Some(Action::Stuck) {
            let done = &mut self.ports[p];
            if job.is_queued() { done.active &= !job.bit() } else { done.issue &= !job.bit() }
        }
        for _ in 0..if fault == Some(Action::Duplicate) { 2 } else { 1 } {
            match plan {
                _ if job.is_queued() => self.receive_device_bits(bus, p, job.bit(), end),
                Some(plan) if plan.protocol == Protocol::PioIn => {
                    self.receive_pio(bus, p, plan, end)
                }
                _ => self.receive_register(bus, p, &job.task, end, true),
            }
        }
        match fault {
            Some(Action::Duplicate) => self.signal(bus),
            // What goes on being issued is not taken again.
            Some(Action::Stuck) => self.ports[p].stopped = !job.is_queued(),
            Some(Action::Storm(count)) => {
                self.storm = count;
                bus.wake_at(Instant::now());
            }
            _ => {}
        }
    }

    /// Tells that a command failed; the port stops. A queued one takes all others with it. [AHCI
    /// 6.2.2, SATA 13.6.5]
    pub(super) fn fail(&mut self, bus: &Bus, job: &Job, end: &End) {
        let p = job.port;
        if let Some(drive) = self.ports[p].drive()
            && job.is_queued()
        {
            drive.fail_queued(&job.task, end);
        }
        if job.is_queued() {
            self.held.retain(|held| held.port != p);
            self.ports[p].queued = 0;
        }
        self.ports[p].stopped = true;
        if job.is_queued() {
            self.receive_device_bits(bus, p, 0, end)
        } else {
            self.receive_register(bus, p, &job.task, end, true)
        }
    }

    /// The drive gives up everything that it has. [SATA 13.6.4]
    pub(super) fn fail_all(&mut self, bus: &Bus, job: &Job) {
        let (p, end) = (job.port, End::aborted());
        if let Some(drive) = self.ports[p].drive()
            && drive.shape.depth > 0
        {
            drive.fail_queued(&job.task, &end);
        }
        self.held.retain(|held| held.port != p);
        self.ports[p].queued = 0;
        self.ports[p].stopped = true;
        self.receive_register(bus, p, &job.task, &end, true);
    }

    /// An access to memory failed: the port stops, and the drive still waits for its data. [AHCI
    /// 6.1.4]
    pub(super) fn lose_memory(&mut self, bus: &Bus, p: usize) {
        self.ports[p].set_status(BUSY, ErrorBits(0));
        self.stop(bus, p, Interrupts(0).with_memory_fatal(1));
    }

    pub(super) fn stop(&mut self, bus: &Bus, p: usize, why: Interrupts) {
        self.held.retain(|job| job.port != p);
        self.ports[p].stopped = true;
        self.happen(bus, p, why);
    }

    /// Does the commands whose time has come.
    pub(super) fn release_due(&mut self, bus: &Bus, now: Instant) {
        while let Some(job) = self.held.take_due(now) {
            self.run(bus, &job, None);
        }
    }

    /// Sends the next interrupts of a storm.
    pub(super) fn raise_storm(&mut self, bus: &Bus) {
        if self.storm == 0 {
            return;
        }
        for _ in 0..self.storm.min(STORM_BURST) {
            bus.raise(0);
        }
        self.storm = self.storm.saturating_sub(STORM_BURST);
        self.set_level(bus);
    }
}
