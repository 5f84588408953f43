//! The driver's side: sockets, clients, and one thread that serves them all.
//!
//! # Shape
//! A [`Server`] is made of a disk and of what is granted on it. [`Server::run`] is its thread's life: clients come and ask (`client`), requests are taken out of their rings (`queue`) in turns (`share`),
//! go to one queue of the disk, and end in the rings that they came from.
//!
//! # Fairness
//! The disk's queue is where clients meet. Room in it is dealt out by deficit round robin over clients, by bytes and requests; nobody gets more in flight than its depth. Processor time is not dealt out: a
//! client that wakes the server for nothing costs it a turn each time, in which everybody else is served as well.

mod access;
mod client;
mod listener;
mod queue;
mod share;
mod turn;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use access::Access;
use access::Grant;
use client::{Client, Heard};
use listener::Listener;
use ring3_class::Error;
use ring3_class::block::{BlockQueue, Completion, Disk, ForeignAccess, Queue, open};
use ring3_class::dma::{Mode, Region};
use ring3_class::irq::{Irq, IrqKind};
use ring3_class::wait::{DEFAULT_POLL, Source};
use ring3_lease::Channel;
use ring3_reactor::{Event, Reactor, Registration, Timer, Token};
use rustix::event::{EventfdFlags, eventfd};
use turn::{Doors, Slot};

use crate::protocol::Answer;

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
pub struct Server {
    disk: Arc<dyn Disk>,
    doors: Vec<(Listener, Arc<Grant>)>,
    options: Options,
    mapped: bool,
}

