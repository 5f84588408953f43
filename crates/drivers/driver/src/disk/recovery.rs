//! Requests that take too long or fail, and queues that come back after a reset.

use std::mem;
use std::time::{Duration, Instant};

use ring3_class::block::{Completion, IoError};
use ring3_device::Error;

use super::queue::DiskQueue;
use super::slots::Slot;
use super::{Controller, Hardware, NotRenewed};
use crate::lifetime::{GENERATION_CLOSED, GENERATION_DETACHED};

/// How often a queue is made anew in a row before the controller is given up.
const RENEWALS: u32 = 3;

/// A request whose repetition waits for its time.
pub(super) struct Delayed {
    slot: u16,
    /// The command id that it will have. The device does not know it yet.
    id: u16,
    pub(super) due: Instant,
}

impl<H: Hardware> DiskQueue<H> {
    /// Checks the controller and the requests in flight, and recovers: sends repetitions that are
    /// due, cancels requests that are late, makes the queue anew after a reset. An error means
    /// that there is no controller, or no disk, any more.
    pub(super) fn watch(&mut self, now: Instant) -> Result<(), Error> {
        let watched = self.recover(now);
        self.failure_reported |= watched.is_err();
        watched
    }

    fn recover(&mut self, now: Instant) -> Result<(), Error> {
        self.check_attached()?;
        self.hardware.set_armed(self.waiter.armed());
        if !self.is_current_generation() {
            return self.recreate();
        }
        if let Some(why) = self.hardware.damage().map(str::to_owned) {
            return self.reset(&why);
        }
        if self.slots.in_flight() == 0 {
            self.timeouts.advance(now);
            let was_reported = self.failure_reported && !H::MAY_COME_BACK;
            return if was_reported { Ok(()) } else { self.hardware.check_disk() };
        }
        if self.timeouts.poll_due(now)
            && let Err(why) = self.hardware.check()
        {
            return self.reset(&why.to_string());
        }
        self.send_delayed(|due| due <= now);
        // What is in the ring has not taken too long; its owner is about to take it.
        if !self.timeouts.advance(now) || self.hardware.pending() {
            return Ok(());
        }
        let late = |&slot: &u16| {
            let is_late = |held: &Slot| self.timeouts.expired(held.epoch);
            self.slots.get(slot).is_some_and(is_late) && self.hardware.has_started(slot)
        };
        let overdue: Vec<u16> = self.slots.occupied().filter(late).collect();
        overdue.first().map_or(Ok(()), |&slot| self.time_out(slot, &overdue))
    }

    /// Cancels the request in `slot`, which is one of those that are `overdue`, or resets the
    /// controller if that was done and did not help.
    fn time_out(&mut self, slot: u16, overdue: &[u16]) -> Result<(), Error> {
        let grace = self.timeouts.grace();
        let Some(late) = self.slots.get_mut(slot) else { return Ok(()) };
        if !mem::replace(&mut late.cancelled, true) {
            late.epoch = grace;
            // Its outcome does not matter, only that the device answers: the request ends by its
            // own completion or not.
            if self.hardware.cancel(late.id(), &late.request) {
                return Ok(());
            }
        }
        overdue.iter().for_each(|&slot| self.hardware.blame(slot));
        self.reset("a request takes too long")
    }

    /// Resets the controller, because of `why`, and makes the queue anew.
    fn reset(&mut self, why: &str) -> Result<(), Error> {
        let _ = self.hardware.reset(self.generation, why);
        self.recreate()
    }

    /// Submits the request in `slot` once more, after `pause`; how it ends if that cannot be.
    /// `is_attempt` says that it counts.
    pub(super) fn repeat(
        &mut self,
        slot: u16,
        pause: Duration,
        is_attempt: bool,
    ) -> Result<(), IoError> {
        let Some(held) = self.slots.get(slot) else { return Err(IoError::Timeout) };
        let operation = held.request.operation;
        if let Some(error) = self.hardware.refusal(operation) {
            return Err(error);
        }
        let limit = self.hardware.controller().timeout(operation);
        let epoch = self.timeouts.epoch_for(limit + pause);
        let Some(held) = self.slots.rename(slot, epoch, is_attempt) else {
            return Err(IoError::Timeout);
        };
        if !pause.is_zero() {
            self.delayed.push(Delayed { slot, id: held.id(), due: Instant::now() + pause });
            return Ok(());
        }
        self.place(slot)
    }

    /// Writes the command of the request in `slot` into the ring, or ends a request for which the
    /// device need not be asked.
    fn place(&mut self, slot: u16) -> Result<(), IoError> {
        let Some(held) = self.slots.get(slot) else { return Ok(()) };
        if !self.hardware.place(slot, held.id(), &held.request)? {
            self.ended.push((slot, Ok(())));
        }
        Ok(())
    }

    /// Submits those whose repetition is `due`. The device [knows](Self::is_current_generation)
    /// the queue.
    pub(super) fn send_delayed(&mut self, due: impl Fn(Instant) -> bool) {
        if self.delayed.is_empty() {
            return;
        }
        let (now, later): (Vec<_>, Vec<_>) =
            mem::take(&mut self.delayed).into_iter().partition(|delayed| due(delayed.due));
        self.delayed = later;
        for Delayed { slot, id, .. } in now {
            // A device that has ended what it was not given yet has emptied the slot.
            let is_held = self.slots.get(slot).is_some_and(|held| held.id() == id);
            if is_held && let Err(error) = self.place(slot) {
                self.ended.push((slot, Err(error)));
            }
        }
        self.publish();
    }

