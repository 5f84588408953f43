//! The disk.

use std::sync::Arc;
use std::time::Duration;

use ring3_class::Saved;
use ring3_class::block::{Info, Queue};
use ring3_device::dma::Dma;
use ring3_device::{Device, Error};
use ring3_spec::virtio::blk;

use super::super::Layout;
use super::super::transport::Transport;
use super::super::vectors::vectors;
use super::device::VirtioBlkShared;
use super::driver::DRIVER;
use super::identity::{self, WANTED, identify};
use super::queue::RequestQueue;
use crate::Interrupts;
use crate::disk::Controller as _;
use crate::lifetime::stop_function;

/// Most entries of a queue.
const MAX_ENTRIES: u16 = 256;

/// How a disk is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Options {
    /// How it signals.
    pub interrupts: Interrupts,
    /// Most queues, at least 1; the device may have fewer.
    pub max_queues: u16,
    /// Most bytes of one request, if less than the device's own limit is wanted.
    pub max_transfer: Option<u32>,
    /// How long a request may take before the device is reset.
    pub timeout: Duration,
    /// How long a wait polls at most before it sleeps.
    pub poll: Duration,
    /// How its queues lie in memory.
    pub layout: Layout,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interrupts: Interrupts::Auto,
            max_queues: 16,
            max_transfer: None,
            // As long as the kernel's drivers of disks have it by default.
            timeout: Duration::from_secs(30),
            poll: ring3_device::wait::DEFAULT_POLL,
            layout: Layout::Auto,
        }
    }
}

/// A virtio disk.
///
/// Dropping the last of it and its queues resets the device.
pub struct Disk {
    pub(super) info: Arc<Info>,
    pub(super) shared: Arc<VirtioBlkShared>,
}

impl Disk {
    /// Takes `device` over: resets it, asks what it is, and starts it with all of its queues.
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self, Error> {
        DRIVER.check(&*device)?;
        let transport = Transport::find(device, blk::CONFIG_LEAST, options.layout)?;
        let device = transport.device.clone();
        transport
            .reset()
            .or_else(|error| stop_function(&*device, error).map_err(|unstopped| unstopped.error))?;
        let features = transport.negotiate(WANTED)?;
        let entries = transport.queue_size(0).min(MAX_ENTRIES);
        if entries < 4 {
            return Err(Error::Protocol(format!(
                "{}: a queue of {entries} entries",
                device.name()
            )));
        }
        // Split queues have a power of two of them. [virtio 2.7]
        let entries = 1 << entries.ilog2();
        let (info, shape) = identify(&transport, features, entries, options.max_transfer)?;
        let queues = identity::queues(&transport, features).min(options.max_queues.max(1));
        let vectors = vectors(&*device, options.interrupts, 2, queues.saturating_add(1))?;
        let queues =
            vectors.as_ref().map_or(queues, |vectors| queues.min(vectors.len() as u16 - 1));
        transport.reset()?;
        let shared =
            VirtioBlkShared::new((transport, features), options, (shape, info), (vectors, queues))?;
        Ok(Self { info: shared.info.clone(), shared: Arc::new(shared) })
    }

    /// What has changed of it since the last call, in words. A disk that has other blocks, or
    /// fewer, is reset: it does not come back from that.
    pub fn poll_changes(&self) -> Result<Vec<String>, Error> {
        let shared = &self.shared;
        let generation = shared.lifetime.generation();
        let Some(now) = shared.changed()? else { return Ok(Vec::new()) };
        if now.block_size != self.info.block_size || now.blocks < self.info.blocks {
            shared.reset(generation, "it is not the disk that it was")?;
        }
        let (blocks, name) = (now.blocks, shared.transport.device.name());
        Ok(vec![format!(
            "{name} has grown to {blocks} blocks; its disk keeps its size until the driver is \
            restarted (on Linux before 6.16: until it is stopped)"
        )])
    }

    /// Resets the device. Queues take their requests back and repeat them.
    pub fn reset(&self) -> Result<(), Error> {
        self.shared.reset(self.shared.lifetime.generation(), "it was asked for")
    }
}

impl ring3_class::block::Disk for Disk {
    fn name(&self) -> String {
        self.shared.transport.device.name().into()
    }

    fn info(&self) -> &Info {
        &self.info
    }

    fn dma(&self) -> &Dma {
        self.shared.transport.device.dma()
    }

    fn max_queues(&self) -> u16 {
        self.shared.queues()
    }

    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        Ok(Box::new(RequestQueue::open(self.shared.clone(), self.info.clone(), depth)?))
    }

    fn resume_queue(&self, saved: &Saved) -> Result<Box<dyn Queue>, Error> {
        Ok(Box::new(RequestQueue::resume(&self.shared, &self.info, saved)?))
    }
}
