//! One client, as the server has it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use ring3_class::Error;
use ring3_class::block::{Completion, Disk};
use ring3_reactor::Reactor;

use super::access::DiskGrant;
use super::memory::Memory;
use super::queue::{ClientQueue, QueuedRequest};
use super::session::{ClientSession, Session, refuse_version};
use super::share::{DISK, Share};
use super::unflushed::{FlushEffect, Unflushed};
use crate::protocol::{Answer, ClientRequest, DiskDescription, VERSION};

/// See the module.
pub struct Client {
    session: Session,
    pub grant: Arc<DiskGrant>,
    memory: Option<Arc<Memory>>,
    queues: Vec<Option<ClientQueue>>,
    /// Which queue is asked first for the next request.
    next: usize,
    pub share: Share,
    pub unflushed: Unflushed,
    /// Until when its limits hold it back.
    pub held_until: Option<Instant>,
}

impl Client {
    /// In `session`, by the terms of `grant`.
    pub fn new(session: Session, grant: Arc<DiskGrant>) -> Self {
        let access = &grant.access;
        let share = Share::new(DISK, access.weight, access.iops, access.rate, Instant::now());
        let queues = (0..access.queues).map(|_| None).collect();
        Self {
            session,
            grant,
            memory: None,
            queues,
            next: 0,
            share,
            unflushed: Unflushed::default(),
            held_until: None,
        }
    }

    /// Does what it asks for. An error ends the client.
    pub fn handle_message(
        &mut self,
        (ask, fd): (ClientRequest, Option<OwnedFd>),
        disk: &dyn Disk,
        mapped: bool,
        reactor: &mut Reactor,
    ) -> Result<(), Error> {
        let (answer, fds) = match ask {
            ClientRequest::Hello { version, memory } => {
                self.welcome(version, memory, disk, mapped)?
            }
            ClientRequest::Open { depth } => self.open(depth, reactor)?,
            ClientRequest::Offer { version, bytes } => {
                (self.take_in(version, bytes, fd, disk)?, Vec::new())
            }
            ClientRequest::Revoke => {
                return Err(Error::Protocol(
                    "it takes the server for an export: what it lends is lent as long as it is \
                     connected"
                        .into(),
                ));
            }
            ClientRequest::Close { queue } => {
                let found = self.queues.get_mut(usize::from(queue)).and_then(Option::as_mut);
                let found = found.filter(|queue| !queue.closing);
                found.ok_or_else(|| Error::Protocol(format!("queue {queue} is not open")))?.close();
                return self.reap_closed_queues(reactor);
            }
            ClientRequest::OpenPort(_) | ClientRequest::Filter { .. } => {
                return Err(Error::Protocol("it takes the disk for a network card".into()));
            }
        };
        self.session.send(&answer, &fds)
    }

