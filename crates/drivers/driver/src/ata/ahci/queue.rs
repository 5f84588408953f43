//! The commands of one port, as the engine ([`crate::disk`]) knows them.
//!
//! # Shape
//! A request's command is written into the table of its slot, whose number is its tag.
//! `dispatch.rs` has the way to the device: one write of PxSACT and one of PxCI for a batch.
//! `ends.rs` has the way back, and `recovery.rs` what becomes of commands that fail.
//!
//! A queue that is dropped under load waits for what the drive is doing. To stop it would cost a
//! reset of the drive, and more time; that is for drives that do not end. (QEMU 7.2 moves the data
//! of queued commands even after that.)

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use ring3_class::Saved;
use ring3_class::block::{Completion, Info, IoError, Operation, Request};
use ring3_device::dma::Claims;
use ring3_device::irq::Irq;
use ring3_device::{Deadline, Error, poll_until};
use ring3_spec::ahci::SLOTS;

use super::super::Level;
use super::super::command::Encoder;
use super::controller::AhciShared;
use super::drive::Drive;
use super::port::{Port, PortInterruptMask};
use super::port_reset::PortState;
use super::recovery::{Blame, PortFault, State};
use super::saved::{QUEUE, SavedPort, SavedPortQueue};
use crate::disk::write_cache::{Record, WriteCache};
use crate::disk::{
    ATTEMPTS, Controller as _, DiskQueue, Hardware, NotRenewed, Outcome, SavedQueue, Slots,
};
use crate::lifetime::{GENERATION_CLOSED, GENERATION_DETACHED, lock};

/// A drive is given this long to end what it is doing when its queue is dropped.
const DRAIN: Duration = Duration::from_secs(2);

/// A port and its commands. In a mask, a bit stands for a slot.
pub(super) struct PortQueue {
    pub(super) port: Port,
    pub(super) gate: PortInterruptMask,
    pub(super) encoder: Encoder,
    /// How commands are made now.
    pub(super) level: Level,
    /// Slots whose command is a queued one.
    pub(super) queued: u32,
    /// Slots whose write may be in the drive's cache when it has ended.
    pub(super) cached: u32,
    /// Slots with a flush.
    pub(super) flushes: u32,
    /// Slots whose command is not queued, because it is repeated by itself.
    pub(super) alone: u32,
    /// Slots with queued commands that start at the next ring, because nothing is in line before
    /// them.
    pub(super) unrung: u32,
    /// Slots in line.
    pub(super) line: VecDeque<u8>,
    /// How many of them were rung.
    pub(super) rung: usize,
    /// Slots in the device's hands.
    pub(super) issued: u32,
    /// Slots that were in line and that the device was given, and the engine does not know it yet.
    pub(super) started: u32,
    /// What is issued is one that is not queued.
    pub(super) plain: bool,
    /// Slots that have ended well and were not taken.
    pub(super) done: u32,
    /// What else has become of commands, and was not taken.
    pub(super) outcomes: VecDeque<(u8, Outcome)>,
    /// What was found to be wrong and is not decided.
    pub(super) fault: Option<PortFault>,
    /// Slots that a frame says have ended, and the register not yet; and how often they are still
    /// looked for.
    pub(super) claimed: u32,
    pub(super) looks: u8,
    /// The port may have signalled since it was last acknowledged.
    pub(super) signalled: bool,
    /// The interrupt is let through.
    pub(super) armed: bool,
    /// The owner has slept on the interrupt's descriptor.
    slept: bool,
    /// Interrupts taken when the registers were last read.
    pub(super) served: u64,
    pub(super) recovery: State,
    irq: Option<Arc<Irq>>,
    pub(super) shared: Arc<AhciShared>,
    info: Arc<Info>,
    pub(super) seat: usize,
}

