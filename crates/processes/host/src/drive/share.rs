//! The one disk, or network card, of a device, shared with clients of this machine by a thread of
//! this process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use ring3_broker::server::{self, Listener, card};
use ring3_class::block::Disk;
use ring3_class::net::Nic;
use ring3_control::drive::{DriverMessage, Share};
use ring3_reactor::Pool;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::standby::Standby;
use crate::Error;

/// Of which there is one.
pub enum Offered {
    Disk(Arc<dyn Disk>),
    Card(Arc<dyn Nic>),
}

/// The thread, which serves until it is stopped, or the device is gone.
pub struct Sharing {
    device: String,
    stop: Arc<OwnedFd>,
    ended: Arc<OwnedFd>,
    thread: Option<JoinHandle<Result<(), ring3_class::Error>>>,
}

/// A server, and what the supervisor is told of it.
enum BrokerServer {
    Disk(server::DiskServer),
    Card(card::CardServer),
}

impl BrokerServer {
    fn new(
        offered: Offered,
        share: &Share,
        sockets: Vec<OwnedFd>,
        standby: &Standby,
    ) -> Result<Self, Error> {
        let poll = standby.wanted.poll;
        let mut sockets = sockets.into_iter();
        let mut listens = |path: &Path| {
            let socket = sockets
                .next()
                .ok_or_else(|| ring3_class::Error::Invalid("a socket is missing".into()))?;
            Ok(Listener::inherited(socket, path))
        };
        match offered {
            Offered::Disk(disk) => {
                let (name, options) =
                    (disk.name(), server::Options { depth: share.depth, poll, copy: share.copy });
                let server = server::DiskServer::at(
                    disk,
                    terms(share)?,
                    options,
                    |access: &server::Access| listens(&access.path),
                );
                server.map(Self::Disk).map_err(|source| Error::Device { device: name, source })
            }
            Offered::Card(nic) => {
                let (name, options) = (nic.name(), card::Options { poll, copy: share.copy });
                let server =
                    card::CardServer::at(nic, terms(share)?, options, |access: &card::Access| {
                        listens(&access.path)
                    });
                server.map(Self::Card).map_err(|source| Error::Device { device: name, source })
            }
        }
    }

    fn report(&self) -> DriverMessage {
        match self {
            Self::Disk(server) => {
                DriverMessage::Shared { mapped: server.is_mapped(), addresses: Vec::new() }
            }
            Self::Card(server) => {
                let addresses = server
                    .sockets()
                    .flat_map(|(_, addresses)| addresses)
                    .map(|mac| mac.0)
                    .collect();
                DriverMessage::Shared { mapped: server.is_mapped(), addresses }
            }
        }
    }

    fn run(self, rings: &Pool, stop: BorrowedFd<'_>) -> Result<(), ring3_class::Error> {
        match self {
            Self::Disk(server) => server.run_with(rings, &[stop], || true),
            Self::Card(server) => server.run_with(rings, &[stop], || true),
        }
    }
}

/// The terms of all sockets.
fn terms<A: FromStr<Err = String>>(share: &Share) -> Result<Vec<A>, Error> {
    share.sockets.iter().map(|text| text.parse().map_err(Error::protocol)).collect()
}

impl Sharing {
    /// Serves from now on who comes to `sockets`; and what the supervisor is told of that.
    pub fn start(
        offered: Offered,
        share: &Share,
        sockets: Vec<OwnedFd>,
        standby: &Standby,
    ) -> Result<(Self, DriverMessage), Error> {
        let device = match &offered {
            Offered::Disk(disk) => disk.name(),
            Offered::Card(nic) => nic.name(),
        };
        let server = BrokerServer::new(offered, share, sockets, standby)?;
        let report = server.report();
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Arc::new);
        let failed = |error: rustix::io::Errno| Error::os("starting to serve clients", error);
        let (stop, ended) = (event().map_err(failed)?, event().map_err(failed)?);
        // Taken before the thread runs: what is left is given back.
        let rings =
            standby.rings.one().map_err(|error| Error::os("starting to serve clients", error))?;
        let (its, done) = (stop.clone(), ended.clone());
        let serve = move || {
            let served = server.run(&rings, its.as_fd());
            raise(&done);
            served
        };
        let thread = thread::Builder::new().name("broker".into()).spawn(serve);
        let thread = Some(thread.map_err(|error| Error::os("starting to serve clients", error))?);
        Ok((Self { device, stop, ended, thread }, report))
    }

    /// Readable when the thread has ended.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Why it has ended, if it has.
    pub fn check(&mut self) -> Result<(), Error> {
        let over =
            poll(&mut [PollFd::new(&*self.ended, PollFlags::IN)], Some(&Timespec::default()))
                .is_ok_and(|ready| ready > 0);
        if over { self.end() } else { Ok(()) }
    }

    /// Ends what clients have in flight, and tells them.
    pub fn stop(&mut self) -> Result<(), Error> {
        raise(&self.stop);
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let panicked = || {
            Err(ring3_class::Error::Fatal(
                "the thread that serves clients panicked: a defect of ring3".into(),
            ))
        };
        let ended = thread.join().unwrap_or_else(|_| panicked());
        ended.map_err(|source| Error::Device { device: self.device.clone(), source })
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn raise(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
