//! A network card for several processes: a switch in the driver's process, of which each client is
//! a port.
//!
//! # Shape
//! A [`CardServer`] is made of a card and of what is granted on it. [`CardServer::run`] is its
//! thread's life: it drives the card's one queue (`wire`), takes packets out of clients' rings in
//! turns (`port`, `pass`), looks who gets them (`switch`), and puts those that come into the
//! buffers that clients have provided.
//!
//! # Memory
//! What comes lies in the server's memory first: nobody knows before whose it is. It is copied
//! once, to the client that it is for. Of what a client sends, the headers are copied, so that
//! nobody changes them after they were looked at; the rest the card reads from the client's memory,
//! where it can.
//!
//! # Fairness
//! Sending is dealt out by deficit round robin, by bytes and packets. A client that does not take
//! its frames, or provides no buffers, loses its own, counted; nobody waits for it.

mod access;
mod client;
mod nested;
mod packet;
mod pass;
mod port;
mod switch;
mod wire;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use access::Access;
use access::CardGrant;
use client::Client;
pub use nested::EmbeddedCardServer;
use ring3_class::Error;
use ring3_class::dma::DmaBuffer;
use ring3_class::net::{Filter, Limits, Link, Mac, Nic, QueueSettings, VLAN_TAG};
use ring3_class::wait::{DEFAULT_POLL, Source};
use ring3_reactor::{Event, Pool, Registration};
use switch::Table;
use wire::{InFlightPiece, Wire};

use super::listener::Listener;
use super::lobby::{SessionTable, WakeReason};
use super::session::ClientSession;
use super::session_loop::{SessionServer, pass_final};
use super::thaw::ThrottleTimer;
use crate::memory::is_mappable;

/// Most bytes of a packet, without its Ethernet header, that clients can have, if the card can.
const MTU: u32 = 9000;

/// How long until a filter that was not set in time is asked for again.
const AGAIN: Duration = Duration::from_millis(100);

/// How to serve.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long to poll before sleeping, as long as that pays.
    pub poll: Duration,
    /// Copy, also where the card could reach clients' memory.
    pub copy: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { poll: DEFAULT_POLL, copy: false }
    }
}

/// A card on sockets. Dropping it removes them.
pub struct CardServer {
    nic: Arc<dyn Nic>,
    doors: Vec<(Listener, Arc<CardGrant>)>,
    options: Options,
    mtu: u32,
    mapped: bool,
}

impl CardServer {
    /// Listens at the sockets of `accesses`. Nobody is served before [`run`](Self::run).
    pub fn bind(nic: Arc<dyn Nic>, accesses: Vec<Access>, options: Options) -> Result<Self, Error> {
        Self::at(nic, accesses, options, |access| Listener::bind(&access.path, access.mode))
    }

    /// The same, with who `listens` for the clients of an access.
    pub fn at(
        nic: Arc<dyn Nic>,
        accesses: Vec<Access>,
        options: Options,
        mut listens: impl FnMut(&Access) -> Result<Listener, Error>,
    ) -> Result<Self, Error> {
        let info = nic.info();
        let (mtu, mapped) =
            (info.mtu.1.min(MTU), !options.copy && info.max_pieces > 1 && is_mappable(nic.dma()));
        let listen = |grant: CardGrant| Ok((listens(&grant.access)?, Arc::new(grant)));
        let doors = access::grants(accesses, info, mtu, mapped)?
            .into_iter()
            .map(listen)
            .collect::<Result<_, Error>>()?;
        Ok(Self { nic, doors, options, mtu, mapped })
    }

    /// Whether the card reads what clients send from their memory by itself; otherwise it is
    /// copied.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// The sockets, with the addresses of the clients behind each.
    pub fn sockets(&self) -> impl Iterator<Item = (&Path, &[Mac])> {
        self.doors.iter().map(|(listener, grant)| (listener.path(), &grant.addresses[..]))
    }

    /// Serves until `asked` says so, which it is asked whenever one of `calls` is readable, or
    /// until the card is gone, which is the error.
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
        CardBroker::new(self, |listeners| SessionTable::new(listeners, calls, (rings, poll)))?
            .serve(&mut asked)
    }

    /// Serves by turns, in a loop of another kind: that of whoever drives the card.
    pub fn nested(self) -> Result<EmbeddedCardServer, Error> {
        CardBroker::new(self, SessionTable::nested).map(EmbeddedCardServer)
    }
}