impl PortQueue {
    fn new(shared: Arc<AhciShared>, seat: usize, mut port: Port, irq: Option<Arc<Irq>>) -> Self {
        // The drive is asked behind a reset of the port.
        port.ready &= !port.cache.is_disturbed();
        let place = &shared.seats[seat];
        let (info, level) = (place.info.clone(), place.level);
        Self {
            gate: port.gate(),
            encoder: Encoder::new(&place.identity, &info),
            level,
            queued: 0,
            cached: 0,
            flushes: 0,
            alone: 0,
            unrung: 0,
            line: VecDeque::with_capacity(SLOTS.into()),
            rung: 0,
            issued: 0,
            started: 0,
            plain: false,
            done: 0,
            outcomes: VecDeque::with_capacity(SLOTS.into()),
            fault: None,
            claimed: 0,
            looks: 0,
            signalled: true,
            armed: false,
            slept: false,
            served: 0,
            recovery: State::default(),
            port,
            irq,
            shared,
            info,
            seat,
        }
    }

    /// Takes the port of `seat` for up to `depth` requests at once.
    pub(super) fn open(
        shared: Arc<AhciShared>,
        seat: usize,
        depth: u16,
    ) -> Result<DiskQueue<Self>, Error> {
        shared.lifetime.check()?;
        let place = &shared.seats[seat];
        let Some(port) = lock(&place.port).take() else {
            let left = place.detached.load(Ordering::Relaxed);
            let why = if left { "was detached: resume it" } else { "is open: close it first" };
            return Err(Error::Busy(format!(
                "{} port {} has one queue, and it {why}",
                shared.device.name(),
                place.index
            )));
        };
        let depth = depth.clamp(1, SLOTS.into()).min(port.lists.slots().into());
        let irq = match shared.vector.of_port(port.gate()) {
            Ok(irq) => irq,
            Err(error) => {
                *lock(&place.port) = Some(port);
                return Err(error);
            }
        };
        let generation = port.generation;
        let queue = Self::new(shared, seat, port, irq.clone());
        let mut queue = DiskQueue::new(queue, irq, (depth, generation));
        // From here on dropping the queue gives the port back.
        queue.create(|queue, generation| {
            queue.shared.seats[seat].used.store(true, Ordering::Relaxed);
            let state = if queue.is_down() {
                queue.reset_port("it was left busy")?
            } else {
                PortState::Ready
            };
            *generation = queue.port.generation;
            let why = match state {
                PortState::Ready => return Ok(()),
                PortState::Absent => "there is no drive any more",
                PortState::Unusable(_, why) => why,
            };
            let (name, index) = (queue.shared.device.name(), queue.port.index());
            Err(Error::Fatal(format!("{name} port {index}: {why}; open the controller again")))
        })?;
        Ok(queue)
    }

    /// The queue of `drive` that was detached as `saved`.
    pub(super) fn resume(drive: &Drive, saved: &Saved) -> Result<DiskQueue<Self>, Error> {
        let mut saved: SavedQueue<SavedPortQueue> = saved.read(QUEUE.0, QUEUE.1)?;
        // The engine's is of no meaning where there was no drive.
        saved.generation = saved.rings.port.generation;
        let (seat, name) = (drive.seat(), drive.shared.device.name());
        drive.shared.lifetime.check()?;
        if (saved.rings.port.index, &saved.serial) != (seat.index, &seat.info.serial)
            || saved.rings.level > seat.level
        {
            let (index, serial) = (saved.rings.port.index, &saved.serial);
            return Err(Error::Invalid(format!(
                "the saved queue is of port {index} with the drive {serial}: resume it there"
            )));
        }
        if !seat.detached.swap(false, Ordering::Relaxed) {
            return Err(Error::Invalid(format!(
                "{name} port {} has no queue that was detached, or it is resumed already",
                seat.index
            )));
        }
        Self::rebuild(drive, &saved).inspect_err(|_| seat.detached.store(true, Ordering::Relaxed))
    }

