//! Where clients come in and have their places: the sockets, the places behind each, and what wakes
//! the thread that serves them all.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::irq::{Irq, IrqKind};
use ring3_class::wait::Source;
use ring3_class::{Deadline, Error};
use ring3_lease::Channel;
use ring3_reactor::{Pool, Reactor, Registration, Timer, Token};
use rustix::event::{EventfdFlags, eventfd};

use super::listener::{Listener, PAUSE};
use super::session::{ClientSession, Session, SessionEvent};
use crate::protocol::{Answer, ClientRequest};

/// Entries of the reactor's in one turn.
const COMMANDS: u32 = 64;

/// See the module.
pub struct SessionTable<G> {
    pub reactor: Reactor,
    doors: Vec<ListeningSocket>,
    calls: Vec<Token>,
    /// How clients' rings are waited for.
    pub registration: Registration,
    /// Nobody raises it: what wakes the server for clients are their own descriptors.
    bell: Irq,
    /// Places for clients; those of one socket lie side by side.
    pub seats: Vec<Option<G>>,
}

struct ListeningSocket {
    listener: Listener,
    token: Token,
    /// Raised when clients may be accepted again.
    room: Arc<OwnedFd>,
    again: Token,
    /// Runs out when clients are accepted again, after that has failed.
    retry: Option<Timer>,
    /// Its first place, and how many it has.
    first: usize,
    places: usize,
}

/// What a descriptor that is readable was for.
pub enum WakeReason {
    /// One of those who may end the server.
    Call,
    /// A client, or somebody who wants to be one.
    Client,
    /// Something else.
    Other,
}

