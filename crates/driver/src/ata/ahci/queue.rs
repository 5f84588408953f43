//! The queue of a drive: the way of a request to the device and back.
//!
//! # Shape
//! [`submit`](Queue::submit) checks a request, gives it a slot and writes its command into the slot's table. [`ring`](Queue::ring)
//! publishes the batch: one write of PxSACT and one of PxCI. [`reap`](Queue::reap) gives out what has ended.
//!
//! # Order
//! Queued commands and others are never in the device's hands together [AHCI 5.3, ACS-3 4.14.1]. What cannot start yet waits in line,
//! and what comes after it waits behind it, so that a flush among reads neither starves nor is starved. Of commands that are not
//! queued there is one at a time: the drive does them one by one anyway, and so a failure is known to be that one's.
//!
//! # Looking
//! Memory is the hint that something ended, PxSACT or PxCI the truth, read once for all that has ended since; see `lists.rs`. A frame
//! may be in memory just before the register follows, so tags that a frame names are looked for a few times more.
//!
//! # Waiting
//! A port signals once until it is acknowledged, so an owner that polls does not acknowledge at all. An owner that sleeps must not
//! sleep on a signal that it has swallowed: it acknowledges before it reads the register, never only after, and whatever ends
//! between the two is seen by that read. The one case without a second read is the commonest: the only request in flight has ended. Then
//! it acknowledges before it starts the next. An interrupt without a frame is followed by a look at the port's errors.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ring3_class::block::{Completion, Info, IoError, Operation, Queue, Rejected, Request};
use ring3_device::irq::Irq;
use ring3_device::ring::take_back;
use ring3_device::wait::{WaitStats, Waiter};
use ring3_device::{Deadline, Device, Error};

use super::super::Level;
use super::super::command::{Encoder, trim_ranges};
use super::controller::Shared;
use super::port::{Gate, Port};
use super::slots::{Slots, bits};
use crate::patience::Patience;

/// How often tags that a frame has named are looked for in the register.
const LOOKS: u8 = 8;

/// Requests at one port. Its beginning and its end are in `lifecycle.rs`, its misfortunes in `recovery.rs`.
pub(super) struct PortQueue<D: Device> {
    pub(super) port: Port<D::Bar>,
    pub(super) gate: Gate<D::Bar>,
    pub(super) slots: Slots,
    pub(super) encoder: Encoder,
    /// How commands are made now.
    pub(super) level: Level,
    /// Slots whose command is a queued one.
    pub(super) queued: u32,
    /// Slots with queued commands that start at the next ring, because nothing is in line before them.
    pub(super) unrung: u32,
    /// Slots in line.
    pub(super) line: VecDeque<u8>,
    /// How many of them were rung.
    pub(super) rung: usize,
    /// Slots that need no device: a flush of nothing. They end at the next ring.
    nothing: u32,
    /// Slots in the device's hands.
    pub(super) issued: u32,
    /// It is one that is not queued.
    pub(super) plain: bool,
    /// Slots that have ended well and were not reaped.
    pub(super) done: u32,
    /// Slots that have ended badly and were not reaped.
    pub(super) ended: VecDeque<(u8, IoError)>,
    /// Slots that a frame says have ended, and the register not yet; and how often they are still looked for.
    claimed: u32,
    looks: u8,
    /// The port may have signalled since it was last acknowledged.
    pub(super) signalled: bool,
    /// The owner has slept on the interrupt's descriptor.
    slept: bool,
    /// Interrupts taken when the registers were last read.
    served: u64,
    pub(super) recovery: super::recovery::State,
    pub(super) patience: Patience,
    pub(super) waiter: Waiter,
    pub(super) irq: Option<Arc<Irq>>,
    pub(super) shared: Arc<Shared<D>>,
    pub(super) info: Arc<Info>,
    pub(super) seat: usize,
}

/// What a new queue is made of.
pub(super) struct Parts<D: Device> {
    pub(super) port: Port<D::Bar>,
    pub(super) depth: u8,
    pub(super) irq: Option<Arc<Irq>>,
    pub(super) shared: Arc<Shared<D>>,
    pub(super) seat: usize,
}

