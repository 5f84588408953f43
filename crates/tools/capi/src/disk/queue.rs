//! The disk as the server has it, and its one queue.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use ring3_class::block::{
    Completion, Data, Disk, Info, IoError, Operation, Queue, Rejected, Request,
};
use ring3_class::dma::{Arena, Dma, DmaBuffer, NoDevice};
use ring3_class::irq::Irq;
use ring3_class::wait::{Source, WaitStats, Waiter};
use ring3_class::{Deadline, Error};

use super::lent::Lent;
use super::shared::{DiskShared, Wanted};

pub(super) struct HostedDisk {
    info: Info,
    dma: Dma,
    depth: u16,
    shared: Arc<DiskShared>,
}

impl HostedDisk {
    /// Of which the program takes `depth` requests at once, whose bytes lie in `memory`, which its
    /// device reaches.
    pub(super) fn new(info: Info, depth: u16, memory: Arena) -> Result<Self, Error> {
        let size = info.block_size;
        if !size.is_power_of_two()
            || size < 512
            || info.blocks == 0
            || info.max_transfer < size
            || depth == 0
        {
            return Err(Error::Invalid(format!(
                "{}: a disk of {} blocks of {size} bytes, of which {} move at once and {depth} \
                requests are taken",
                info.model, info.blocks, info.max_transfer
            )));
        }
        // One more for what the server sets aside.
        let wanted = (usize::from(depth) + 1) * info.max_transfer.next_multiple_of(4096) as usize;
        if memory.free_bytes() < wanted {
            return Err(Error::NoMemory { wanted, free: memory.free_bytes(), total: memory.len() });
        }
        Ok(Self {
            info,
            // This process copies.
            dma: Dma::new(memory, Arc::new(NoDevice { refuses_huge: true })),
            depth,
            shared: Arc::new(DiskShared::new(depth)),
        })
    }

    pub(super) fn shared(&self) -> &Arc<DiskShared> {
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
        let lent = self.shared.lent.get();
        let buffer = || self.dma.arena().alloc_uninitialised(bytes);
        // Whoever has it lent brings memory of the device's: the export's buffers.
        let slot = || {
            Ok(HostedSlot {
                buffer: lent.is_none().then(buffer).transpose()?,
                held: None,
                generation: 0,
            })
        };
        let slots = (0..depth).map(|_| slot()).collect::<Result<_, Error>>()?;
        if self.shared.opened.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy(
                "the disk's queue was opened before: a hosted disk has one".into(),
            ));
        }
        let waiter = lent.map(|lent| lent.ended.waiter());
        let free = (0..depth).rev().collect();
        let waiting = Vec::with_capacity(depth.into());
        Ok(Box::new(HostedQueue {
            info: self.info.clone(),
            shared: self.shared.clone(),
            slots,
            free,
            waiting,
            waiter,
        }))
    }
}

/// A request that the program has.
struct TakenRequest {
    token: u64,
    data: Data,
    /// Bytes that it reads, which are copied at its end.
    reads: usize,
}

struct HostedSlot {
    /// Where the device finds the bytes of clients, which it does not reach; `None` if there are no
    /// such clients.
    buffer: Option<DmaBuffer>,
    held: Option<TakenRequest>,
    /// How often it was used, so that an end which came twice is found.
    generation: u32,
}

struct HostedQueue {
    info: Info,
    shared: Arc<DiskShared>,
    slots: Vec<HostedSlot>,
    free: Vec<u16>,
    /// Submitted and not rung.
    waiting: Vec<Wanted>,
    /// Of a disk that is lent.
    waiter: Option<Waiter>,
}

impl HostedQueue {
    /// Where the program finds the first `len` bytes of `data`, in slot `index`: written there, if
    /// it `writes`.
    fn place(&self, index: u16, data: &Data, len: usize, writes: bool) -> Result<u64, Error> {
        let buffer = || {
            let buffer = self.slots[usize::from(index)].buffer.as_ref();
            buffer.ok_or_else(|| Error::Invalid("memory that is not of the device's".into()))
        };
        match data {
            Data::None => Ok(0),
            // Its own memory, which only this process allocates.
            Data::Buffer(own) => Ok(own.as_ptr() as u64),
            Data::Segments(list) if writes => {
                let buffer = buffer()?;
                list.copy_to(buffer, len).map(|()| buffer.as_ptr() as u64)
            }
            Data::Segments(_) => Ok(buffer()?.as_ptr() as u64),
            Data::Foreign(_) => Err(Error::Invalid("foreign memory that was not copied".into())),
        }
    }

