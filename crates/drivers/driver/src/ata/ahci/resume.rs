//! Controllers and queues that are left to another process while they run, and taken up there.
//!
//! The device does not notice: no command is sent, and of the registers only those are written that
//! let interrupts through. What it does meanwhile lies in memory and in PxSACT or PxCI, and is
//! found by the first look; what was submitted and not rung is rung by the next ring.
//!
//! # Who has what
//! Under the lock of the order nobody resets the controller. The port of a queue that was detached
//! is in no seat, so that nobody else can open it, and its memory stays taken in the arena. If the
//! controller is reset before the queue is resumed, its generation says so.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ring3_class::Saved;
use ring3_class::block::Info;
use ring3_device::dma::{Claims, PersistentWords};
use ring3_device::{Device, Error};
use ring3_spec::ahci::{self, MAX_REGION_BYTES, SLOTS};

use super::super::AHCI;
use super::controller::{AhciShared, Controller, DiskPort};
use super::drive::Drive;
use super::hba::{self, Hba};
use super::interrupts::Vector;
use super::queue::{Parts, PortQueue};
use super::saved::{
    CONTROLLER, QUEUE, SavedController, SavedDiskPort, SavedPort, SavedQueue, SavedSlot,
};
use super::slots::{AhciSlot, Slots, bits};
use crate::disk::Timeouts;
use crate::disk::write_cache::Record;
use crate::lifetime::{ControllerState, GENERATION_DETACHED, lock};

impl Controller {
    /// Leaves the controller, as it runs, to [`resume`](Self::resume). Its queues were detached or
    /// dropped before.
    pub fn detach(&mut self) -> Result<Saved, Error> {
        let shared = &*self.shared;
        let _nobody_resets = lock(&shared.order);
        shared.lifetime.check()?;
        shared.check_detached()?;
        let saved = Saved::new(CONTROLLER.0, CONTROLLER.1, &self.state())?;
        shared.vector.open()?;
        // From here on nothing fails: nobody else holds the memory of a port in its seat.
        for seat in &shared.seats {
            if let Some(mut port) = lock(&seat.port).take() {
                port.leave()?;
            }
        }
        shared.lifetime.detach();
        Ok(saved)
    }

    /// As it is now.
    pub(super) fn state(&self) -> SavedController {
        let shared = &*self.shared;
        SavedController {
            capabilities: shared.hba.capabilities.0,
            ports: shared.hba.port_mask(),
            options: shared.options.clone(),
            interrupts: shared.vector.kind(),
            generation: shared.generation(),
            seats: shared.seats.iter().map(DiskPort::save).collect(),
            refused: self
                .refused
                .iter()
                .map(|(place, why)| (place.clone(), why.to_string()))
                .collect(),
        }
    }

    /// Goes on with the controller that was detached as `saved`, and which has run since. It polls
    /// as long before it sleeps as `poll` says, or as before.
    ///
    /// Nothing is asked of the drives, and nothing is told to them. A controller that was reset
    /// meanwhile is found like any that is reset behind its driver's back.
    pub fn resume(
        device: Arc<dyn Device>,
        poll: Option<Duration>,
        saved: &Saved,
    ) -> Result<Self, Error> {
        AHCI.check(&*device)?;
        let mut state: SavedController = saved.read(CONTROLLER.0, CONTROLLER.1)?;
        state.options.poll = poll.unwrap_or(state.options.poll);
        let hba = Hba::resume(device.bar(ahci::BAR)?, state.capabilities, state.ports)?;
        hba::confine(device.name(), device.dma(), hba.limit())?;
        let mut claims = Claims::new(device.dma().arena());
        let lifetime = ControllerState::resume(device.name(), state.generation)?;
        let seats = state
            .seats
            .iter()
            .map(|seat| DiskPort::resume(seat, &hba, (&mut claims, device.dma().arena().kept())))
            .collect::<Result<Vec<_>, _>>()?;
        let vector = Vector::enable(&*device, state.options.interrupts, seats.len())?;
        if vector.kind() != state.interrupts || state.options.timeout.is_zero() {
            let (name, now, then) = (device.name(), vector.kind(), state.interrupts);
            return Err(Error::Invalid(format!(
                "{name}: its interrupts are {now:?}, and were {then:?} when it was detached"
            )));
        }
        // From here on nothing fails.
        claims.commit();
        let SavedController { options, refused, .. } = state;
        let order = Mutex::new(());
        let shared = Arc::new(AhciShared {
            lifetime,
            order,
            hba,
            seats,
            others: Vec::new(),
            vector,
            options,
            device,
        });
        let drives = (0..shared.seats.len()).map(|seat| Drive::new(shared.clone(), seat)).collect();
        let refused =
            refused.into_iter().map(|(place, why)| (place, Error::Unsupported(why))).collect();
        Ok(Self { shared, refused, drives })
    }
}

