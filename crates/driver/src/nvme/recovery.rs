//! Requests that take too long or fail, and queues that come back after a reset.
//!
//! # Who does what
//! Whoever finds the failure [resets](super::reset) the controller under the admin queue's lock and counts the generation up. Each
//! queue's own thread sees that, takes what had completed before, creates its queue anew and repeats what had not.

use std::time::{Duration, Instant};

use ring3_class::block::{Completion, IoError};
use ring3_device::{Error, Registers};
use ring3_spec::nvme::{Status, Submission};

use super::init;
use super::queue::{QueuePair, place};
use super::status;
use crate::lifetime::{OVER, lock};

/// How often a request is handed to the device before it ends with an error.
const ATTEMPTS: u8 = 3;
/// How often a queue is rebuilt in a row before the controller is given up.
const REBUILDS: u32 = 3;
/// An abort is answered within this, or the controller is reset.
const ABORT: Duration = Duration::from_secs(2);

impl QueuePair {
    /// Looks whether the controller and the requests in flight are well, and mends what is not. An error is the last: there is no
    /// controller any more.
    pub(super) fn watch(&mut self, now: Instant) -> Result<(), Error> {
        let watched = self.recover(now);
        self.told |= watched.is_err();
        watched
    }

    fn recover(&mut self, now: Instant) -> Result<(), Error> {
        self.check_attached()?;
        if !self.in_step() {
            return self.recreate();
        }
        if self.slots.in_flight() == 0 {
            self.timeouts.advance(now);
            return if self.told { Ok(()) } else { self.unit.check() };
        }
        if self.timeouts.poll_due(now)
            && let Err(why) = Registers::new(self.bar.clone(), 0).and_then(|registers| init::running(&registers))
        {
            let _ = self.shared.reset(self.generation, &why.to_string());
            return self.recreate();
        }
        // What is in the ring has not taken too long; its owner is about to take it.
        if !self.timeouts.advance(now) || self.completion.ready() {
            return Ok(());
        }
        let late = |&slot: &u16| self.slots.get(slot).is_some_and(|slot| self.timeouts.expired(slot.epoch));
        let overdue = self.slots.occupied().find(late);
        overdue.map_or(Ok(()), |slot| self.time_out(slot))
    }

    /// Aborts the request in `slot`, or resets the controller if that was done and did not help. [NVMe 5.1.1]
    fn time_out(&mut self, slot: u16) -> Result<(), Error> {
        let (queue, grace) = (self.id, self.timeouts.grace());
        let Some(request) = self.slots.get_mut(slot) else { return Ok(()) };
        if !request.aborted {
            request.aborted = true;
            request.epoch = grace;
            let abort = Submission::abort(queue, request.id());
            let timeout = ABORT.min(self.shared.options.timeout);
            tracing::warn!("{}: queue {queue}: a request takes too long, aborting it", self.shared.device.name());
            // Its outcome does not matter, only that the controller answers: the request ends by its own completion or not.
            if lock(&self.shared.admin).execute_within(abort, timeout).is_ok() {
                return Ok(());
            }
        }
        let _ = self.shared.reset(self.generation, "a request did not end by its abort");
        self.recreate()
    }

    /// What becomes of a request that the device ended with `status`: its completion, or `None` if it is repeated.
    #[cold]
    pub(super) fn failed(&mut self, slot: u16, status: Status) -> Option<Completion> {
        let repeats = status::may_be_repeated(status) && self.slots.get(slot).is_some_and(|held| held.attempts < ATTEMPTS);
        if repeats && !self.in_step() {
            // Found after a reset: the device does not know this queue any more. It is repeated with all that is in flight.
            return None;
        }
        if repeats && self.repeat(slot) {
            self.ring_submission();
            return None;
        }
        self.end(slot, status::io_error(status))
    }

    /// Hands the request in `slot` to the device once more; false if it had its chances.
    fn repeat(&mut self, slot: u16) -> bool {
        let command = match self.slots.get(slot) {
            Some(held) if held.attempts < ATTEMPTS => self.encoder.encode(slot, &held.request),
            _ => return false,
        };
        let (Ok(command), Some(id)) = (command, self.slots.rename(slot, self.timeouts.epoch())) else { return false };
        place(&mut self.submission, command.with_id(id));
        true
    }

