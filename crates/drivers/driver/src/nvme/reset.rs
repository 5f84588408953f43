//! Resets and shutdown of the controller, and the proof that it no longer writes to memory.
//!
//! # The proof
//! Memory returns to its owner only when the device cannot write to it: the completion arrived,
//! CSTS.RDY was read as 0, the function was reset, or its bus mastering is off.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use ring3_class::block::Operation;
use ring3_device::Error;
use ring3_spec::nvme::Submission;

use super::admin::Admin;
use super::controller::{NvmeShared, negotiate_queues};
use super::init;
use super::namespace::Unit;
use super::revalidate::power_count;
use crate::disk::write_cache::{PowerCount, WriteCache};
use crate::disk::{Condition, Controller, Losses};
use crate::lifetime::{ControllerState, StopFailed, lock};

/// A queue is deleted, and memory of the host is given back, within this before a shutdown.
const DELETE: Duration = Duration::from_secs(2);

/// What the controller's queues and disks share, besides its lifetime.
pub(super) struct Members {
    /// What is with the I/O queue ids, from 1 on.
    pub(super) queues: Vec<Use>,
    /// The namespaces that are disks.
    pub(super) namespaces: Vec<Arc<Unit>>,
}

/// What is with an I/O queue id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Free,
    Open,
    /// The device has the queue, and nobody here does.
    Detached,
}

impl Members {
    pub(super) fn new(queues: u16) -> Self {
        Self { queues: vec![Use::Free; queues.into()], namespaces: Vec::new() }
    }
}

impl NvmeShared {
    pub(super) fn take_queue_id(&self) -> Result<u16, Error> {
        let mut members = lock(&self.members);
        let count = members.queues.len();
        let Some(index) = members.queues.iter().position(|&used| used == Use::Free) else {
            let name = self.device.name();
            return Err(Error::Busy(format!(
                "all {count} queues of {name} are open: close one, or open the device with more"
            )));
        };
        members.queues[index] = Use::Open;
        Ok(index as u16 + 1)
    }

    pub(super) fn give_queue_id_back(&self, id: u16) {
        self.change_use(id, Use::Open, Use::Free);
    }

    /// Changes what is with queue `id`; false if it is not `from` that it is now.
    pub(super) fn change_use(&self, id: u16, from: Use, to: Use) -> bool {
        let mut members = lock(&self.members);
        let found =
            members.queues.get_mut(usize::from(id.wrapping_sub(1))).filter(|used| **used == from);
        found.map(|used| *used = to).is_some()
    }

    /// Orderly shutdown. [NVMe 3.6.1]
    pub(super) fn shut_down(&self) -> Result<(), Error> {
        let mut admin = lock(&self.admin);
        self.lifetime.check()?;
        admin.checkpoint.close();
        // First, so that no queue rings a doorbell of what is deleted.
        self.lifetime.close();
        self.delete_queues(&mut admin);
        admin.end_host_memory(DELETE.min(self.options.timeout));
        let consent = init::shut_down(admin.registers(), self.traits.shutdown);
        if consent.is_ok() {
            // Its caches are on the media. [NVMe 3.6.1]
            self.caches().iter().for_each(|(_, cache)| cache.mark_flushed());
        }
        let stopped = init::stop(&*self.device, admin.registers(), self.cap, self.quirks());
        self.lifetime.shut_down(&stopped);
        consent.and(stopped.map_err(|unstopped| unstopped.error))
    }
}

impl Controller for NvmeShared {
    type State = Admin;

    fn lock(&self) -> MutexGuard<'_, Admin> {
        lock(&self.admin)
    }

    #[inline]
    fn lifetime(&self) -> &ControllerState {
        &self.lifetime
    }

    #[inline]
    fn losses(&self) -> Option<&Losses> {
        Some(&self.losses)
    }

    fn name(&self) -> &str {
        self.device.name()
    }

    fn timeout(&self, operation: Operation) -> Duration {
        match operation {
            Operation::Flush => self.options.flush_timeout,
            _ => self.options.timeout,
        }
    }

    fn poll(&self) -> Duration {
        self.options.poll
    }

    fn condition(&self, admin: &Admin) -> Condition {
        init::condition(admin.registers())
    }

    fn stop(&self, admin: &mut Admin) -> Result<(), StopFailed> {
        // Before a register changes, and for good.
        admin.checkpoint.close();
        init::stop(&*self.device, admin.registers(), self.cap, self.quirks())
    }

    fn start(&self, admin: &mut Admin) -> Result<(), Error> {
        self.device.set_bus_master(true)?;
        init::enable(admin, self.cap)?;
        let queues = self.traits.identity.queues;
        let granted = negotiate_queues(admin, &self.traits, queues)?;
        admin.give_host_memory()?;
        if granted < queues {
            return Err(Error::Protocol(format!(
                "it grants {granted} queues after a reset, {queues} before"
            )));
        }
        Ok(())
    }

    fn caches(&self) -> Vec<(String, Arc<WriteCache>)> {
        let members = lock(&self.members);
        let name = |id| format!("{} namespace {id}", self.device.name());
        let cache = |unit: &Arc<Unit>| Some((name(unit.id), unit.cache.clone()?));
        members.namespaces.iter().filter_map(cache).collect()
    }

    fn power_count(&self, admin: &mut Admin) -> Result<PowerCount, Error> {
        power_count(admin)
    }

    fn revalidate(&self, admin: &mut Admin) -> Result<(), Error> {
        NvmeShared::revalidate(self, admin)
    }
}

impl NvmeShared {
    /// Deletes the queues that the controller has, as the specification wants it before a shutdown
    /// [NVMe 3.6.1]. One that does not answer is asked no more: the shutdown has a time limit of
    /// its own.
    fn delete_queues(&self, admin: &mut Admin) {
        let limit = DELETE.min(self.options.timeout);
        let uses = lock(&self.members).queues.clone();
        for id in (1..).zip(uses).filter(|(_, used)| *used != Use::Free).map(|(id, _)| id) {
            for command in [Submission::delete_sq(id), Submission::delete_cq(id)] {
                match admin.execute_within(command, limit) {
                    Ok(Ok(_)) => {}
                    Ok(Err(status)) => tracing::debug!(
                        "{}: queue {id} is not deleted: {status}",
                        self.device.name()
                    ),
                    Err(error) => {
                        return tracing::warn!(
                            "{}: queue {id} is not deleted: {error}",
                            self.device.name()
                        );
                    }
                }
            }
        }
    }
}

impl Drop for NvmeShared {
    fn drop(&mut self) {
        if self.lifetime.check().is_ok()
            && let Err(error) = self.shut_down()
        {
            tracing::warn!("{}: shutdown: {error}", self.device.name());
        }
        if !self.lifetime.is_quiesced() {
            lock(&self.admin).abandon();
        }
    }
}
