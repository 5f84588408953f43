//! One virtqueue's thread: requests from the driver to the class queue, and their ends back.
//!
//! # Failure
//! A disk that is taken from its users, or whose driver has failed, is served on with an error for
//! each request, until it is gone.
//!
//! # Reset
//! A driver that resets its device forgets what is in flight. The disk does not: such a request
//! ends here, and nobody is told. The driver's memory is let go of at once, and the reset is over
//! when the disk has ended the last of them: a write that it still had could undo what is written
//! after. [virtio 2.4.1]

mod begin;
mod ends;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_class::block::{Completion, IoError, Queue as ClassQueue, Request};
use ring3_class::dma::DmaBuffer;
use ring3_reactor::{Event, Reactor, Registration, Timer, Token};
use ring3_stats::{Phase, Recorder};
use ring3_vduse::{Chain, Device, Fault, Log, Memory, Queue};

use super::config::PIECES;
use super::thread::{Report, Start};
use crate::ublk::orders::{Order, Orders};
use crate::ublk::stats::Counters;
use crate::ublk::translate::Geometry;
use crate::vduse::gate::QueueHandover;

/// One request that can be in flight.
struct VduseSlot {
    /// Here, or with the class queue.
    buffer: Option<DmaBuffer>,
    chain: Chain,
    /// What it moves, and whether that goes to the driver.
    bytes: u32,
    reads: bool,
    busy: bool,
    /// The driver has not forgotten it.
    live: bool,
}

/// What becomes of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// They are done.
    Serving,
    /// New ones fail; what the disk has is waited for.
    Refusing,
    /// All fail; the disk is not asked any more.
    Abandoned,
}

pub struct VduseQueueServer<'a> {
    reactor: Reactor,
    registration: Registration,
    kicked: Token,
    changed: Token,
    ordered: Token,
    device: &'a Arc<Device>,
    gate: &'a QueueHandover,
    orders: &'a Orders,
    class: &'a mut dyn ClassQueue,
    number: u16,
    log: Log,
    queue: Option<Queue>,
    /// The driver has written what makes no sense.
    fault: Option<Fault>,
    /// The queue is to be opened, or to stay closed, once the disk has ended what it had of the one
    /// before, which had come so far.
    resetting: bool,
    before: Option<u16>,
    /// The last word that was heeded.
    heeded: u64,
    /// What another server has had in flight, to be taken again.
    again: Vec<u16>,
    geometry: Geometry,
    /// By which the disk is called.
    name: [u8; ring3_spec::virtio::blk::ID_LEN],
    slots: Vec<VduseSlot>,
    free: Vec<u16>,
    /// Requests for which the class queue had no room.
    backlog: VecDeque<Request>,
    done: Box<[Completion]>,
    counters: &'a Counters,
    recorder: &'a Recorder,
    started: Instant,
    report: &'a Report,
    mode: Mode,
    leaving: bool,
    /// So long the disk may take for what it has at the end.
    patience: Option<Timer>,
    failed: bool,
    gone: bool,
    submitted: bool,
    suspicious: bool,
}

impl<'a> VduseQueueServer<'a> {
    /// Of a queue that its driver may have set up already, with one buffer for each request in
    /// flight.
    pub fn new(mut reactor: Reactor, start: &'a mut Start) -> io::Result<Self> {
        let class = &mut *start.class;
        let registration = Registration::new(&mut reactor, class)?;
        let (kicked, changed) =
            (reactor.add(start.gate.kicks())?, reactor.add(start.gate.changed())?);
        let ordered = reactor.add(start.orders.as_fd())?;
        let buffer = start.buffers.iter().map(DmaBuffer::len).min().unwrap_or(0) as u32;
        let slot = |buffer| VduseSlot {
            buffer: Some(buffer),
            chain: Chain::with_capacity(PIECES),
            bytes: 0,
            reads: false,
            busy: false,
            live: false,
        };
        let slots: Vec<_> = std::mem::take(&mut start.buffers).into_iter().map(slot).collect();
        let mut name = [0; ring3_spec::virtio::blk::ID_LEN];
        name.iter_mut().zip(class.info().serial.bytes()).for_each(|(to, from)| *to = from);
        Ok(Self {
            geometry: Geometry::new(class.info().block_size, buffer),
            reactor,
            registration,
            kicked,
            changed,
            ordered,
            device: &start.device,
            gate: &start.gate,
            orders: &start.orders,
            class,
            number: start.queue,
            log: start.log.clone(),
            queue: None,
            fault: None,
            resetting: false,
            before: None,
            heeded: 0,
            again: Vec::new(),
            name,
            free: (0..slots.len() as u16).collect(),
            backlog: VecDeque::with_capacity(slots.len()),
            done: slots.iter().map(|_| Completion::default()).collect(),
            slots,
            counters: &start.counters[usize::from(start.queue)],
            recorder: &start.recorder,
            started: start.started,
            report: &start.report,
            mode: Mode::Serving,
            leaving: false,
            patience: None,
            failed: false,
            gone: false,
            submitted: false,
            suspicious: false,
        })
    }

    /// Serves until it is told to leave, and nothing is in flight.
    pub fn run(&mut self) -> io::Result<()> {
        self.heed();
        loop {
            self.recorder.beat();
            self.take_events()?;
            if self.resetting && self.in_flight() == 0 {
                self.open();
            }
            self.take_chains();
            if self.mode != Mode::Abandoned {
                self.drive()?;
            }
            self.publish();
            if self.leaving && self.in_flight() == 0 {
                return Ok(());
            }
            self.wait()?;
        }
    }