impl AhciShared {
    /// Fails unless each port is in its seat, or its queue was detached.
    fn check_detached(&self) -> Result<(), Error> {
        let name = self.device.name();
        if let Some(port) = self.others.first() {
            let index = port.index();
            return Err(Error::Unsupported(format!(
                "{name}: port {index} without a disk does not stop: end the driver, which resets it"
            )));
        }
        let open =
            |seat: &&DiskPort| lock(&seat.port).is_none() && !seat.detached.load(Ordering::Relaxed);
        match self.seats.iter().find(open) {
            Some(seat) => Err(Error::Busy(format!(
                "{name}: the queue of port {} is open: detach it or drop it, then detach the \
                controller",
                seat.index
            ))),
            None => Ok(()),
        }
    }
}

impl DiskPort {
    fn save(&self) -> SavedDiskPort {
        SavedDiskPort {
            index: self.index,
            identity: self.identity.clone(),
            info: (*self.info).clone(),
            level: self.level,
            used: self.used.load(Ordering::Relaxed),
            power_lost: self.power_lost.load(Ordering::Relaxed),
            ready_since: self.ready_since.load(Ordering::Relaxed),
            port: lock(&self.port).as_ref().map(SavedPort::of),
        }
    }

    /// The seat that was saved. It is input.
    fn resume(
        state: &SavedDiskPort,
        hba: &Hba,
        (claims, kept): (&mut Claims, Option<PersistentWords>),
    ) -> Result<Self, Error> {
        let SavedDiskPort { index, identity, info, level, used, power_lost, ready_since, port } =
            state;
        let known = hba.ports().any(|known| known == *index)
            && port.as_ref().is_none_or(|port| port.index == *index);
        if !known || !is_possible(info) {
            return Err(Error::Invalid(format!(
                "the saved drive at port {index} is none of this controller's; open it anew"
            )));
        }
        let record = Record::find(kept, &info.serial, (*index).into());
        let port = port
            .as_ref()
            .map(|port| port.claim(claims, (hba.bar(), hba.limit()), record))
            .transpose()?;
        Ok(Self {
            index: *index,
            identity: identity.clone(),
            info: Arc::new(info.clone()),
            level: *level,
            used: AtomicBool::new(*used),
            power_lost: AtomicBool::new(*power_lost),
            ready_since: AtomicU32::new(*ready_since),
            detached: AtomicBool::new(port.is_none()),
            place: state.port.clone(),
            port: Mutex::new(port),
        })
    }
}

/// Whether a disk of this driver can be as `info` says.
fn is_possible(info: &Info) -> bool {
    [512, 4096].contains(&info.block_size)
        && (info.block_size..=MAX_REGION_BYTES).contains(&info.max_transfer)
        && info.blocks > 0
}

impl PortQueue {
    /// See [`Queue::detach`](ring3_class::block::Queue::detach).
    pub(super) fn leave(&mut self) -> Result<Saved, Error> {
        let shared = self.shared.clone();
        let _nobody_resets = lock(&shared.order);
        if self.port.generation == GENERATION_DETACHED {
            return Err(Error::Fatal("the queue was detached: resume it, and use that one".into()));
        }
        self.usable()?;
        if self.is_down() && self.slots.in_flight() > 0 {
            return Err(Error::Busy(
                "the port is made ready again: reap and tick, then detach again".into(),
            ));
        }
        let saved = Saved::new(QUEUE.0, QUEUE.1, &self.state()?)?;
        self.port.leave()?;
        // From here on nothing fails.
        for slot in bits(self.slots.occupied()) {
            if let Some(end) = self.slots.end(slot, Ok(())) {
                end.data.leave();
            }
        }
        self.slots = Slots::none();
        self.line.clear();
        self.ended.clear();
        (self.cached, self.unrung, self.rung, self.nothing, self.issued, self.done, self.claimed) =
            (0, 0, 0, 0, 0, 0, 0);
        self.port.generation = GENERATION_DETACHED;
        shared.seats[self.seat].detached.store(true, Ordering::Relaxed);
        Ok(saved)
    }

