//! One client, as the server has it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::Error;
use ring3_class::block::{Completion, Disk};
use ring3_class::dma::Region;
use ring3_lease::Channel;
use ring3_reactor::{Reactor, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::access::Grant;
use super::queue::{ClientQueue, Held, Memory};
use super::share::Share;
use crate::memory;
use crate::protocol::{Answer, Ask, VERSION, Welcome};

/// How long a client may take to take an answer, which nobody waits for: its socket has room for many.
const PATIENCE: Duration = Duration::from_millis(5);

/// See the module.
pub struct Client {
    /// For the log.
    pub who: String,
    pub grant: Arc<Grant>,
    channel: Channel,
    /// By which the reactor knows its socket.
    pub token: Token,
    /// Its socket may have a message.
    pub talks: bool,
    memory: Option<Arc<Memory>>,
    queues: Vec<Option<ClientQueue>>,
    /// Which queue is asked first for the next request.
    next: usize,
    pub share: Share,
    /// Until when its limits hold it back.
    pub held_until: Option<Instant>,
    /// It is cut off or has left, and is gone when nothing of it is in flight.
    pub leaving: bool,
}

/// What a message has led to.
pub enum Heard {
    /// Nothing more is there.
    Nothing,
    /// It was answered.
    Answered,
    /// The client has gone.
    Left,
}

impl Client {
    /// On `socket`, by the terms of `grant`.
    pub fn new(socket: OwnedFd, who: String, grant: Arc<Grant>, reactor: &mut Reactor) -> Result<Self, Error> {
        let failed = |error| Error::os("serving a client", error);
        let token = reactor.add(socket.as_fd()).map_err(failed)?;
        let channel = Channel::new(socket, PATIENCE, true).map_err(failed)?;
        let access = &grant.access;
        let share = Share::new(access.weight, access.iops, access.rate, Instant::now());
        let queues = (0..access.queues).map(|_| None).collect();
        Ok(Self {
            who,
            grant,
            channel,
            token,
            talks: true,
            memory: None,
            queues,
            next: 0,
            share,
            held_until: None,
            leaving: false,
        })
    }

    /// Takes a message, if there is one, and does what it asks for. An error ends the client.
    pub fn hear(&mut self, disk: &dyn Disk, mapped: bool, reactor: &mut Reactor) -> Result<Heard, Error> {
        let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
        if !poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return Ok(Heard::Nothing);
        }
        let garbage = |error: std::io::Error| Error::Protocol(format!("no message: {error}"));
        let Some((ask, fds)) = self.channel.receive::<Ask>().map_err(garbage)? else { return Ok(Heard::Left) };
        if !fds.is_empty() {
            return Err(Error::Protocol(format!("{} descriptors that nobody asked for", fds.len())));
        }
        let (answer, fds) = match ask {
            Ask::Hello { version, memory } => self.welcome(version, memory, disk, mapped)?,
            Ask::Open { depth } => self.open(depth, reactor)?,
            Ask::Close { queue } => {
                let found = self.queues.get_mut(usize::from(queue)).and_then(Option::as_mut);
                let found = found.filter(|queue| !queue.closing);
                found.ok_or_else(|| Error::Protocol(format!("queue {queue} is not open")))?.close();
                self.bury(reactor)?;
                return Ok(Heard::Answered);
            }
        };
        self.say(&answer, &fds)?;
        Ok(Heard::Answered)
    }

    fn say(&self, answer: &Answer, fds: &[OwnedFd]) -> Result<(), Error> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.channel.send(answer, &fds).map_err(|error| Error::os("it does not take its answers", error))
    }

    fn welcome(&mut self, version: u32, wanted: u64, disk: &dyn Disk, mapped: bool) -> Result<(Answer, Vec<OwnedFd>), Error> {
        if version != VERSION {
            let reason = format!("it speaks version {version}, and this server {VERSION}: both must be of one release of ring3");
            return Ok((Answer::Refused { reason }, Vec::new()));
        }
        if self.memory.is_some() {
            return Err(Error::Protocol("it says hello twice".into()));
        }
        let bytes = wanted.clamp(1, self.grant.access.memory).next_multiple_of(4096);
        let made = memory::make(bytes as usize).and_then(|file| {
            let copy = file.try_clone().map_err(|error| Error::os("duplicating memory", error))?;
            let map = |region: &Arc<Region>| match mapped {
                true => disk.dma().map(region.pages()?).map(Some),
                false => Ok(None),
            };
            Ok((file, Memory::new(Region::from_fd(copy)?, map)?))
        });
        let (file, memory) = match made {
            Ok(made) => made,
            Err(error) => return Ok((Answer::Refused { reason: format!("no memory for a client: {error}") }, Vec::new())),
        };
        self.memory = Some(Arc::new(memory));
        let Grant { access, info, .. } = &*self.grant;
        let welcome =
            Welcome { version: VERSION, disk: disk.name(), info: info.clone(), memory: bytes, queues: access.queues, mapped };
        Ok((Answer::Welcome(Box::new(welcome)), vec![file]))
    }

    fn open(&mut self, depth: u16, reactor: &mut Reactor) -> Result<(Answer, Vec<OwnedFd>), Error> {
        let memory = self.memory.clone().ok_or_else(|| Error::Protocol("it opens a queue before it says hello".into()))?;
        let Some(queue) = self.queues.iter().position(Option::is_none) else {
            let reason =
                format!("all {} queues are open: close one, or have the server grant more (queues=N)", self.queues.len());
            return Ok((Answer::Refused { reason }, Vec::new()));
        };
        let most = depth.clamp(1, self.grant.access.depth);
        let depth = 1 << most.ilog2();
        let watch = |kick: &OwnedFd| reactor.add(kick.as_fd()).map_err(|error| Error::os("watching a client's queue", error));
        let (opened, fds) = match ClientQueue::new(depth, memory, watch) {
            Ok(made) => made,
            Err(error) => return Ok((Answer::Refused { reason: format!("no queue for a client: {error}") }, Vec::new())),
        };
        self.queues[queue] = Some(opened);
        Ok((Answer::Opened { queue: queue as u16, depth }, fds.into()))
    }

    /// Takes away the queues that are being closed and have nothing in flight, and says so.
    pub fn bury(&mut self, reactor: &mut Reactor) -> Result<(), Error> {
        for queue in 0..self.queues.len() {
            let Some(closed) = self.queues[queue].take_if(|queue| queue.closing && queue.in_flight == 0) else { continue };
            reactor.remove(closed.kick).map_err(|error| Error::os("closing a client's queue", error))?;
            if !self.leaving {
                self.say(&Answer::Closed { queue: queue as u16 }, &[])?;
            }
        }
        Ok(())
    }

    /// Whether a queue is being closed.
    pub fn is_closing(&self) -> bool {
        self.queues().any(|queue| queue.closing)
    }

    /// Parts with it, and says why.
    pub fn leave(&mut self, reason: Option<String>, reactor: &mut Reactor) {
        if self.leaving {
            return;
        }
        self.leaving = true;
        if let Some(reason) = reason {
            let _ = self.say(&Answer::Ended { reason }, &[]);
        }
        self.channel.close();
        self.queues_mut().for_each(ClientQueue::close);
        if let Err(error) = reactor.remove(self.token) {
            tracing::warn!(%error, "a client's socket is still watched");
        }
    }

    /// Requests in the disk's hands.
    pub fn in_flight(&self) -> u16 {
        self.queues().map(|queue| queue.in_flight).sum()
    }

    /// Whether it has something to do that it may do now.
    #[inline]
    pub fn pending(&self) -> bool {
        !self.leaving
            && self.held_until.is_none()
            && self.queues().any(ClientQueue::pending)
            && self.in_flight() < self.grant.access.depth
    }

    /// Its next request and the queue that has it; nothing while it has as many in flight as it may have. An error ends it.
    pub fn peek(&mut self) -> Result<Option<(usize, &Held)>, Error> {
        let count = self.queues.len();
        if self.leaving || self.in_flight() >= self.grant.access.depth {
            return Ok(None);
        }
        let mut found = None;
        for index in (0..count).map(|step| (self.next + step) % count) {
            let Some(queue) = &mut self.queues[index] else { continue };
            if queue.peek(&self.grant)?.is_some() {
                found = Some(index);
                break;
            }
        }
        let Some(index) = found else { return Ok(None) };
        let queue = self.queues[index].as_mut();
        Ok(queue.map(|queue| queue.peek(&self.grant)).transpose()?.flatten().map(|held| (index, held)))
    }

    /// Takes what was peeked at in `queue`, whose turn is over.
    pub fn take(&mut self, queue: usize) -> Option<Held> {
        self.next = queue + 1;
        self.queues.get_mut(queue)?.as_mut()?.take()
    }

    /// A queue, by its number.
    pub fn queue(&mut self, queue: usize) -> Option<&mut ClientQueue> {
        self.queues.get_mut(queue)?.as_mut()
    }

    /// A request of `queue` has ended.
    pub fn end(&mut self, queue: usize, tag: u32, end: Completion) {
        if let Some(queue) = self.queue(queue) {
            queue.end(tag, end);
        }
    }

    /// All its queues.
    pub fn queues(&self) -> impl Iterator<Item = &ClientQueue> {
        self.queues.iter().flatten()
    }

    /// The same, to be changed.
    pub fn queues_mut(&mut self) -> impl Iterator<Item = &mut ClientQueue> {
        self.queues.iter_mut().flatten()
    }
}
