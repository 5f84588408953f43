//! A disk for tests of what stands on the class: the class's own disk of memory, watched, and
//! broken if asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ring3_class::block::{
    Completion, Data, Disk, Info, IoError, Operation, Queue, Ram, Rejected, Request,
};
use ring3_device::dma::Dma;
use ring3_device::irq::Irq;
use ring3_device::wait::Source;
use ring3_device::{Deadline, Error};

#[derive(Clone, Copy, PartialEq)]
pub enum Behaviour {
    Good,
    FlipsBits,
    Fails,
}

pub struct MemoryDisk {
    ram: Ram,
    behaviour: Behaviour,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    requests: AtomicU64,
    rings: AtomicU64,
}

impl MemoryDisk {
    pub fn new(size: usize, behaviour: Behaviour) -> Self {
        Self {
            ram: Ram::new(512, size as u64 / 512, 4 << 20).unwrap(),
            behaviour,
            counts: Arc::default(),
        }
    }

    pub fn requests(&self) -> u64 {
        self.counts.requests.load(Ordering::Relaxed)
    }

    pub fn rings(&self) -> u64 {
        self.counts.rings.load(Ordering::Relaxed)
    }
}

impl Disk for MemoryDisk {
    fn name(&self) -> String {
        self.ram.name()
    }
    fn info(&self) -> &Info {
        self.ram.info()
    }
    fn dma(&self) -> &Dma {
        self.ram.dma()
    }
    fn max_queues(&self) -> u16 {
        1
    }
    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        let inner = self.ram.open_queue(depth)?;
        Ok(Box::new(Watched { inner, behaviour: self.behaviour, counts: self.counts.clone() }))
    }
}

struct Watched {
    inner: Box<dyn Queue>,
    behaviour: Behaviour,
    counts: Arc<Counts>,
}

impl Queue for Watched {
    fn info(&self) -> &Info {
        self.inner.info()
    }
    fn depth(&self) -> u16 {
        self.inner.depth()
    }
    fn in_flight(&self) -> u16 {
        self.inner.in_flight()
    }
    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        if let (Behaviour::FlipsBits, Operation::Write, Data::Buffer(buffer)) =
            (self.behaviour, request.operation, &request.data)
        {
            let mut byte = [0];
            buffer.read(0, &mut byte).unwrap();
            buffer.write(0, &[byte[0] ^ 1]).unwrap();
        }
        self.inner.submit(request)?;
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn ring(&mut self) {
        self.counts.rings.fetch_add(1, Ordering::Relaxed);
        self.inner.ring();
    }
    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        let count = self.inner.reap(done)?;
        if self.behaviour == Behaviour::Fails {
            done[..count]
                .iter_mut()
                .for_each(|completion| completion.result = Err(IoError::Medium));
        }
        Ok(count)
    }
}

impl Source for Watched {
    fn irq(&self) -> Option<&Irq> {
        self.inner.irq()
    }
    fn pending(&self) -> bool {
        self.inner.pending()
    }
    fn arm(&mut self) -> Result<bool, Error> {
        self.inner.arm()
    }
    fn disarm(&mut self) -> Result<(), Error> {
        self.inner.disarm()
    }
    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        self.inner.tick(now)
    }
    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        self.inner.wait(deadline)
    }
}
