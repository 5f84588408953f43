//! A queue pair: the way of a request to the device and back.
//!
//! # Shape
//! [`submit`](Queue::submit) checks a request, describes its bytes, gives it a slot and writes its
//! command into the submission ring. [`ring`](Queue::ring) publishes the batch with one doorbell.
//! [`reap`](Queue::reap) takes completions out of the completion ring and finds their requests by
//! id.
//!
//! # Trust
//! A completion is accepted only if its command id is that of a request in flight, the id's lap
//! bits included (`slots.rs`). Any other is reported as [`Error::Protocol`], and the queue stays
//! usable. The request whose completion was lost this way is handled by its time-out.
//!
//! # Waiting
//! See [`Waiter`]. Completions are acknowledged many at a time, and always before a sleep, so that
//! the interrupt comes again.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ring3_class::Saved;
use ring3_class::block::{
    Completion, Data, Info, IoError, Operation, Queue, Rejected, Request, reap_single,
};
use ring3_device::dma::DmaBuffer;
use ring3_device::irq::Irq;
use ring3_device::ring::{CompletionRing, SubmissionRing};
use ring3_device::wait::{Source, WaitStats, Waiter, sooner};
use ring3_device::{Bar, Deadline, Error};
use ring3_spec::nvme::{
    self, COMPLETION_WORDS, PHASE_BIT, PHASE_WORD, SUBMISSION_WORDS, Submission, Success,
};

use super::command::Encoder;
use super::controller::NvmeShared;
use super::namespace::Unit;
use super::recovery::Delayed;
use super::slots::Slots;
use crate::lifetime::{GENERATION_CLOSED, GENERATION_DETACHED};
use crate::timeouts::Timeouts;
use crate::write_cache::{Listener, WriteCache};

/// Requests in flight through one pair of rings. Its memory and its end are in `open.rs`, its
/// misfortunes in `recovery.rs`.
pub(super) struct QueuePair {
    pub(super) bar: Bar,
    pub(super) submission: SubmissionRing<DmaBuffer, SUBMISSION_WORDS>,
    pub(super) completion: CompletionRing<DmaBuffer, COMPLETION_WORDS, PHASE_WORD, PHASE_BIT>,
    pub(super) submission_doorbell: u64,
    pub(super) completion_doorbell: u64,
    pub(super) slots: Slots,
    pub(super) encoder: Encoder,
    /// The controller's generation in which this queue was created.
    pub(super) generation: u32,
    /// Completions are acknowledged when this many are not: the ring has room for them and for all
    /// that is in flight.
    pub(super) acknowledge_at: u32,
    /// Requests that have ended without a completion.
    pub(super) ended: Vec<(u16, IoError)>,
    /// Requests that wait for their repetition.
    pub(super) delayed: Vec<Delayed>,
    pub(super) timeouts: Timeouts,
    pub(super) waiter: Waiter,
    pub(super) shared: Arc<NvmeShared>,
    pub(super) unit: Arc<Unit>,
    pub(super) cache: Option<Arc<WriteCache>>,
    pub(super) listener: Listener,
    /// The queue's number on the controller, from 1 on.
    pub(super) id: u16,
    /// What the good end of each of its commands says.
    pub(super) success: Success,
    pub(super) vector: Option<u16>,
    /// The owner has had the error that the controller has failed for good.
    pub(super) failure_reported: bool,
}

impl QueuePair {
    /// Takes completions of any kind until one ends a request.
    #[cold]
    pub(super) fn take(&mut self) -> Result<Option<Completion>, Error> {
        while let Some(entry) = self.completion.pop() {
            if let Some(completion) = self.take_one(nvme::Completion(entry))? {
                return Ok(Some(completion));
            }
        }
        Ok(None)
    }

    /// Takes the completions of reads that ended well into `done`, up to the first of anything
    /// else, or to a place that is not empty; returns how many. It calls nothing.
    #[inline]
    fn take_reads(&mut self, done: &mut [Completion]) -> usize {
        let mut slots = self.slots.by_id();
        let count =
            self.completion.pop_into(done, Success::MASK, self.success.bits(), |word, place| {
                let slot = slots.get_mut(nvme::Completion::of_phase_word(word).id());
                let Some(slot) = slot.filter(|slot| slot.request.operation == Operation::Read)
                else {
                    return false;
                };
                if !matches!(place.data, Data::None) {
                    return false;
                }
                slot.vacate();
                place.into_completion_of(slot.request.token, Ok(()), &mut slot.request.data);
                true
            });
        self.slots.vacated(count);
        count
    }

