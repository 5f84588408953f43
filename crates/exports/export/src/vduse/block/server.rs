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

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ring3_class::block::{Completion, IoError};
use ring3_class::dma::DmaBuffer;
use ring3_reactor::{Event, Reactor, Token};
use ring3_stats::Phase;
use ring3_vduse::{Chain, Device, Fault, Log, Memory, Queue};

use super::config::PIECES;
use crate::serving::{ClassQueue, OnFailure, QueueCommand, QueueServer, State, ThreadStart};
use crate::ublk::translate::Geometry;
use crate::vduse::gate::QueueHandover;

/// What a queue's thread serves.
pub struct Start {
    /// What it shares with queues of other exports.
    pub common: ThreadStart,
    pub device: Arc<Device>,
    pub gate: Arc<QueueHandover>,
    /// What is in flight, for the next server.
    pub log: Log,
    /// How long it polls before it sleeps.
    pub poll: Duration,
}

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

/// The queue is to be opened, or to stay closed, once the disk has ended what it had of the one
/// before.
struct QueueChange {
    /// How far the one before had come, if there was one.
    available: Option<u16>,
}

pub struct VduseQueueServer<'a> {
    reactor: Reactor,
    class: ClassQueue<'a>,
    kicked: Token,
    changed: Token,
    device: &'a Arc<Device>,
    gate: &'a QueueHandover,
    number: u16,
    log: Log,
    queue: Option<Queue>,
    /// The driver has written what makes no sense.
    fault: Option<Fault>,
    change: Option<QueueChange>,
    /// The last change of the queue that was acknowledged.
    acknowledged: u64,
    /// What another server has had in flight, to be taken again.
    again: Vec<u16>,
    geometry: Geometry,
    /// By which the disk is called.
    name: [u8; ring3_spec::virtio::blk::ID_LEN],
    slots: Vec<VduseSlot>,
    free: Vec<u16>,
}

impl<'a> VduseQueueServer<'a> {
    /// Of a queue that its driver may have set up already, with one buffer for each request in
    /// flight.
    pub fn new(mut reactor: Reactor, start: &'a mut Start) -> io::Result<Self> {
        let Start { common, device, gate, log, .. } = start;
        let (number, buffers) = (common.queue, std::mem::take(&mut common.buffers));
        let depth = buffers.len() as u16;
        let class = ClassQueue::new(&mut reactor, common, depth, OnFailure::Refuse)?;
        let (kicked, changed) = (reactor.add(gate.kicks())?, reactor.add(gate.changed())?);
        let buffer = buffers.iter().map(DmaBuffer::len).min().unwrap_or(0) as u32;
        let slot = |buffer| VduseSlot {
            buffer: Some(buffer),
            chain: Chain::with_capacity(PIECES),
            bytes: 0,
            reads: false,
            busy: false,
            live: false,
        };
        let mut name = [0; ring3_spec::virtio::blk::ID_LEN];
        name.iter_mut().zip(class.info().serial.bytes()).for_each(|(to, from)| *to = from);
        Ok(Self {
            geometry: Geometry::new(class.info().block_size, buffer),
            reactor,
            class,
            kicked,
            changed,
            device,
            gate,
            number,
            log: log.clone(),
            queue: None,
            fault: None,
            change: None,
            acknowledged: 0,
            again: Vec::new(),
            name,
            slots: buffers.into_iter().map(slot).collect(),
            free: (0..depth).collect(),
        })
    }

    fn take_events(&mut self) -> io::Result<()> {
        while let Some(event) = self.reactor.next_event() {
            match event {
                // Whoever was kicked looks anyway.
                Event::Ready(token) if token == self.kicked => {}
                Event::Ready(token) if token == self.changed => self.apply_queue_change()?,
                event => self.handle_event(event)?,
            }
        }
        Ok(())
    }

    /// Lets go of the queue as it was, and opens it where it is now as soon as the disk has ended
    /// what it had of it.
    #[cold]
    fn apply_queue_change(&mut self) -> io::Result<()> {
        // A thread looks when it begins, and is woken once more for a change that was made before:
        // opened again from its beginning, the queue would do everything twice.
        if self.gate.change().0 == self.acknowledged {
            return Ok(());
        }
        let change = self.change.get_or_insert(QueueChange { available: None });
        if let Some(queue) = self.queue.take() {
            change.available = Some(queue.available());
        }
        self.slots.iter_mut().for_each(|slot| slot.live = false);
        self.again.clear();
        self.fault = None;
        self.fail_backlog()?;
        self.open_when_idle();
        Ok(())
    }

    /// Opens the queue that has changed, once the disk has nothing of the one before.
    fn open_when_idle(&mut self) {
        if self.class.in_flight() == 0
            && let Some(QueueChange { available }) = self.change.take()
        {
            self.open(available);
        }
    }

    /// Opens the queue where it is now, if it is anywhere. The one before had come to `before`.
    #[cold]
    fn open(&mut self, before: Option<u16>) {
        let (number, opening) = self.gate.change();
        self.acknowledged = number;
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
        self.gate.acknowledge(number, before);
    }

    /// Whether the thread is to end, and the disk has ended what it had.
    fn is_over(&self) -> bool {
        match self.class.state() {
            State::Abandoned { .. } => matches!(self.class.command(), QueueCommand::Quiesce(_)),
            _ => self.class.is_quiesced(),
        }
    }

    /// Sleeps until there may be something to do.
    fn wait(&mut self) -> io::Result<()> {
        if self.change.is_some() && self.class.in_flight() == 0 {
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
        let waited = if self.class.is_idle() {
            self.class.recorder.phase(Phase::Idle);
            self.reactor.step(None)?
        } else {
            self.wait_for_driver()?
        };
        self.class.record_wait(waited);
        Ok(())
    }
}

impl<'a> QueueServer<'a> for VduseQueueServer<'a> {
    #[inline]
    fn class(&mut self) -> &mut ClassQueue<'a> {
        &mut self.class
    }

    #[inline]
    fn parts(&mut self) -> (&mut ClassQueue<'a>, &mut Reactor) {
        (&mut self.class, &mut self.reactor)
    }

    /// Serves until it is to quiesce, and nothing is in flight.
    fn run(&mut self) -> io::Result<()> {
        self.apply_queue_change()?;
        loop {
            self.class.recorder.beat();
            self.take_events()?;
            self.open_when_idle();
            self.take_chains()?;
            self.drive()?;
            self.publish();
            if self.is_over() {
                return Ok(());
            }
            self.wait()?;
        }
    }

    #[inline]
    fn complete(&mut self, completion: Completion) -> io::Result<()> {
        self.end(completion)
    }

    #[cold]
    fn abandon(&mut self, reason: String) -> io::Result<()> {
        self.class.abandon(reason)?;
        for place in 0..self.slots.len() {
            if self.slots[place].busy {
                self.finish(place as u16, Err(IoError::Transport))?;
            }
        }
        self.free.clear();
        self.free.extend(
            (0..self.slots.len() as u16).filter(|&place| !self.slots[usize::from(place)].busy),
        );
        Ok(())
    }
}
