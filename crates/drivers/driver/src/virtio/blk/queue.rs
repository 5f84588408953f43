//! A queue: the way of a request to the device and back.

use std::sync::Arc;

use ring3_class::Saved;
use ring3_class::block::{
    Completion, Info, IoError, Operation, Queue, Rejected, Request, reap_single,
};
use ring3_device::Error;
use ring3_device::wait::Waiter;
use ring3_spec::virtio::blk;

use super::super::virtqueue::Virtqueue;
use super::describe::Requests;
use super::device::VirtioBlkShared;
use super::slots::Slots;
use crate::lifetime::GENERATION_DETACHED;
use crate::timeouts::Timeouts;
use crate::write_cache::{Listener, WriteCache};

/// Requests in flight through one virtqueue. How it waits is in `wait.rs`, its misfortunes in
/// `recovery.rs`.
pub(super) struct RequestQueue {
    pub(super) shared: Arc<VirtioBlkShared>,
    pub(super) info: Arc<Info>,
    /// The queue's number on the device.
    pub(super) number: u16,
    /// `None` if a reset has taken it and none has made another.
    pub(super) virtqueue: Option<Virtqueue>,
    /// The device's generation in which this virtqueue was made.
    pub(super) generation: u32,
    pub(super) requests: Requests,
    pub(super) slots: Slots,
    /// Requests that have ended without the device.
    pub(super) ended: Vec<(u16, Result<(), IoError>)>,
    pub(super) timeouts: Timeouts,
    pub(super) waiter: Waiter,
    pub(super) listener: Listener,
    /// What was found out while something else was returned.
    pub(super) trouble: Option<Error>,
    /// The virtqueue is of no use any more.
    pub(super) broken: bool,
    /// The owner has had the error that the device has failed for good.
    pub(super) failure_reported: bool,
}

impl RequestQueue {
    pub(super) fn open(
        shared: Arc<VirtioBlkShared>,
        info: Arc<Info>,
        depth: u16,
    ) -> Result<Self, Error> {
        let shape = shared.shape;
        let most = if shape.indirect { shape.entries } else { shape.entries / shape.pieces };
        let depth = depth.clamp(1, most.max(1));
        let arena = shared.transport.device.dma().arena();
        let requests = Requests::new(arena, depth, shape, info.block_size)?;
        let (number, mut virtqueue, generation) = shared.take_seat()?;
        // Who polls needs no interrupts, and who sleeps asks for them.
        virtqueue.want_interrupts(false);
        Ok(Self {
            waiter: Waiter::new(shared.irq(number), shared.options.poll),
            timeouts: Timeouts::new(shared.options.timeout),
            listener: shared.cache.as_ref().map(WriteCache::listen).unwrap_or_default(),
            shared,
            info,
            number,
            virtqueue: Some(virtqueue),
            generation,
            requests,
            slots: Slots::new(depth),
            ended: Vec::with_capacity(depth.into()),
            trouble: None,
            broken: false,
            failure_reported: false,
        })
    }

    /// Whether the device knows this queue as it is.
    #[inline]
    pub(super) fn is_current_generation(&self) -> bool {
        self.shared.generation() == self.generation
    }

    /// Takes the next end of a request: an error if it is for nothing in flight.
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<Completion>, Error> {
        let Some(virtqueue) = &mut self.virtqueue else { return Ok(None) };
        match virtqueue.take() {
            Ok(None) => Ok(None),
            Ok(Some((id, len))) => self.used(id, len).map(Some),
            Err(error) => {
                self.broken = true;
                Err(error)
            }
        }
    }