    /// Takes the completions of requests of any kind that ended well, up to a flush or the first
    /// that is out of the ordinary.
    #[inline(never)]
    fn take_good(&mut self, done: &mut [Completion]) -> usize {
        let (mut slots, mut wrote) = (self.slots.by_id(), false);
        let count =
            self.completion.pop_into(done, Success::MASK, self.success.bits(), |word, place| {
                let slot = slots.get_mut(nvme::Completion::of_phase_word(word).id());
                let Some(slot) = slot.filter(|slot| slot.request.operation != Operation::Flush)
                else {
                    return false;
                };
                wrote |= WriteCache::holds(&slot.request);
                slot.vacate();
                place.into_completion_of(slot.request.token, Ok(()), &mut slot.request.data);
                true
            });
        self.slots.vacated(count);
        if wrote && let Some(cache) = &self.cache {
            cache.wrote(|| self.shared.lost_cache_after(self.generation));
        }
        count
    }

    /// Takes any completion: what it ends, `None` if that is repeated, an error if it is for
    /// nothing in flight.
    fn take_one(&mut self, entry: nvme::Completion) -> Result<Option<Completion>, Error> {
        let Some(slot) = self.slots.find(entry.id()).filter(|_| entry.queue() == self.id) else {
            return Err(self.stray(entry));
        };
        if !entry.status().is_success() {
            return Ok(self.failed(slot, entry.status()));
        }
        let (cache, shared, generation, listener) =
            (self.cache.as_deref(), &self.shared, self.generation, &mut self.listener);
        Ok(self.slots.vacate(slot).map(|slot| {
            let lost_since = || shared.lost_cache_after(generation);
            let complete = |cache: &WriteCache| {
                cache.complete(&slot.request, (listener, slot.flush), lost_since)
            };
            let end = cache.map_or(Ok(()), complete);
            slot.complete(end)
        }))
    }

    /// Goes on after `count` reads, which have been taken: acknowledges, and takes what else there
    /// is if there were none.
    #[inline(never)]
    fn reap_any(&mut self, done: &mut [Completion], mut count: usize) -> Result<usize, Error> {
        if count == 0 && self.completion.ready() {
            count = self.take_good(done);
        }
        self.acknowledge_many();
        if count == 0 && self.completion.ready() { self.reap_unusual(done) } else { Ok(count) }
    }

    /// Takes one end that is out of the ordinary. What was before it has been given out.
    #[cold]
    #[inline(never)]
    fn reap_unusual(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        self.check_attached()?;
        let trouble = !self.is_current_generation() || !self.ended.is_empty();
        let taken =
            reap_single(done, || if trouble { self.reap_after_trouble() } else { self.take() });
        self.acknowledge_many();
        taken
    }

    /// Submits a request of any kind.
    #[cold]
    #[inline(never)]
    fn submit_any(&mut self, request: &mut Request) -> Result<(), Rejected> {
        if self.unit.is_over() {
            return rejected(request, Some(IoError::Gone));
        }
        if self.is_given_up(request.operation) {
            return rejected(request, Some(IoError::Unsupported));
        }
        self.slots.skip_busy_slot();
        let Some(free_slot) = self.slots.free_slot() else {
            return rejected(
                request,
                (self.generation == GENERATION_DETACHED).then_some(IoError::Gone),
            );
        };
        let command = match self.encoder.encode(free_slot.number(), request) {
            Ok(command) => command.with_id(free_slot.id()),
            Err(error) => return rejected(request, Some(error)),
        };
        let request = mem::replace(request, Request::flush(0));
        let (slot, is_flush) = (free_slot.number(), request.operation == Operation::Flush);
        place(&mut self.submission, command);
        let epoch = if is_flush {
            self.timeouts.epoch_for(self.shared.options.flush_timeout)
        } else {
            self.timeouts.epoch()
        };
        free_slot.fill(request, epoch);
        if is_flush
            && let Some(cache) = &self.cache
            && let Some(slot) = self.slots.get_mut(slot)
        {
            slot.flush = cache.begin_flush();
        }
        Ok(())
    }

    /// Whether the device knows this queue as it is. If not, its doorbells are not ours until it
    /// was created anew.
    #[inline]
    pub(super) fn is_current_generation(&self) -> bool {
        self.shared.generation() == self.generation
    }