impl<G: ClientSession> SessionTable<G> {
    /// With `places` behind each of `listeners`, for a server that also waits for `calls`.
    pub fn new(
        listeners: Vec<(Listener, u16)>,
        calls: &[BorrowedFd<'_>],
        (rings, poll): (&Pool, Duration),
    ) -> Result<Self, Error> {
        let reactor = rings
            .reactor(COMMANDS, poll)
            .map_err(|error| Error::os("waiting for clients", error))?;
        Self::over(reactor, listeners, calls)
    }

    /// The same for a server in another loop, which sleeps on the reactor's descriptor.
    pub fn nested(listeners: Vec<(Listener, u16)>) -> Result<Self, Error> {
        let reactor = Reactor::nested(COMMANDS, Duration::ZERO)
            .map_err(|error| Error::os("waiting for clients", error))?;
        Self::over(reactor, listeners, &[])
    }

    fn over(
        mut reactor: Reactor,
        listeners: Vec<(Listener, u16)>,
        calls: &[BorrowedFd<'_>],
    ) -> Result<Self, Error> {
        let failed = |error| Error::os("waiting for clients", error);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| Error::os("waiting for clients", error))?;
        let bell = Irq::new(bell, IrqKind::MsiX, 0, None);
        let rings = Rings::<G> { seats: &mut [], bell: &bell, full: false };
        let registration = Registration::new(&mut reactor, &rings).map_err(failed)?;
        let calls = calls
            .iter()
            .map(|&call| reactor.add(call))
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        let mut doors = Vec::new();
        let mut first = 0;
        for (listener, places) in listeners {
            let token = reactor.add(listener.as_fd()).map_err(failed)?;
            let room = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let room = Arc::new(room.map_err(|error| Error::os("waiting for clients", error))?);
            listener.closer().set_room_event(room.clone());
            let again = reactor.add(room.as_fd()).map_err(failed)?;
            let places = usize::from(places);
            doors.push(ListeningSocket {
                listener,
                token,
                room,
                again,
                retry: None,
                first,
                places,
            });
            first += places;
        }
        Ok(Self {
            reactor,
            doors,
            calls,
            registration,
            bell,
            seats: (0..first).map(|_| None).collect(),
        })
    }

    /// Sees to what is readable. Who wants to be a client is `made` one, of the door's number and
    /// of its place behind that, or told that there is none.
    pub fn ready(
        &mut self,
        token: Token,
        made: impl FnMut(Session, (usize, usize)) -> G,
    ) -> WakeReason {
        if self.calls.contains(&token) {
            return WakeReason::Call;
        }
        if let Some(door) =
            self.doors.iter().position(|door| door.token == token || door.again == token)
        {
            let _ = rustix::io::read(&*self.doors[door].room, &mut [0; 8]);
            self.accept(door, made);
            return WakeReason::Client;
        }
        let client = self.seats.iter_mut().flatten().find(|client| client.session().token == token);
        client.map_or(WakeReason::Other, |client| {
            client.session_mut().readable = true;
            WakeReason::Client
        })
    }

    /// Whether `timer` was one of a socket at which nobody could be accepted: it is looked at
    /// again.
    pub fn retries(&mut self, timer: Timer) -> bool {
        let Some(door) = self.doors.iter_mut().find(|door| door.retry == Some(timer)) else {
            return false;
        };
        door.retry = None;
        let _ = rustix::io::write(&*door.room, &1u64.to_ne_bytes());
        true
    }

    fn accept(&mut self, door: usize, mut made: impl FnMut(Session, (usize, usize)) -> G) {
        let ListeningSocket { listener, first, places, retry, .. } = &mut self.doors[door];
        // Each may have sent what is not taken. Who waits is accepted when there is room again.
        while !listener.closer().is_full() {
            let (socket, who) = match listener.accept() {
                Ok(Some(client)) => client,
                Ok(None) => return,
                Err(error) => {
                    // Who waits does not wake this thread a second time.
                    retry.get_or_insert_with(|| self.reactor.set_timer(Instant::now() + PAUSE));
                    tracing::warn!("nobody is accepted for {PAUSE:?}: {error}");
                    return;
                }
            };
            let mut own = self.seats[*first..*first + *places].iter_mut().enumerate();
            let Some((place, seat)) = own.find(|(_, seat)| seat.is_none()) else {
                let reason = format!(
                    "{}: all {places} places are taken (clients=N)",
                    listener.path().display()
                );
                tracing::warn!("{who} is refused: {reason}");
                if let Ok(channel) =
                    Channel::of_stranger(socket, Duration::from_millis(1), listener.closer())
                {
                    let _ = channel.send(&Answer::Refused { reason }, &[]);
                }
                continue;
            };
            let at = (listener.path(), listener.closer());
            match Session::new((socket, who), at, &mut self.reactor) {
                Ok(session) => *seat = Some(made(session, (door, place))),
                Err(error) => tracing::warn!("a client is not served: {error}"),
            }
        }
    }

    /// One message of each client, if it has one, to `handle`, whose error ends the client.
    pub fn handle_messages(
        &mut self,
        mut handle: impl FnMut(
            &mut G,
            (ClientRequest, Option<OwnedFd>),
            &mut Reactor,
        ) -> Result<(), Error>,
    ) {
        for client in self.seats.iter_mut().flatten() {
            if !client.session().readable || client.session().closing {
                continue;
            }
            let handled = client.session().next().and_then(|word| match word {
                SessionEvent::Nothing => {
                    client.session_mut().readable = false;
                    Ok(())
                }
                SessionEvent::Left => {
                    client.disconnect(None, &mut self.reactor);
                    Ok(())
                }
                SessionEvent::Said(ask, fd) => handle(client, (ask, fd), &mut self.reactor),
            });
            if let Err(error) = handled {
                client.cut(&error, &mut self.reactor);
            }
        }
    }

    /// Ends all sessions.
    pub fn disconnect(&mut self, reason: &str) {
        self.seats
            .iter_mut()
            .flatten()
            .for_each(|client| client.disconnect(Some(reason.into()), &mut self.reactor));
    }

    /// All clients' rings, to wait for with the reactor; not for what [waits](ClientSession::waits)
    /// while what is shared is `full`.
    pub fn split(&mut self, full: bool) -> (&mut Reactor, &Registration, Rings<'_, G>) {
        (
            &mut self.reactor,
            &self.registration,
            Rings { seats: &mut self.seats, bell: &self.bell, full },
        )
    }
}

/// All clients' rings, as something to wait for.
pub struct Rings<'a, G> {
    seats: &'a mut [Option<G>],
    /// Stands for the clients' own descriptors, which the reactor watches.
    bell: &'a Irq,
    /// What is shared has no room: clients that wait for it are not looked at.
    full: bool,
}

impl<G: ClientSession> Rings<'_, G> {
    /// Asks each client that does not wait for what is full.
    fn want(&mut self) {
        let full = self.full;
        self.seats
            .iter_mut()
            .flatten()
            .filter(|client| !client.waits(full))
            .for_each(|client| client.want(true));
    }
}

impl<G: ClientSession> Source for Rings<'_, G> {
    fn irq(&self) -> Option<&Irq> {
        Some(self.bell)
    }

    #[inline]
    fn pending(&self) -> bool {
        let readable = |client: &G| client.session().readable && !client.session().closing;
        self.seats
            .iter()
            .flatten()
            .any(|client| readable(client) || !client.waits(self.full) && client.pending())
    }

    fn arm(&mut self) -> Result<bool, Error> {
        self.want();
        Ok(!self.pending())
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.seats.iter_mut().flatten().for_each(|client| client.want(false));
        Ok(())
    }

    fn tick(&mut self, _: Instant) -> Result<Option<Instant>, Error> {
        Ok(None)
    }

    fn wait(&mut self, _: Deadline) -> Result<bool, Error> {
        Ok(self.pending())
    }
}
