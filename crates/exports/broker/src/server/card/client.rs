//! One client of a card, as the server has it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use ring3_class::Error;
use ring3_class::net::{Counters, ETHERNET_HEADER, Info, Link, Mac, Multicast, Nic, VLAN_TAG};
use ring3_reactor::Reactor;

use super::super::memory::{Memory, pipe, ring};
use super::super::session::{ClientSession, Session, refuse_version};
use super::super::share::{CARD, Share};
use super::access::{CardGrant, GROUPS};
use super::packet::ForwardedPacket;
use super::port::Port;
use super::switch::Entry;
use crate::memory::{self, StatusPage};
use crate::protocol::{self, Answer, ClientRequest, OpenPort, VERSION};

/// See the module.
pub struct Client {
    session: Session,
    reply: Option<(Answer, Vec<OwnedFd>)>,
    pub grant: Arc<CardGrant>,
    pub mac: Mac,
    memory: Option<Arc<Memory>>,
    board: Option<(StatusPage, OwnedFd)>,
    groups: Multicast,
    pub port: Option<Port>,
    pub share: Share,
    /// Until when its limits hold it back.
    pub held_until: Option<Instant>,
    /// Its next packet is for the wire, which had no room.
    pub for_wire: bool,
    pub counters: Counters,
    /// What the board says.
    shown: Counters,
}

impl Client {
    /// In `session`, with the address `mac`, by the terms of `grant`.
    pub fn new(session: Session, mac: Mac, grant: Arc<CardGrant>) -> Self {
        let access = &grant.access;
        let share = Share::new(CARD, access.weight, access.pps, access.rate, Instant::now());
        let (groups, counters) = (Multicast::default(), Counters::default());
        Self {
            session,
            reply: None,
            mac,
            memory: None,
            board: None,
            groups,
            port: None,
            share,
            held_until: None,
            for_wire: false,
            counters,
            shown: counters,
            grant,
        }
    }

    /// Does what it asks for. An error ends the client.
    pub fn handle_message(
        &mut self,
        ask: ClientRequest,
        (nic, mapped): (&dyn Nic, bool),
        link: Link,
        reactor: &mut Reactor,
    ) -> Result<(), Error> {
        let (answer, fds) = match ask {
            ClientRequest::Hello { version, memory } => {
                self.welcome(version, memory, (nic, mapped), link)?
            }
            ClientRequest::OpenPort(wanted) => self.open(&wanted, reactor)?,
            ClientRequest::Filter { multicast } => {
                self.groups = match multicast {
                    Multicast::Of(groups) if groups.len() > GROUPS => Multicast::All,
                    groups => groups,
                };
                (Answer::Filtered, Vec::new())
            }
            ClientRequest::Close { queue } => {
                let port = self.port.as_mut().filter(|port| queue == 0 && !port.closing);
                port.ok_or_else(|| Error::Protocol(format!("queue {queue} is not open")))?.close();
                return self.reap_closed_queues(reactor);
            }
            ClientRequest::Open { .. } | ClientRequest::Offer { .. } | ClientRequest::Revoke => {
                return Err(Error::Protocol("it takes the network card for a disk".into()));
            }
        };
        self.reply = Some((answer, fds));
        Ok(())
    }

    /// Answers what was heard: when the card knows it, too.
    pub fn answer(&mut self) -> Result<(), Error> {
        self.reply.take().map_or(Ok(()), |(answer, fds)| self.session.send(&answer, &fds))
    }

    fn welcome(
        &mut self,
        version: u32,
        wanted: u64,
        (nic, mapped): (&dyn Nic, bool),
        link: Link,
    ) -> Result<(Answer, Vec<OwnedFd>), Error> {
        if let Some(refusal) = refuse_version(version) {
            return Ok((refusal, Vec::new()));
        }
        if self.memory.is_some() {
            return Err(Error::Protocol("it says hello twice".into()));
        }
        let made = Memory::make(wanted, self.grant.access.memory, mapped.then(|| nic.dma()))
            .and_then(|made| Ok((made, memory::make(StatusPage::BYTES)?, pipe()?)));
        let ((file, memory), board, (waker, woken)) = match made {
            Ok(made) => made,
            Err(error) => {
                return Ok((
                    Answer::Refused { reason: format!("no memory for a client: {error}") },
                    Vec::new(),
                ));
            }
        };
        let bytes = memory.foreign.len() as u64;
        self.memory = Some(Arc::new(memory));
        self.board = Some((StatusPage::map(board.as_fd())?, waker));
        self.show_link(link);
        let info = Info { mac: self.mac, ..self.grant.info.clone() };
        let port =
            protocol::Port { version: VERSION, card: nic.name(), info, memory: bytes, mapped };
        Ok((Answer::Port(Box::new(port)), vec![file, board, woken]))
    }