    /// The next completed request, on the slow path: the controller was reset since the queue was
    /// made, or requests have ended without a completion.
    #[cold]
    pub(super) fn reap_after_trouble(&mut self) -> Result<Option<Completion>, Error> {
        if self.ended.is_empty() && !self.is_current_generation() {
            // When the lock is had, the reset is over and the rings lie still: what had completed
            // before counts.
            drop(self.hardware.controller().lock());
            if let Some(completion) = self.take()? {
                return Ok(Some(completion));
            }
            let _ = self.recreate();
        }
        while let Some((slot, result)) = self.ended.pop() {
            if let Some(mut completion) = self.end(slot, result) {
                let lifetime = self.hardware.controller().lifetime();
                if lifetime.generation() == GENERATION_CLOSED && !lifetime.is_quiesced() {
                    // The device may still write there, so nobody gets it back.
                    mem::forget(mem::take(&mut completion.data));
                }
                return Ok(Some(completion));
            }
        }
        // A caller that only reaps, because nothing is in flight any more, gets the error once,
        // too.
        let lifetime = self.hardware.controller().lifetime();
        if lifetime.generation() == GENERATION_CLOSED
            && !mem::replace(&mut self.failure_reported, true)
        {
            lifetime.check()?;
        }
        Ok(None)
    }

    /// Makes the queue anew after a reset and repeats what was in flight; if there is no
    /// controller any more, ends all.
    ///
    /// While the old ring holds completions, this does nothing:
    /// [`reap_after_trouble`](Self::reap_after_trouble) takes them first.
    fn recreate(&mut self) -> Result<(), Error> {
        let controller = self.hardware.controller().clone();
        for _ in 0..RENEWALS {
            let state = controller.lock();
            let generation = controller.lifetime().generation();
            if generation == GENERATION_CLOSED {
                drop(state);
                return self.end_all();
            }
            if self.hardware.pending() {
                return Ok(());
            }
            self.generation = generation;
            match self.hardware.renew(state, generation) {
                Ok(generation) => {
                    self.generation = generation;
                    self.hardware.want_interrupts(self.waiter.armed());
                    return match self.hardware.check_disk() {
                        Ok(()) => self.repeat_all(),
                        Err(over) => self.end_with_disk(over),
                    };
                }
                Err(NotRenewed::Failed(error)) => {
                    let why = format!("a queue could not be made anew: {error}");
                    let _ = controller.reset(generation, &why);
                }
                Err(NotRenewed::NoDisk(result, why)) => {
                    self.end_occupied(result);
                    return Err(why);
                }
            }
        }
        let mut state = controller.lock();
        if controller.lifetime().check().is_ok() {
            controller.give_up(
                &mut state,
                &Error::Fatal("queues cannot be made".into()),
                "it was reset several times in vain",
            );
        }
        drop(state);
        self.end_all()
    }

    fn repeat_all(&mut self) -> Result<(), Error> {
        self.delayed.clear();
        let slots: Vec<u16> = self.slots.occupied().collect();
        for slot in slots {
            if self.ended.iter().any(|&(ended, _)| ended == slot) {
                continue;
            }
            let attempts = self.slots.get(slot).map_or(0, |held| held.attempts);
            let fate = self.hardware.fate(slot, attempts);
            if let Err(error) =
                fate.and_then(|is_attempt| self.repeat(slot, Duration::ZERO, is_attempt))
            {
                self.ended.push((slot, Err(error)));
            }
        }
        self.publish();
        Ok(())
    }

    /// Ends everything in flight, of which nothing is with the device: the disk is not what it
    /// was, which is `over`.
    fn end_with_disk(&mut self, over: Error) -> Result<(), Error> {
        self.hardware.refuse_all();
        self.end_occupied(IoError::Gone);
        Err(over)
    }

    /// Ends everything in flight: there is no controller any more.
    fn end_all(&mut self) -> Result<(), Error> {
        let controller = self.hardware.controller().clone();
        self.end_occupied(controller.lifetime().io_error());
        controller.lifetime().check()
    }

    fn end_occupied(&mut self, error: IoError) {
        self.delayed.clear();
        self.ended.clear();
        self.ended.extend(self.slots.occupied().map(|slot| (slot, Err(error))));
    }

    /// Gives all memory that the device may know of up for good.
    fn abandon(&mut self) {
        self.hardware.abandon();
        for slot in 0..self.slots.count() {
            mem::forget(self.end(slot, Ok(())));
        }
    }
}

impl<H: Hardware> Drop for DiskQueue<H> {
    fn drop(&mut self) {
        if self.generation == GENERATION_DETACHED {
            return;
        }
        let is_idle = self.slots.in_flight() == 0;
        let closed = self.hardware.close(self.generation, is_idle);
        let controller = self.hardware.controller().clone();
        let is_given_up = closed.is_err() && !controller.lifetime().is_quiesced();
        if is_given_up {
            tracing::error!(
                "{}: the memory of a queue is given up: the device may still write to it",
                controller.name()
            );
            self.abandon();
        }
        self.hardware.release(self.generation, is_idle && !is_given_up);
        if let Some(cache) = self.hardware.cache() {
            cache.unsubscribe(&self.listener);
        }
    }
}