/// The server while it runs.
struct CardBroker {
    // Stopped before the memory goes that it reads.
    wire: Wire,
    link: Box<dyn Source + Send>,
    link_registration: Registration,
    nic: Arc<dyn Nic>,
    inside: Inside,
    grants: Vec<Arc<CardGrant>>,
    mapped: bool,
    state: Link,
    /// Packets that the card had lost at the last look.
    missed: u64,
    /// What a client may send.
    limits: Limits,
    /// The first bytes of the packet that is looked at.
    head: Vec<u8>,
    /// The same with its tag.
    scratch: Vec<u8>,
    /// What the card was told to let through.
    filter: Filter,
    /// It has not done so in time.
    unset: bool,
    /// Whoever drives it does so between two turns; until then, nobody is answered.
    setting: bool,
    /// Whose turn it is.
    cursor: usize,
    thaw: ThrottleTimer,
    limited: bool,
}

/// The clients, and who gets what.
struct Inside {
    lobby: SessionTable<Client>,
    table: Table,
    /// Clients have come or gone, or want other groups.
    stale: bool,
}

impl CardBroker {
    fn new(
        server: CardServer,
        lobby: impl FnOnce(Vec<(Listener, u16)>) -> Result<SessionTable<Client>, Error>,
    ) -> Result<Self, Error> {
        let CardServer { nic, doors, mtu, mapped, .. } = server;
        let failed = |error| Error::os("serving a card", error);
        let (listeners, grants): (Vec<_>, Vec<_>) = doors
            .into_iter()
            .map(|(listener, grant)| ((listener, grant.access.places()), grant))
            .unzip();
        let mut lobby = lobby(listeners)?;
        let wire = Wire::open(&nic, mtu, mapped, &mut lobby.reactor)?;
        let link = nic.link_watch()?;
        let link_registration = Registration::new(&mut lobby.reactor, &*link).map_err(failed)?;
        let info = grants.first().map_or_else(|| nic.info().clone(), |grant| grant.info.clone());
        // Frames without tags, which may get one.
        let settings =
            QueueSettings { mtu: mtu.saturating_sub(VLAN_TAG), ..QueueSettings::default() };
        Ok(Self {
            limited: grants.iter().any(|grant| grant.access.pps.or(grant.access.rate).is_some()),
            head: vec![0; wire.head],
            scratch: vec![0; wire.head + VLAN_TAG as usize],
            wire,
            link,
            link_registration,
            state: nic.link()?,
            missed: nic.counters()?.rx_missed,
            nic,
            inside: Inside { lobby, table: Table::default(), stale: true },
            grants,
            mapped,
            limits: Limits::new(&info, &settings, u16::MAX),
            filter: Filter::default(),
            unset: false,
            setting: false,
            cursor: 0,
            thaw: ThrottleTimer::default(),
        })
    }

    fn handle_messages(&mut self) {
        let (of, link, Inside { lobby, stale, .. }) =
            ((&*self.nic, self.mapped), self.state, &mut self.inside);
        lobby.handle_messages(|client, (ask, _), reactor| {
            *stale = true;
            client.handle_message(ask, of, link, reactor)
        });
    }

    fn answer(&mut self) {
        let SessionTable { seats, reactor, .. } = &mut self.inside.lobby;
        for client in seats.iter_mut().flatten() {
            if let Err(error) = client.answer() {
                client.cut(&error, reactor);
            }
        }
    }

    /// Tells clients how the link is, and what the card has lost, if that has changed. Whose the
    /// lost packets were nobody knows: each counts them.
    fn poll_link(&mut self) -> Result<(), Error> {
        if !self.link.pending() {
            return Ok(());
        }
        let missed = self.nic.counters()?.rx_missed;
        let lost = missed.saturating_sub(std::mem::replace(&mut self.missed, missed));
        self.inside
            .lobby
            .seats
            .iter_mut()
            .flatten()
            .for_each(|client| client.counters.rx_missed += lost);
        let link = self.nic.link()?;
        if link != self.state {
            self.state = link;
            self.inside.lobby.seats.iter().flatten().for_each(|client| client.show_link(link));
        }
        Ok(())
    }