impl<D: Device> PortQueue<D> {
    pub(super) fn new(parts: Parts<D>) -> Self {
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
            patience: Patience::new(shared.options.timeout),
            waiter: Waiter::new(irq.clone(), shared.options.poll),
            port,
            irq,
            shared,
            info,
            seat,
        }
    }

    /// Writes the command of `request` into `slot`: whether it is a queued one, or `None` if the device need not be asked.
    #[inline]
    pub(super) fn write(&self, slot: u8, request: &Request, level: Level) -> Result<Option<bool>, IoError> {
        let Some(command) = self.encoder.encode(request, level)? else { return Ok(None) };
        let command = command.with_tag(slot);
        match request.operation {
            Operation::Read | Operation::Write => {
                let len = request.blocks as usize * self.info.block_size as usize;
                self.port.lists.write(slot, &command, &request.data, len)?;
            }
            Operation::Discard => {
                self.port.lists.write_trim(slot, &command, trim_ranges(request.lba, request.blocks))?;
            }
            Operation::Flush | Operation::WriteZeroes => self.port.lists.write_plain(slot, &command),
        }
        Ok(Some(command.protocol.is_queued()))
    }

    /// Hands the commands in `slots`, all of one kind, to the device.
    #[inline]
    fn issue(&mut self, slots: u32, queued: bool) {
        if self.issued == 0 {
            if self.signalled && self.waiter.armed() {
                // What has been signalled is served. Later, the signal of what starts now would be lost with it.
                self.gate.acknowledge();
                self.signalled = false;
            }
            if !queued {
                // The frames by which queued commands were accepted are none of this one.
                self.port.lists.forget_frames();
            }
            self.plain = !queued;
        }
        self.port.issue(slots, queued);
        self.issued |= slots;
    }

    /// Starts what is in line and may start.
    pub(super) fn advance(&mut self) {
        let mut batch = 0;
        while self.rung > 0
            && let Some(&slot) = self.line.front()
        {
            let queued = self.queued >> slot & 1 == 1;
            let free = self.issued | batch == 0;
            if !(free || (queued && !self.plain)) {
                break;
            }
            self.line.pop_front();
            self.rung -= 1;
            if let Some(slot) = self.slots.get_mut(slot) {
                slot.epoch = self.patience.epoch();
            }
            if !queued {
                return self.issue(1 << slot, false);
            }
            // `issue` says so too, but only at the end of the batch.
            self.plain = false;
            batch |= 1 << slot;
        }
        if batch != 0 {
            self.issue(batch, true);
        }
    }

    /// Whether the device may have something to tell: a frame, or an interrupt since the registers were last read.
    #[inline]
    fn told(&self) -> bool {
        self.issued != 0
            && (self.port.lists.hint(self.plain)
                || self.claimed != 0
                || self.irq.as_ref().is_some_and(|irq| irq.taken() != self.served))
    }

    /// Whether [`reap`](Queue::reap) has something to do.
    #[inline]
    fn pending(&self) -> bool {
        self.done != 0 || !self.ended.is_empty() || self.told() || self.out_of_step()
    }

    /// Whether the controller was reset since the port was made ready, and there is something to mend.
    #[inline]
    pub(super) fn out_of_step(&self) -> bool {
        self.shared.generation() != self.port.generation && self.slots.in_flight() > 0
    }

    /// Learns what has ended.
    pub(super) fn look(&mut self) -> Result<(), Error> {
        self.served = self.irq.as_ref().map_or(0, |irq| irq.taken());
        let frames = self.port.lists.take_frames(self.plain);
        if let Some(failure) = frames.failure {
            return self.failed(failure);
        }
        let named = (frames.ended & self.issued) | if self.plain && frames.any { self.issued } else { 0 };
        let expected = named | self.claimed;
        let armed = self.waiter.armed();
        let only = armed && expected == self.issued && self.issued.is_power_of_two();
        let mut outstanding = self.acknowledge_and_read(armed && !only);
        if only && outstanding & self.issued != 0 {
            outstanding = self.acknowledge_and_read(true);
        }
        self.signalled |= only;
        // Registers are believed while somebody else's reset cannot have changed them.
        if self.shared.generation() != self.port.generation {
            return Ok(());
        }
        let ended = self.issued & !outstanding;
        if expected == 0 && !self.confirmed(ended)? {
            return Ok(());
        }
        take_back();
        self.issued &= outstanding;
        self.done |= ended;
        self.look_again_for(expected & self.issued);
        if self.issued == 0 && self.rung > 0 {
            self.advance();
        }
        Ok(())
    }

    /// Reads which commands have not ended, after acknowledging if asked to.
    #[inline]
    fn acknowledge_and_read(&mut self, acknowledge: bool) -> u32 {
        if acknowledge {
            self.gate.acknowledge();
            self.signalled = false;
        }
        self.port.outstanding(!self.plain)
    }

    /// Notes which tags were named and have not ended.
    #[inline]
    fn look_again_for(&mut self, slots: u32) {
        if slots == 0 {
            (self.claimed, self.looks) = (0, 0);
            return;
        }
        self.looks = if self.claimed == 0 { LOOKS } else { self.looks - 1 };
        self.claimed = if self.looks > 0 { slots } else { 0 };
    }

    /// Whether commands that `ended` without a frame really have; mends the port if it is in trouble.
    #[cold]
    fn confirmed(&mut self, ended: u32) -> Result<bool, Error> {
        if let Some(trouble) = self.trouble() {
            self.mend(trouble)?;
            return Ok(false);
        }
        Ok(ended != 0 && self.port.is_running() && self.shared.generation() == self.port.generation)
    }

    /// Stops looking for tags that frames have named: they are not in flight any more.
    pub(super) fn forget_claims(&mut self) {
        (self.claimed, self.looks) = (0, 0);
    }

    /// Drops the ends of requests that need no device.
    pub(super) fn forget_nothing(&mut self) {
        self.nothing = 0;
    }

    /// Whether it waits for its owner's tick, not for the device.
    fn is_down(&self) -> bool {
        !self.port.ready || self.shared.generation() != self.port.generation
    }
}

