//! A disk for tests of what stands on the class: memory that answers when the doorbell is rung.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ring3_class::block::{Completion, Data, Disk, Info, IoError, Operation, Queue, Rejected, Request};
use ring3_device::dma::{Arena, Dma, Iommu, Memory, Pages, SegmentRules};
use ring3_device::irq::Irq;
use ring3_device::{Deadline, Error};

#[derive(Clone, Copy, PartialEq)]
pub enum Behaviour {
    Good,
    FlipsBits,
    Fails,
}

pub struct MemoryDisk {
    info: Info,
    dma: Dma,
    shared: Arc<Shared>,
}

struct Shared {
    bytes: Mutex<Vec<u8>>,
    behaviour: Behaviour,
    requests: AtomicU64,
    rings: AtomicU64,
}

impl MemoryDisk {
    pub fn new(size: usize, behaviour: Behaviour) -> Self {
        let info = Info {
            model: "memory".into(),
            serial: "1".into(),
            firmware: "1".into(),
            block_size: 512,
            blocks: size as u64 / 512,
            max_transfer: 1 << 20,
            segments: SegmentRules::PAGES,
            optimal_io: 512,
            volatile_cache: false,
            fua: false,
            max_write_zeroes_blocks: 0,
            discard: None,
            read_only: false,
        };
        let dma = Dma::new(Arena::new(Memory::new(4 << 20).unwrap(), 0), Arc::new(NoIommu));
        let (requests, rings) = Default::default();
        Self { info, dma, shared: Arc::new(Shared { bytes: Mutex::new(vec![0; size]), behaviour, requests, rings }) }
    }

    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    pub fn rings(&self) -> u64 {
        self.shared.rings.load(Ordering::Relaxed)
    }
}

struct NoIommu;

impl Iommu for NoIommu {
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

impl Disk for MemoryDisk {
    fn name(&self) -> String {
        "memory".into()
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
        let (queued, done) = Default::default();
        Ok(Box::new(MemoryQueue { info: self.info.clone(), shared: self.shared.clone(), depth, queued, done }))
    }
}

struct MemoryQueue {
    info: Info,
    shared: Arc<Shared>,
    depth: u16,
    queued: VecDeque<Request>,
    done: VecDeque<Completion>,
}

impl MemoryQueue {
    fn serve(&self, request: &Request) -> Result<(), IoError> {
        self.shared.requests.fetch_add(1, Ordering::Relaxed);
        let Data::Buffer(buffer) = &request.data else { return Err(IoError::Invalid) };
        let (start, len) = (request.lba as usize * 512, request.blocks as usize * 512);
        let mut bytes = self.shared.bytes.lock().unwrap();
        let range = bytes.get_mut(start..start + len).ok_or(IoError::OutOfRange)?;
        match (self.shared.behaviour, request.operation) {
            (Behaviour::Fails, _) => return Err(IoError::Medium),
            (_, Operation::Read) => buffer.write(0, range).unwrap(),
            (behaviour, _) => {
                buffer.read(0, range).unwrap();
                range[len / 2] ^= u8::from(behaviour == Behaviour::FlipsBits);
            }
        }
        Ok(())
    }
}

impl Queue for MemoryQueue {
    fn info(&self) -> &Info {
        &self.info
    }
    fn depth(&self) -> u16 {
        self.depth
    }
    fn in_flight(&self) -> u16 {
        (self.queued.len() + self.done.len()) as u16
    }
    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        if self.in_flight() == self.depth {
            return Err(Rejected { error: None, request });
        }
        self.queued.push_back(request);
        Ok(())
    }
    fn ring(&mut self) {
        self.shared.rings.fetch_add(1, Ordering::Relaxed);
        while let Some(request) = self.queued.pop_front() {
            let result = self.serve(&request);
            self.done.push_back(Completion { token: request.token, result, data: request.data });
        }
    }
    fn reap(&mut self) -> Result<Option<Completion>, Error> {
        Ok(self.done.pop_front())
    }
    fn tick(&mut self, _: Instant) -> Result<(), Error> {
        Ok(())
    }
    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.done.is_empty() {
            std::thread::sleep(deadline.remaining());
        }
        Ok(!self.done.is_empty())
    }
    fn irq(&self) -> Option<&Irq> {
        None
    }
    fn arm(&mut self) -> Result<bool, Error> {
        Ok(false)
    }
    fn disarm(&mut self) -> Result<(), Error> {
        Ok(())
    }
}
