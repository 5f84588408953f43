//! Requests that take too long or fail, and queues that come back after a reset.
//!
//! # Who does what
//! Whoever finds the failure [resets](super::reset) the controller under the admin queue's lock and
//! counts the generation up. Each queue's own thread sees that, takes what had completed before,
//! creates its queue anew and repeats what had not.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ring3_class::block::{Completion, IoError, Operation};
use ring3_device::{Error, Registers};
use ring3_spec::nvme::{Status, Submission};

use super::init;
use super::queue::{QueuePair, place};
use super::status::{self, ATTEMPTS};
use crate::lifetime::{GENERATION_CLOSED, lock};

/// How often a queue is rebuilt in a row before the controller is given up.
const REBUILDS: u32 = 3;
/// An abort is answered within this, or the controller is reset.
const ABORT: Duration = Duration::from_secs(2);

/// A request whose repetition waits for its time.
pub(super) struct Delayed {
    slot: u16,
    /// The command id that it will have. The device does not know it yet.
    id: u16,
    pub(super) due: Instant,
}

impl QueuePair {
    /// Checks the controller and the requests in flight, and recovers: sends retries that are due,
    /// aborts requests that are late, re-creates the queue after a reset. An error means that the
    /// controller has failed for good.
    pub(super) fn watch(&mut self, now: Instant) -> Result<(), Error> {
        let watched = self.recover(now);
        self.failure_reported |= watched.is_err();
        watched
    }

    fn recover(&mut self, now: Instant) -> Result<(), Error> {
        self.check_attached()?;
        if !self.is_current_generation() {
            return self.recreate();
        }
        if self.slots.in_flight() == 0 {
            self.timeouts.advance(now);
            return if self.failure_reported { Ok(()) } else { self.unit.check() };
        }
        if self.timeouts.poll_due(now)
            && let Err(why) =
                Registers::new(self.bar.clone(), 0).and_then(|registers| init::running(&registers))
        {
            let _ = self.shared.reset(self.generation, &why.to_string());
            return self.recreate();
        }
        self.send_delayed(|due| due <= now);
        // What is in the ring has not taken too long; its owner is about to take it.
        if !self.timeouts.advance(now) || self.completion.ready() {
            return Ok(());
        }
        let late = |&slot: &u16| {
            self.slots.get(slot).is_some_and(|slot| self.timeouts.expired(slot.epoch))
        };
        let overdue = self.slots.occupied().find(late);
        overdue.map_or(Ok(()), |slot| self.time_out(slot))
    }

    /// Aborts the request in `slot`, or resets the controller if that was done and did not help.
    /// [NVMe 5.1.1]
    fn time_out(&mut self, slot: u16) -> Result<(), Error> {
        let (queue, grace) = (self.id, self.timeouts.grace());
        let Some(request) = self.slots.get_mut(slot) else { return Ok(()) };
        if !request.aborted {
            request.aborted = true;
            request.epoch = grace;
            if request.request.operation == Operation::WriteZeroes
                && !self.shared.zeroes_hang.swap(true, Ordering::Relaxed)
            {
                let name = self.shared.device.name();
                tracing::warn!(
                    "{name}: the controller hangs at a write zeroes: it gets no more; users write \
                    zeroes themselves"
                );
            }
            let abort = Submission::abort(queue, request.id());
            let timeout = ABORT.min(self.shared.options.timeout);
            tracing::warn!(
                "{}: queue {queue}: a request takes too long, aborting it",
                self.shared.device.name()
            );
            // Its outcome does not matter, only that the controller answers: the request ends by
            // its own completion or not.
            if lock(&self.shared.admin).execute_within(abort, timeout).is_ok() {
                return Ok(());
            }
        }
        let _ = self.shared.reset(self.generation, "a request did not end by its abort");
        self.recreate()
    }

    /// What becomes of a request that the device ended with `status`: its completion, or `None` if
    /// it is repeated.
    #[cold]
    pub(super) fn failed(&mut self, slot: u16, status: Status) -> Option<Completion> {
        let held = self.slots.get(slot)?;
        let (operation, attempts) = (held.request.operation, held.attempts);
        if attempts >= status::attempts(operation, status) {
            let error = if self.is_given_up(operation) {
                IoError::Unsupported
            } else {
                status::io_error(status)
            };
            return self.end(slot, error);
        }
        if !self.is_current_generation() {
            // Found after a reset: the device does not know this queue any more. It is repeated
            // with all that is in flight.
            return None;
        }
        let pause = status::pause(
            status,
            attempts,
            self.shared.traits.retry_delays,
            self.shared.options.timeout,
        );
        match self.repeat(slot, pause) {
            Ok(()) => {
                self.ring_submission();
                None
            }
            Err(error) => self.end(slot, error),
        }
    }