    fn welcome(
        &mut self,
        version: u32,
        wanted: u64,
        disk: &dyn Disk,
        mapped: bool,
    ) -> Result<(Answer, Vec<OwnedFd>), Error> {
        if let Some(refusal) = refuse_version(version) {
            return Ok((refusal, Vec::new()));
        }
        if self.memory.is_some() {
            return Err(Error::Protocol("it says hello twice".into()));
        }
        let DiskGrant { access, info, .. } = &*self.grant;
        let (file, memory) = match Memory::make(wanted, access.memory, mapped.then(|| disk.dma())) {
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
        let welcome = DiskDescription {
            version: VERSION,
            disk: disk.name(),
            info: info.clone(),
            memory: bytes,
            queues: access.queues,
            mapped,
        };
        Ok((Answer::Welcome(Box::new(welcome)), vec![file]))
    }

    /// Takes a region of the client's in, where the device reaches it: memory that the server
    /// copies saves nobody a copy, and huge pages of it could be taken away from under that.
    fn take_in(
        &mut self,
        version: u32,
        bytes: u64,
        fd: Option<OwnedFd>,
        disk: &dyn Disk,
    ) -> Result<Answer, Error> {
        if let Some(refusal) = refuse_version(version) {
            return Ok(refusal);
        }
        let (Some(memory), Some(fd)) = (&self.memory, fd) else {
            return Err(Error::Protocol("it offers memory before it says hello".into()));
        };
        let refused =
            |reason: String| Answer::Refused { reason: format!("memory is not taken: {reason}") };
        if !memory.mapped {
            return Ok(refused("this server copies, so that it would save nothing".into()));
        }
        Ok(match memory.take_in(&fd, bytes, disk.dma(), self.grant.access.memory) {
            Ok(()) => Answer::Shared { disks: vec![disk.name()] },
            Err(error) => refused(error.to_string()),
        })
    }

    fn open(&mut self, depth: u16, reactor: &mut Reactor) -> Result<(Answer, Vec<OwnedFd>), Error> {
        let memory = self
            .memory
            .clone()
            .ok_or_else(|| Error::Protocol("it opens a queue before it says hello".into()))?;
        let Some(queue) = self.queues.iter().position(Option::is_none) else {
            let reason = format!(
                "all {} queues are open: close one, or have the server grant more (queues=N)",
                self.queues.len()
            );
            return Ok((Answer::Refused { reason }, Vec::new()));
        };
        let most = depth.clamp(1, self.grant.access.depth);
        let depth = 1 << most.ilog2();
        let (opened, fds) = match ClientQueue::new(depth, memory, reactor) {
            Ok(made) => made,
            Err(error) => {
                return Ok((
                    Answer::Refused { reason: format!("no queue for a client: {error}") },
                    Vec::new(),
                ));
            }
        };
        self.queues[queue] = Some(opened);
        Ok((Answer::Opened { queue: queue as u16, depth }, fds.into()))
    }

    /// Takes away the queues that are being closed and have nothing in flight, and says so.
    pub fn reap_closed_queues(&mut self, reactor: &mut Reactor) -> Result<(), Error> {
        for queue in 0..self.queues.len() {
            let Some(closed) =
                self.queues[queue].take_if(|queue| queue.closing && queue.in_flight == 0)
            else {
                continue;
            };
            reactor
                .remove(closed.bell.kick)
                .map_err(|error| Error::os("closing a client's queue", error))?;
            if !self.session.closing {
                self.session.send(&Answer::Closed { queue: queue as u16 }, &[])?;
            }
        }
        Ok(())
    }

    /// Whether a queue is being closed.
    pub fn is_closing(&self) -> bool {
        self.queues().any(|queue| queue.closing)
    }

    /// Requests in the disk's hands.
    pub fn in_flight(&self) -> u16 {
        self.queues().map(|queue| queue.in_flight).sum()
    }

    /// Its next request and the queue that has it; nothing while it has as many in flight as it may
    /// have. An error ends it.
    pub fn peek(&mut self) -> Result<Option<(usize, &QueuedRequest)>, Error> {
        let count = self.queues.len();
        if self.session.closing || self.in_flight() >= self.grant.access.depth {
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
        Ok(queue
            .map(|queue| queue.peek(&self.grant))
            .transpose()?
            .flatten()
            .map(|held| (index, held)))
    }

    /// Takes what was peeked at in `queue`, whose turn is over.
    pub fn take(&mut self, queue: usize) -> Option<QueuedRequest> {
        self.next = queue + 1;
        self.queues.get_mut(queue)?.as_mut()?.take()
    }

    /// A queue, by its number.
    pub fn queue(&mut self, queue: usize) -> Option<&mut ClientQueue> {
        self.queues.get_mut(queue)?.as_mut()
    }

    /// A request of `queue` has ended.
    pub fn end(&mut self, queue: usize, (tag, effect): (u32, FlushEffect), mut end: Completion) {
        let Some(queue) = self.queues.get_mut(queue).and_then(Option::as_mut) else { return };
        end.result = self.unflushed.end(effect, &mut queue.debt, end.result);
        queue.end(tag, end);
    }

    /// If it has written something that was not flushed, its queues are to be told that this may be
    /// lost, but for the one that was `told`.
    pub fn record_flush_failure_of_others(&mut self, told: Option<usize>) {
        if !self.unflushed.is_dirty() {
            return;
        }
        let queues = self.queues.iter_mut().enumerate().filter(|(queue, _)| Some(*queue) != told);
        queues.filter_map(|(_, queue)| queue.as_mut()).for_each(|queue| queue.debt.record());
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
            && self.queues().any(ClientQueue::pending)
            && self.in_flight() < self.grant.access.depth
    }

    fn want(&mut self, wanted: bool) {
        self.queues_mut().for_each(|queue| queue.want(wanted));
    }

    fn close(&mut self) {
        self.queues_mut().for_each(ClientQueue::close);
    }
}
