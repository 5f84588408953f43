//! A class queue, and what every server of one does with it: submit requests, take completions,
//! check the device, quiesce.
//!
//! # Shape
//! A [`ClassQueue`] is the driver's side of a queue's thread. A [`QueueServer`] joins one with a
//! kernel's side, which takes requests and calls [`submit`](QueueServer::submit). Whatever ends a
//! request calls [`complete`](QueueServer::complete), which is the kernel's side's, too. The
//! trait's methods are compiled for each server: between the two sides there is no indirect call,
//! no lock and no allocation.
//!
//! # Failure
//! The driver's errors are warnings as long as it goes on with its device. A request that fails
//! has the device [checked](QueueServer::check_device) in the same turn. [`State`] says what
//! follows when the driver gives its device up.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use ring3_class::Error;
use ring3_class::block::{self, Completion, Info, IoError, Queue, Request};
use ring3_reactor::{Event, LoopStats, Reactor, Registration, Token};
use ring3_stats::{Operation, Phase, Recorder};

use super::command::{CommandChannel, QueueCommand};
use super::start::{Report, ThreadStart};
use super::state::{Failure, OnFailure, State};
use super::stats::Counters;
use crate::ublk::translate::Decoded;

/// See the module.
pub struct ClassQueue<'a> {
    queue: &'a mut dyn Queue,
    registration: Registration,
    commands: &'a CommandChannel,
    commanded: Token,
    state: State,
    on_failure: OnFailure,
    /// Requests for which the queue had no room.
    backlog: VecDeque<Request>,
    /// Where completions come in: one place for each request.
    done: Box<[Completion]>,
    /// Something was submitted since the last doorbell.
    submitted: bool,
    /// A request has failed since the device was checked.
    check_due: bool,
    pub counters: &'a Counters,
    pub recorder: &'a Recorder,
    started: Instant,
    report: &'a Report,
}

impl<'a> ClassQueue<'a> {
    /// That of the thread of `start`, for `depth` requests at once, waited for with `reactor`.
    pub fn new(
        reactor: &mut Reactor,
        start: &'a mut ThreadStart,
        depth: u16,
        on_failure: OnFailure,
    ) -> io::Result<Self> {
        let queue = &mut *start.class;
        Ok(Self {
            registration: Registration::new(reactor, queue)?,
            commanded: reactor.add(start.commands.as_fd())?,
            queue,
            commands: &start.commands,
            state: State::Serving,
            on_failure,
            backlog: VecDeque::with_capacity(depth.into()),
            done: (0..depth).map(|_| Completion::default()).collect(),
            submitted: false,
            check_due: false,
            counters: &start.counters[usize::from(start.queue)],
            recorder: &start.recorder,
            started: start.started,
            report: &start.report,
        })
    }

    /// What becomes of requests.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// The disk's description.
    pub fn info(&self) -> &Info {
        self.queue.info()
    }

