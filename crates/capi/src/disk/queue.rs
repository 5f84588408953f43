//! The disk as the server has it, and its one queue.

use std::mem;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ring3_class::block::{Completion, Data, Disk, Info, IoError, Operation, Queue, Rejected, Request};
use ring3_class::dma::{Arena, Dma, DmaBuffer, Iommu, Pages};
use ring3_class::irq::Irq;
use ring3_class::wait::Source;
use ring3_class::{Deadline, Error};

use super::lane::Lane;

/// What the program and the queue say to each other.
pub(super) struct Shared {
    /// Requests for the program: see [`Wanted`].
    pub(super) wanted: Lane<4>,
    /// Ends of its: tag and errno.
    pub(super) ended: Lane<2>,
    /// The queue was opened: once, so that no end of a request is taken for that of a later one.
    opened: AtomicBool,
}

/// A request as the program gets it.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) tag: u64,
    pub(super) operation: Operation,
    pub(super) fua: bool,
    pub(super) blocks: u32,
    pub(super) lba: u64,
    /// Where its bytes lie in this process; 0 if there are none.
    pub(super) address: u64,
}

const OPERATIONS: [Operation; 5] =
    [Operation::Read, Operation::Write, Operation::Flush, Operation::WriteZeroes, Operation::Discard];
const FUA: u64 = 1 << 8;

impl Wanted {
    fn encode(self) -> [u64; 4] {
        let operation = OPERATIONS.iter().position(|&operation| operation == self.operation).unwrap_or_default() as u64;
        let flags = if self.fua { FUA } else { 0 };
        [self.tag, operation | flags | u64::from(self.blocks) << 32, self.lba, self.address]
    }

    pub(super) fn decode([tag, word, lba, address]: [u64; 4]) -> Option<Self> {
        let operation = *OPERATIONS.get(word as usize & 0xff)?;
        Some(Self { tag, operation, fua: word & FUA != 0, blocks: (word >> 32) as u32, lba, address })
    }
}

pub(super) struct HostedDisk {
    info: Info,
    dma: Dma,
    depth: u16,
    shared: Arc<Shared>,
}

impl HostedDisk {
    /// Of which the program takes `depth` requests at once, whose bytes lie in `memory`, which its device reaches.
    pub(super) fn new(info: Info, depth: u16, memory: Arena) -> Result<Self, Error> {
        let size = info.block_size;
        if !size.is_power_of_two() || size < 512 || info.blocks == 0 || info.max_transfer < size || depth == 0 {
            return Err(Error::Invalid(format!(
                "{}: a disk of {} blocks of {size} bytes, of which {} move at once and {depth} requests are taken",
                info.model, info.blocks, info.max_transfer
            )));
        }
        // One more for what the server sets aside.
        let wanted = (usize::from(depth) + 1) * info.max_transfer.next_multiple_of(4096) as usize;
        if memory.free_bytes() < wanted {
            return Err(Error::NoMemory { wanted, free: memory.free_bytes(), total: memory.len() });
        }
        let (wanted, ended) = (Lane::new(depth.into()), Lane::new(depth.into()));
        let shared = Arc::new(Shared { wanted, ended, opened: AtomicBool::new(false) });
        Ok(Self { info, dma: Dma::new(memory, Arc::new(Copied)), depth, shared })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Disk for HostedDisk {
    fn name(&self) -> String {
        self.info.model.clone()
    }

    fn info(&self) -> &Info {
        &self.info
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }

    fn max_queues(&self) -> u16 {
        1
    }

    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        let depth = depth.clamp(1, self.depth);
        let bytes = self.info.max_transfer as usize;
        let slot = || Ok(Slot { buffer: self.dma.arena().alloc_stale(bytes)?, held: None, generation: 0 });
        let slots = (0..depth).map(|_| slot()).collect::<Result<_, Error>>()?;
        if self.shared.opened.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy("the disk's queue was opened before: a hosted disk has one".into()));
        }
        let free = (0..depth).rev().collect();
        let waiting = Vec::with_capacity(depth.into());
        Ok(Box::new(HostedQueue { info: self.info.clone(), shared: self.shared.clone(), slots, free, waiting }))
    }
}

/// A request that the program has.
struct Held {
    token: u64,
    data: Data,
    /// Bytes that it reads, which are copied at its end.
    reads: usize,
}

struct Slot {
    /// Where the device finds the bytes of clients, which it does not reach.
    buffer: DmaBuffer,
    held: Option<Held>,
    /// How often it was used, so that an end which came twice is found.
    generation: u32,
}

struct HostedQueue {
    info: Info,
    shared: Arc<Shared>,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Submitted and not rung.
    waiting: Vec<Wanted>,
}

impl HostedQueue {
    /// Where the program finds the first `len` bytes of `data`, in slot `index`: written there, if it `writes`.
    fn place(&self, index: u16, data: &Data, len: usize, writes: bool) -> Result<u64, Error> {
        let buffer = &self.slots[usize::from(index)].buffer;
        match data {
            Data::None => Ok(0),
            // Its own memory, which only this process allocates.
            Data::Buffer(own) => Ok(own.as_ptr() as u64),
            Data::Segments(list) if writes => list.copy_to(buffer, len).map(|()| buffer.as_ptr() as u64),
            Data::Segments(_) => Ok(buffer.as_ptr() as u64),
            Data::Foreign(_) => Err(Error::Invalid("foreign memory that was not copied".into())),
        }
    }

