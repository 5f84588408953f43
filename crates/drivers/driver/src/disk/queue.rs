//! A queue of a disk: the way of a request to the device and back.
//!
//! # Trust
//! A completion is accepted only if it is for a request in flight. Any other is reported as
//! [`Error::Protocol`], and the queue stays usable. The request whose completion was lost this way
//! is handled by its time-out.
//!
//! # Waiting
//! See [`Waiter`]. Completions are acknowledged many at a time, and always before a sleep, so that
//! the interrupt comes again.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::Saved;
use ring3_class::block::{
    Completion, Info, IoError, Operation, Queue, Rejected, Request, reap_single,
};
use ring3_device::irq::Irq;
use ring3_device::wait::{Source, WaitStats, Waiter, sooner};
use ring3_device::{Deadline, Error, probes};

use super::recovery::Delayed;
use super::slots::Slots;
use super::write_cache::{Listener, WriteCache};
use super::{Controller, Hardware, Outcome, Timeouts};
use crate::lifetime::{GENERATION_CLOSED, GENERATION_DETACHED};

/// Requests in flight through the rings of `hardware`.
pub(crate) struct DiskQueue<H: Hardware> {
    pub(super) hardware: H,
    pub(super) slots: Slots,
    /// The controller's generation in which the rings were made.
    pub(super) generation: u32,
    /// Requests that have ended without a completion.
    pub(super) ended: Vec<(u16, Result<(), IoError>)>,
    /// Requests that wait for their repetition.
    pub(super) delayed: Vec<Delayed>,
    pub(super) timeouts: Timeouts,
    pub(super) waiter: Waiter,
    pub(super) listener: Listener,
    /// The owner has had the error that the controller has failed for good.
    pub(super) failure_reported: bool,
    /// The id after the last one that watchers of [`probes::submit`] were shown.
    pub(super) shown: u16,
}

impl<H: Hardware> DiskQueue<H> {
    /// A queue for `depth` requests through `hardware`, whose completions `irq` announces, and
    /// whose rings were made in `generation`. From here on dropping it closes `hardware`.
    pub(crate) fn new(hardware: H, irq: Option<Arc<Irq>>, (depth, generation): (u16, u32)) -> Self {
        let listener = hardware.cache().map(WriteCache::listen).unwrap_or_default();
        Self::of(hardware, irq, Slots::new(depth), generation, listener)
    }

    pub(super) fn of(
        mut hardware: H,
        irq: Option<Arc<Irq>>,
        slots: Slots,
        generation: u32,
        listener: Listener,
    ) -> Self {
        // Who polls needs no interrupts, and who sleeps asks for them.
        hardware.want_interrupts(false);
        let controller = hardware.controller();
        Self {
            timeouts: Timeouts::new(controller.timeout(Operation::Read)),
            waiter: Waiter::new(irq, controller.poll()),
            ended: Vec::with_capacity(slots.count().into()),
            delayed: Vec::new(),
            hardware,
            slots,
            generation,
            listener,
            failure_reported: false,
            shown: 0,
        }
    }

    /// Creates the rings that the queue was opened with, by `create`, in the generation that it is
    /// called in.
    pub(crate) fn create(
        &mut self,
        create: impl FnOnce(&mut H, &mut u32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        create(&mut self.hardware, &mut self.generation)
    }

    /// Takes completions of any kind until one ends a request.
    #[cold]
    pub(super) fn take(&mut self) -> Result<Option<Completion>, Error> {
        while let Some((slot, outcome)) = self.hardware.take(&self.slots)? {
            if let Some(completion) = self.finish(slot, outcome) {
                return Ok(Some(completion));
            }
        }
        Ok(None)
    }

    /// What becomes of the request in `slot`, which the device has completed: its end, or `None`
    /// if it is repeated.
    fn finish(&mut self, slot: u16, outcome: Outcome) -> Option<Completion> {
        match outcome {
            Outcome::Done => self.complete(slot),
            Outcome::Failed(error) => self.end(slot, Err(error)),
            // The device does not know this queue any more. The request is repeated with all that
            // is in flight.
            _ if !self.is_current_generation() => None,
            Outcome::Retry(pause) => self.repeat_now(slot, pause, true),
            Outcome::TakenBack => self.repeat_now(slot, Duration::ZERO, false),
        }
    }

    fn repeat_now(&mut self, slot: u16, pause: Duration, is_attempt: bool) -> Option<Completion> {
        match self.repeat(slot, pause, is_attempt) {
            Ok(()) => {
                self.publish();
                None
            }
            Err(error) => self.end(slot, Err(error)),
        }
    }

    /// Publishes what was placed. The time of what the device has only now been given begins.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.hardware.ring();
        self.restart_clocks();
    }