    /// Requests that the driver has.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        if self.is_abandoned() { 0 } else { self.queue.in_flight() }
    }

    /// Whether no request waits for the driver.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.in_flight() == 0 && self.backlog.is_empty()
    }

    #[inline]
    fn is_abandoned(&self) -> bool {
        matches!(self.state, State::Abandoned { .. })
    }

    /// Whether it was told to quiesce, and the driver has nothing any more.
    #[inline]
    pub fn is_quiesced(&self) -> bool {
        matches!(self.state, State::Quiescing { .. }) && self.in_flight() == 0
    }

    /// The command in force.
    pub fn command(&self) -> QueueCommand {
        self.commands.present()
    }

    /// Whether an event with `token` is a new command.
    #[inline]
    pub fn is_command(&self, token: Token) -> bool {
        token == self.commanded
    }

    /// Whether a request that failed with `error` may well succeed with the next driver: this one
    /// may be about to give its device up.
    pub fn is_retryable_elsewhere(&self, error: IoError) -> bool {
        self.on_failure == OnFailure::Keep
            && matches!(error, IoError::Transport | IoError::Timeout | IoError::Gone)
    }

    /// The driver has failed: says so once, or is the error with which the thread ends if another
    /// server is to come.
    pub fn fail(&mut self, reason: String, failure: Failure) -> io::Result<()> {
        let first = self.state.fail(failure);
        match self.on_failure {
            OnFailure::Keep => return Err(io::Error::other(reason)),
            OnFailure::Refuse if !first => {}
            OnFailure::Refuse => self.report.failed(reason, failure),
        }
        Ok(())
    }

    /// The error of a device that does not end its requests.
    fn quiesce_timeout_error(&self) -> io::Error {
        let purpose = match self.on_failure {
            OnFailure::Refuse => "the device to be taken away",
            OnFailure::Keep => "the queue to be left to another process",
        };
        let requests = self.in_flight();
        io::Error::other(format!("{requests} requests did not end in time for {purpose}"))
    }

    /// The device still has the memory of a request that has ended: the driver has given it up.
    #[cold]
    pub fn fail_lost_buffer(&mut self) -> io::Result<()> {
        self.fail(
            "the device still has the memory of a request that has ended".into(),
            Failure::Fatal,
        )?;
        self.check_due = true;
        Ok(())
    }

    /// The driver is not called any more, and requests that it does not have yet are forgotten.
    #[cold]
    pub fn abandon(&mut self, reason: String) -> io::Result<()> {
        self.fail(reason, Failure::Fatal)?;
        self.state.abandon();
        self.backlog.clear();
        Ok(())
    }

    /// Has the device checked in this turn.
    #[cold]
    pub fn request_check(&mut self) {
        self.check_due = true;
    }

    /// A request is begun in `slot`.
    #[inline]
    pub fn record_start(&self, slot: u16, Decoded { operation, lba, blocks, .. }: &Decoded) {
        self.recorder.started(slot, recorded(*operation), *lba, *blocks);
    }

    /// The same of one that the driver does not get.
    #[cold]
    pub fn record_rejected(&self, slot: u16) {
        self.recorder.started(slot, Operation::Other, 0, 0);
    }

    /// The request in `slot` has ended, and has moved `bytes` if that is no error.
    #[inline]
    pub fn record_end(&self, slot: u16, end: Result<(), IoError>, bytes: u32) {
        match end {
            Ok(()) => self.recorder.ended(slot, 0, bytes),
            Err(error) => self.recorder.ended(slot, error.errno() as u16, 0),
        }
        self.counters.completed(self.started);
    }

    /// Adds a turn of the reactor's to the counters; the thread works again.
    #[inline]
    pub fn record_wait(&self, LoopStats { calls, slept, polled }: LoopStats) {
        let Self { recorder, counters, .. } = self;
        recorder.phase(Phase::Working);
        counters.calls.add(calls.into());
        counters.sleeps.add(slept.into());
        counters.polls_hit.add((polled == Some(true)).into());
        counters.polls_missed.add((polled == Some(false)).into());
    }

    /// Takes the timer and the interrupt's count away while the driver has nothing.
    fn rest(&mut self, reactor: &mut Reactor) {
        if self.in_flight() == 0 && !self.is_abandoned() {
            self.registration.rest(reactor, self.queue);
        }
    }

    /// Takes completions into `done`: how many.
    #[inline]
    fn reap(&mut self) -> usize {
        self.queue.reap(&mut self.done).unwrap_or_else(|error| {
            tracing::warn!(%error, "the device misbehaved");
            0
        })
    }

    /// Has the driver look after its device. The error is the end of the disk.
    fn tick(&mut self, reactor: &mut Reactor, now: Instant) -> Result<(), Error> {
        let recorder = self.recorder;
        recorder.phase(Phase::Recovering);
        let ticked = self.registration.tick(reactor, self.queue, now);
        recorder.phase(Phase::Working);
        match ticked {
            Err(error @ (Error::Gone | Error::Fatal(_))) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "the device misbehaved");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

/// See the module.
pub trait QueueServer<'a> {
    /// The driver's side.
    fn class(&mut self) -> &mut ClassQueue<'a>;

    /// The driver's side and the reactor by which it is waited for.
    fn parts(&mut self) -> (&mut ClassQueue<'a>, &mut Reactor);

    /// Serves until there is nothing to serve any more.
    fn run(&mut self) -> io::Result<()>;

    /// Ends the request that the completion's token names, and takes its data back.
    fn complete(&mut self, completion: Completion) -> io::Result<()>;

    /// Fails all requests that there are and all that come, without the driver. What that has of
    /// buffers stays with it: its device may write there.
    fn abandon(&mut self, reason: String) -> io::Result<()>;

    /// The driver goes on with its device after requests have failed.
    fn device_is_well(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Passes a request to the driver, or to the backlog.
    #[inline]
    fn submit(&mut self, request: Request) -> io::Result<()> {
        let class = self.class();
        match class.queue.submit(request) {
            Ok(()) => class.submitted = true,
            Err(rejected) => match rejected.error {
                Some(error) => return self.fail_request(rejected.request, error),
                None => class.backlog.push_back(rejected.request),
            },
        }
        Ok(())
    }

    /// Ends a request that the driver does not have.
    #[cold]
    fn fail_request(&mut self, request: Request, error: IoError) -> io::Result<()> {
        let Request { token, data, .. } = request;
        self.complete(Completion { token, result: Err(error), data })
    }

    /// One turn with the driver: requests go down, completions come up.
    #[inline]
    fn drive(&mut self) -> io::Result<()> {
        if self.class().is_abandoned() {
            return Ok(());
        }
        self.submit_backlog()?;
        let class = self.class();
        if std::mem::take(&mut class.submitted) {
            class.queue.ring();
            class.counters.batches.add(1);
        }
        for place in 0..class.reap() {
            let completion = std::mem::take(&mut self.class().done[place]);
            self.complete(completion)?;
        }
        let class = self.class();
        if std::mem::take(&mut class.check_due) && !class.is_abandoned() {
            self.check_device(Instant::now())?;
            self.device_is_well()?;
        }
        Ok(())
    }

    #[inline]
    fn submit_backlog(&mut self) -> io::Result<()> {
        for _ in 0..self.class().backlog.len() {
            let class = self.class();
            if class.queue.in_flight() >= class.queue.depth() {
                break;
            }
            let Some(request) = class.backlog.pop_front() else { break };
            self.submit(request)?;
        }
        Ok(())
    }

    /// Fails requests that the driver does not have yet.
    #[cold]
    fn fail_backlog(&mut self) -> io::Result<()> {
        while let Some(request) = self.class().backlog.pop_front() {
            self.fail_request(request, IoError::Transport)?;
        }
        Ok(())
    }

    /// Has the driver look after its device. What it cannot recover from is the end of the disk;
    /// anything else ends with its requests.
    fn check_device(&mut self, now: Instant) -> io::Result<()> {
        let (class, reactor) = self.parts();
        let Err(error) = class.tick(reactor, now) else { return Ok(()) };
        let failure = if matches!(error, Error::Gone) { Failure::Gone } else { Failure::Fatal };
        class.fail(format!("the driver cannot recover its device: {error}"), failure)?;
        self.fail_backlog()
    }

    /// Handles an event that is not the kernel's side's own.
    fn handle_event(&mut self, event: Event) -> io::Result<()> {
        let (class, reactor) = self.parts();
        match event {
            Event::Ready(token) if class.is_command(token) => return self.handle_command(),
            Event::Ready(_) => {
                class.recorder.interrupted();
                class.rest(reactor);
            }
            Event::Timer(timer, _) if class.state.is_deadline(timer) => {
                return Err(class.quiesce_timeout_error());
            }
            Event::Timer(_, now) if class.in_flight() > 0 => return self.check_device(now),
            Event::Timer(..) => class.rest(reactor),
            Event::Lost(_, error) => return Err(error),
            Event::Command { .. } => {}
        }
        Ok(())
    }

    /// Does what the owner of the thread wants now.
    #[cold]
    fn handle_command(&mut self) -> io::Result<()> {
        let (class, reactor) = self.parts();
        match class.commands.present() {
            QueueCommand::Serve => {}
            QueueCommand::Refuse => {
                class.state.refuse();
                self.fail_backlog()?;
            }
            QueueCommand::Quiesce(until) => {
                class.state.quiesce(|| reactor.set_timer(until));
                // Their buffers go with them: whoever comes next has its own.
                class.backlog.clear();
            }
        }
        Ok(())
    }

    /// Waits until the driver has something, or there are events.
    fn wait_for_driver(&mut self) -> io::Result<LoopStats> {
        if self.class().registration.timer().is_none() {
            self.check_device(Instant::now())?;
        }
        let (class, reactor) = self.parts();
        class.recorder.phase(match class.state {
            State::Quiescing { .. } => Phase::Draining,
            _ => Phase::Waiting,
        });
        reactor.wait(&mut [(&class.registration, class.queue)], None)
    }
}

#[inline]
fn recorded(operation: block::Operation) -> Operation {
    match operation {
        block::Operation::Read => Operation::Read,
        block::Operation::Write => Operation::Write,
        block::Operation::Flush => Operation::Flush,
        block::Operation::WriteZeroes => Operation::WriteZeroes,
        block::Operation::Discard => Operation::Discard,
    }
}
