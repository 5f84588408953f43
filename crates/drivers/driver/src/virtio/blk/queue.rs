//! A virtqueue of requests, as the engine ([`crate::disk`]) knows it.
//!
//! A device names a request by its first descriptor, which has no room for more than the slot's
//! number.

use std::sync::{Arc, MutexGuard};

use ring3_class::Saved;
use ring3_class::block::{Completion, Data, Info, IoError, Operation, Request};
use ring3_device::Error;
use ring3_device::dma::Claims;
use ring3_spec::virtio::blk;

use super::super::virtqueue::Virtqueue;
use super::describe::{self, Requests};
use super::device::{VirtioBlkShared, VirtqueueSlot};
use super::saved::{QUEUE, SavedBlkQueue};
use crate::disk::write_cache::WriteCache;
use crate::disk::{Controller, DiskQueue, Hardware, NotRenewed, Outcome, SavedQueue, Slots};
use crate::lifetime::lock;

/// A virtqueue, and what describes its requests.
pub(super) struct RequestQueue {
    shared: Arc<VirtioBlkShared>,
    info: Arc<Info>,
    /// The queue's number on the device.
    number: u16,
    /// `None` if a reset has taken it and none has made another.
    virtqueue: Option<Virtqueue>,
    requests: Requests,
    /// What the device has used (id, bytes written) that was taken and is out of the ordinary, or
    /// what is wrong with the virtqueue.
    unusual: Option<Result<(u32, u32), Error>>,
    /// The virtqueue is of no use any more.
    broken: bool,
}

impl RequestQueue {
    pub(super) fn open(
        shared: Arc<VirtioBlkShared>,
        info: Arc<Info>,
        depth: u16,
    ) -> Result<DiskQueue<Self>, Error> {
        let shape = shared.shape;
        let most = if shape.indirect { shape.entries } else { shape.entries / shape.pieces };
        let depth = depth.clamp(1, most.max(1));
        let arena = shared.transport.device.dma().arena();
        let requests = Requests::new(arena, depth, shape, info.block_size)?;
        let (number, virtqueue, generation) = shared.take_seat()?;
        let irq = shared.irq(number);
        let queue = Self::of((shared, info, number), virtqueue, requests);
        Ok(DiskQueue::new(queue, irq, (depth, generation)))
    }

    fn of(
        (shared, info, number): (Arc<VirtioBlkShared>, Arc<Info>, u16),
        virtqueue: Virtqueue,
        requests: Requests,
    ) -> Self {
        let virtqueue = Some(virtqueue);
        Self { shared, info, number, virtqueue, requests, unusual: None, broken: false }
    }

    /// The queue that was detached as `saved`.
    pub(super) fn resume(
        shared: &Arc<VirtioBlkShared>,
        info: &Arc<Info>,
        saved: &Saved,
    ) -> Result<DiskQueue<Self>, Error> {
        let saved: SavedQueue<SavedBlkQueue> = saved.read(QUEUE.0, QUEUE.1)?;
        let number = saved.rings.number;
        let mut seats = lock(&shared.seats);
        shared.lifetime.check()?;
        let name = shared.transport.device.name();
        let invalid = |what: &str| Error::Invalid(format!("{name}: {what}: open the disk anew"));
        // One that has grown meanwhile has all that the queue is about.
        if saved.serial != info.serial || saved.blocks > info.blocks {
            return Err(invalid("the saved queue is another disk's"));
        }
        let seat = seats.get_mut(usize::from(number)).filter(|seat| seat.detached);
        let seat = seat.ok_or_else(|| {
            invalid("the saved queue is none that was detached, or is resumed already")
        })?;
        let mut claims = Claims::new(shared.transport.device.dma().arena());
        let virtqueue = Virtqueue::resume(
            &saved.rings.queue,
            &mut claims,
            shared.transport.doorbell(number)?,
            shared.features,
        )?;
        let (size, shape) = (virtqueue.size(), shared.shape);
        // After a reset the device has another one there.
        if saved.generation == shared.lifetime.generation() && virtqueue.places() != seat.places {
            return Err(invalid("the saved queue has another virtqueue than the disk"));
        }
        let most = if shape.indirect { size } else { size / shape.pieces };
        if saved.slots > most {
            return Err(invalid(
                "the saved queue has more requests than its virtqueue has room for",
            ));
        }
        let memory = claims.claim(saved.rings.requests)?;
        let requests = Requests::resume(memory, saved.slots, shape, info.block_size)?;
        let queue = Self::of((shared.clone(), info.clone(), number), virtqueue, requests);
        let queue = DiskQueue::resume(&saved, queue, shared.irq(number), claims)?;
        seat.detached = false;
        Ok(queue)
    }