    fn open(
        &mut self,
        wanted: &OpenPort,
        reactor: &mut Reactor,
    ) -> Result<(Answer, Vec<OwnedFd>), Error> {
        let memory = self
            .memory
            .clone()
            .ok_or_else(|| Error::Protocol("it opens a queue before it says hello".into()))?;
        let refused = |reason: String| Ok((Answer::Refused { reason }, Vec::new()));
        if self.port.is_some() {
            return refused("its queue is open: drop it first".into());
        }
        let CardGrant { access, info, .. } = &*self.grant;
        let [rx_depth, tx_depth] = [wanted.rx_depth, wanted.tx_depth]
            .map(|depth| 1 << depth.clamp(1, access.depth).ilog2());
        let max_frame = wanted.mtu.min(info.mtu.1) + ETHERNET_HEADER + VLAN_TAG;
        match Port::new((rx_depth, tx_depth), (info.max_pieces, max_frame), memory, reactor) {
            Ok((port, fds)) => {
                self.port = Some(port);
                Ok((Answer::PortOpened { rx_depth, tx_depth }, fds.into()))
            }
            Err(error) => refused(format!("no queue for a client: {error}")),
        }
    }

    /// How the switch knows it; `None` of who is nobody, or not any more.
    pub fn entry(&self, seat: usize) -> Option<Entry> {
        let there = !self.session.closing && self.memory.is_some();
        there.then(|| Entry {
            seat,
            mac: self.mac,
            vlan: self.grant.access.vlan,
            groups: self.groups.clone(),
        })
    }

    /// Shows it the link.
    pub fn show_link(&self, link: Link) {
        if let Some((board, waker)) = &self.board {
            board.set_link(link);
            ring(waker);
        }
    }

    /// Gives it a packet, or counts what that has come to. An error ends it.
    pub fn receive(&mut self, packet: &ForwardedPacket<'_>) -> Result<(), Error> {
        let Some(port) = &mut self.port else { return Ok(()) };
        let longest = packet
            .meta
            .segmentation()
            .map_or(packet.len, |cut| usize::from(cut.headers) + usize::from(cut.size));
        if longest > port.max_frame {
            self.counters.rx_errors += 1;
        } else if port.receive(packet)? {
            self.counters.rx_packets += 1;
            self.counters.rx_bytes += packet.len as u64;
        } else {
            self.counters.rx_missed += 1;
        }
        Ok(())
    }

    /// Counts a packet of `bytes` that it has sent, or that was `lost`.
    pub fn count_sent(&mut self, bytes: usize, lost: bool) {
        if lost {
            self.counters.tx_lost += 1;
        } else {
            self.counters.tx_packets += 1;
            self.counters.tx_bytes += bytes as u64;
        }
    }

    /// Shows it what has ended and what was counted.
    pub fn flush(&mut self) {
        if self.shown != self.counters {
            self.shown = self.counters;
            self.board.iter().for_each(|(board, _)| board.set_counters(&self.shown));
        }
        self.port.iter_mut().for_each(Port::flush);
    }

    /// Takes away the queue that is being closed and has nothing in flight, and says so.
    pub fn reap_closed_queues(&mut self, reactor: &mut Reactor) -> Result<(), Error> {
        let Some(closed) = self.port.take_if(|port| port.closing && port.in_flight == 0) else {
            return Ok(());
        };
        reactor
            .remove(closed.bell.kick)
            .map_err(|error| Error::os("closing a client's queue", error))?;
        if self.session.closing {
            Ok(())
        } else {
            self.session.send(&Answer::Closed { queue: 0 }, &[])
        }
    }
}

impl ClientSession for Client {
    fn session(&self) -> &Session {
        &self.session
    }

    fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    #[inline]
    fn pending(&self) -> bool {
        !self.session.closing
            && self.held_until.is_none()
            && self.port.as_ref().is_some_and(Port::pending)
    }

    /// What is for another client does not wait for the wire.
    #[inline]
    fn waits(&self, full: bool) -> bool {
        full && self.for_wire
    }

    fn want(&mut self, wanted: bool) {
        self.port.iter_mut().for_each(|port| port.want(wanted));
    }

    fn close(&mut self) {
        self.port.iter_mut().for_each(Port::close);
    }
}
