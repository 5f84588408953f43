//! Requests that take too long, and queues that come back after a reset.
//!
//! # Who does what
//! Whoever finds the failure [resets](super::device::VirtioBlkShared::reset) the device, which
//! makes a new virtqueue for every queue. Each queue's own thread sees that, takes what had ended
//! before out of its old one, and repeats what had not in the new one.

use std::mem;
use std::time::Instant;

use ring3_class::block::{Completion, IoError};
use ring3_device::Error;

use super::super::virtqueue::Virtqueue;
use super::queue::RequestQueue;
use crate::lifetime::{GENERATION_CLOSED, GENERATION_DETACHED};

/// How often a request is handed to the device before it ends with an error.
const ATTEMPTS: u8 = 3;
/// How often a queue is renewed in a row before the device is given up.
const RENEWALS: u32 = 3;

impl RequestQueue {
    /// Looks whether the device and the requests in flight are well, and mends what is not. An
    /// error is the last: there is no device any more.
    pub(super) fn watch(&mut self, now: Instant) -> Result<(), Error> {
        let watched = self.recover(now);
        self.failure_reported |= watched.is_err();
        watched
    }

    fn recover(&mut self, now: Instant) -> Result<(), Error> {
        self.check_attached()?;
        if !self.is_current_generation() {
            return self.renew();
        }
        if self.broken {
            let _ = self.shared.reset(self.generation, "a virtqueue was damaged", false);
            return self.renew();
        }
        if self.slots.in_flight() == 0 {
            self.timeouts.advance(now);
            return Ok(());
        }
        if self.timeouts.poll_due(now)
            && let Err(why) = self.shared.transport.check()
        {
            let unasked = self.shared.transport.is_reset();
            let _ = self.shared.reset(self.generation, &why.to_string(), unasked);
            return self.renew();
        }
        // What was used has not taken too long; its owner is about to take it.
        if !self.timeouts.advance(now) || self.virtqueue.as_ref().is_some_and(Virtqueue::pending) {
            return Ok(());
        }
        let late = |&slot: &u16| {
            self.slots.get(slot).is_some_and(|slot| self.timeouts.expired(slot.epoch))
        };
        if self.slots.occupied().any(|slot| late(&slot)) {
            let _ = self.shared.reset(self.generation, "a request takes too long", false);
            return self.renew();
        }
        Ok(())
    }

    /// The next request that ended, while the queue is not in step with the device.
    #[cold]
    pub(super) fn reap_after_trouble(&mut self) -> Result<Option<Completion>, Error> {
        if self.ended.is_empty() && !self.is_current_generation() {
            // When the reset is over, the old virtqueue lies still: what had ended before counts.
            self.shared.settle();
            for _ in 0..=self.slots.count() {
                match self.take() {
                    Ok(Some(end)) => return Ok(Some(end)),
                    Ok(None) => break,
                    Err(error) => tracing::debug!("before the reset: {error}"),
                }
            }
            self.broken = true;
            let _ = self.renew();
        }
        while let Some((slot, result)) = self.ended.pop() {
            if let Some(mut end) = self.slots.end(slot, result) {
                if self.shared.generation() == GENERATION_CLOSED
                    && !self.shared.lifetime.is_quiesced()
                {
                    // The device may still write there, so nobody gets it back.
                    mem::forget(mem::take(&mut end.data));
                }
                return Ok(Some(end));
            }
        }
        // Who reaps only, because nothing is in flight any more, must hear of the end, too.
        if self.shared.generation() == GENERATION_CLOSED
            && !mem::replace(&mut self.failure_reported, true)
        {
            self.shared.lifetime.check()?;
        }
        Ok(None)
    }

    /// Takes the virtqueue that a reset has made, and repeats what was in flight; if there is no
    /// device any more, ends all.
    ///
    /// What had ended before the reset is left in the old one for
    /// [`reap_after_trouble`](Self::reap_after_trouble).
    fn renew(&mut self) -> Result<(), Error> {
        for _ in 0..RENEWALS {
            if self.shared.generation() == GENERATION_CLOSED {
                return self.end_all();
            }
            if !self.broken && self.virtqueue.as_ref().is_some_and(Virtqueue::pending) {
                return Ok(());
            }
            if let Some((mut virtqueue, generation)) = self.shared.renewed(self.number) {
                virtqueue.want_interrupts(self.waiter.armed());
                self.virtqueue = Some(virtqueue);
                (self.generation, self.broken) = (generation, false);
                self.repeat_all();
                return Ok(());
            }
            let _ = self.shared.reset(
                self.shared.generation(),
                "a queue could not be made anew",
                false,
            );
        }
        self.shared.fail(
            &Error::Fatal("queues cannot be made".into()),
            "it was reset several times in vain",
        );
        self.end_all()
    }

    fn repeat_all(&mut self) {
        let slots: Vec<u16> = self.slots.occupied().collect();
        for slot in slots {
            if !self.ended.iter().any(|&(ended, _)| ended == slot) && !self.repeat(slot) {
                self.ended.push((slot, Err(IoError::Timeout)));
            }
        }
        if let Some(virtqueue) = &mut self.virtqueue {
            virtqueue.publish();
        }
    }

    /// Hands the request in `slot` to the device once more; false if it had its chances.
    fn repeat(&mut self, slot: u16) -> bool {
        let (epoch, requests) = (self.timeouts.epoch(), &mut self.requests);
        let (Some(held), Some(virtqueue)) = (self.slots.get_mut(slot), &mut self.virtqueue) else {
            return false;
        };
        if held.attempts >= ATTEMPTS {
            return false;
        }
        let Some(writable) = requests.describe(slot, &held.request, virtqueue) else {
            return false;
        };
        (held.epoch, held.attempts, held.writable) = (epoch, held.attempts + 1, writable);
        true
    }

    /// Ends everything in flight: there is no device any more.
    fn end_all(&mut self) -> Result<(), Error> {
        let error = self.shared.lifetime.io_error();
        self.ended.clear();
        self.ended.extend(self.slots.occupied().map(|slot| (slot, Err(error))));
        self.shared.lifetime.check()
    }
}

impl Drop for RequestQueue {
    fn drop(&mut self) {
        if self.generation == GENERATION_DETACHED {
            return;
        }
        let mut idle = self.slots.in_flight() == 0 && !self.broken;
        // Somebody else's reset counts when it is over.
        self.shared.settle();
        if !idle && self.is_current_generation() {
            // Nothing else takes a request back; the other queues repeat theirs.
            let _ = self.shared.reset(
                self.generation,
                "a queue was dropped with requests in flight",
                false,
            );
        }
        if !idle && self.is_current_generation()
            || self.shared.generation() == GENERATION_CLOSED && !self.shared.lifetime.is_quiesced()
        {
            tracing::error!(
                "{}: the memory of queue {} is given up: the device may still write to it",
                self.shared.transport.device.name(),
                self.number
            );
            self.abandon();
            idle = false;
        }
        self.shared.give_seat_back(
            self.number,
            self.virtqueue.take().filter(|_| idle),
            self.generation,
        );
        self.shared.cache.iter().for_each(|cache| cache.dismiss(&self.listener));
    }
}

impl RequestQueue {
    /// Gives all memory that the device may know of up for good.
    fn abandon(&mut self) {
        self.requests.abandon();
        self.virtqueue.iter_mut().for_each(Virtqueue::abandon);
        for slot in 0..self.slots.count() {
            mem::forget(self.slots.end(slot, Ok(())));
        }
    }
}