    /// Tells the device which completions were taken.
    #[inline(never)]
    fn acknowledge(&mut self) {
        // `place` does not look at it, but whoever saves the ring does.
        self.submission.retire_all_but(self.slots.in_flight().into());
        if self.is_current_generation()
            && let Some(head) = self.completion.publish()
        {
            self.bar.write32(self.completion_doorbell, head);
        }
    }

    /// The same if many were: the ring never fills up.
    #[inline]
    fn acknowledge_many(&mut self) {
        if self.completion.unpublished() >= self.acknowledge_at {
            self.acknowledge();
        }
    }

    /// The generation in which there is nothing to mend: for a queue with nothing in flight, a
    /// controller's end is no news.
    fn expected(&self) -> u32 {
        if self.slots.in_flight() == 0 && self.shared.generation() == GENERATION_CLOSED {
            GENERATION_CLOSED
        } else {
            self.generation
        }
    }

    #[cold]
    fn stray(&self, entry: nvme::Completion) -> Error {
        Error::Protocol(format!(
            "queue {} has a completion for nothing in flight (queue {}, id {:#06x}, {})",
            self.id,
            entry.queue(),
            entry.id(),
            entry.status()
        ))
    }
}

/// Writes a command into the ring, which has room for whatever has a slot: the device has read what
/// it has completed, and all commands before, so at most what is in flight is unread. Where it says
/// that it reads (SQHD) need not be believed.
#[inline(always)]
pub(super) fn place(ring: &mut SubmissionRing<DmaBuffer, SUBMISSION_WORDS>, command: Submission) {
    let Submission(
        [first, dwords_2_3, metadata, prp1, prp2, dwords_10_11, dwords_12_13, dwords_14_15],
    ) = command;
    debug_assert_eq!(
        [dwords_2_3, metadata, dwords_14_15],
        [0; 3],
        "no command here has any of these, so they stay zero in the ring"
    );
    ring.place([(3, prp1), (4, prp2), (5, dwords_10_11), (6, dwords_12_13), (0, first)]);
}

#[cold]
fn rejected(request: &mut Request, error: Option<IoError>) -> Result<(), Rejected> {
    Err(Rejected { error, request: mem::replace(request, Request::flush(0)) })
}

impl Queue for QueuePair {
    fn info(&self) -> &Info {
        &self.unit.info
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
            && let Some(command) = self.encoder.page_transfer(free_slot.id(), &request)
        {
            place(&mut self.submission, command);
            free_slot.fill(request, self.timeouts.epoch());
            return Ok(());
        }
        let submitted = self.submit_any(&mut request);
        // It has been taken out.
        mem::forget(request);
        submitted
    }

    fn ring(&mut self) {
        if !self.is_current_generation() {
            // The device does not know this queue any more; the next `reap` or `tick` repeats what
            // was submitted.
            return;
        }
        self.ring_submission();
    }

    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        if self.is_current_generation() && self.ended.is_empty() {
            let count = self.take_reads(done);
            // The way of almost every batch calls nothing.
            if count > 0 && self.completion.unpublished() < self.acknowledge_at {
                return Ok(count);
            }
            return self.reap_any(done, count);
        }
        self.reap_unusual(done)
    }

    fn detach(&mut self) -> Result<Saved, Error> {
        self.leave()
    }
}

impl Source for QueuePair {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    /// Whether [`reap`](Queue::reap) has something to do: a completion, a reset, or requests that
    /// ended by themselves.
    #[inline]
    fn pending(&self) -> bool {
        self.completion.ready()
            || self.shared.generation() != self.expected()
            || !self.ended.is_empty()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        if self.pending() {
            return Ok(false);
        }
        self.acknowledge();
        let (completion, shared, generation) = (&self.completion, &self.shared, self.expected());
        self.waiter.arm(|| completion.ready() || shared.generation() != generation)
    }

    fn disarm(&mut self) -> Result<(), Error> {
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
        let generation = self.expected();
        let (completion, shared) = (&self.completion, &self.shared);
        let Some(polled) = self
            .waiter
            .poll(deadline, || completion.ready() || shared.generation() != generation)?
        else {
            return Ok(true);
        };
        self.acknowledge();
        let (completion, shared) = (&self.completion, &self.shared);
        self.waiter
            .sleep(polled, deadline, || completion.ready() || shared.generation() != generation)
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}