    /// Publishes what was submitted. The queue is [in step](Self::in_step).
    #[inline]
    pub(super) fn ring_submission(&mut self) {
        if let Some(tail) = self.submission.publish() {
            self.bar.write32(self.submission_doorbell, tail);
        }
    }

    /// Ends the request in `slot` with `error`.
    fn end(&mut self, slot: u16, error: IoError) -> Option<Completion> {
        self.slots.vacate(slot).map(|slot| slot.complete(Err(error)))
    }

    /// The next request that ended, while the queue is not in step with the controller.
    #[cold]
    pub(super) fn reap_after_trouble(&mut self) -> Result<Option<Completion>, Error> {
        if self.ended.is_empty() && !self.in_step() {
            // When the lock is had, the reset is over and the rings lie still: what had completed before counts.
            drop(lock(&self.shared.admin));
            if let Some(completion) = self.take()? {
                return Ok(Some(completion));
            }
            let _ = self.recreate();
        }
        while let Some((slot, error)) = self.ended.pop() {
            if let Some(mut completion) = self.end(slot, error) {
                if self.shared.generation() == OVER && !self.shared.lifetime.is_quiesced() {
                    // The device may still write there, so nobody gets it back.
                    std::mem::forget(std::mem::take(&mut completion.data));
                }
                return Ok(Some(completion));
            }
        }
        // Who reaps only, because nothing is in flight any more, must hear of the end, too.
        if self.shared.generation() == OVER && !std::mem::replace(&mut self.told, true) {
            self.shared.lifetime.check()?;
        }
        Ok(None)
    }

    /// Creates the queue anew after a reset and repeats what was in flight; if there is no controller any more, ends all.
    ///
    /// Completions that came before the reset are left in the ring for [`reap_after_trouble`](Self::reap_after_trouble).
    fn recreate(&mut self) -> Result<(), Error> {
        for _ in 0..REBUILDS {
            let shared = self.shared.clone();
            let mut admin = lock(&shared.admin);
            let generation = shared.generation();
            if generation == OVER {
                drop(admin);
                return self.end_all();
            }
            if self.completion.ready() {
                return Ok(());
            }
            self.submission.reset();
            self.completion.reset();
            self.generation = generation;
            let created = self.create(&mut admin);
            drop(admin);
            match created {
                Ok(()) if self.unit.is_over() => return self.end_with_namespace(),
                Ok(()) => return self.repeat_all(),
                Err(error) => drop(shared.reset(generation, &format!("queue {} could not be created: {error}", self.id))),
            }
        }
        let shared = self.shared.clone();
        let admin = lock(&shared.admin);
        if shared.lifetime.check().is_ok() {
            shared.fail(&admin, &Error::Fatal("queues cannot be created".into()), "it was reset several times in vain");
        }
        drop(admin);
        self.end_all()
    }

    fn repeat_all(&mut self) -> Result<(), Error> {
        let slots: Vec<u16> = self.slots.occupied().collect();
        for slot in slots {
            if !self.ended.iter().any(|&(ended, _)| ended == slot) && !self.repeat(slot) {
                self.ended.push((slot, IoError::Timeout));
            }
        }
        self.ring_submission();
        Ok(())
    }

    /// Ends everything in flight, of which nothing is with the device: the namespace is not what it
    /// was.
    fn end_with_namespace(&mut self) -> Result<(), Error> {
        self.encoder.close();
        self.ended.clear();
        self.ended.extend(self.slots.occupied().map(|slot| (slot, IoError::Gone)));
        self.unit.check()
    }

    /// Ends everything in flight: there is no controller any more.
    fn end_all(&mut self) -> Result<(), Error> {
        let error = self.shared.lifetime.io_error();
        self.ended.clear();
        self.ended.extend(self.slots.occupied().map(|slot| (slot, error)));
        self.shared.lifetime.check()
    }
}
