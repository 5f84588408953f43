//! A disk in the memory of this process, for examples and tests without a device.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ring3_device::dma::{Arena, Dma, Iommu, Pages, Region, Segment, SegmentRules};
use ring3_device::irq::Irq;
use ring3_device::wait::Source;
use ring3_device::{Deadline, Error};

use super::{
    Completion, Discard, Disk, Info, IoError, Operation, Queue, Rejected, Request, reap_ready,
};

/// Does what a device does when it is rung: reaches data by device address and nothing else.
pub struct Ram {
    info: Info,
    dma: Dma,
    medium: Arc<Medium>,
}

/// The bytes of the disk, and the way to the bytes of requests.
struct Medium {
    bytes: Mutex<Vec<u8>>,
    table: Arc<Table>,
    block_size: usize,
}

/// What is mapped: first device address and pages.
#[derive(Default)]
struct Table {
    mapped: Mutex<Vec<(u64, Pages)>>,
}

/// The device address of the arena.
const ARENA: u64 = 0x10_0000;

impl Ram {
    /// Of `blocks` zeroed blocks of `block_size` bytes, with an arena of `arena` bytes for its
    /// users' buffers.
    pub fn new(block_size: u32, blocks: u64, arena: usize) -> Result<Self, Error> {
        let info = Info {
            model: "ring3 ram".into(),
            serial: "0".into(),
            firmware: String::new(),
            block_size,
            blocks,
            max_transfer: 128 << 10,
            segments: SegmentRules::PAGES,
            optimal_io: block_size,
            boundary: 0,
            volatile_cache: false,
            fua: true,
            max_write_zeroes_blocks: 1024,
            discard: Some(Discard { max_blocks: 1024, granularity: block_size }),
            read_only: false,
            rotates: false,
        };
        let len = usize::try_from(info.capacity())
            .map_err(|_| Error::Invalid(format!("a disk of {} bytes", info.capacity())))?;
        let (memory, table) = (Arc::new(Region::new(arena)?), Arc::new(Table::default()));
        table.map(&memory.pages()?, ARENA)?;
        let medium = Medium {
            bytes: Mutex::new(vec![0; len]),
            table: table.clone(),
            block_size: block_size as usize,
        };
        Ok(Self { info, dma: Dma::new(Arena::new(memory, ARENA), table), medium: Arc::new(medium) })
    }

    /// How many ranges its device can reach, the arena among them.
    pub fn mappings(&self) -> usize {
        self.medium.table.mapped().len()
    }

    /// The same disk with other limits, to see what the layers above make of them.
    pub fn with_info(mut self, change: impl FnOnce(&mut Info)) -> Self {
        change(&mut self.info);
        self
    }
}

impl Table {
    fn mapped(&self) -> MutexGuard<'_, Vec<(u64, Pages)>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `step` on the pages that hold all of `segment`, with the offset in them.
    fn reach(
        &self,
        segment: Segment,
        step: impl FnOnce(&Pages, usize) -> Result<(), Error>,
    ) -> Result<(), IoError> {
        let (mapped, end) = (self.mapped(), segment.iova.saturating_add(segment.len.into()));
        let found =
            mapped.iter().find(|(at, pages)| *at <= segment.iova && end <= at + pages.len() as u64);
        let (at, pages) = found.ok_or(IoError::Transport)?;
        step(pages, (segment.iova - at) as usize).map_err(|_| IoError::Transport)
    }
}

impl Iommu for Table {
    fn map(&self, pages: &Pages, iova: u64) -> Result<(), Error> {
        self.mapped().push((iova, pages.clone()));
        Ok(())
    }

    fn unmap(&self, iova: u64, _: usize) -> Result<(), Error> {
        self.mapped().retain(|(at, _)| *at != iova);
        Ok(())
    }

    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0..=u64::MAX]
    }

    fn page_size(&self) -> usize {
        4096
    }
}

impl Medium {
    fn run(&self, info: &Info, request: &Request) -> Result<(), IoError> {
        // Nobody has checked the blocks that a flush may name: it has none.
        if request.operation == Operation::Flush {
            return Ok(());
        }
        let (start, len) =
            (request.lba as usize * self.block_size, request.blocks as usize * self.block_size);
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        // `submit` has proved that the blocks are on the disk.
        let medium = &mut bytes[start..start + len];
        match request.operation {
            Operation::Read | Operation::Write => self.transfer(info, request, medium),
            Operation::WriteZeroes | Operation::Discard => {
                medium.fill(0);
                Ok(())
            }
            Operation::Flush => Ok(()),
        }
    }

    fn transfer(
        &self,
        info: &Info,
        request: &Request,
        mut medium: &mut [u8],
    ) -> Result<(), IoError> {
        if !info.segments.allow(&request.data.segments(medium.len()).collect::<Vec<_>>()) {
            return Err(IoError::Invalid);
        }
        for segment in request.data.segments(medium.len()) {
            let (piece, rest) = medium.split_at_mut(segment.len as usize);
            self.table.reach(segment, |pages, offset| match request.operation {
                Operation::Read => pages.write(offset, piece),
                _ => pages.read(offset, piece),
            })?;
            medium = rest;
        }
        if medium.is_empty() { Ok(()) } else { Err(IoError::Invalid) }
    }
}

impl Disk for Ram {
    fn name(&self) -> String {
        "ram".into()
    }

    fn info(&self) -> &Info {
        &self.info
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }

    fn max_queues(&self) -> u16 {
        u16::MAX
    }

    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        let queue = VecDeque::with_capacity(depth.into());
        Ok(Box::new(RamQueue {
            info: self.info.clone(),
            medium: self.medium.clone(),
            depth,
            queue,
            done: VecDeque::new(),
        }))
    }
}

struct RamQueue {
    info: Info,
    medium: Arc<Medium>,
    depth: u16,
    /// Submitted and not rung.
    queue: VecDeque<Request>,
    done: VecDeque<Completion>,
}

impl Queue for RamQueue {
    fn info(&self) -> &Info {
        &self.info
    }

    fn depth(&self) -> u16 {
        self.depth
    }

    fn in_flight(&self) -> u16 {
        // Never more than the depth.
        (self.queue.len() + self.done.len()) as u16
    }

    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        if self.in_flight() >= self.depth {
            return Err(Rejected { error: None, request });
        }
        if let Err(error) = self.info.check_uncut(&request) {
            return Err(Rejected { error: Some(error), request });
        }
        self.queue.push_back(request);
        Ok(())
    }

    fn ring(&mut self) {
        // Last in, first out: requests of a queue may complete in any order, and here they do.
        while let Some(request) = self.queue.pop_back() {
            let result = self.medium.run(&self.info, &request).map(drop);
            self.done.push_back(Completion { token: request.token, result, data: request.data });
        }
    }

    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        Ok(reap_ready(done, &mut self.done))
    }
}

impl Source for RamQueue {
    fn irq(&self) -> Option<&Irq> {
        None
    }

    fn pending(&self) -> bool {
        !self.done.is_empty()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn tick(&mut self, _: Instant) -> Result<Option<Instant>, Error> {
        Ok(None)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.done.is_empty() {
            // Only the caller could ring, and it is here.
            std::thread::sleep(deadline.remaining());
        }
        Ok(!self.done.is_empty())
    }
}
