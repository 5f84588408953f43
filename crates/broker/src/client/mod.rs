//! A disk whose driver is another process, as any other disk.
//!
//! # Shape
//! A [`RemoteDisk`] is a connection: its arena is the memory that it shares with the server, so that data in buffers of it is copied at most by the server, and never if the device reaches it. Each queue
//! has rings of its own. Other memory is copied through the arena ([`open`](ring3_class::block::open)).
//!
//! # The end
//! When the server parts, or dies, requests in flight end with [`IoError::Gone`](ring3_class::block::IoError::Gone) and without their data: a device may still write there, so the memory is given up.
//! Queues say why by `tick`; another connection is another disk.

mod connection;
mod queue;

use std::path::Path;
use std::sync::Arc;

use connection::Connection;
use queue::RemoteQueue;
use ring3_class::Error;
use ring3_class::block::{Disk, Info, Queue};
use ring3_class::dma::{Arena, Dma, Region, StaticIommu};

use crate::memory;
use crate::protocol::{Answer, Ask, VERSION, Welcome};

/// The address of the memory's first byte, as queues here name it: what the device calls it only the server knows. A multiple of every page size.
const BASE: u64 = 1 << 32;

/// See the module.
pub struct RemoteDisk {
    connection: Arc<Connection>,
    name: String,
    info: Info,
    dma: Dma,
    memory: u64,
    queues: u16,
    mapped: bool,
}

impl RemoteDisk {
    /// The disk that is served at `path`, with `memory` bytes for data, or as many as are granted.
    pub fn connect(path: &Path, memory: usize) -> Result<Self, Error> {
        let connection = Connection::open(path)?;
        let (answer, fds) = connection.ask(&Ask::Hello { version: VERSION, memory: memory as u64 })?;
        let (Answer::Welcome(welcome), [file]) = (answer, <[_; 1]>::try_from(fds).map_err(|_| connection.nonsense())?) else {
            return Err(connection.nonsense());
        };
        let Welcome { disk, info, memory, queues, mapped, .. } = *welcome;
        let len = usize::try_from(memory).map_err(|_| connection.nonsense())?;
        if !info.block_size.is_power_of_two() || info.block_size < 512 || info.blocks == 0 || len < 4096 {
            return Err(connection.nonsense());
        }
        memory::check(&file, len)?;
        let arena = Arena::new(Region::part_of(file, 0, len)?, BASE);
        let dma = Dma::new(arena, Arc::new(StaticIommu::identity(BASE..=BASE + memory)));
        let name = format!("remote:{} ({disk})", path.display());
        Ok(Self { connection: Arc::new(connection), name, info, dma, memory, queues, mapped })
    }

    /// Whether the device reaches the arena by itself; otherwise the server copies.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }
}

impl Disk for RemoteDisk {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn info(&self) -> &Info {
        &self.info
    }

    fn dma(&self) -> &Dma {
        &self.dma
    }

    fn max_queues(&self) -> u16 {
        self.queues
    }

    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        let (answer, fds) = self.connection.ask(&Ask::Open { depth })?;
        let Answer::Opened { queue, depth } = answer else { return Err(self.connection.nonsense()) };
        let fds = fds.try_into().map_err(|_| self.connection.nonsense())?;
        let reach = BASE..BASE + self.memory;
        Ok(Box::new(RemoteQueue::new(self.connection.clone(), (queue, depth), fds, self.info.clone(), reach)?))
    }
}