    /// The end of the request that the device has used as `id`, with `len` bytes written.
    #[inline]
    fn used(&mut self, id: u32, len: u32) -> Result<Completion, Error> {
        let slot = self.requests.slot_of(id);
        let Some((number, slot)) = slot.and_then(|number| Some((number, self.slots.get(number)?)))
        else {
            return Err(self.stray(id, "is for nothing in flight"));
        };
        let Some(status) = self.requests.status(number) else {
            return Err(self.stray(id, "has no status"));
        };
        let whole = slot.request.operation != Operation::Read || len == slot.writable;
        let result = match status {
            _ if len > slot.writable => Err(IoError::Transport),
            blk::OK if whole => {
                let lost = || self.shared.lost_cache_after(self.generation);
                let told = (&mut self.listener, slot.flush);
                self.shared
                    .cache
                    .as_ref()
                    .map_or(Ok(()), |cache| cache.complete(&slot.request, told, lost))
            }
            blk::IO_ERROR => Err(IoError::Medium),
            blk::UNSUPPORTED => Err(IoError::Unsupported),
            _ => Err(IoError::Transport),
        };
        self.slots.end(number, result).ok_or_else(|| Error::Fatal("a request was lost".into()))
    }

    #[cold]
    fn stray(&self, id: u32, what: &str) -> Error {
        Error::Protocol(format!(
            "queue {}: what the device has used as {id:#x} {what}",
            self.number
        ))
    }

    /// Takes ends of requests that the device has used.
    #[inline]
    fn reap_used(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        let mut count = 0;
        while let Some(place) = done.get_mut(count) {
            match self.take() {
                Ok(None) => break,
                Ok(Some(end)) => *place = end,
                Err(error) if count == 0 => return Err(error),
                Err(error) => {
                    self.trouble = Some(error);
                    break;
                }
            }
            count += 1;
        }
        Ok(count)
    }

    /// Why the device would refuse `request`.
    fn refusal(&self, request: &Request) -> Option<IoError> {
        let durable =
            request.fua && matches!(request.operation, Operation::Write | Operation::WriteZeroes);
        match self.info.check_uncut(request) {
            Err(error) => Some(error),
            Ok(()) if durable && self.info.volatile_cache => Some(IoError::Unsupported),
            Ok(()) => None,
        }
    }
}

impl Queue for RequestQueue {
    fn info(&self) -> &Info {
        &self.info
    }

    fn depth(&self) -> u16 {
        self.slots.count()
    }

    fn in_flight(&self) -> u16 {
        self.slots.in_flight()
    }

    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        let Some(slot) = self.slots.free_slot() else {
            let error = (self.generation == GENERATION_DETACHED).then_some(IoError::Transport);
            return Err(Rejected { error, request });
        };
        if let Some(error) = self.refusal(&request) {
            return Err(Rejected { error: Some(error), request });
        }
        let is_flush = request.operation == Operation::Flush;
        if is_flush && self.shared.cache.is_none() {
            // Whatever was written is durable; some devices do not even know the request.
            self.slots.fill(request, self.timeouts.epoch(), 1, 0);
            self.ended.push((slot, Ok(())));
            return Ok(());
        }
        let flush =
            self.shared.cache.as_ref().filter(|_| is_flush).map_or(0, |cache| cache.begin_flush());
        // Without a virtqueue it is described when there is one again.
        let described = self
            .virtqueue
            .as_mut()
            .map_or(Some(1), |queue| self.requests.describe(slot, &request, queue));
        let Some(writable) = described else {
            return Err(Rejected { error: Some(IoError::Invalid), request });
        };
        self.slots.fill(request, self.timeouts.epoch(), writable, flush);
        Ok(())
    }

    fn ring(&mut self) {
        // A device that does not know this queue any more has its own from the next `reap` or
        // `tick` on, with all that was submitted.
        if self.is_current_generation()
            && let Some(virtqueue) = &mut self.virtqueue
        {
            virtqueue.publish();
        }
    }

    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        self.check_attached()?;
        if let Some(error) = self.trouble.take() {
            return Err(error);
        }
        if self.is_current_generation() && self.ended.is_empty() {
            return self.reap_used(done);
        }
        reap_single(done, || self.reap_after_trouble())
    }

    fn detach(&mut self) -> Result<Saved, Error> {
        self.leave()
    }
}