    fn state(&self) -> Result<SavedQueue, Error> {
        let occupied = self.slots.occupied();
        let held = |number: u8| {
            let slot = self.slots.get(number)?;
            let (age, failures, alone) = (self.timeouts.age(slot.epoch), slot.failures, slot.alone);
            Some(slot.request.save().map(|request| SavedSlot {
                number,
                age,
                failures,
                alone,
                request,
            }))
        };
        Ok(SavedQueue {
            port: SavedPort::of(&self.port),
            serial: self.info.serial.clone(),
            depth: self.slots.count(),
            next: self.slots.next(),
            held: bits(occupied).filter_map(held).collect::<Result<_, _>>()?,
            level: self.level,
            queued: self.queued & occupied,
            cached: self.cached & occupied,
            unrung: self.unrung,
            line: self.line.iter().copied().collect(),
            rung: self.rung,
            nothing: self.nothing,
            issued: self.issued,
            plain: self.plain,
            done: self.done,
            ended: self.ended.iter().copied().collect(),
            claimed: self.claimed,
            looks: self.looks,
            troubles: self.recovery.troubles,
            since: self.recovery.since.map(|since| since.elapsed()),
        })
    }

    /// The queue of `drive` that was detached as `saved`.
    pub(super) fn resume(drive: &Drive, saved: &Saved) -> Result<Self, Error> {
        let state: SavedQueue = saved.read(QUEUE.0, QUEUE.1)?;
        let (seat, name) = (drive.seat(), drive.shared.device.name());
        drive.shared.lifetime.check()?;
        if (state.port.index, &state.serial) != (seat.index, &seat.info.serial)
            || state.level > seat.level
        {
            let (index, serial) = (state.port.index, &state.serial);
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
        let resumed = Self::rebuild(drive, state);
        if resumed.is_err() {
            seat.detached.store(true, Ordering::Relaxed);
        }
        resumed
    }

    fn rebuild(drive: &Drive, state: SavedQueue) -> Result<Self, Error> {
        let (shared, seat) = (drive.shared.clone(), drive.seat);
        let mut claims = Claims::new(shared.device.dma().arena());
        let drive_seat = drive.seat();
        let record = Record::find(
            shared.device.dma().arena().kept(),
            &drive_seat.info.serial,
            drive_seat.index.into(),
        );
        let port = state.port.claim(&mut claims, (shared.hba.bar(), shared.hba.limit()), record)?;
        let timeouts = Timeouts::new(shared.options.timeout);
        let slots = slots(&state, &timeouts, &mut claims, drive)?;
        if !(1..=port.lists.slots().min(SLOTS)).contains(&state.depth)
            || !state.is_consistent(slots.occupied())
        {
            return Err(Error::Invalid(format!(
                "the saved queue of port {} contradicts itself; open the device anew",
                port.index()
            )));
        }
        let irq = shared.vector.of_port(port.gate())?;
        // From here on nothing fails.
        claims.commit();
        let mut queue = Self::new(Parts { port, depth: state.depth, irq, shared, seat });
        (queue.slots, queue.timeouts, queue.level) = (slots, timeouts, state.level);
        (queue.queued, queue.cached, queue.unrung, queue.nothing) =
            (state.queued, state.cached, state.unrung, state.nothing);
        (queue.issued, queue.plain, queue.done) = (state.issued, state.plain, state.done);
        (queue.claimed, queue.looks, queue.rung) = (state.claimed, state.looks.max(1), state.rung);
        queue.line.extend(state.line);
        queue.ended.extend(state.ended);
        queue.recovery.troubles = state.troubles;
        queue.recovery.since = state.since.and_then(|since| Instant::now().checked_sub(since));
        Ok(queue)
    }
}

/// The slots of the queue that was saved as `state`, with what they hold.
fn slots(
    state: &SavedQueue,
    timeouts: &Timeouts,
    claims: &mut Claims,
    drive: &Drive,
) -> Result<Slots, Error> {
    let mut slots = Slots::new(state.depth);
    slots.resume_at(state.next);
    for SavedSlot { number, age, failures, alone, request } in &state.held {
        let request = request.claim(claims, &drive.seat().info)?;
        let slot = AhciSlot {
            request,
            epoch: timeouts.epoch_of(*age),
            failures: *failures,
            alone: *alone,
        };
        if !slots.restore(*number, slot) {
            return Err(Error::Invalid(format!(
                "the saved queue has slot {number} twice, or has no such slot"
            )));
        }
    }
    Ok(slots)
}
