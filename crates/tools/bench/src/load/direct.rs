//! A class queue in this process as the target.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::block::{
    Completion, Data, Disk, ForeignAccess, Queue, Rejected, Request, Splitter, open,
};
use ring3_device::Deadline;
use ring3_device::dma::{CacheLimits, Foreign, Mode, Piece, Region, StreamStats};
use ring3_device::wait::WaitStats;

use super::{Done, Target};
use crate::Error;

/// How long one wait may last.
const WAIT: Duration = Duration::from_millis(100);

/// How often it is looked at whether the deadline of waits comes near: once in this many.
const WAITS_PER_LOOK: u32 = 4;

/// How often the clock is read while polling: once in this many looks.
const LOOKS_PER_CLOCK: u32 = 256;

/// Pieces of fragmented memory are whole pages, every other one of their allocation.
const PAGE: usize = 4096;

/// Memory outside of the device's arena, as the buffers of an application are.
#[derive(Clone, Copy, Debug)]
pub struct Streaming {
    /// Mapped for the device, or copied.
    pub mode: Mode,
    /// Allocations, at least one for each request in flight; more of them than mappings stay makes
    /// the cache evict.
    pub allocations: usize,
    /// Pieces of each request that do not lie one after the other, at least 1; at most one for each
    /// page.
    pub fragments: usize,
    /// Mappings that may stay.
    pub mappings: usize,
}

/// One queue of a disk, with a buffer for each slot.
pub struct Direct {
    name: String,
    queue: Box<dyn Queue>,
    slots: Vec<Slot>,
    /// Buffers beyond those of the slots, the one that was unused longest first.
    spare: VecDeque<Data>,
    block_shift: u32,
    capacity: u64,
    /// Of waits. Looked at once in [`WAITS_PER_LOOK`], so that most of them cost no clock read
    /// here.
    deadline: Deadline,
    waits: u32,
    /// Never sleeps.
    polling: bool,
    /// Where ends come in, and which of them were not taken yet.
    ends: Box<[Completion]>,
    ready: Range<usize>,
}

struct Slot {
    /// `None` while it is lent to the device.
    data: Option<Data>,
    /// The generator has put bytes into it that it wants written.
    filled: bool,
}

impl Direct {
    /// Opens a queue of `depth` and allocates buffers of `bytes` each in the device's arena.
    /// Requests that are longer than the device takes are cut.
    pub fn open(disk: &dyn Disk, depth: u16, bytes: u32) -> Result<Self, Error> {
        check(disk, bytes)?;
        let failed = |source| Error::Device { name: disk.name(), source };
        let mut queue = disk.open_queue(depth).map_err(failed)?;
        if bytes > disk.info().max_transfer {
            queue = Box::new(Splitter::new(queue));
        }
        let buffers =
            (0..depth).map(|_| disk.dma().arena().alloc_pages(bytes as usize).map(Data::from));
        let buffers = buffers.collect::<Result<_, _>>().map_err(failed)?;
        Ok(Self::new(disk, queue, depth, buffers))
    }

    /// The same with buffers outside of the arena.
    pub fn streaming(
        disk: &dyn Disk,
        depth: u16,
        bytes: u32,
        streaming: Streaming,
    ) -> Result<Self, Error> {
        check(disk, bytes)?;
        let failed = |source| Error::Device { name: disk.name(), source };
        let cache = CacheLimits { entries: streaming.mappings, ..CacheLimits::default() };
        let access = ForeignAccess { mode: streaming.mode, cache, copies: depth.into() };
        let queue = open(disk, depth, access).map_err(failed)?;
        let buffers = (0..streaming.allocations.max(depth.into()))
            .map(|_| fragmented(bytes as usize, streaming.fragments));
        let buffers = buffers.collect::<Result<_, _>>().map_err(failed)?;
        Ok(Self::new(disk, Box::new(queue), depth, buffers))
    }

    /// The same with buffers side by side in `region`, which is lent to the disk; it has room for
    /// `depth` of whole pages.
    pub fn lent(
        disk: &dyn Disk,
        depth: u16,
        bytes: u32,
        region: Arc<Region>,
    ) -> Result<Self, Error> {
        check(disk, bytes)?;
        let failed = |source| Error::Device { name: disk.name(), source };
        disk.register_region(&region).map_err(failed)?;
        let queue = open(disk, depth, ForeignAccess { copies: 1, ..ForeignAccess::default() })
            .map_err(failed)?;
        let (memory, len) = (Foreign::from(region), bytes as usize);
        let piece = |slot: u16| Piece {
            memory: memory.clone(),
            offset: usize::from(slot) * len.next_multiple_of(PAGE),
            len,
        };
        Ok(Self::new(
            disk,
            Box::new(queue),
            depth,
            (0..depth).map(|slot| piece(slot).into()).collect(),
        ))
    }

