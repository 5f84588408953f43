//! A namespace as a disk.

use std::sync::Arc;

use ring3_class::Saved;
use ring3_class::block::{Disk, Info, Queue};
use ring3_device::Error;
use ring3_device::dma::Dma;

use super::controller::Shared;
use super::queue::QueuePair;
use crate::write_cache::WriteCache;

/// One namespace of a controller. Clones are handles to the same one.
pub struct Namespace {
    pub(super) shared: Arc<Shared>,
    id: u32,
    pub(super) info: Arc<Info>,
    /// `None` without a volatile cache.
    pub(super) cache: Option<Arc<WriteCache>>,
}

impl Namespace {
    pub(super) fn new(shared: Arc<Shared>, id: u32, info: Info) -> Self {
        Self::with_cache(shared, id, info, WriteCache::default())
    }

    /// The same with a `cache` that has a past; it is of no account for a namespace without one.
    pub(super) fn with_cache(shared: Arc<Shared>, id: u32, info: Info, cache: WriteCache) -> Self {
        let cache = info.volatile_cache.then(|| shared.add_cache(id, cache));
        Self { shared, id, info: Arc::new(info), cache }
    }

    /// The namespace id. [NVMe 3.2.1]
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Clone for Namespace {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), id: self.id, info: self.info.clone(), cache: self.cache.clone() }
    }
}

impl Disk for Namespace {
    fn name(&self) -> String {
        format!("{} namespace {}", self.shared.device.name(), self.id)
    }

    fn info(&self) -> &Info {
        &self.info
    }

    fn dma(&self) -> &Dma {
        self.shared.device.dma()
    }

    fn max_queues(&self) -> u16 {
        self.shared.traits.identity.queues
    }

    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        Ok(Box::new(QueuePair::open(self, depth)?))
    }

    fn resume_queue(&self, saved: &Saved) -> Result<Box<dyn Queue>, Error> {
        Ok(Box::new(QueuePair::resume(self, saved)?))
    }
}