    /// Takes the end of the request with `tag`.
    fn end(&mut self, tag: u64, errno: u64, done: &mut Completion) -> Result<(), Error> {
        let (index, generation) = (tag as u32, (tag >> 32) as u32);
        let stray = || Error::Protocol(format!("the disk's program ends {tag:#x}, which it does not have"));
        let slot = self.slots.get_mut(index as usize).filter(|slot| slot.generation == generation).ok_or_else(stray)?;
        let Held { token, mut data, reads } = slot.held.take().ok_or_else(stray)?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index as u16);
        let mut result = if errno == 0 { Ok(()) } else { Err(error(errno as i32)) };
        if let (Ok(()), Data::Segments(list)) = (&result, &data)
            && reads > 0
        {
            result = list.copy_from(&slot.buffer, reads).map_err(|_| IoError::Transport);
        }
        done.become_end_of(token, result, &mut data);
        Ok(())
    }
}

/// What an errno of the block layer means.
fn error(errno: i32) -> IoError {
    match errno {
        libc::EOPNOTSUPP => IoError::Unsupported,
        libc::ETIMEDOUT => IoError::Timeout,
        libc::ENOSPC => IoError::NoSpace,
        libc::ENODEV | libc::ENXIO => IoError::Gone,
        libc::ENODATA => IoError::Medium,
        libc::EILSEQ => IoError::Integrity,
        libc::EINVAL => IoError::Invalid,
        libc::EROFS | libc::EPERM => IoError::ReadOnly,
        // EIO says nothing: a medium as often as the way to it.
        _ => IoError::Transport,
    }
}

impl Queue for HostedQueue {
    fn info(&self) -> &Info {
        &self.info
    }

    fn depth(&self) -> u16 {
        // As many as there were asked for.
        self.slots.len() as u16
    }

    fn in_flight(&self) -> u16 {
        (self.slots.len() - self.free.len()) as u16
    }

    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        let Some(&index) = self.free.last() else { return Err(Rejected { error: None, request }) };
        if let Err(error) = self.info.check_uncut(&request) {
            return Err(Rejected { error: Some(error), request });
        }
        let moves = matches!(request.operation, Operation::Read | Operation::Write);
        let len = if moves { request.blocks as usize * self.info.block_size as usize } else { 0 };
        let data = if moves { &request.data } else { &Data::None };
        let writes = request.operation == Operation::Write;
        let Ok(address) = self.place(index, data, len, writes) else {
            return Err(Rejected { error: Some(IoError::Invalid), request });
        };
        self.free.pop();
        let Request { operation, fua, blocks, lba, token, data } = request;
        let slot = &mut self.slots[usize::from(index)];
        slot.held = Some(Held { token, data, reads: if writes { 0 } else { len } });
        let tag = u64::from(index) | u64::from(slot.generation) << 32;
        self.waiting.push(Wanted { tag, operation, fua, blocks, lba, address });
        Ok(())
    }

    fn ring(&mut self) {
        for wanted in self.waiting.drain(..) {
            // There is room for all that the queue holds.
            let _ = self.shared.wanted.push(wanted.encode());
        }
    }

    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        let mut count = 0;
        while count < done.len()
            && let Some([tag, errno]) = self.shared.ended.pop()
        {
            match self.end(tag, errno, &mut done[count]) {
                Ok(()) => count += 1,
                Err(error) if count == 0 => return Err(error),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        Ok(count)
    }
}

impl Drop for HostedQueue {
    fn drop(&mut self) {
        // What the program has it may still move; clients' own memory it never did.
        for slot in &mut self.slots {
            if let Some(Held { data, .. }) = slot.held.take() {
                slot.buffer.abandon();
                if matches!(data, Data::Buffer(_)) {
                    mem::forget(data);
                }
            }
        }
        while self.shared.wanted.pop().is_some() {}
    }
}

impl Source for HostedQueue {
    fn irq(&self) -> Option<&Irq> {
        None
    }

    fn pending(&self) -> bool {
        self.shared.ended.len() > 0
    }

    fn arm(&mut self) -> Result<bool, Error> {
        Ok(!self.pending())
    }

    fn disarm(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// The driver below has time-outs of its own.
    fn tick(&mut self, _: Instant) -> Result<Option<Instant>, Error> {
        Ok(None)
    }

    fn wait(&mut self, _: Deadline) -> Result<bool, Error> {
        // Who ends requests is the caller.
        Ok(self.pending())
    }
}

/// The translation of a disk that has its users' bytes copied: clients' memory is within reach at once, for this process copies.
struct Copied;

impl Iommu for Copied {
    fn map(&self, _: &Pages, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn unmap(&self, _: u64, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0..=u64::MAX]
    }

    fn page_size(&self) -> usize {
        4096
    }
}
