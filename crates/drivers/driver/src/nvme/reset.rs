//! Resets of the controller, its end, and who may still write to memory.
//!
//! # The proof
//! Memory returns to its owner only when the device cannot write to it: its completion came,
//! CSTS.RDY was seen to be 0, the function was reset, or its bus mastering is off.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ring3_device::Error;
use ring3_spec::nvme::Submission;

use super::admin::Admin;
use super::controller::{NvmeShared, negotiate_queues};
use super::init::{self, Condition};
use super::namespace::Unit;
use super::revalidate::power_count;
use crate::lifetime::{StopFailed, lock};
use crate::write_cache::{PowerCount, WriteCache};

/// A queue is deleted within this before a shutdown.
const DELETE: Duration = Duration::from_secs(2);

/// What the controller's queues and disks share, besides its lifetime.
pub(super) struct Members {
    /// What is with the I/O queue ids, from 1 on.
    pub(super) queues: Vec<Use>,
    /// The namespaces that are disks.
    pub(super) namespaces: Vec<Arc<Unit>>,
    /// How often the controller says that it has lost its power.
    pub(super) power: PowerCount,
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
        Self {
            queues: vec![Use::Free; queues.into()],
            namespaces: Vec::new(),
            power: PowerCount::UNKNOWN,
        }
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

    /// Resets the controller if it has not been reset since `generation`, and starts it again.
    /// [NVMe 3.7.2]
    pub(super) fn reset(&self, generation: u32, why: &str) -> Result<(), Error> {
        let mut admin = lock(&self.admin);
        self.lifetime.check()?;
        if self.lifetime.generation() != generation {
            return Ok(());
        }
        // Before a register changes, and for good.
        admin.checkpoint.close();
        let condition = init::condition(admin.registers());
        // First, so that queues stop ringing doorbells of a controller that does not know them.
        let next = self.lifetime.begin_reset(generation, why);
        if condition == Condition::Crashed {
            self.lose_caches(next, "it has crashed");
        }
        if let Err(StopFailed { error, quiesced }) =
            init::stop(&*self.device, admin.registers(), self.cap)
        {
            self.lifetime.fail(&error, "it cannot be stopped", quiesced);
            return Err(error);
        }
        let queues = self.traits.identity.queues;
        let restarted =
            self.device.set_bus_master(true).and_then(|()| init::enable(&mut admin, self.cap));
        let granted = restarted.and_then(|()| negotiate_queues(&mut admin, &self.traits, queues));
        // Before any queue repeats anything, which waits for the lock.
        let error = match granted {
            Ok(granted) if granted >= queues => {
                match self
                    .look_for_loss(&mut admin, next, condition)
                    .and_then(|()| self.revalidate(&mut admin))
                {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                }
            }
            Ok(granted) => Error::Protocol(format!(
                "it grants {granted} queues after a reset, {queues} before"
            )),
            Err(error) => error,
        };
        self.fail(&admin, &error, "it did not come back from a reset");
        Err(error)
    }

    /// Whether the caches were lost since `generation` began.
    #[inline]
    pub(super) fn lost_cache_after(&self, generation: u32) -> bool {
        self.cache_lost.load(Ordering::SeqCst) > generation
    }

    /// Decides after a reset whether the volatile write cache may have been lost. If so, marks what
    /// was written and not flushed before `generation` as lost.
    ///
    /// It counts as lost if the controller's count of its losses of power has changed. If there is
    /// no such count, it counts as lost unless the controller was running until this reset.
    fn look_for_loss(
        &self,
        admin: &mut Admin,
        generation: u32,
        condition: Condition,
    ) -> Result<(), Error> {
        if !self.traits.identity.volatile_cache {
            return Ok(());
        }
        let before = lock(&self.members).power;
        // One that did not say when it was opened is not asked again. The answer would decide
        // nothing, and a controller that does not answer at all would be given up for it.
        let now = if before == PowerCount::UNKNOWN { before } else { power_count(admin)? };
        lock(&self.members).power = now;
        if before.was_lost(now, condition == Condition::Running) {
            self.lose_caches(
                generation,
                "its power has failed, or it was reset by somebody else and does not say",
            );
        }
        self.caches().iter().for_each(|(_, cache)| cache.set_power(now));
        Ok(())
    }

    /// The caches have lost what they held before `generation`, because of `why`.
    fn lose_caches(&self, generation: u32, why: &str) {
        self.cache_lost.store(generation, Ordering::SeqCst);
        for (id, _) in self.caches().iter().filter(|(_, cache)| cache.lose()) {
            tracing::error!(
                "{} namespace {id}: {why}: writes since the last flush may be lost, and the next \
                flush fails; check what was written last",
                self.device.name()
            );
        }
    }

    /// The volatile caches, by namespace.
    pub(super) fn caches(&self) -> Vec<(u32, Arc<WriteCache>)> {
        let members = lock(&self.members);
        members.namespaces.iter().filter_map(|unit| Some((unit.id, unit.cache.clone()?))).collect()
    }

    /// Stops the controller for good.
    pub(super) fn fail(&self, admin: &Admin, error: &Error, what: &str) {
        admin.checkpoint.erase();
        let stopped = init::stop(&*self.device, admin.registers(), self.cap);
        self.lifetime.fail(error, what, stopped.err().is_none_or(|unstopped| unstopped.quiesced));
    }

    /// Orderly shutdown. [NVMe 3.6.1]
    pub(super) fn shut_down(&self) -> Result<(), Error> {
        let mut admin = lock(&self.admin);
        self.lifetime.check()?;
        admin.checkpoint.close();
        // First, so that no queue rings a doorbell of what is deleted.
        self.lifetime.close();
        self.delete_queues(&mut admin);
        let consent = init::shut_down(admin.registers(), self.traits.shutdown);
        if consent.is_ok() {
            // Its caches are on the media. [NVMe 3.6.1]
            self.caches().iter().for_each(|(_, cache)| cache.settle());
        }
        let stopped = init::stop(&*self.device, admin.registers(), self.cap);
        self.lifetime.shut_down(&stopped);
        consent.and(stopped.map_err(|unstopped| unstopped.error))
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
