//! The threads that move packets, one for each queue. They last as long as the export, whatever is
//! opened meanwhile: a process in its sandbox has no more rings than it was started with.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ring3_reactor::Pool;

use super::Error;
use super::eventfd::ring;
use super::queue::Start;

/// A thread, and what it serves.
pub struct Worker {
    name: String,
    starts: Option<Sender<Start>>,
    ends: Receiver<Result<(), Error>>,
    /// It serves a queue, or has served one whose end nobody has taken.
    busy: bool,
    ended: Option<Result<(), Error>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread `name`, which waits in the ring of `rings` and polls for `poll` at most.
    /// `bell` is rung when a queue has ended.
    pub fn spawn(
        name: String,
        (poll, rings): (Duration, Pool),
        bell: &Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let (starts, queues) = channel();
        let (tell, ends) = channel();
        let bell = bell.clone();
        let work = move || {
            work((poll, &rings), &queues, &|ended| {
                // Who has gone needs no end.
                let _ = tell.send(ended);
                ring(&bell);
            })
        };
        let thread = Some(thread::Builder::new().name(name.clone()).spawn(work)?);
        Ok(Self { name, starts: Some(starts), ends, busy: false, ended: None, thread })
    }

    /// Serves a queue from now on.
    pub fn start(&mut self, start: Start) {
        self.busy = true;
        self.ended = None;
        // A thread that is gone is found by its end.
        if let Some(starts) = &self.starts {
            let _ = starts.send(start);
        }
    }

    /// Whether the queue has ended, which nobody has taken yet.
    pub fn has_ended(&mut self) -> bool {
        if self.busy && self.ended.is_none() {
            self.ended = match self.ends.try_recv() {
                Ok(ended) => Some(ended),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(Error::Panicked(self.name.clone()))),
            };
        }
        self.ended.is_some()
    }

    /// Waits for the end of the queue, which was told to, or has failed.
    pub fn end(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.busy) {
            return Ok(());
        }
        let ended = self.ended.take().or_else(|| self.ends.recv().ok());
        ended.unwrap_or_else(|| Err(Error::Panicked(self.name.clone())))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.starts = None;
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Serves queues until there are no more. Their ring is made with the first, in this thread, and
/// stays.
fn work(
    (poll, rings): (Duration, &Pool),
    starts: &Receiver<Start>,
    tell: &dyn Fn(Result<(), Error>),
) {
    let mut reactor = None;
    for start in starts {
        let name = start.interface.name().to_owned();
        let ready = match reactor.take() {
            Some(reactor) => Ok(reactor),
            None => rings
                .reactor(0, poll)
                .map_err(|error| Error::os(format!("{name}: creating its io_uring"), error)),
        };
        tell(ready.and_then(|mut its| {
            let served = catch_unwind(AssertUnwindSafe(|| start.run(&mut its)));
            reactor = Some(its);
            served.unwrap_or(Err(Error::Panicked(name)))
        }));
    }
}