#[cold]
fn rejected(request: Request, error: Option<IoError>) -> Result<(), Rejected> {
    Err(Rejected { error, request })
}

impl<D: Device> Queue for PortQueue<D> {
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
        let Some(slot) = self.slots.vacancy() else { return rejected(request, None) };
        let bit = 1 << slot;
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
        self.slots.fill(slot, request, self.patience.epoch());
        Ok(())
    }

    fn ring(&mut self) {
        self.done |= std::mem::take(&mut self.nothing);
        let unrung = std::mem::take(&mut self.unrung);
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

    fn reap(&mut self) -> Result<Option<Completion>, Error> {
        if self.done == 0 {
            let slept = std::mem::take(&mut self.slept) && self.issued != 0 && self.waiter.armed();
            if slept || self.told() {
                self.look()?;
            }
            if self.done == 0 {
                return self.reap_after_trouble();
            }
        }
        let slot = self.done.trailing_zeros() as u8;
        self.done &= self.done - 1;
        Ok(self.slots.end(slot, Ok(())))
    }

    fn tick(&mut self, now: Instant) -> Result<(), Error> {
        self.waiter.tick()?;
        self.watch(now)
    }

    fn wait(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.pending() {
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

    fn irq(&self) -> Option<&Irq> {
        self.waiter.irq()
    }

    fn arm(&mut self) -> Result<bool, Error> {
        if self.pending() {
            return Ok(false);
        }
        let (lists, plain, issued) = (&self.port.lists, self.plain, self.issued);
        let (shared, generation) = (&self.shared, self.expected());
        let safe = self.waiter.arm(|| (issued != 0 && lists.hint(plain)) || shared.generation() != generation)?;
        self.slept = safe;
        Ok(safe)
    }

    fn disarm(&mut self) -> Result<(), Error> {
        self.waiter.disarm()
    }

    fn wait_stats(&self) -> WaitStats {
        self.waiter.stats()
    }
}

impl<D: Device> PortQueue<D> {
    /// The generation in which there is nothing to mend: for a queue with nothing in flight, a reset is no news.
    fn expected(&self) -> u32 {
        if self.slots.in_flight() == 0 { self.shared.generation() } else { self.port.generation }
    }
}