    /// The slot of what the device has used as `id`, and how its request ended, with `len` bytes
    /// written.
    #[inline]
    fn used(&self, slots: &Slots, (id, len): (u32, u32)) -> Result<(u16, Outcome), Error> {
        let found = self.requests.slot_of(id);
        let Some((number, slot)) = found.and_then(|number| Some((number, slots.get(number)?)))
        else {
            return Err(self.stray(id, "is for nothing in flight"));
        };
        let Some(status) = self.requests.status(number) else {
            return Err(self.stray(id, "has no status"));
        };
        let request = &slot.request;
        let writable = describe::writable(request, self.info.block_size).unwrap_or(0);
        let is_whole = request.operation != Operation::Read || len == writable;
        let outcome = match status {
            _ if len > writable => Outcome::Failed(IoError::Transport),
            blk::OK if is_whole => Outcome::Done,
            blk::IO_ERROR => Outcome::Failed(IoError::Medium),
            blk::UNSUPPORTED => Outcome::Failed(IoError::Unsupported),
            _ => Outcome::Failed(IoError::Transport),
        };
        Ok((number, outcome))
    }

    #[cold]
    fn stray(&self, id: u32, what: &str) -> Error {
        Error::Protocol(format!(
            "queue {}: what the device has used as {id:#x} {what}",
            self.number
        ))
    }

    /// Takes what the device has used next, whatever it is.
    #[inline]
    fn next_used(&mut self) -> Result<Option<(u32, u32)>, Error> {
        if let Some(used) = self.unusual.take() {
            return used.map(Some);
        }
        let Some(virtqueue) = self.virtqueue.as_mut().filter(|_| !self.broken) else {
            return Ok(None);
        };
        virtqueue.take().inspect_err(|_| self.broken = true)
    }

    /// Takes the ends of requests that ended well and are of a `common` operation, up to the first
    /// that is not; how many, and whether one of them has written something that the cache may
    /// hold.
    #[inline]
    fn take_common(
        &mut self,
        slots: &mut Slots,
        done: &mut [Completion],
        common: impl Fn(Operation) -> bool,
    ) -> (usize, bool) {
        let (mut count, mut wrote) = (0, false);
        while let Some(place) = done.get_mut(count).filter(|place| matches!(place.data, Data::None))
        {
            let used = match self.next_used() {
                Ok(Some(used)) => used,
                Ok(None) => break,
                Err(error) => {
                    self.unusual = Some(Err(error));
                    break;
                }
            };
            let well = match self.used(slots, used) {
                Ok((number, Outcome::Done)) => slots
                    .get(number)
                    .is_some_and(|slot| common(slot.request.operation))
                    .then_some(number),
                _ => None,
            };
            let Some(slot) = well.and_then(|number| slots.free(number)) else {
                self.unusual = Some(Ok(used));
                break;
            };
            wrote |= WriteCache::holds(&slot.request);
            place.into_completion_of(slot.request.token, Ok(()), &mut slot.request.data);
            count += 1;
        }
        (count, wrote)
    }

    /// Why the device would refuse `request`.
    fn check_request(&self, request: &Request) -> Result<(), IoError> {
        let durable =
            request.fua && matches!(request.operation, Operation::Write | Operation::WriteZeroes);
        self.info.check_uncut(request)?;
        if durable && self.info.volatile_cache { Err(IoError::Unsupported) } else { Ok(()) }
    }
}

