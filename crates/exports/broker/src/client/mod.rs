//! A disk whose driver is another process, as any other disk.
//!
//! # Shape
//! A [`RemoteDisk`] is a connection: its arena is the memory that it shares with the server, so
//! that data in buffers of it is copied at most by the server, and never if the device reaches it.
//! Each queue has rings of its own. Memory of the application's own that it
//! [registers](Disk::register_region) is reached as well, where the device reaches anything; other
//! memory is copied through the arena ([`open`](ring3_class::block::open)).
//!
//! # The end
//! When the server parts, or dies, requests in flight end with
//! [`IoError::Gone`](ring3_class::block::IoError::Gone) and without their data: a device may still
//! write there, so the memory is given up. Queues say why by `tick`; another connection is another
//! disk.

mod bell;
mod card;
mod connection;
mod port;
mod queue;
mod slots;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

pub use card::RemoteCard;
pub(crate) use connection::{Connection, Peer};
use queue::RemoteQueue;
use ring3_class::Error;
use ring3_class::block::{Disk, Info, Queue};
use ring3_class::dma::{Arena, Dma, Placed, Region, StaticIommu};

use crate::memory;
use crate::protocol::{Answer, ClientRequest, DiskDescription, VERSION};

/// The address of the memory's first byte, as queues here name it: what the device calls it only
/// the server knows. A multiple of every page size. What is lent follows at further multiples, of
/// which none is longer.
const BASE: u64 = crate::region::MOST;

/// See the module.
pub struct RemoteDisk {
    connection: Arc<Connection>,
    name: String,
    info: Info,
    dma: Dma,
    queues: u16,
    mapped: bool,
    /// Regions have the numbers in which they were offered.
    lending: Mutex<()>,
}

/// What is served at a path.
pub enum Remote {
    /// A disk.
    Disk(RemoteDisk),
    /// A network card.
    Card(RemoteCard),
}

impl Remote {
    /// What is served at `path`, with `memory` bytes for data, or as many as are granted.
    pub fn connect(path: &Path, memory: usize) -> Result<Self, Error> {
        let connection = Connection::open(path, Peer::Server)?;
        match connection.ask(&ClientRequest::Hello { version: VERSION, memory: memory as u64 })? {
            (Answer::Welcome(welcome), fds) => {
                RemoteDisk::new(connection, path, *welcome, fds).map(Self::Disk)
            }
            (Answer::Port(port), fds) => {
                RemoteCard::new(connection, path, *port, fds).map(Self::Card)
            }
            _ => Err(connection.protocol_error()),
        }
    }
}

/// The memory that a client shares with its server, as its own arena.
fn arena(file: OwnedFd, len: usize) -> Result<Dma, Error> {
    memory::check(&file, len)?;
    let arena = Arena::new(Region::part_of(file, 0, len)?, BASE);
    Ok(Dma::new(arena, Arc::new(StaticIommu::identity(BASE..=BASE + len as u64))))
}

impl RemoteDisk {
    /// The disk that is served at `path`, with `memory` bytes for data, or as many as are granted.
    pub fn connect(path: &Path, memory: usize) -> Result<Self, Error> {
        match Remote::connect(path, memory)? {
            Remote::Disk(disk) => Ok(disk),
            Remote::Card(_) => Err(Error::Invalid(format!(
                "{}: a network card is served there, and no disk",
                path.display()
            ))),
        }
    }

    fn new(
        connection: Connection,
        path: &Path,
        welcome: DiskDescription,
        fds: Vec<OwnedFd>,
    ) -> Result<Self, Error> {
        let [file] = <[_; 1]>::try_from(fds).map_err(|_| connection.protocol_error())?;
        let DiskDescription { disk, info, memory, queues, mapped, .. } = welcome;
        let len = usize::try_from(memory).map_err(|_| connection.protocol_error())?;
        if !info.block_size.is_power_of_two()
            || info.block_size < 512
            || info.blocks == 0
            || len < 4096
            || memory > BASE
        {
            return Err(connection.protocol_error());
        }
        let dma = arena(file, len)?;
        let name = format!("remote:{} ({disk})", path.display());
        Ok(Self {
            connection: Arc::new(connection),
            name,
            info,
            dma,
            queues,
            mapped,
            lending: Mutex::new(()),
        })
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

    /// Registers it with the server, which must be able to map it for the device: a whole sealed
    /// file, such as [`SharedMemory`](crate::region::SharedMemory). [`Error::Busy`] says why the
    /// server has refused it, for example because it copies.
    fn register_region(&self, region: &Arc<Region>) -> Result<(), Error> {
        let _one = self.lending.lock().unwrap_or_else(PoisonError::into_inner);
        let arena = self.dma.arena();
        if arena.address(region).is_some() {
            return Ok(());
        }
        let Some((file, 0)) = region.file() else {
            return Err(Error::Invalid(
                "lending memory that no other process can have: it is no file from its start"
                    .into(),
            ));
        };
        self.connection.offer(file, region.len() as u64)?;
        let placed =
            Placed { region: region.clone(), iova: BASE * (1 + arena.regions().count() as u64) };
        arena.register_region(placed).map(drop).ok_or_else(|| self.connection.protocol_error())
    }

    fn max_queues(&self) -> u16 {
        self.queues
    }

    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error> {
        let (answer, fds) = self.connection.ask(&ClientRequest::Open { depth })?;
        let Answer::Opened { queue, depth } = answer else {
            return Err(self.connection.protocol_error());
        };
        let fds = fds.try_into().map_err(|_| self.connection.protocol_error())?;
        let arena = self.dma.arena().clone();
        Ok(Box::new(RemoteQueue::new(
            self.connection.clone(),
            (queue, depth),
            fds,
            self.info.clone(),
            arena,
        )?))
    }
}
