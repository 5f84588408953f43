//! A namespace as a disk.

use std::sync::{Arc, OnceLock};

use ring3_class::Saved;
use ring3_class::block::{Disk, Info, Queue};
use ring3_device::Error;
use ring3_device::dma::Dma;

use super::controller::NvmeShared;
use super::protection::Protection;
use super::queue::QueuePair;
use crate::disk::write_cache::WriteCache;
use crate::lifetime::lock;

/// One namespace of a controller. Clones are handles to the same one.
#[derive(Clone)]
pub struct Namespace {
    pub(super) shared: Arc<NvmeShared>,
    pub(super) unit: Arc<Unit>,
}

/// What a namespace is, as the controller describes it.
pub(super) struct Description {
    pub(super) info: Info,
    pub(super) unique: UniqueId,
    pub(super) protection: Protection,
}

/// What a namespace's disk, its queues and the controller share.
pub(super) struct Unit {
    pub(super) id: u32,
    pub(super) info: Arc<Info>,
    pub(super) unique: UniqueId,
    pub(super) protection: Protection,
    /// `None` without a volatile cache.
    pub(super) cache: Option<Arc<WriteCache>>,
    /// Why it is not used any more: what is there now is another medium, or none.
    end: OnceLock<String>,
}

/// NGUID and EUI64, each zero if the namespace has none: what no other namespace of the world has.
/// [NVMe-NVM 4.1.5.1]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct UniqueId(pub(super) [u8; 24]);

impl UniqueId {
    /// Whether there is one at all.
    pub(super) fn is_known(self) -> bool {
        self != Self::default()
    }
}

impl Unit {
    pub(super) fn new(id: u32, what: Description, cache: Option<WriteCache>) -> Arc<Self> {
        let Description { info, unique, protection } = what;
        let cache = cache.filter(|_| info.volatile_cache).map(Arc::new);
        let (info, end) = (Arc::new(info), OnceLock::new());
        Arc::new(Self { id, info, unique, protection, cache, end })
    }

    /// It is not used any more, because of `why`. Only the first reason counts.
    pub(super) fn end(&self, why: String) {
        let _ = self.end.set(why);
    }

    /// Whether it is not used any more.
    pub(super) fn is_over(&self) -> bool {
        self.end.get().is_some()
    }

    /// Fails if it is not used any more.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.end.get().map_or(Ok(()), |why| {
            Err(Error::Fatal(format!("namespace {}: {why}; open the controller anew", self.id)))
        })
    }
}

impl Namespace {
    pub(super) fn new(shared: Arc<NvmeShared>, unit: Arc<Unit>) -> Self {
        lock(&shared.members).namespaces.push(unit.clone());
        Self { shared, unit }
    }

    /// The namespace id. [NVMe 3.2.1]
    pub fn id(&self) -> u32 {
        self.unit.id
    }
}

impl Disk for Namespace {
    fn name(&self) -> String {
        format!("{} namespace {}", self.shared.device.name(), self.id())
    }

    fn identity(&self) -> String {
        let Info { model, serial, .. } = &*self.unit.info;
        let unique: String = self.unit.unique.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{model} {serial} namespace {} {unique}", self.id())
    }

    fn info(&self) -> &Info {
        &self.unit.info
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
