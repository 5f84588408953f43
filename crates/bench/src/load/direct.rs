//! A class queue in this process as the target.

use std::time::{Duration, Instant};

use ring3_class::block::{Data, Disk, Queue, Rejected, Request};
use ring3_device::Deadline;
use ring3_device::dma::DmaBuffer;

use super::{Done, Target};
use crate::Error;

/// How long one wait may last.
const WAIT: Duration = Duration::from_millis(100);

/// One queue of a disk, with a buffer in the device's memory for each slot.
pub struct Direct {
    name: String,
    queue: Box<dyn Queue>,
    /// Each slot's buffer; `None` while it is lent to the device.
    buffers: Vec<Option<DmaBuffer>>,
    block_shift: u32,
    capacity: u64,
    /// Made anew only when it has passed, so that a wait costs no clock read here.
    deadline: Deadline,
}

impl Direct {
    /// Opens a queue of `depth` and allocates buffers of `bytes` each.
    pub fn open(disk: &dyn Disk, depth: u16, bytes: u32) -> Result<Self, Error> {
        let (name, info) = (disk.name(), disk.info());
        if !bytes.is_multiple_of(info.block_size) || bytes > info.max_transfer {
            let (block, most) = (info.block_size, info.max_transfer);
            let why = format!("requests of {bytes} bytes: they must be multiples of {block} and at most {most}");
            return Err(Error::Invalid(format!("{name}: {why}")));
        }
        let failed = |source| Error::Device { name: name.clone(), source };
        let queue = disk.open_queue(depth).map_err(failed)?;
        let buffers = (0..depth).map(|_| disk.dma().arena().alloc_pages(bytes as usize).map(Some));
        let buffers = buffers.collect::<Result<_, _>>().map_err(failed)?;
        let (block_shift, capacity) = (info.block_size.trailing_zeros(), info.capacity());
        Ok(Self { buffers, queue, block_shift, capacity, deadline: Deadline::after(WAIT), name })
    }

    fn failed(&self, source: ring3_device::Error) -> Error {
        Error::Device { name: self.name.clone(), source }
    }

    fn no_buffer(&self, slot: u16) -> Error {
        Error::Invalid(format!("{}: slot {slot} has no buffer: it is in flight", self.name))
    }

    fn rejected(&mut self, slot: u16, rejected: Rejected) -> Error {
        if let Some(place) = self.buffers.get_mut(usize::from(slot)) {
            *place = rejected.request.data.into_buffer();
        }
        let why = rejected.error.map_or("the queue is full".into(), |error| error.to_string());
        Error::Invalid(format!("{}: a request was refused: {why}", self.name))
    }
}

impl Target for Direct {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn depth(&self) -> u16 {
        self.queue.depth().min(self.buffers.len() as u16)
    }

    #[inline]
    fn queue(&mut self, slot: u16, write: bool, offset: u64, len: u32) -> Result<(), Error> {
        let Some(buffer) = self.buffers.get_mut(usize::from(slot)).and_then(Option::take) else {
            return Err(self.no_buffer(slot));
        };
        let (lba, blocks) = (offset >> self.block_shift, len >> self.block_shift);
        let request = match write {
            true => Request::write(u64::from(slot), lba, blocks, buffer),
            false => Request::read(u64::from(slot), lba, blocks, buffer),
        };
        self.queue.submit(request).map_err(|rejected| self.rejected(slot, rejected))
    }

    #[inline]
    fn proceed(&mut self) -> Result<(), Error> {
        self.queue.ring();
        if !self.queue.wait(self.deadline).map_err(|error| self.failed(error))? {
            self.deadline = Deadline::after(WAIT);
            self.tick()?;
        }
        Ok(())
    }

    #[inline]
    fn finished(&mut self) -> Result<Option<Done>, Error> {
        let Some(completion) = self.queue.reap().map_err(|error| self.failed(error))? else {
            return Ok(None);
        };
        let slot = completion.token as u16;
        if let (Some(place), Data::Buffer(buffer)) = (self.buffers.get_mut(usize::from(slot)), completion.data) {
            *place = Some(buffer);
        }
        Ok(Some(Done { slot, ok: completion.result.is_ok() }))
    }

    fn tick(&mut self) -> Result<(), Error> {
        self.queue.tick(Instant::now()).map_err(|error| self.failed(error))
    }

    fn fill(&mut self, slot: u16, bytes: &[u8]) -> Result<(), Error> {
        let buffer = self.buffers.get(usize::from(slot)).and_then(Option::as_ref);
        buffer.ok_or_else(|| self.no_buffer(slot))?.write(0, bytes).map_err(|error| self.failed(error))
    }

    fn copy_out(&self, slot: u16, bytes: &mut [u8]) -> Result<(), Error> {
        let buffer = self.buffers.get(usize::from(slot)).and_then(Option::as_ref);
        buffer.ok_or_else(|| self.no_buffer(slot))?.read(0, bytes).map_err(|error| self.failed(error))
    }
}
