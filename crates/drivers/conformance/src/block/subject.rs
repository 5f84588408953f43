//! The disk under test, and the steps that checks are made of.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ring3_device::Deadline;
use ring3_device::dma::DmaBuffer;

use super::{Options, pattern};
pub(super) use crate::step::{Step, ensure, skip};
use ring3_class::block::{Completion, Data, Disk, Info, IoError, Queue, Request, execute, next};

pub(super) struct Subject<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) options: &'a Options,
    writes: AtomicU64,
}

impl<'a> Subject<'a> {
    pub(super) fn new(disk: &'a dyn Disk, options: &'a Options) -> Self {
        Self { disk, options, writes: AtomicU64::new(1) }
    }

    pub(super) fn info(&self) -> &Info {
        self.disk.info()
    }

    pub(super) fn block_size(&self) -> usize {
        self.info().block_size as usize
    }

    /// Most blocks of one transfer here: what the device takes, what the disk has, what the arena
    /// holds several of.
    pub(super) fn max_blocks(&self) -> u32 {
        let memory = self.disk.dma().arena().len() / 16 / self.block_size();
        let blocks =
            (self.info().max_transfer / self.info().block_size).min(memory.min(1 << 20) as u32);
        blocks.min(self.info().blocks.min(1 << 20) as u32).max(1)
    }

    /// `lba`, or the last block of a disk that ends before it.
    pub(super) fn block(&self, lba: u64) -> u64 {
        lba.min(self.info().blocks - 1)
    }

    /// Ends a check for which the disk has fewer than `blocks` blocks.
    pub(super) fn needs(&self, blocks: u64) -> Step {
        match self.info().blocks {
            1 if blocks > 1 => skip(format!("the disk has 1 block, and this takes {blocks}")),
            room if room < blocks => {
                skip(format!("the disk has {room} blocks, and this takes {blocks}"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.options.patience)
    }

    /// A number that no write has had.
    pub(super) fn generation(&self) -> u64 {
        self.writes.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn queue(&self, depth: u16) -> Step<Box<dyn Queue>> {
        let queue = self.disk.open_queue(depth)?;
        ensure!(
            queue.depth() >= 1,
            "a queue of depth {depth} was opened and holds {}",
            queue.depth()
        );
        Ok(queue)
    }

    pub(super) fn buffer(&self, len: usize) -> Step<DmaBuffer> {
        Ok(self.disk.dma().arena().alloc_pages(len)?)
    }

    /// A buffer with the content of `blocks` from `lba` on after write `generation`.
    pub(super) fn filled(&self, lba: u64, blocks: u32, generation: u64) -> Step<DmaBuffer> {
        let bytes = pattern::blocks(lba, blocks, generation, self.block_size());
        let buffer = self.buffer(bytes.len())?;
        buffer.write(0, &bytes)?;
        Ok(buffer)
    }

    /// Does `request`, which must succeed.
    pub(super) fn succeed(&self, queue: &mut dyn Queue, request: Request) -> Step<Data> {
        let what =
            format!("{:?} of {} blocks at {}", request.operation, request.blocks, request.lba);
        let (token, len) = (request.token, request.data.len());
        let done = execute(queue, request, self.deadline())?;
        ensure!(done.token == token, "{what} with token {token} ended with token {}", done.token);
        ensure!(done.data.len() == len, "{what} lent {len} bytes and got {} back", done.data.len());
        match done.result {
            Ok(()) => Ok(done.data),
            Err(error) => Err(format!("{what}: {error}").into()),
        }
    }

    /// Does `request`, which must fail and leave the queue usable.
    pub(super) fn fail(&self, queue: &mut dyn Queue, request: Request) -> Step<IoError> {
        let what =
            format!("{:?} of {} blocks at {}", request.operation, request.blocks, request.lba);
        let len = request.data.len();
        let Completion { result, data, .. } = execute(queue, request, self.deadline())?;
        ensure!(data.len() == len, "{what} lent {len} bytes and got {} back", data.len());
        match result {
            Err(error) => Ok(error),
            Ok(()) => Err(format!("{what} succeeded").into()),
        }
    }

    /// Writes blocks; returns the number of the write.
    pub(super) fn write(&self, queue: &mut dyn Queue, lba: u64, blocks: u32) -> Step<u64> {
        let generation = self.generation();
        let data = self.filled(lba, blocks, generation)?;
        self.succeed(queue, Request::write(generation, lba, blocks, data))?;
        Ok(generation)
    }

    /// Reads blocks, into a buffer that held other bytes and whose end must stay as it is.
    pub(super) fn read(&self, queue: &mut dyn Queue, lba: u64, blocks: u32) -> Step<Vec<u8>> {
        const GUARD: u8 = 0xa5;
        let len = blocks as usize * self.block_size();
        let buffer = self.buffer(len + 64)?;
        buffer.fill(GUARD);
        let data = self.succeed(queue, Request::read(lba, lba, blocks, buffer))?;
        let Some(buffer) = data.into_buffer() else {
            return Err("a buffer was lent and none came back".to_owned().into());
        };
        let mut bytes = vec![0; len + 64];
        buffer.read(0, &mut bytes)?;
        ensure!(
            bytes[len..].iter().all(|&byte| byte == GUARD),
            "a read of {len} bytes wrote beyond them"
        );
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Reads blocks, which must be as write `generation` left them.
    pub(super) fn verify(
        &self,
        queue: &mut dyn Queue,
        lba: u64,
        blocks: u32,
        generation: u64,
    ) -> Step {
        let bytes = self.read(queue, lba, blocks)?;
        Ok(pattern::verify(&bytes, lba, generation, self.block_size())?)
    }

    /// Takes the next end of a request, which must have succeeded.
    pub(super) fn take(&self, queue: &mut dyn Queue) -> Step<Completion> {
        let done = next(queue, self.deadline())?;
        match done.result {
            Ok(()) => Ok(done),
            Err(error) => Err(format!("request {}: {error}", done.token).into()),
        }
    }

    /// Nothing may come out of a queue that has nothing in flight.
    pub(super) fn silent(&self, queue: &mut dyn Queue) -> Step {
        ensure!(
            queue.in_flight() == 0,
            "{} requests are in flight after all have ended",
            queue.in_flight()
        );
        queue.wait(Deadline::after(Duration::from_millis(5)))?;
        match queue.reap_one()? {
            None => Ok(()),
            Some(done) => {
                Err(format!("request {} ended, but was not in flight", done.token).into())
            }
        }
    }
}