    fn new(
        disk: &dyn Disk,
        queue: Box<dyn Queue>,
        depth: u16,
        mut buffers: VecDeque<Data>,
    ) -> Self {
        let slots = buffers
            .drain(..usize::from(depth))
            .map(|data| Slot { data: Some(data), filled: false })
            .collect();
        Self {
            name: disk.name(),
            queue,
            slots,
            spare: buffers,
            block_shift: disk.info().block_size.trailing_zeros(),
            capacity: disk.info().capacity(),
            deadline: Deadline::after(WAIT),
            waits: 0,
            polling: false,
            ends: (0..depth).map(|_| Completion::default()).collect(),
            ready: 0..0,
        }
    }

    /// The same, which looks at the queue without end instead of sleeping.
    pub fn polling(self, polling: bool) -> Self {
        Self { polling, ..self }
    }

    /// Publishes what was queued.
    pub fn ring(&mut self) {
        self.queue.ring();
    }

    /// Looks until something is finished, or for a while.
    fn poll(&mut self) -> Result<(), Error> {
        self.poll_while(|queue| queue.in_flight() > 0)
    }

    fn poll_while(&mut self, wanted: impl Fn(&dyn Queue) -> bool) -> Result<(), Error> {
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if self.reap()? || !wanted(&*self.queue) {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            if self.deadline.expired() {
                self.deadline = Deadline::after(WAIT);
                return self.tick();
            }
        }
    }

    /// Reaps unless there is something to take already; whether there is now.
    #[inline]
    fn reap(&mut self) -> Result<bool, Error> {
        if self.ready.is_empty() {
            self.ready = 0..self.queue.reap(&mut self.ends).map_err(|error| self.failed(error))?;
        }
        Ok(!self.ready.is_empty())
    }

    fn failed(&self, source: ring3_device::Error) -> Error {
        Error::Device { name: self.name.clone(), source }
    }

    fn no_buffer(&self, slot: u16) -> Error {
        Error::Invalid(format!("{}: slot {slot} has no buffer: it is in flight", self.name))
    }

    fn rejected(&mut self, slot: u16, rejected: Rejected) -> Error {
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            place.data = Some(rejected.request.data);
        }
        let why = rejected.error.map_or("the queue is full".into(), |error| error.to_string());
        Error::Invalid(format!("{}: a request was refused: {why}", self.name))
    }

    /// Gives the slot the spare buffer that was unused longest, for its own.
    fn exchange(&mut self, slot: u16) {
        if let Some(place) =
            self.slots.get_mut(usize::from(slot)).filter(|place| place.data.is_some())
            && let Some(next) = self.spare.pop_front()
        {
            self.spare.extend(place.data.replace(next));
        }
    }

    fn data(&self, slot: u16) -> Result<&Data, Error> {
        self.slots
            .get(usize::from(slot))
            .and_then(|slot| slot.data.as_ref())
            .ok_or_else(|| self.no_buffer(slot))
    }
}

/// Fails if the disk takes no requests of `bytes`.
fn check(disk: &dyn Disk, bytes: u32) -> Result<(), Error> {
    let block = disk.info().block_size;
    match bytes.is_multiple_of(block) {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "{}: requests of {bytes} bytes: they must be multiples of its {block}",
            disk.name()
        ))),
    }
}

/// `bytes` of an allocation of its own, in pieces of whole pages with as many unused between them.
fn fragmented(bytes: usize, fragments: usize) -> Result<Data, ring3_device::Error> {
    let fragments = fragments.clamp(1, bytes.div_ceil(PAGE));
    let each = bytes.div_ceil(fragments).next_multiple_of(PAGE);
    let memory = Foreign::new(2 * each * fragments)?;
    let pieces = (0..fragments).map(|i| Piece {
        memory: memory.clone(),
        offset: 2 * each * i,
        len: each.min(bytes.saturating_sub(each * i)),
    });
    Ok(Data::Foreign(pieces.filter(|piece| piece.len > 0).collect()))
}

impl Target for Direct {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn depth(&self) -> u16 {
        self.queue.depth().min(self.slots.len() as u16)
    }

