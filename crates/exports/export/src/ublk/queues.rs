//! The disk's side of an export: class queues, and the buffers of their tags.

use std::sync::Arc;

use ring3_class::Saved;
use ring3_class::block::{Disk, Queue};
use ring3_class::dma::DmaBuffer;

use super::{Error, Regions, uapi};

/// The queues of a disk, before the kernel's device is there.
pub struct Queues {
    pub(crate) disk: String,
    pub(crate) class: Vec<Box<dyn Queue>>,
    pub(crate) buffers: Vec<Vec<DmaBuffer>>,
    pub(crate) regions: Option<Arc<Regions>>,
}

impl Queues {
    /// Opens `count` of them for `depth` requests each, of which the disk may be able to do fewer
    /// at once.
    pub fn open(disk: &dyn Disk, count: u16, depth: u16) -> Result<Self, Error> {
        Self::resume(disk, &[], count, depth)
    }

    /// As [`open`](Self::open), and those that were `saved` are resumed in place of new ones.
    pub fn resume(disk: &dyn Disk, saved: &[Saved], count: u16, depth: u16) -> Result<Self, Error> {
        let failed = |cause| Error::Driver { disk: disk.name(), cause };
        let open = |place: u16| match saved.get(usize::from(place)) {
            Some(saved) => disk.resume_queue(saved),
            None => disk.open_queue(depth),
        };
        let class = (0..count).map(open).collect::<Result<_, _>>().map_err(failed)?;
        Ok(Self { disk: disk.name(), class, buffers: Vec::new(), regions: None })
    }

    /// How many there are.
    pub fn count(&self) -> u16 {
        self.class.len() as u16
    }

    /// Requests that each can do at once.
    pub fn depth(&self) -> u16 {
        self.class.iter().map(|queue| queue.depth()).min().unwrap_or(1).min(uapi::MAX_QUEUE_DEPTH)
    }

    /// Drops all but the first `count`.
    pub fn truncate(&mut self, count: u16) {
        self.class.truncate(count.into());
    }

    /// Their requests may lie in memory of `regions`, too.
    pub fn share(&mut self, regions: Arc<Regions>) {
        self.regions = Some(regions);
    }

    /// Gives each of the `depth` tags of each queue a buffer of `bytes`, from the arena of the
    /// disk's device.
    pub fn allocate(&mut self, disk: &dyn Disk, depth: u16, bytes: u32) -> Result<(), Error> {
        let failed = |cause| Error::Driver { disk: self.disk.clone(), cause };
        // What a request has not moved, the kernel does not take out of its buffer.
        let one = || disk.dma().arena().alloc_uninitialised(bytes as usize).map_err(failed);
        self.buffers = self
            .class
            .iter()
            .map(|_| (0..depth).map(|_| one()).collect())
            .collect::<Result<_, _>>()?;
        Ok(())
    }
}