    /// Takes away what is to go and has nothing in flight any more: queues, and clients.
    fn sweep(&mut self) {
        let SessionTable { seats, reactor, .. } = &mut self.inside.lobby;
        for place in seats {
            let Some(client) = place else { continue };
            if let Err(error) = client.reap_closed_queues(reactor) {
                client.cut(&error, reactor);
            }
            if client.session().closing {
                self.inside.stale = true;
                if client.port.is_none() {
                    *place = None;
                }
            }
        }
    }

    /// Has switch and card know who is there.
    fn refresh(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.inside.stale) {
            return Ok(());
        }
        let seats = self.inside.lobby.seats.iter().enumerate();
        let entries = seats.filter_map(|(seat, client)| client.as_ref()?.entry(seat)).collect();
        self.inside.table = Table::new(entries);
        let filter = self.inside.table.filter(self.nic.info().mac);
        if filter != self.filter {
            match self.nic.set_filter(&filter) {
                Ok(()) => self.filter = filter,
                Err(Error::Busy(_)) => self.setting = true,
                // Who sets it is busy, and lets through what he did before.
                Err(error @ Error::Timeout { .. }) => {
                    tracing::warn!(%error, "the card's filter is not set; it is tried again");
                    self.unset = true;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn tick(&mut self, now: Instant) -> Result<(), Error> {
        let reactor = &mut self.inside.lobby.reactor;
        self.wire.tick(reactor, now)?;
        self.link_registration.tick(reactor, &mut *self.link, now).or_else(pass_final)
    }
}

impl SessionServer for CardBroker {
    type Client = Client;
    const SHARED: &'static str = "card";

    fn sessions(&mut self) -> &mut SessionTable<Client> {
        &mut self.inside.lobby
    }

    fn is_full(&self) -> bool {
        !self.wire.has_room()
    }

    fn run_once(&mut self, asked: &mut dyn FnMut() -> bool) -> Result<bool, Error> {
        while let Some(event) = self.inside.lobby.reactor.next_event() {
            match event {
                Event::Ready(token) => {
                    let grants = &self.grants;
                    let rung = self.inside.lobby.ready(token, |session, (door, place)| {
                        let grant = grants[door].clone();
                        Client::new(session, grant.addresses[place], grant)
                    });
                    if matches!(rung, WakeReason::Call) && asked() {
                        return Ok(true);
                    }
                }
                Event::Timer(timer, _)
                    if self.thaw.is(timer) || self.inside.lobby.retries(timer) => {}
                Event::Timer(_, now) => self.tick(now)?,
                Event::Lost(_, error) => return Err(Error::os("waiting for clients", error)),
                Event::Command { .. } => {}
            }
        }
        let Self { wire, inside, .. } = self;
        wire.receive(|pieces| inside.take(pieces))?;
        wire.returned(|flight, memory| give_back(&mut inside.lobby.seats, flight, memory))?;
        self.handle_messages();
        self.inside.stale |= std::mem::take(&mut self.setting);
        self.refresh()?;
        if !self.setting {
            self.answer();
        }
        self.poll_link()?;
        self.schedule();
        self.inside.lobby.seats.iter_mut().flatten().for_each(Client::flush);
        self.sweep();
        self.refresh()?;
        Ok(false)
    }

    fn wait(&mut self) -> Result<(), Error> {
        if self.wire.registration.timer().is_none() {
            self.tick(Instant::now())?;
        }
        self.wire.wake_on_sent();
        let full = self.is_full();
        let limit = std::mem::take(&mut self.unset).then_some(AGAIN);
        self.inside.stale |= limit.is_some();
        let (reactor, rings, mut clients) = self.inside.lobby.split(full);
        let clients = (rings, &mut clients as &mut dyn Source);
        let link = (&self.link_registration, &mut *self.link as &mut dyn Source);
        reactor
            .wait(&mut [self.wire.source(), link, clients], limit)
            .map(drop)
            .map_err(|error| Error::os("waiting for clients", error))
    }
}

/// A client's piece is not with the card any more.
fn give_back(seats: &mut [Option<Client>], flight: InFlightPiece, memory: DmaBuffer) {
    let port =
        seats.get_mut(flight.seat).and_then(Option::as_mut).and_then(|client| client.port.as_mut());
    if let Some(port) = port {
        port.returned(memory, flight.tag);
    }
}