impl Server {
    /// Listens at the sockets of `accesses`. Nobody is served before [`run`](Self::run).
    pub fn bind(disk: Arc<dyn Disk>, accesses: Vec<Access>, options: Options) -> Result<Self, Error> {
        let mut doors = Vec::new();
        for access in accesses {
            let grant = Arc::new(Grant::new(access, disk.info())?);
            doors.push((Listener::bind(&grant.access.path, grant.access.mode)?, grant));
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

    /// Serves until `asked` says so, which it is asked whenever one of `calls` is readable, or until the disk is gone, which is the error. What is in flight ends first.
    pub fn run(self, calls: &[BorrowedFd<'_>], asked: impl FnMut() -> bool) -> Result<(), Error> {
        Broker::new(self, calls)?.serve(asked)
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
    server: Server,
    reactor: Reactor,
    registration: Registration,
    doors: Registration,
    /// Nobody raises it: what wakes the server for clients are their own descriptors.
    bell: Irq,
    listeners: Vec<Token>,
    calls: Vec<Token>,
    /// Places for clients; those of one socket lie side by side.
    seats: Vec<Option<Client>>,
    /// Whose turn it is.
    cursor: usize,
    slots: Vec<Slot>,
    free: Vec<usize>,
    done: Box<[Completion]>,
    /// When the first of those is let go that their limits hold back.
    thaw: Option<(Timer, Instant)>,
    limited: bool,
    stopping: bool,
}

impl Broker {
    fn new(server: Server, calls: &[BorrowedFd<'_>]) -> Result<Self, Error> {
        let failed = |error| Error::os("serving a disk", error);
        let foreign =
            ForeignAccess { mode: Mode::Copy, copies: if server.mapped { 1 } else { COPIES }, ..ForeignAccess::default() };
        let queue = open(&*server.disk, server.options.depth, foreign)?;
        let mut reactor = Reactor::new(64, server.options.poll).map_err(failed)?;
        let registration = Registration::new(&mut reactor, &queue).map_err(failed)?;
        let bell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| Error::os("serving a disk", error))?;
        let bell = Irq::new(bell, IrqKind::MsiX, 0, None);
        let doors = Registration::new(&mut reactor, &Doors { seats: &mut [], bell: &bell, full: false }).map_err(failed)?;
        let calls = calls.iter().map(|&call| reactor.add(call)).collect::<Result<_, _>>().map_err(failed)?;
        let listeners = server.doors.iter().map(|(listener, _)| reactor.add(listener.as_fd()));
        let listeners = listeners.collect::<Result<_, _>>().map_err(failed)?;
        let seats = server.doors.iter().map(|(_, grant)| usize::from(grant.access.clients)).sum();
        let depth = usize::from(queue.depth());
        Ok(Self {
            limited: server.doors.iter().any(|(_, grant)| grant.access.iops.or(grant.access.rate).is_some()),
            queue,
            server,
            reactor,
            registration,
            doors,
            bell,
            listeners,
            calls,
            seats: (0..seats).map(|_| None).collect(),
            cursor: 0,
            slots: (0..depth).map(|_| Slot::default()).collect(),
            free: (0..depth).rev().collect(),
            done: (0..depth).map(|_| Completion::default()).collect(),
            thaw: None,
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
        let reason = match &result {
            Ok(()) => "the server was stopped".into(),
            Err(error) => format!("the disk is not served any more: {error}"),
        };
        self.seats.iter_mut().flatten().for_each(|client| client.leave(Some(reason.clone()), &mut self.reactor));
        result
    }

    /// What came is heard, what is done comes up, what is wanted goes down.
    fn turn(&mut self, asked: &mut impl FnMut() -> bool) -> Result<(), Error> {
        while let Some(event) = self.reactor.next_event() {
            match event {
                Event::Ready(token) if self.calls.contains(&token) => self.stopping |= asked(),
                Event::Ready(token) => self.ready(token),
                Event::Timer(timer, _) if self.thaw.is_some_and(|(thaw, _)| thaw == timer) => self.thaw = None,
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

    fn ready(&mut self, token: Token) {
        if let Some(door) = self.listeners.iter().position(|&listener| listener == token) {
            self.accept(door);
        } else if let Some(client) = self.seats.iter_mut().flatten().find(|client| client.token == token) {
            client.talks = true;
        } else {
            self.rest();
        }
    }

    /// Nothing is waited for, if that is so.
    fn rest(&mut self) {
        if self.queue.in_flight() == 0 {
            self.registration.rest(&mut self.reactor, &self.queue);
        }
    }

    fn tick(&mut self, now: Instant) -> Result<(), Error> {
        self.registration.tick(&mut self.reactor, &mut self.queue, now).or_else(survive)
    }

    /// Those who wait at a socket get a place, or are told that there is none.
    fn accept(&mut self, door: usize) {
        let first: usize = self.server.doors[..door].iter().map(|(_, grant)| usize::from(grant.access.clients)).sum();
        let (listener, grant) = &self.server.doors[door];
        let places = usize::from(grant.access.clients);
        loop {
            let (socket, who) = match listener.accept() {
                Ok(Some(client)) => client,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!("{error}");
                    return;
                }
            };
            let Some(place) = self.seats[first..first + places].iter_mut().find(|place| place.is_none()) else {
                let reason = format!("{}: all {places} places are taken (clients=N)", listener.path().display());
                tracing::warn!("{who} is refused: {reason}");
                if let Ok(channel) = Channel::new(socket, Duration::from_millis(1), true) {
                    let _ = channel.send(&Answer::Refused { reason }, &[]);
                }
                continue;
            };
            match Client::new(socket, who, grant.clone(), &mut self.reactor) {
                Ok(client) => *place = Some(client),
                Err(error) => tracing::warn!("a client is not served: {error}"),
            }
        }
    }

    /// One message of each client, if it has one.
    fn hear(&mut self) {
        for client in self.seats.iter_mut().flatten().filter(|client| client.talks && !client.leaving) {
            match client.hear(&*self.server.disk, self.server.mapped, &mut self.reactor) {
                Ok(Heard::Nothing) => client.talks = false,
                Ok(Heard::Answered) => {}
                Ok(Heard::Left) => client.leave(None, &mut self.reactor),
                Err(error) => cut(client, &error, &mut self.reactor),
            }
        }
    }

    /// Takes away what is to go and has nothing in flight any more: queues, and clients.
    fn sweep(&mut self) {
        for place in &mut self.seats {
            let Some(client) = place else { continue };
            if (client.leaving || client.is_closing())
                && let Err(error) = client.bury(&mut self.reactor)
            {
                cut(client, &error, &mut self.reactor);
            }
            if client.leaving && client.queues().next().is_none() {
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
        let mut doors = Doors { seats: &mut self.seats, bell: &self.bell, full };
        let disk = (&self.registration, &mut self.queue as &mut dyn Source);
        let clients = (&self.doors, &mut doors as &mut dyn Source);
        let waited = match busy {
            true => self.reactor.wait(&mut [disk, clients], None),
            false => self.reactor.wait(&mut [clients], None),
        };
        waited.map(drop).map_err(|error| Error::os("waiting for clients", error))
    }
}

/// Ends a client that has broken the protocol.
fn cut(client: &mut Client, error: &Error, reactor: &mut Reactor) {
    tracing::warn!("{} ({}) is cut off: {error}", client.who, client.grant.access.path.display());
    client.leave(Some(error.to_string()), reactor);
}

/// Passes on what the disk does not survive, and logs the rest.
fn survive(error: Error) -> Result<(), Error> {
    match error {
        Error::Gone | Error::Fatal(_) => Err(error),
        error => {
            tracing::warn!(%error, "the disk misbehaves");
            Ok(())
        }
    }
}