    /// Takes the end of the request with `tag`.
    fn end(&mut self, tag: u64, errno: u64, done: &mut Completion) -> Result<(), Error> {
        let (index, generation) = (tag as u32, (tag >> 32) as u32);
        let stray =
            || Error::Protocol(format!("the disk's program ends {tag:#x}, which it does not have"));
        let slot = self
            .slots
            .get_mut(index as usize)
            .filter(|slot| slot.generation == generation)
            .ok_or_else(stray)?;
        let TakenRequest { token, mut data, reads } = slot.held.take().ok_or_else(stray)?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index as u16);
        let mut result = if errno == 0 { Ok(()) } else { Err(error(errno as i32)) };
        if let (Ok(()), Data::Segments(list), Some(buffer)) = (&result, &data, &slot.buffer)
            && reads > 0
        {
            result = list.copy_from(buffer, reads).map_err(|_| IoError::Transport);
        }
        if let (Err(IoError::Gone), Some(lent)) = (&result, self.shared.lent.get()) {
            lent.lose();
        }
        done.into_completion_of(token, result, &mut data);
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
        slot.held = Some(TakenRequest { token, data, reads: if writes { 0 } else { len } });
        let tag = u64::from(index) | u64::from(slot.generation) << 32;
        self.waiting.push(Wanted { tag, operation, fua, blocks, lba, address });
        Ok(())
    }

    fn ring(&mut self) {
        for wanted in self.waiting.drain(..) {
            // There is room for all that the queue holds.
            let _ = self.shared.wanted.push(wanted.encode());
        }
        self.shared.lent.get().into_iter().for_each(Lent::call);
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
            if let Some(TakenRequest { data, .. }) = slot.held.take() {
                slot.buffer.iter_mut().for_each(DmaBuffer::abandon);
                if matches!(data, Data::Buffer(_)) {
                    mem::forget(data);
                }
            }
        }
        // Of a disk that is lent the program pops, in another thread, and the process ends.
        if self.shared.lent.get().is_none() {
            while self.shared.wanted.pop().is_some() {}
        }
        if self.free.len() == self.slots.len() {
            self.shared.opened.store(false, Ordering::Release);
        }
    }
}

impl Source for HostedQueue {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.as_ref()?.irq()
    }

    fn pending(&self) -> bool {
        self.shared.ended.len() > 0
    }

    fn arm(&mut self) -> Result<bool, Error> {
        let (Some(lent), Some(waiter)) = (self.shared.lent.get(), &mut self.waiter) else {
            return Ok(!self.pending());
        };
        lent.ended.arm(true);
        // Between that and the look: see [`Lent::wake_waiters`].
        fence(Ordering::SeqCst);
        let ended = &self.shared.ended;
        waiter.arm(|| ended.len() > 0)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        let (Some(lent), Some(waiter)) = (self.shared.lent.get(), &mut self.waiter) else {
            return Ok(());
        };
        lent.ended.arm(false);
        waiter.disarm()
    }

    /// The driver below has time-outs of its own.
    fn tick(&mut self, _: Instant) -> Result<Option<Instant>, Error> {
        match self.shared.lent.get() {
            Some(lent) if lent.is_gone() => Err(Error::Gone),
            _ => Ok(None),
        }
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        // Who ends requests of a disk that is not lent is the caller.
        let (Some(lent), Some(waiter)) = (self.shared.lent.get(), &mut self.waiter) else {
            return Ok(self.pending());
        };
        lent.ended.arm(true);
        fence(Ordering::SeqCst);
        let ended = &self.shared.ended;
        waiter.wait(deadline, || ended.len() > 0)
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.as_ref().map(Waiter::stats).unwrap_or_default()
    }
}