    /// Whether the driver of the disk has failed.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    fn take_events(&mut self) -> io::Result<()> {
        while let Some(event) = self.reactor.next_event() {
            match event {
                // Whoever was kicked looks anyway.
                Event::Ready(token) if token == self.kicked => {}
                Event::Ready(token) if token == self.changed => self.heed(),
                Event::Ready(token) if token == self.ordered => self.obey(),
                Event::Ready(_) => {
                    self.recorder.interrupted();
                    self.rest();
                }
                Event::Timer(timer, _) if Some(timer) == self.patience => {
                    return Err(self.quiesce_timeout_error());
                }
                Event::Timer(_, now) if self.in_flight() > 0 => self.look_after(now),
                Event::Timer(..) => self.rest(),
                Event::Lost(_, error) => return Err(error),
                Event::Command { .. } => {}
            }
        }
        Ok(())
    }

    /// Lets go of the queue as it was, and opens it where it is now as soon as the disk has ended
    /// what it had of it.
    #[cold]
    fn heed(&mut self) {
        // A thread looks when it begins, and is told once more of a word that was given before:
        // opened again from its beginning, the queue would do everything twice.
        if self.gate.word().0 == self.heeded {
            return;
        }
        if let Some(queue) = self.queue.take() {
            self.before = Some(queue.available());
        }
        self.slots.iter_mut().for_each(|slot| slot.live = false);
        self.again.clear();
        self.fault = None;
        // The disk has not begun with these.
        while let Some(request) = self.backlog.pop_front() {
            self.complete(request.token, Err(IoError::Transport), request.data);
        }
        self.resetting = true;
        if self.in_flight() == 0 {
            self.open();
        }
    }

    /// Opens the queue where it is now, if it is anywhere.
    #[cold]
    fn open(&mut self) {
        self.resetting = false;
        let (number, opening) = self.gate.word();
        self.heeded = number;
        match opening {
            Some(opening) => {
                let memory = Memory::new(self.device.clone());
                match Queue::open(
                    memory,
                    &opening.vring,
                    opening.features,
                    Some(self.log.clone()),
                    opening.begin,
                ) {
                    Ok(queue) => {
                        self.again = queue.in_flight();
                        self.queue = Some(queue);
                    }
                    Err(fault) => self.stop(fault),
                }
            }
            // The driver has forgotten all, and learns after this that the reset is over. If this
            // process dies before the driver has set the queue up again, the next one must not look
            // for the old heads in the new ring.
            None => self.log.clear(),
        }
        self.gate.heed(number, self.before.take());
    }

    #[cold]
    fn obey(&mut self) {
        match self.orders.present() {
            Order::Serve => {}
            Order::Refuse => self.refuse(),
            Order::Leave(until) if !self.leaving => {
                self.leaving = true;
                self.patience = Some(self.reactor.set_timer(until));
            }
            Order::Leave(_) => {}
        }
    }

    /// The error of a disk that does not end its requests.
    fn quiesce_timeout_error(&self) -> io::Error {
        io::Error::other(format!(
            "{} requests did not end in time for the device to be taken away",
            self.in_flight()
        ))
    }

    /// Nothing is waited for, if that is so.
    fn rest(&mut self) {
        if self.in_flight() == 0 && self.mode != Mode::Abandoned {
            self.registration.rest(&mut self.reactor, self.class);
        }
    }

    /// Requests in the disk's hands.
    #[inline]
    fn in_flight(&self) -> u16 {
        if self.mode == Mode::Abandoned { 0 } else { self.class.in_flight() }
    }

    /// One turn with the disk: what came goes down, what is done comes up.
    #[inline]
    fn drive(&mut self) -> io::Result<()> {
        for _ in 0..self.backlog.len() {
            if self.class.in_flight() >= self.class.depth() {
                break;
            }
            let Some(request) = self.backlog.pop_front() else { break };
            self.submit(request);
        }
        if std::mem::take(&mut self.submitted) {
            self.class.ring();
            self.counters.batches.add(1);
        }
        self.reap();
        if std::mem::take(&mut self.suspicious) {
            self.look_after(Instant::now());
        }
        Ok(())
    }

    /// Sleeps until there may be something to do.
    fn wait(&mut self) -> io::Result<()> {
        if self.resetting && self.in_flight() == 0 {
            return Ok(());
        }
        if self.fault.is_none()
            && !self.free.is_empty()
            && self.queue.as_mut().is_some_and(Queue::want_kicks)
        {
            // What came meanwhile is taken; what else there is comes along.
            return if self.reactor.has_events() {
                self.reactor.step(Some(Duration::ZERO)).map(drop)
            } else {
                Ok(())
            };
        }
        let turn = if self.in_flight() == 0 && self.backlog.is_empty() {
            self.recorder.phase(Phase::Idle);
            self.reactor.step(None)?
        } else {
            if self.registration.timer().is_none() {
                self.look_after(Instant::now());
            }
            self.recorder.phase(if self.leaving { Phase::Draining } else { Phase::Waiting });
            self.reactor.wait(&mut [(&self.registration, self.class)], None)?
        };
        self.recorder.phase(Phase::Working);
        self.counters.calls.add(turn.calls.into());
        self.counters.sleeps.add(turn.slept.into());
        self.counters.polls_hit.add((turn.polled == Some(true)).into());
        self.counters.polls_missed.add((turn.polled == Some(false)).into());
        Ok(())
    }
}