    /// Hands what was submitted to the device, unless it does not know this queue any more: then
    /// the next `reap` or `tick` repeats it.
    #[inline(always)]
    fn ring_now(&mut self) {
        if self.is_current_generation() {
            self.hardware.set_armed(self.waiter.armed());
            self.publish();
        }
    }

    /// The same, and shows what that is to whoever watches.
    #[cold]
    #[inline(never)]
    fn ring_watched(&mut self) {
        let queue = &raw const *self as usize;
        let mut requests = 0;
        for slot in self.slots.since(self.shown) {
            let Request { operation, lba, blocks, token, .. } = slot.request;
            probes::submit(queue, token, operation as u8, lba, blocks);
            requests += 1;
        }
        if requests > 0 && self.is_current_generation() {
            probes::doorbell(queue, requests);
        }
        self.shown = self.slots.next();
        self.ring_now();
    }

    /// Takes completions, of reads first.
    #[inline(always)]
    fn reap_now(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        self.hardware.set_armed(self.waiter.armed());
        if self.is_current_generation() && self.ended.is_empty() {
            let count = self.hardware.take_reads(&mut self.slots, done);
            self.restart_clocks();
            // The way of almost every batch calls nothing.
            if count > 0 && !self.hardware.must_acknowledge() {
                return Ok(count);
            }
            return self.reap_any(done, count);
        }
        self.reap_unusual(done)
    }

    /// The same, and shows them to whoever watches.
    #[cold]
    #[inline(never)]
    fn reap_watched(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        let queue = &raw const *self as usize;
        let count = self.reap_now(done)?;
        for Completion { token, result, .. } in &done[..count] {
            probes::completion(queue, *token, result.map_or_else(IoError::errno, |()| 0));
        }
        Ok(count)
    }

    /// Has the time of what the device was given since the last call begin now.
    #[inline]
    pub(super) fn restart_clocks(&mut self) {
        let mut started = self.hardware.take_started();
        while started != 0 {
            if let Some(slot) = self.slots.get_mut(started.trailing_zeros() as u16) {
                let limit = self.hardware.controller().timeout(slot.request.operation);
                slot.epoch = self.timeouts.epoch_for(limit);
            }
            started &= started - 1;
        }
    }

    /// The end of the request in `slot`, which the device has done: as the volatile cache has it.
    fn complete(&mut self, slot: u16) -> Option<Completion> {
        let (hardware, generation, listener) =
            (&self.hardware, self.generation, &mut self.listener);
        self.slots.free(slot).map(|slot| {
            let result = hardware.cache().map_or(Ok(()), |cache| {
                let lost_since = || has_lost_cache(hardware, generation);
                cache.complete(&slot.request, (listener, slot.flush), lost_since)
            });
            slot.complete(result)
        })
    }

    /// Ends the request in `slot` with `result`.
    pub(super) fn end(&mut self, slot: u16, result: Result<(), IoError>) -> Option<Completion> {
        self.slots.free(slot).map(|slot| slot.complete(result))
    }

    /// Goes on after `count` reads, which have been taken: acknowledges, and takes what else there
    /// is if there were none.
    #[inline(never)]
    fn reap_any(&mut self, done: &mut [Completion], mut count: usize) -> Result<usize, Error> {
        if count == 0 && self.hardware.pending() {
            let wrote;
            (count, wrote) = self.hardware.take_good(&mut self.slots, done);
            if wrote && let Some(cache) = self.hardware.cache() {
                cache.wrote(|| has_lost_cache(&self.hardware, self.generation));
            }
        }
        self.acknowledge_many();
        if count == 0 && self.hardware.pending() { self.reap_unusual(done) } else { Ok(count) }
    }

    /// Takes one end that is out of the ordinary. What was before it has been given out.
    #[cold]
    #[inline(never)]
    fn reap_unusual(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        self.check_attached()?;
        let trouble = !self.is_current_generation() || !self.ended.is_empty();
        let taken =
            reap_single(done, || if trouble { self.reap_after_trouble() } else { self.take() });
        self.restart_clocks();
        self.acknowledge_many();
        taken
    }

    /// Submits a request of any kind.
    #[cold]
    #[inline(never)]
    fn submit_any(&mut self, request: &mut Request) -> Result<(), Rejected> {
        if let Some(error) = self.hardware.refusal(request.operation) {
            return rejected(request, Some(error));
        }
        self.slots.skip_busy_slot();
        let Some(free_slot) = self.slots.free_slot() else {
            let detached = self.generation == GENERATION_DETACHED;
            return rejected(request, detached.then_some(IoError::Gone));
        };
        let (slot, id) = (free_slot.number(), free_slot.id());
        let is_placed = match self.hardware.place(slot, id, request) {
            Ok(is_placed) => is_placed,
            Err(error) => return rejected(request, Some(error)),
        };
        let request = mem::replace(request, Request::flush(0));
        let limit = self.hardware.controller().timeout(request.operation);
        let is_flush = request.operation == Operation::Flush;
        free_slot.fill(request, self.timeouts.epoch_for(limit));
        if is_flush
            && let Some(cache) = self.hardware.cache()
            && let Some(slot) = self.slots.get_mut(slot)
        {
            slot.flush = cache.begin_flush();
        }
        if !is_placed {
            self.ended.push((slot, Ok(())));
        }
        Ok(())
    }

