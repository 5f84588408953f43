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
mod listener;
mod lobby;
mod memory;
mod nested;
mod queue;
mod session;
mod share;
mod terms;
mod thaw;
mod turn;
mod unflushed;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use access::Access;
use access::DiskGrant;
use client::Client;
pub use listener::Listener;
pub(crate) use listener::PAUSE;
use lobby::{SessionTable, WakeReason};
pub use nested::EmbeddedServer;
use ring3_class::Error;
use ring3_class::block::{BlockQueue, Completion, Disk, ForeignAccess, Queue, open};
use ring3_class::dma::{Mode, Region};
use ring3_class::wait::{DEFAULT_POLL, Source};
use ring3_reactor::{Event, Pool, Registration, Token};
use session::ClientSession;
use thaw::ThrottleTimer;
use turn::BrokerSlot;

/// Boundaries of segments up to which whole pages suit a device wherever they are mapped.
const PAGE: u32 = 4096;
/// Buffers to copy through, where the device cannot reach clients' memory.
const COPIES: usize = 16;

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
        asked: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        let poll = self.options.poll;
        Broker::new(self, |listeners| SessionTable::new(listeners, calls, (rings, poll)))?
            .serve(asked)
    }

    /// Serves by turns, in a loop of another kind.
    pub fn nested(self) -> Result<EmbeddedServer, Error> {
        Broker::new(self, SessionTable::nested).map(EmbeddedServer)
    }
}

/// Whether memory can be mapped for the device now, and be in whatever pages the device has them.
fn reaches(disk: &dyn Disk) -> bool {
    let mapped = || disk.dma().map(Arc::new(Region::new(PAGE as usize)?).pages()?);
    disk.info().segments.boundary <= PAGE && mapped().is_ok()
}

/// The server while it runs.
struct Broker {
    // Before the disk that it is of.
    queue: BlockQueue,
    disk: Arc<dyn Disk>,
    mapped: bool,
    grants: Vec<Arc<DiskGrant>>,
    registration: Registration,
    lobby: SessionTable<Client>,
    /// Whose turn it is.
    cursor: usize,
    slots: Vec<BrokerSlot>,
    free: Vec<usize>,
    done: Box<[Completion]>,
    thaw: ThrottleTimer,
    limited: bool,
    stopping: bool,
}

impl Broker {
    fn new(
        server: DiskServer,
        lobby: impl FnOnce(Vec<(Listener, u16)>) -> Result<SessionTable<Client>, Error>,
    ) -> Result<Self, Error> {
        let DiskServer { disk, doors, options, mapped } = server;
        let copies = if mapped { 1 } else { COPIES };
        let foreign = ForeignAccess { mode: Mode::Copy, copies, ..ForeignAccess::default() };
        let queue = open(&*disk, options.depth, foreign)?;
        let (listeners, grants): (Vec<_>, Vec<_>) = doors
            .into_iter()
            .map(|(listener, grant)| ((listener, grant.access.clients), grant))
            .unzip();
        let mut lobby = lobby(listeners)?;
        let registration = Registration::new(&mut lobby.reactor, &queue)
            .map_err(|error| Error::os("serving a disk", error))?;
        let depth = usize::from(queue.depth());
        Ok(Self {
            limited: grants.iter().any(|grant| grant.access.iops.or(grant.access.rate).is_some()),
            queue,
            disk,
            mapped,
            grants,
            registration,
            lobby,
            cursor: 0,
            slots: (0..depth).map(|_| BrokerSlot::default()).collect(),
            free: (0..depth).rev().collect(),
            done: (0..depth).map(|_| Completion::default()).collect(),
            thaw: ThrottleTimer::default(),
            stopping: false,
        })
    }

    fn serve(mut self, mut asked: impl FnMut() -> bool) -> Result<(), Error> {
        let result = loop {
            if let Err(error) = self.turn(&mut asked) {
                break Err(error);
            }
            if self.stopping && self.queue.in_flight() == 0 {
                break Ok(());
            }
            if let Err(error) = self.wait() {
                break Err(error);
            }
        };
        self.part(result.as_ref().err());
        result
    }

    /// Tells clients that there is no server any more, and why.
    fn part(&mut self, error: Option<&Error>) {
        let reason = error.map_or_else(
            || "the server was stopped".into(),
            |error| format!("the disk is not served any more: {error}"),
        );
        self.lobby.part(&reason);
    }

    /// What came is heard, what is done comes up, what is wanted goes down.
    fn turn(&mut self, asked: &mut impl FnMut() -> bool) -> Result<(), Error> {
        while let Some(event) = self.lobby.reactor.next_event() {
            match event {
                Event::Ready(token) => match self.ready(token) {
                    WakeReason::Call => self.stopping |= asked(),
                    WakeReason::Client => {}
                    WakeReason::Other => self.rest(),
                },
                Event::Timer(timer, _) if self.thaw.is(timer) || self.lobby.retries(timer) => {}
                Event::Timer(_, now) if self.queue.in_flight() > 0 => self.tick(now)?,
                Event::Timer(..) => self.rest(),
                Event::Lost(_, error) => return Err(Error::os("waiting for clients", error)),
                Event::Command { .. } => {}
            }
        }
        self.reap()?;
        self.hear();
        if !self.stopping {
            self.deal();
        }
        self.flush();
        self.sweep();
        Ok(())
    }

    fn ready(&mut self, token: Token) -> WakeReason {
        let grants = &self.grants;
        self.lobby.ready(token, |session, (door, _)| Client::new(session, grants[door].clone()))
    }

    /// Nothing is waited for, if that is so.
    fn rest(&mut self) {
        if self.queue.in_flight() == 0 {
            self.registration.rest(&mut self.lobby.reactor, &self.queue);
        }
    }

    fn tick(&mut self, now: Instant) -> Result<(), Error> {
        self.registration.tick(&mut self.lobby.reactor, &mut self.queue, now).or_else(survive)
    }

    fn hear(&mut self) {
        let (disk, mapped) = (&*self.disk, self.mapped);
        self.lobby.hear(|client, said, reactor| client.hear(said, disk, mapped, reactor));
    }

    /// Takes away what is to go and has nothing in flight any more: queues, and clients.
    fn sweep(&mut self) {
        let SessionTable { seats, reactor, .. } = &mut self.lobby;
        for place in seats {
            let Some(client) = place else { continue };
            if (client.session().leaving || client.is_closing())
                && let Err(error) = client.bury(reactor)
            {
                client.cut(&error, reactor);
            }
            if client.session().leaving && client.queues().next().is_none() {
                *place = None;
            }
        }
    }

    /// Sleeps, or polls while that pays, until there may be something to do.
    fn wait(&mut self) -> Result<(), Error> {
        let busy = self.queue.in_flight() > 0;
        if busy && self.registration.timer().is_none() {
            self.tick(Instant::now())?;
        }
        let full = self.stopping || self.queue.in_flight() >= self.queue.depth();
        let (reactor, rings, mut clients) = self.lobby.split(full);
        let disk = (&self.registration, &mut self.queue as &mut dyn Source);
        let clients = (rings, &mut clients as &mut dyn Source);
        let waited = match busy {
            true => reactor.wait(&mut [disk, clients], None),
            false => reactor.wait(&mut [clients], None),
        };
        waited.map(drop).map_err(|error| Error::os("waiting for clients", error))
    }
}

/// Passes on what cannot be gone on after, and logs the rest.
fn survive(error: Error) -> Result<(), Error> {
    match error {
        Error::Gone | Error::Fatal(_) => Err(error),
        error => {
            tracing::warn!(%error, "what is shared misbehaves");
            Ok(())
        }
    }
}
