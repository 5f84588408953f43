//! A drive as a disk.

use std::sync::Arc;

use ring3_class::Saved;
use ring3_class::block::{Disk, Info, Queue};
use ring3_device::Error;
use ring3_device::dma::Dma;

use super::super::{Identity, Level};
use super::controller::{AhciShared, DiskPort};
use super::queue::PortQueue;

/// The drive at one port. Clones are handles to the same one.
pub struct Drive {
    pub(super) shared: Arc<AhciShared>,
    pub(super) seat: usize,
}

impl Drive {
    pub(super) fn new(shared: Arc<AhciShared>, seat: usize) -> Self {
        Self { shared, seat }
    }

    pub(super) fn seat(&self) -> &DiskPort {
        &self.shared.seats[self.seat]
    }

    /// The number of its port.
    pub fn port(&self) -> u8 {
        self.seat().index
    }

    /// What it says about itself.
    pub fn identity(&self) -> &Identity {
        &self.seat().identity
    }

    /// How its data move at best, in words.
    pub fn mode(&self) -> String {
        match self.seat().level {
            Level::Queued => format!("queued, {} commands", self.seat().identity.queue_depth),
            Level::Dma => "DMA".into(),
            Level::Pio => "PIO".into(),
        }
    }
}

impl Clone for Drive {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), seat: self.seat }
    }
}

impl Disk for Drive {
    fn name(&self) -> String {
        format!("{} port {}", self.shared.device.name(), self.port())
    }

    fn info(&self) -> &Info {
        &self.seat().info
    }

    fn dma(&self) -> &Dma {
        self.shared.device.dma()
    }

    fn max_queues(&self) -> u16 {
        1
    }

    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        Ok(Box::new(PortQueue::open(self.shared.clone(), self.seat, depth)?))
    }

    fn resume_queue(&self, saved: &Saved) -> Result<Box<dyn Queue>, Error> {
        Ok(Box::new(PortQueue::resume(self, saved)?))
    }
}