    fn rebuild(
        drive: &Drive,
        saved: &SavedQueue<SavedPortQueue>,
    ) -> Result<DiskQueue<Self>, Error> {
        let (shared, seat, state) = (drive.shared.clone(), drive.seat, &saved.rings);
        let arena = shared.device.dma().arena();
        let mut claims = Claims::new(arena);
        let record = Record::find(
            arena.persistent_words(),
            &drive.seat().info.serial,
            drive.seat().index.into(),
        );
        let port = state.port.claim(&mut claims, (shared.hba.bar(), shared.hba.limit()), record)?;
        let depth = port.lists.slots().min(SLOTS);
        if !(1..=u16::from(depth)).contains(&saved.slots) || !state.is_consistent(saved) {
            return Err(Error::Invalid(format!(
                "the saved queue of port {} contradicts itself; open the device anew",
                port.index()
            )));
        }
        let irq = shared.vector.of_port(port.gate())?;
        let flushes = saved.slots_of(|request| request.operation == Operation::Flush);
        let mut queue = Self::new(shared, seat, port, irq.clone());
        queue.level = state.level;
        (queue.queued, queue.cached, queue.unrung) = (state.queued, state.cached, state.unrung);
        (queue.flushes, queue.alone) = (flushes, state.alone);
        (queue.issued, queue.plain) = (state.issued, state.plain);
        queue.done = state.done | state.nothing;
        (queue.claimed, queue.looks, queue.rung) = (state.claimed, state.looks.max(1), state.rung);
        queue.line.extend(&state.line);
        queue.recovery.troubles = state.troubles;
        queue.recovery.since = state.since.and_then(|since| Instant::now().checked_sub(since));
        DiskQueue::resume(saved, queue, irq, claims)
    }

    /// Whether it waits for the port to be made ready, not for the device.
    pub(super) fn is_down(&self) -> bool {
        !self.port.ready || self.shared.generation() != self.port.generation
    }

    /// Whether the device may have something to tell: a frame, or an interrupt since the registers
    /// were last read. Memory says nothing after somebody else's reset.
    #[inline]
    pub(super) fn has_completion_hint(&self) -> bool {
        self.issued != 0
            && (self.port.lists.hint(self.plain) || self.claimed != 0 || self.has_fired())
            && self.shared.generation() == self.port.generation
    }

    /// Bytes of a block.
    #[inline]
    pub(super) fn block_size(&self) -> u32 {
        self.info.block_size
    }

    fn has_fired(&self) -> bool {
        self.irq.as_ref().is_some_and(|irq| irq.taken() != self.served)
    }

    /// Interrupts that were taken.
    pub(super) fn interrupts_taken(&self) -> u64 {
        self.irq.as_ref().map_or(0, |irq| irq.taken())
    }

    /// Notes what kind of request is in `slot`.
    #[inline]
    fn note_kind(&mut self, slot: u16, request: &Request, queued: bool) {
        let keep = !(1 << slot);
        let bit = |is: bool| u32::from(is) << slot;
        self.queued = self.queued & keep | bit(queued);
        self.cached = self.cached & keep | bit(self.encoder.leaves_in_cache(request));
        self.flushes = self.flushes & keep | bit(request.operation == Operation::Flush);
    }

    /// Waits for the end of what is in the device's hands; false if that does not come soon.
    fn drained(&mut self) -> bool {
        let is_current_generation =
            |queue: &Self| queue.shared.generation() == queue.port.generation;
        let limit = Deadline::after(DRAIN.min(self.shared.options.timeout));
        let ended = poll_until(limit, "the end of what a drive is doing", || {
            self.port.events()?;
            let failed = self.port.lists.take_frames(self.plain).failure.is_some();
            if failed || !is_current_generation(self) {
                return Err(Error::Fatal("a command failed".into()));
            }
            Ok((self.port.outstanding(!self.plain) & self.issued == 0).then_some(()))
        });
        let drained = ended.is_ok() && self.port.is_running() && is_current_generation(self);
        if drained {
            self.port.clear();
        }
        drained
    }