    #[inline]
    fn queue(&mut self, slot: u16, write: bool, offset: u64, len: u32) -> Result<(), Error> {
        if !self.spare.is_empty()
            && !self.slots.get(usize::from(slot)).is_some_and(|slot| slot.filled)
        {
            self.exchange(slot);
        }
        let place = self.slots.get_mut(usize::from(slot));
        let Some(data) = place.and_then(|place| {
            place.filled = false;
            place.data.take()
        }) else {
            return Err(self.no_buffer(slot));
        };
        let (lba, blocks) = (offset >> self.block_shift, len >> self.block_shift);
        let request = match write {
            true => Request::write(u64::from(slot), lba, blocks, data),
            false => Request::read(u64::from(slot), lba, blocks, data),
        };
        self.queue.submit(request).map_err(|rejected| self.rejected(slot, rejected))
    }

    #[inline]
    fn proceed(&mut self) -> Result<(), Error> {
        self.ring();
        if self.polling {
            return self.poll();
        }
        let ended = self.queue.wait(self.deadline).map_err(|error| self.failed(error))?;
        self.waits = self.waits.wrapping_add(1);
        // In good time: a sleep that runs into the deadline is a system call more for the request
        // that it waits for.
        let old = self.waits.is_multiple_of(WAITS_PER_LOOK) && self.deadline.remaining() < WAIT / 2;
        if old || !ended {
            self.deadline = Deadline::after(WAIT);
            self.tick()?;
        }
        Ok(())
    }

    fn proceed_until(&mut self, time: Instant) -> Result<(), Error> {
        self.ring();
        let left = time.saturating_duration_since(Instant::now());
        match (self.polling, self.queue.in_flight()) {
            (true, _) => self.poll_while(|_| Instant::now() < time),
            // Nothing of the device's is waited for, and its waiter need not learn how long that
            // takes.
            (false, 0) => {
                std::thread::sleep(left);
                Ok(())
            }
            (false, _) => self
                .queue
                .wait(Deadline::after(left.min(WAIT)))
                .map(drop)
                .map_err(|error| self.failed(error)),
        }
    }

    #[inline]
    fn finished(&mut self) -> Result<Option<Done>, Error> {
        self.reap()?;
        let Some(completion) =
            self.ready.next().and_then(|place| self.ends.get_mut(place)).map(std::mem::take)
        else {
            return Ok(None);
        };
        let slot = completion.token as u16;
        if let Some(place) = self.slots.get_mut(usize::from(slot))
            && !completion.data.is_empty()
        {
            place.data = Some(completion.data);
        }
        Ok(Some(Done { slot, ok: completion.result.is_ok() }))
    }

    fn tick(&mut self) -> Result<(), Error> {
        self.queue.tick(Instant::now()).map(drop).map_err(|error| self.failed(error))
    }

    fn stream_stats(&self) -> Option<StreamStats> {
        Some(self.queue.stream_stats())
    }

    fn wait_stats(&self) -> Option<WaitStats> {
        (!self.polling && self.queue.irq().is_some()).then(|| self.queue.wait_stats())
    }

    fn fill(&mut self, slot: u16, bytes: &[u8]) -> Result<(), Error> {
        self.exchange(slot);
        let written = match self.data(slot)? {
            Data::Buffer(buffer) => buffer.write(0, bytes),
            Data::Foreign(pieces) => cut(pieces, bytes.len()).try_for_each(|(piece, at, len)| {
                piece.memory.write(piece.offset, &bytes[at..at + len])
            }),
            _ => return Err(self.no_buffer(slot)),
        };
        written.map_err(|error| self.failed(error))?;
        if let Some(place) = self.slots.get_mut(usize::from(slot)) {
            place.filled = true;
        }
        Ok(())
    }

    fn copy_out(&self, slot: u16, bytes: &mut [u8]) -> Result<(), Error> {
        let read = match self.data(slot)? {
            Data::Buffer(buffer) => buffer.read(0, bytes),
            Data::Foreign(pieces) => cut(pieces, bytes.len()).try_for_each(|(piece, at, len)| {
                piece.memory.read(piece.offset, &mut bytes[at..at + len])
            }),
            _ => return Err(self.no_buffer(slot)),
        };
        read.map_err(|error| self.failed(error))
    }
}

/// The pieces that hold the first `len` bytes: each with the place of its bytes among them, and how
/// many.
fn cut(pieces: &[Piece], len: usize) -> impl Iterator<Item = (&Piece, usize, usize)> {
    let mut at = 0;
    pieces.iter().map_while(move |piece| {
        let (here, part) = (at, piece.len.min(len - at));
        at += part;
        (part > 0).then_some((piece, here, part))
    })
}
