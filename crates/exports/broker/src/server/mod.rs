//! The driver's side: sockets, clients, and one thread that serves them all.
//!
//! # Shape
//! A [`DiskServer`] is made of a disk and of what is granted on it. [`DiskServer::run`] is its
//! thread's life: clients come and ask (`client`), requests are taken out of their rings (`queue`)
//! in turns (`share`), go to one queue of the disk, and end in the rings that they came from.
//!
//! # Fairness
//! The disk's queue is where clients meet. Room in it is dealt out by deficit round robin over
//! clients, by bytes and requests; nobody gets more in flight than its depth. Processor time is not
//! dealt out: a client that wakes the server for nothing costs it a turn each time, in which
//! everybody else is served as well.

mod access;
pub mod card;
mod client;
mod disk;
mod listener;
mod lobby;
mod memory;
mod nested;
mod queue;
mod session;
mod session_loop;
mod share;
mod terms;
mod thaw;
mod unflushed;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use access::Access;
use access::DiskGrant;
use client::Client;
use disk::Broker;
pub use listener::Listener;
pub(crate) use listener::PAUSE;
use lobby::SessionTable;
pub use nested::EmbeddedServer;
use ring3_class::Error;
use ring3_class::block::Disk;
use ring3_class::wait::DEFAULT_POLL;
use ring3_reactor::Pool;
use session_loop::SessionServer;

/// Boundaries of segments up to which whole pages suit a device wherever they are mapped.
const PAGE: u32 = 4096;

/// How to serve.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Requests of all clients together in the disk's hands.
    pub depth: u16,
    /// How long to poll before sleeping, as long as that pays.
    pub poll: Duration,
    /// Copy, also where the device could reach clients' memory.
    pub copy: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { depth: 128, poll: DEFAULT_POLL, copy: false }
    }
}

/// A disk on sockets. Dropping it removes them.
pub struct DiskServer {
    disk: Arc<dyn Disk>,
    doors: Vec<(Listener, Arc<DiskGrant>)>,
    options: Options,
    mapped: bool,
}

impl DiskServer {
    /// Listens at the sockets of `accesses`. Nobody is served before [`run`](Self::run).
    pub fn bind(
        disk: Arc<dyn Disk>,
        accesses: Vec<Access>,
        options: Options,
    ) -> Result<Self, Error> {
        Self::at(disk, accesses, options, |access| Listener::bind(&access.path, access.mode))
    }

    /// The same, with who `listens` for the clients of an access.
    pub fn at(
        disk: Arc<dyn Disk>,
        accesses: Vec<Access>,
        options: Options,
        mut listens: impl FnMut(&Access) -> Result<Listener, Error>,
    ) -> Result<Self, Error> {
        let mut doors = Vec::new();
        for access in accesses {
            let grant = Arc::new(DiskGrant::new(access, disk.info())?);
            doors.push((listens(&grant.access)?, grant));
        }
        let mapped = !options.copy && reaches(&*disk);
        Ok(Self { disk, doors, options, mapped })
    }

    /// Whether the device reaches clients' memory by itself; otherwise their bytes are copied.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// The sockets.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.doors.iter().map(|(listener, _)| listener.path())
    }

    /// Serves until `asked` says so, which it is asked whenever one of `calls` is readable, or
    /// until the disk is gone, which is the error. What is in flight ends first.
    pub fn run(self, calls: &[BorrowedFd<'_>], asked: impl FnMut() -> bool) -> Result<(), Error> {
        self.run_with(&Pool::default(), calls, asked)
    }

    /// The same in a thread that has its ring of `rings`.
    pub fn run_with(
        self,
        rings: &Pool,
        calls: &[BorrowedFd<'_>],
        mut asked: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        let poll = self.options.poll;
        self.start(|listeners| SessionTable::new(listeners, calls, (rings, poll)))?
            .serve(&mut asked)
    }

    /// Serves by turns, in a loop of another kind.
    pub fn nested(self) -> Result<EmbeddedServer, Error> {
        self.start(SessionTable::nested).map(EmbeddedServer)
    }

    fn start(
        self,
        sessions: impl FnOnce(Vec<(Listener, u16)>) -> Result<SessionTable<Client>, Error>,
    ) -> Result<Broker, Error> {
        let (listeners, grants): (Vec<_>, Vec<_>) = self
            .doors
            .into_iter()
            .map(|(listener, grant)| ((listener, grant.access.clients), grant))
            .unzip();
        Broker::new(self.disk, (self.options.depth, self.mapped), grants, sessions(listeners)?)
    }
}

/// Whether memory can be mapped for the device now, and be in whatever pages the device has them.
fn reaches(disk: &dyn Disk) -> bool {
    disk.info().segments.boundary <= PAGE && crate::memory::is_mappable(disk.dma())
}
