//! The queue of a drive: the way of a request to the device and back.
//!
//! # Shape
//! [`submit`](Queue::submit) checks a request, gives it a slot and writes its command into the
//! slot's table. [`ring`](Queue::ring) publishes the batch: one write of PxSACT and one of PxCI.
//! [`reap`](Queue::reap) gives out what has ended. `dispatch.rs` has the way to the device and
//! `ends.rs` the way back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ring3_class::Saved;
use ring3_class::block::{Completion, Info, IoError, Queue, Rejected, Request, reap_single};
use ring3_device::irq::Irq;
use ring3_device::wait::{Source, WaitStats, Waiter, sooner};
use ring3_device::{Deadline, Error};

use super::super::Level;
use super::super::command::Encoder;
use super::controller::AhciShared;
use super::port::{Port, PortInterruptMask};
use super::slots::{Slots, bits};
use crate::disk::Timeouts;
use crate::lifetime::GENERATION_DETACHED;

/// Requests at one port. Its beginning and its end are in `open.rs`, its misfortunes in
/// `recovery.rs`.
pub(super) struct PortQueue {
    pub(super) port: Port,
    pub(super) gate: PortInterruptMask,
    pub(super) slots: Slots,
    pub(super) encoder: Encoder,
    /// How commands are made now.
    pub(super) level: Level,
    /// Slots whose command is a queued one.
    pub(super) queued: u32,
    /// Slots whose write may be in the drive's cache when it has ended.
    pub(super) cached: u32,
    /// Slots with queued commands that start at the next ring, because nothing is in line before
    /// them.
    pub(super) unrung: u32,
    /// Slots in line.
    pub(super) line: VecDeque<u8>,
    /// How many of them were rung.
    pub(super) rung: usize,
    /// Slots that need no device: a flush of nothing. They end at the next ring.
    pub(super) nothing: u32,
    /// Slots in the device's hands.
    pub(super) issued: u32,
    /// It is one that is not queued.
    pub(super) plain: bool,
    /// Slots that have ended well and were not reaped.
    pub(super) done: u32,
    /// Slots that have ended badly and were not reaped.
    pub(super) ended: VecDeque<(u8, IoError)>,
    /// Slots that a frame says have ended, and the register not yet; and how often they are still
    /// looked for.
    pub(super) claimed: u32,
    pub(super) looks: u8,
    /// The port may have signalled since it was last acknowledged.
    pub(super) signalled: bool,
    /// The owner has slept on the interrupt's descriptor.
    pub(super) slept: bool,
    /// Interrupts taken when the registers were last read.
    pub(super) served: u64,
    pub(super) recovery: super::recovery::State,
    pub(super) timeouts: Timeouts,
    pub(super) waiter: Waiter,
    pub(super) irq: Option<Arc<Irq>>,
    pub(super) shared: Arc<AhciShared>,
    pub(super) info: Arc<Info>,
    pub(super) seat: usize,
}

/// What a new queue is made of.
pub(super) struct Parts {
    pub(super) port: Port,
    pub(super) depth: u8,
    pub(super) irq: Option<Arc<Irq>>,
    pub(super) shared: Arc<AhciShared>,
    pub(super) seat: usize,
}

impl PortQueue {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { port, depth, irq, shared, seat } = parts;
        let (identity, info, level) = {
            let seat = &shared.seats[seat];
            (&seat.identity, seat.info.clone(), seat.level)
        };
        Self {
            gate: port.gate(),
            slots: Slots::new(depth),
            encoder: Encoder::new(identity, &info),
            level,
            queued: 0,
            cached: 0,
            unrung: 0,
            line: VecDeque::with_capacity(depth.into()),
            rung: 0,
            nothing: 0,
            issued: 0,
            plain: false,
            done: 0,
            ended: VecDeque::with_capacity(depth.into()),
            claimed: 0,
            looks: 0,
            signalled: true,
            slept: false,
            served: 0,
            recovery: super::recovery::State::default(),
            timeouts: Timeouts::new(shared.options.timeout),
            waiter: Waiter::new(irq.clone(), shared.options.poll),
            port,
            irq,
            shared,
            info,
            seat,
        }
    }

    /// Whether [`reap`](Queue::reap) has something to do, whatever the device has done since.
    #[inline]
    fn has_ends(&self) -> bool {
        self.done != 0
            || !self.ended.is_empty()
            || self.has_completion_hint()
            || self.is_stale_generation()
    }

    /// Whether the controller was reset since the port was made ready, and there is something to
    /// mend.
    #[inline]
    pub(super) fn is_stale_generation(&self) -> bool {
        self.shared.generation() != self.port.generation && self.slots.in_flight() > 0
    }

    /// Whether it waits for its owner's tick, not for the device.
    pub(super) fn is_down(&self) -> bool {
        !self.port.ready || self.shared.generation() != self.port.generation
    }
}