    /// Takes back what is in the device's hands; true if it cannot write there any more.
    fn withdrawn(&mut self) -> bool {
        let shared = self.shared.clone();
        let generation = {
            let _order = lock(&shared.order);
            // A reset since then has stopped the port already. The drive may still be busy: the
            // next queue resets it.
            let is_current_generation = shared.generation() == self.port.generation;
            let running = || shared.hba.running(self.port.index()).is_ok();
            if !is_current_generation || (running() && self.port.interrupt().is_ok()) {
                return shared.lifetime.check().is_ok() || shared.lifetime.is_quiesced();
            }
            shared.generation()
        };
        shared.reset(generation, &format!("port {} cannot be stopped", self.port.index())).is_ok()
            || shared.lifetime.is_quiesced()
    }
}

impl Hardware for PortQueue {
    type Controller = AhciShared;
    type Saved = SavedPortQueue;
    const FORMAT: (&'static str, u32) = QUEUE;

    #[inline]
    fn controller(&self) -> &Arc<AhciShared> {
        &self.shared
    }

    fn info(&self) -> &Info {
        &self.info
    }

    /// Its port has it: a flush is alone in the device's hands, and one queue is all that a drive
    /// has.
    #[inline]
    fn cache(&self) -> Option<&WriteCache> {
        None
    }

    /// A drive that was pulled out may be plugged in again.
    const MAY_COME_BACK: bool = true;

    fn check_disk(&self) -> Result<(), Error> {
        self.usable()
    }

    #[inline]
    fn place_common(&mut self, slot: u16, _: u16, request: &Request) -> bool {
        let is_placed = self.line.is_empty() && self.write_queued(slot as u8, request);
        if is_placed {
            self.unrung |= 1 << slot;
            self.note_kind(slot, request, true);
        }
        is_placed
    }

    fn place(&mut self, slot: u16, _: u16, request: &Request) -> Result<bool, IoError> {
        let level = if self.alone >> slot & 1 == 1 { Level::Dma } else { self.level };
        let Some(queued) = self.write(slot as u8, request, level)? else { return Ok(false) };
        if queued && self.line.is_empty() {
            self.unrung |= 1 << slot;
        } else {
            self.line.push_back(slot as u8);
        }
        self.note_kind(slot, request, queued);
        Ok(true)
    }

    fn ring(&mut self) {
        let unrung = mem::take(&mut self.unrung);
        self.look_before_writing(unrung);
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

    #[inline]
    fn pending(&self) -> bool {
        self.done != 0
            || !self.outcomes.is_empty()
            || self.fault.is_some()
            || self.has_completion_hint()
    }

    fn take_reads(&mut self, slots: &mut Slots, done: &mut [Completion]) -> usize {
        if self.done == 0 {
            let slept = mem::take(&mut self.slept) && self.issued != 0 && self.armed;
            if slept || self.has_completion_hint() {
                self.poll_completions();
            }
        }
        let mut count = 0;
        for (place, slot) in done.iter_mut().zip(bits(self.done)) {
            self.done &= self.done - 1;
            if let Some(held) = slots.free(slot.into()) {
                place.into_completion_of(held.request.token, Ok(()), &mut held.request.data);
                count += 1;
            }
        }
        count
    }

    fn take_good(&mut self, _: &mut Slots, _: &mut [Completion]) -> (usize, bool) {
        (0, false)
    }

    fn take(&mut self, slots: &Slots) -> Result<Option<(u16, Outcome)>, Error> {
        if self.done != 0 {
            let slot = self.done.trailing_zeros();
            self.done &= self.done - 1;
            return Ok(Some((slot as u16, Outcome::Done)));
        }
        if let Some(fault) = self.fault.take() {
            self.resolve(fault, slots);
        }
        let Some((slot, outcome)) = self.outcomes.pop_front() else { return Ok(None) };
        if let Outcome::Failed(_) = outcome {
            self.alone &= !(1 << slot);
        }
        Ok(Some((slot.into(), outcome)))
    }

    #[inline]
    fn set_armed(&mut self, armed: bool) {
        self.armed = armed;
    }

    fn note_sleep(&mut self, safe: bool) {
        self.slept = safe;
    }

    fn damage(&self) -> Option<&str> {
        let waits = self.issued != 0 || self.rung > 0;
        let down = || (waits && self.is_down()).then_some("it takes no commands");
        self.recovery.must_reset.as_deref().or_else(down)
    }

    fn check(&mut self) -> Result<(), Error> {
        if self.issued != 0 && self.fault.is_none() && !self.is_down() {
            self.poll_completions();
        }
        Ok(())
    }

    fn has_started(&self, slot: u16) -> bool {
        self.issued >> slot & 1 == 1
    }

    fn take_started(&mut self) -> u32 {
        mem::take(&mut self.started)
    }

    fn cancel(&mut self, _: u16, _: &Request) -> bool {
        self.note_trouble("a command took too long");
        false
    }

    fn blame(&mut self, slot: u16) {
        self.recovery.next.add(1 << slot, IoError::Timeout);
    }

    fn reset(&mut self, _: u32, why: &str) -> Result<(), Error> {
        self.require_reset(why.into());
        Ok(())
    }

    /// Resets the port: a drive may take seconds to come back, and others are not held up.
    fn renew(&mut self, order: MutexGuard<'_, ()>, _: u32) -> Result<u32, NotRenewed> {
        drop(order);
        self.revive()
    }

    fn fate(&self, slot: u16, attempts: u8) -> Result<bool, IoError> {
        let Blame { slots, error, failed } = &self.recovery.last;
        match (failed, slots >> slot & 1 == 1) {
            (Some((failed, error)), _) if u16::from(*failed) == slot => Err(*error),
            (_, true) if attempts >= ATTEMPTS => Err(*error),
            (_, is_blamed) => Ok(is_blamed),
        }
    }

    fn close(&mut self, _: u32, is_idle: bool) -> Result<(), Error> {
        self.gate.close();
        if self.issued & self.cached != 0 {
            self.port.cache.wrote();
        }
        let closed = self.shared.generation() == GENERATION_CLOSED;
        let in_vain = !is_idle && closed && !self.shared.lifetime.is_quiesced();
        if in_vain || self.issued != 0 && !self.drained() && !self.withdrawn() {
            return Err(Error::Fatal("the port cannot be stopped".into()));
        }
        Ok(())
    }

    /// The port's own memory goes back to its seat with it.
    fn abandon(&mut self) {}

    fn release(&mut self, _: u32, _: bool) {
        match self.port.again() {
            Ok(port) => *lock(&self.shared.seats[self.seat].port) = Some(port),
            Err(error) => {
                let (name, index) = (self.shared.device.name(), self.port.index());
                tracing::error!("{name} port {index}: {error}");
            }
        }
    }

    fn save(&mut self, _: u16) -> Result<SavedPortQueue, Error> {
        self.usable()?;
        if self.fault.is_some() || !self.outcomes.is_empty() {
            return Err(Error::Busy("commands have failed: reap, then detach again".into()));
        }
        self.port.check_unshared()?;
        Ok(SavedPortQueue {
            port: SavedPort::of(&self.port),
            level: self.level,
            queued: self.queued,
            cached: self.cached,
            alone: self.alone,
            unrung: self.unrung,
            line: self.line.iter().copied().collect(),
            rung: self.rung,
            nothing: 0,
            issued: self.issued,
            plain: self.plain,
            done: self.done,
            claimed: self.claimed,
            looks: self.looks,
            troubles: self.recovery.troubles,
            since: self.recovery.since.map(|since| since.elapsed()),
        })
    }

    fn release_to_successor(&mut self, _: &mut ()) {
        // It was seen to have its memory alone.
        let _ = self.port.release_to_successor();
        self.port.generation = GENERATION_DETACHED;
        self.shared.seats[self.seat].detached.store(true, Ordering::Relaxed);
    }
}

/// The numbers of the bits that are set in `mask`, ascending.
#[inline]
pub(super) fn bits(mut mask: u32) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let number = mask.trailing_zeros() as u8;
        mask &= mask.wrapping_sub(1);
        (number < 32).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_listed_from_the_lowest() {
        assert_eq!(bits(0x8000_0005).collect::<Vec<_>>(), [0, 2, 31]);
    }
}