    /// Hands the request in `slot` to the device once more, after `pause`; how it ends if that
    /// cannot be.
    fn repeat(&mut self, slot: u16, pause: Duration) -> Result<(), IoError> {
        let Some(held) = self.slots.get(slot) else { return Err(IoError::Timeout) };
        let operation = held.request.operation;
        if self.is_given_up(operation) {
            return Err(IoError::Unsupported);
        }
        let command = self.encoder.encode(slot, &held.request)?;
        let options = &self.shared.options;
        let limit =
            if operation == Operation::Flush { options.flush_timeout } else { options.timeout };
        let Some(id) = self.slots.rename(slot, self.timeouts.epoch_for(limit + pause)) else {
            return Err(IoError::Timeout);
        };
        if pause.is_zero() {
            place(&mut self.submission, command.with_id(id));
        } else {
            self.delayed.push(Delayed { slot, id, due: Instant::now() + pause });
        }
        Ok(())
    }

    /// Hands those to the device whose repetition is `due`. The queue is [in
    /// step](Self::is_current_generation).
    pub(super) fn send_delayed(&mut self, due: impl Fn(Instant) -> bool) {
        if self.delayed.is_empty() {
            return;
        }
        let (now, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.delayed).into_iter().partition(|delayed| due(delayed.due));
        self.delayed = later;
        for Delayed { slot, id, .. } in now {
            // A device that has ended what it was not given yet has emptied the slot.
            let Some(held) = self.slots.get(slot).filter(|held| held.id() == id) else { continue };
            match self.encoder.encode(slot, &held.request) {
                Ok(command) => place(&mut self.submission, command.with_id(id)),
                Err(error) => self.ended.push((slot, error)),
            }
        }
        self.ring_submission();
    }

    /// Whether requests of this `operation` are not sent, because the controller was seen to hang
    /// at one.
    ///
    /// "Not supported" lets whoever wants zeroes write them. To repeat the command would cost the
    /// time-out each time, and others would follow.
    pub(super) fn is_given_up(&self, operation: Operation) -> bool {
        operation == Operation::WriteZeroes && self.shared.zeroes_hang.load(Ordering::Relaxed)
    }

    /// Publishes what was submitted. The queue is [in step](Self::is_current_generation).
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

    /// The next completed request, on the slow path: the controller was reset since the queue was
    /// created, or requests have failed without an entry in the completion ring.
    #[cold]
    pub(super) fn reap_after_trouble(&mut self) -> Result<Option<Completion>, Error> {
        if self.ended.is_empty() && !self.is_current_generation() {
            // When the lock is had, the reset is over and the rings lie still: what had completed
            // before counts.
            drop(lock(&self.shared.admin));
            if let Some(completion) = self.take()? {
                return Ok(Some(completion));
            }
            let _ = self.recreate();
        }
        while let Some((slot, error)) = self.ended.pop() {
            if let Some(mut completion) = self.end(slot, error) {
                if self.shared.generation() == GENERATION_CLOSED
                    && !self.shared.lifetime.is_quiesced()
                {
                    // The device may still write there, so nobody gets it back.
                    std::mem::forget(std::mem::take(&mut completion.data));
                }
                return Ok(Some(completion));
            }
        }
        // A caller that only reaps, because nothing is in flight any more, gets the error once,
        // too.
        if self.shared.generation() == GENERATION_CLOSED
            && !std::mem::replace(&mut self.failure_reported, true)
        {
            self.shared.lifetime.check()?;
        }
        Ok(None)
    }

    /// Creates the queue anew after a reset and repeats what was in flight; if there is no
    /// controller any more, ends all.
    ///
    /// Completions that came before the reset are left in the ring for
    /// [`reap_after_trouble`](Self::reap_after_trouble).
    fn recreate(&mut self) -> Result<(), Error> {
        for _ in 0..REBUILDS {
            let shared = self.shared.clone();
            let mut admin = lock(&shared.admin);
            let generation = shared.generation();
            if generation == GENERATION_CLOSED {
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
                Err(error) => drop(shared.reset(
                    generation,
                    &format!("queue {} could not be created: {error}", self.id),
                )),
            }
        }
        let shared = self.shared.clone();
        let admin = lock(&shared.admin);
        if shared.lifetime.check().is_ok() {
            shared.fail(
                &admin,
                &Error::Fatal("queues cannot be created".into()),
                "it was reset several times in vain",
            );
        }
        drop(admin);
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
            let repeated = if attempts < ATTEMPTS {
                self.repeat(slot, Duration::ZERO)
            } else {
                Err(IoError::Timeout)
            };
            if let Err(error) = repeated {
                self.ended.push((slot, error));
            }
        }
        self.ring_submission();
        Ok(())
    }

    /// Ends everything in flight, of which nothing is with the device: the namespace is not what it
    /// was.
    fn end_with_namespace(&mut self) -> Result<(), Error> {
        self.encoder.close();
        self.delayed.clear();
        self.ended.clear();
        self.ended.extend(self.slots.occupied().map(|slot| (slot, IoError::Gone)));
        self.unit.check()
    }

    /// Ends everything in flight: there is no controller any more.
    fn end_all(&mut self) -> Result<(), Error> {
        let error = self.shared.lifetime.io_error();
        self.delayed.clear();
        self.ended.clear();
        self.ended.extend(self.slots.occupied().map(|slot| (slot, error)));
        self.shared.lifetime.check()
    }
}