#[cold]
fn rejected(request: Request, error: Option<IoError>) -> Result<(), Rejected> {
    Err(Rejected { error, request })
}

impl Queue for PortQueue {
    fn info(&self) -> &Info {
        &self.info
    }

    fn depth(&self) -> u16 {
        self.slots.count().into()
    }

    fn in_flight(&self) -> u16 {
        self.slots.in_flight().into()
    }

    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        let Some(slot) = self.slots.free_slot() else {
            return rejected(
                request,
                (self.port.generation == GENERATION_DETACHED).then_some(IoError::Gone),
            );
        };
        let bit = 1 << slot;
        if self.line.is_empty() && self.write_queued(slot, &request) {
            (self.queued, self.unrung) = (self.queued | bit, self.unrung | bit);
            self.cached =
                self.cached & !bit | u32::from(self.encoder.leaves_in_cache(&request)) << slot;
            self.slots.fill(slot, request, self.timeouts.epoch());
            return Ok(());
        }
        match self.write(slot, &request, self.level) {
            Ok(Some(true)) => {
                self.queued |= bit;
                if self.line.is_empty() {
                    self.unrung |= bit;
                } else {
                    self.line.push_back(slot);
                }
            }
            Ok(Some(false)) => {
                self.queued &= !bit;
                self.line.push_back(slot);
            }
            Ok(None) => self.nothing |= bit,
            Err(error) => return rejected(request, Some(error)),
        }
        self.cached =
            self.cached & !bit | u32::from(self.encoder.leaves_in_cache(&request)) << slot;
        self.slots.fill(slot, request, self.timeouts.epoch());
        Ok(())
    }

    fn ring(&mut self) {
        self.done |= std::mem::take(&mut self.nothing);
        let unrung = std::mem::take(&mut self.unrung);
        self.look_before_writing();
        let blocked = self.is_down() || self.rung > 0 || (self.plain && self.issued != 0);
        if unrung != 0 && !blocked {
            self.issue(unrung, true);
        } else {
            // Before those that were submitted after them.
            for (place, slot) in bits(unrung).enumerate() {
                self.line.insert(self.rung + place, slot);
            }
        }
        self.rung = self.line.len();
        if self.rung > 0 && !self.is_down() {
            self.advance();
        }
    }

    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        if self.done == 0 {
            let slept = std::mem::take(&mut self.slept) && self.issued != 0 && self.waiter.armed();
            if slept || self.has_completion_hint() {
                self.poll_completions()?;
            }
            if self.done == 0 {
                return reap_single(done, || self.reap_after_trouble());
            }
        }
        let mut count = 0;
        for (place, slot) in done.iter_mut().zip(bits(self.done)) {
            self.done &= self.done - 1;
            if let Some(request) = self.slots.free(slot) {
                place.into_completion_of(request.token, Ok(()), &mut request.data);
                count += 1;
            }
        }
        Ok(count)
    }

    fn detach(&mut self) -> Result<Saved, Error> {
        self.leave()
    }
}

impl Source for PortQueue {
    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn pending(&self) -> bool {
        let fired = || self.irq.as_ref().is_some_and(|irq| irq.taken() != self.served);
        self.has_ends() || self.issued != 0 && (self.port.lists.hint(self.plain) || fired())
    }

    fn arm(&mut self) -> Result<bool, Error> {
        if self.has_ends() {
            return Ok(false);
        }
        let (lists, plain, issued) = (&self.port.lists, self.plain, self.issued);
        let (shared, generation) = (&self.shared, self.expected());
        let safe = self
            .waiter
            .arm(|| (issued != 0 && lists.hint(plain)) || shared.generation() != generation)?;
        self.slept = safe;
        Ok(safe)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        let rearmed = self.waiter.tick(now)?;
        self.watch(now)?;
        Ok(sooner(rearmed, self.timeouts.next(now, self.slots.in_flight() > 0)))
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.has_ends() {
            return Ok(true);
        }
        let (lists, plain, issued) = (&self.port.lists, self.plain, self.issued);
        let (shared, generation) = (&self.shared, self.expected());
        let (irq, served) = (self.irq.as_deref(), self.served);
        self.waiter.wait(deadline, || {
            (issued != 0 && (lists.hint(plain) || irq.is_some_and(|irq| irq.taken() != served)))
                || shared.generation() != generation
        })
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}

impl PortQueue {
    /// The generation in which there is nothing to mend: for a queue with nothing in flight, a
    /// reset is no news.
    fn expected(&self) -> u32 {
        if self.slots.in_flight() == 0 { self.shared.generation() } else { self.port.generation }
    }
}