impl Hardware for RequestQueue {
    type Controller = VirtioBlkShared;
    type Saved = SavedBlkQueue;
    const FORMAT: (&'static str, u32) = QUEUE;

    #[inline]
    fn controller(&self) -> &Arc<VirtioBlkShared> {
        &self.shared
    }

    fn info(&self) -> &Info {
        &self.info
    }

    #[inline]
    fn cache(&self) -> Option<&WriteCache> {
        self.shared.cache.as_deref()
    }

    #[inline]
    fn place_common(&mut self, slot: u16, id: u16, request: &Request) -> bool {
        matches!(request.operation, Operation::Read | Operation::Write)
            && self.place(slot, id, request).is_ok()
    }

    fn place(&mut self, slot: u16, _: u16, request: &Request) -> Result<bool, IoError> {
        self.check_request(request)?;
        if request.operation == Operation::Flush && self.shared.cache.is_none() {
            // Whatever was written is durable; some devices do not even know the request.
            return Ok(false);
        }
        // Without a virtqueue it is described when there is one again.
        match &mut self.virtqueue {
            Some(queue) => {
                let described = self.requests.describe(slot, request, queue);
                described.map(|_| true).ok_or(IoError::Invalid)
            }
            None => Ok(true),
        }
    }

    #[inline]
    fn ring(&mut self) {
        if let Some(virtqueue) = &mut self.virtqueue {
            virtqueue.publish();
        }
    }

    #[inline]
    fn pending(&self) -> bool {
        let has_used = |virtqueue: &Virtqueue| virtqueue.pending() && !self.broken;
        self.unusual.is_some() || self.virtqueue.as_ref().is_some_and(has_used)
    }

    #[inline]
    fn take_reads(&mut self, slots: &mut Slots, done: &mut [Completion]) -> usize {
        self.take_common(slots, done, |operation| operation == Operation::Read).0
    }

    fn take_good(&mut self, slots: &mut Slots, done: &mut [Completion]) -> (usize, bool) {
        self.take_common(slots, done, |operation| operation != Operation::Flush)
    }

    fn take(&mut self, slots: &Slots) -> Result<Option<(u16, Outcome)>, Error> {
        self.next_used()?.map(|used| self.used(slots, used)).transpose()
    }

    fn want_interrupts(&mut self, wanted: bool) {
        if let Some(virtqueue) = &mut self.virtqueue {
            virtqueue.want_interrupts(wanted);
        }
    }

    fn damage(&self) -> Option<&str> {
        self.broken.then_some("a virtqueue was damaged")
    }

    fn check(&mut self) -> Result<(), Error> {
        self.shared.transport.check()
    }

    /// Takes the virtqueue that the reset has made.
    fn renew(
        &mut self,
        mut seats: MutexGuard<'_, Vec<VirtqueueSlot>>,
        generation: u32,
    ) -> Result<u32, NotRenewed> {
        let made = seats.get_mut(usize::from(self.number)).and_then(|seat| seat.queue.take());
        let lost = || NotRenewed::Failed(Error::Fatal("its virtqueue is lost".into()));
        self.virtqueue = Some(made.ok_or_else(lost)?);
        (self.broken, self.unusual) = (false, None);
        Ok(generation)
    }

    fn close(&mut self, generation: u32, is_idle: bool) -> Result<(), Error> {
        let shared = &self.shared;
        // Somebody else's reset counts when it is over.
        drop(shared.lock());
        if (!is_idle || self.broken) && shared.lifetime.generation() == generation {
            // Nothing else takes a request back; the other queues repeat theirs.
            shared.reset(generation, "a queue was dropped with requests in flight")?;
        }
        shared.lifetime.check()
    }

    fn abandon(&mut self) {
        self.requests.abandon();
        self.virtqueue.iter_mut().for_each(Virtqueue::abandon);
    }

    fn release(&mut self, generation: u32, clean: bool) {
        let virtqueue = self.virtqueue.take().filter(|_| clean && !self.broken);
        self.shared.give_seat_back(self.number, virtqueue, generation);
    }

    fn save(&mut self, _: u16) -> Result<SavedBlkQueue, Error> {
        if self.unusual.is_some() {
            return Err(Error::Busy("the queue has something to give out: reap".into()));
        }
        let queue = self.virtqueue.as_mut().ok_or_else(|| {
            Error::Busy("the queue is being made anew: tick, then detach again".into())
        })?;
        queue.publish();
        Ok(SavedBlkQueue {
            number: self.number,
            queue: queue.save()?,
            requests: self.requests.span(),
        })
    }

    fn release_to_successor(&mut self, seats: &mut Vec<VirtqueueSlot>) {
        if let Some(seat) = seats.get_mut(usize::from(self.number)) {
            seat.detached = true;
        }
        self.virtqueue.take().iter_mut().for_each(Virtqueue::release_to_successor);
        self.requests.release_to_successor();
    }
}