    /// Whether the device knows this queue as it is. If not, its doorbells are not ours until it
    /// was made anew.
    #[inline]
    pub(super) fn is_current_generation(&self) -> bool {
        self.hardware.controller().lifetime().generation() == self.generation
    }

    #[inline(never)]
    fn acknowledge(&mut self) {
        let is_known = self.is_current_generation();
        self.hardware.acknowledge(self.slots.in_flight(), is_known);
    }

    /// Acknowledges completions if many are not: the ring never fills up.
    #[inline]
    fn acknowledge_many(&mut self) {
        if self.hardware.must_acknowledge() {
            self.acknowledge();
        }
    }

    /// The generation that needs no action of this queue. A queue with nothing in flight need not
    /// act on the end of its controller.
    fn expected(&self) -> u32 {
        let now = self.hardware.controller().lifetime().generation();
        if self.slots.in_flight() == 0 && now == GENERATION_CLOSED { now } else { self.generation }
    }

    /// Whether something has happened since the queue, for which there was nothing to mend in
    /// generation `expected`, was last looked at.
    #[inline]
    fn has_news(hardware: &H, expected: u32) -> bool {
        hardware.pending() || hardware.controller().lifetime().generation() != expected
    }
}

/// Whether the disk has lost its cache since `generation` began.
fn has_lost_cache(hardware: &impl Hardware, generation: u32) -> bool {
    hardware.controller().losses().is_some_and(|losses| losses.since(generation))
}

#[cold]
fn rejected(request: &mut Request, error: Option<IoError>) -> Result<(), Rejected> {
    Err(Rejected { error, request: mem::replace(request, Request::flush(0)) })
}

impl<H: Hardware> Queue for DiskQueue<H> {
    fn info(&self) -> &Info {
        self.hardware.info()
    }

    fn depth(&self) -> u16 {
        self.slots.count()
    }

    fn in_flight(&self) -> u16 {
        self.slots.in_flight()
    }

    fn submit(&mut self, mut request: Request) -> Result<(), Rejected> {
        // The way of almost every request calls nothing; whatever is out of the ordinary starts
        // again in `submit_any`.
        if let Some(free_slot) = self.slots.free_slot()
            && self.hardware.place_common(free_slot.number(), free_slot.id(), &request)
        {
            free_slot.fill(request, self.timeouts.epoch());
            return Ok(());
        }
        let submitted = self.submit_any(&mut request);
        // It has been taken out.
        mem::forget(request);
        submitted
    }

    fn ring(&mut self) {
        if probes::requests_are_watched() {
            return self.ring_watched();
        }
        self.ring_now();
    }

    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        if probes::requests_are_watched() {
            return self.reap_watched(done);
        }
        self.reap_now(done)
    }

    fn detach(&mut self) -> Result<Saved, Error> {
        self.save_and_detach()
    }
}

impl<H: Hardware> Source for DiskQueue<H> {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    /// Whether [`reap`](Queue::reap) has something to do: a completion, a reset, or requests that
    /// ended by themselves.
    #[inline]
    fn pending(&self) -> bool {
        Self::has_news(&self.hardware, self.expected()) || !self.ended.is_empty()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        if self.pending() {
            return Ok(false);
        }
        self.acknowledge();
        self.hardware.want_interrupts(true);
        let (hardware, expected) = (&self.hardware, self.expected());
        let safe = self.waiter.arm(|| Self::has_news(hardware, expected))?;
        self.hardware.note_sleep(safe);
        Ok(safe)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.hardware.want_interrupts(false);
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        let rearmed = self.waiter.tick(now)?;
        self.watch(now)?;
        let in_flight = self.slots.in_flight() > 0;
        let due = self.delayed.iter().map(|delayed| delayed.due).min().filter(|_| in_flight);
        Ok(sooner(sooner(rearmed, due), self.timeouts.next(now, in_flight)))
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.pending() {
            return Ok(true);
        }
        let expected = self.expected();
        let hardware = &self.hardware;
        let Some(polled) = self.waiter.poll(deadline, || Self::has_news(hardware, expected))?
        else {
            return Ok(true);
        };
        self.acknowledge();
        self.hardware.want_interrupts(true);
        let hardware = &self.hardware;
        let found = self.waiter.sleep(polled, deadline, || Self::has_news(hardware, expected));
        self.hardware.want_interrupts(false);
        found
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}
