//! Disks and queues that are left to another process while they go, and taken up there.
//!
//! The device stays as it is (DRIVER_OK) and does not notice: what it does meanwhile lies in the
//! virtqueues, whose positions are in their memory or are saved, and is found by the first look.
//! Beside the selectors of features and queues no register is written; what was submitted and not
//! rung is published when its queue is left.
//!
//! # Who has what
//! Under the lock of the seats nobody resets the device. The seat of a queue that was detached
//! stays taken, and so does its memory in the arena. If the device is reset before the queue is
//! resumed, its generation says so, and it repeats what was in flight, as every queue does.

use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring3_class::Saved;
use ring3_class::block::{Info, Operation};
use ring3_device::dma::Claims;
use ring3_device::wait::Waiter;
use ring3_device::{Device, Error};
use ring3_spec::virtio::blk;

use super::super::transport::Transport;
use super::super::vectors::vectors;
use super::super::virtqueue::Virtqueue;
use super::describe::{self, Requests};
use super::device::{VirtioBlkShared, VirtqueueSlot};
use super::disk::{Disk, Options};
use super::driver::DRIVER;
use super::identity::{identify, queues};
use super::queue::RequestQueue;
use super::saved::{DISK, QUEUE, SavedDisk, SavedQueue, SavedSlot, SavedVirtqueueSlot};
use super::slots::{Slots, VirtioBlkSlot};
use crate::lifetime::{ControllerState, GENERATION_DETACHED, lock};
use crate::timeouts::Timeouts;
use crate::write_cache::{Record, SavedCache, SavedListener};

impl RequestQueue {
    /// Fails if it was detached.
    #[inline]
    pub(super) fn check_attached(&self) -> Result<(), Error> {
        match self.generation {
            GENERATION_DETACHED => {
                Err(Error::Fatal("the queue was detached: resume it, and use that one".into()))
            }
            _ => Ok(()),
        }
    }

    /// See [`Queue::detach`](ring3_class::block::Queue::detach).
    pub(super) fn leave(&mut self) -> Result<Saved, Error> {
        self.check_attached()?;
        let shared = self.shared.clone();
        let mut seats = lock(&shared.seats);
        shared.lifetime.check()?;
        if !self.is_current_generation()
            || self.broken
            || self.trouble.is_some()
            || !self.ended.is_empty()
        {
            return Err(Error::Busy(
                "the queue has something to tell or to mend: reap and tick, then detach again"
                    .into(),
            ));
        }
        let state = self.state()?;
        let saved = Saved::new(QUEUE.0, QUEUE.1, &state)?;
        // From here on nothing fails.
        if let Some(seat) = seats.get_mut(usize::from(self.number)) {
            seat.detached = true;
        }
        self.virtqueue.take().iter_mut().for_each(Virtqueue::leave);
        self.requests.leave();
        for slot in 0..self.slots.count() {
            if let Some(end) = self.slots.end(slot, Ok(())) {
                end.data.leave();
            }
        }
        self.slots = Slots::new(0);
        self.generation = GENERATION_DETACHED;
        Ok(saved)
    }

    fn state(&mut self) -> Result<SavedQueue, Error> {
        let slot = |number| {
            let slot = self.slots.get(number)?;
            let (age, attempts, flush, writable) =
                (self.timeouts.age(slot.epoch), slot.attempts, slot.flush, slot.writable);
            Some(slot.request.save().map(|request| SavedSlot {
                number,
                age,
                attempts,
                flush,
                writable,
                request,
            }))
        };
        let held = (0..self.slots.count()).filter_map(slot).collect::<Result<_, _>>()?;
        let queue = self.virtqueue.as_mut().ok_or_else(|| {
            Error::Busy("the queue is being made anew: tick, then detach again".into())
        })?;
        queue.publish();
        Ok(SavedQueue {
            serial: self.info.serial.clone(),
            blocks: self.info.blocks,
            number: self.number,
            generation: self.generation,
            queue: queue.save()?,
            requests: self.requests.span(),
            slots: self.slots.count(),
            held,
            told: SavedListener::of(&self.listener),
        })
    }

    /// The queue that was detached as `saved`.
    pub(super) fn resume(
        shared: &Arc<VirtioBlkShared>,
        info: &Arc<Info>,
        saved: &Saved,
    ) -> Result<Self, Error> {
        let saved: SavedQueue = saved.read(QUEUE.0, QUEUE.1)?;
        let mut seats = lock(&shared.seats);
        shared.lifetime.check()?;
        let name = shared.transport.device.name();
        let invalid = |what: &str| Error::Invalid(format!("{name}: {what}: open the disk anew"));
        // One that has grown meanwhile has all that the queue is about.
        if saved.serial != info.serial || saved.blocks > info.blocks {
            return Err(invalid("the saved queue is another disk's"));
        }
        let seat = seats.get_mut(usize::from(saved.number)).filter(|seat| seat.detached);
        let seat = seat.ok_or_else(|| {
            invalid("the saved queue is none that was detached, or is resumed already")
        })?;
        let mut claims = Claims::new(shared.transport.device.dma().arena());
        let virtqueue = Virtqueue::resume(
            &saved.queue,
            &mut claims,
            shared.transport.doorbell(saved.number)?,
            shared.features,
        )?;
        let (size, shape) = (virtqueue.size(), shared.shape);
        // After a reset the device has another one there.
        if saved.generation == shared.generation() && virtqueue.places() != seat.places {
            return Err(invalid("the saved queue has another virtqueue than the disk"));
        }
        let most = if shape.indirect { size } else { size / shape.pieces };
        if saved.slots == 0 || saved.slots > most || saved.generation >= GENERATION_DETACHED {
            return Err(invalid(
                "the saved queue has more requests than its virtqueue has room for",
            ));
        }
        let requests =
            Requests::resume(claims.claim(saved.requests)?, saved.slots, shape, info.block_size)?;
        let (mut slots, timeouts) =
            (Slots::new(saved.slots), Timeouts::new(shared.options.timeout));
        for SavedSlot { number, age, attempts, flush, writable, request } in &saved.held {
            let request = request.claim(&mut claims, info)?;
            let cache = shared.cache.as_ref().filter(|_| request.operation == Operation::Flush);
            if !cache.map_or(*flush == 0, |cache| cache.has_begun(*flush)) {
                return Err(invalid("the saved queue has a flush that was not begun"));
            }
            if Some(*writable) != describe::writable(&request, info.block_size) {
                return Err(invalid(
                    "the saved queue has a request for which the disk writes more or less",
                ));
            }
            let epoch = timeouts.epoch_of(*age);
            let (attempts, flush, writable) = (*attempts, *flush, *writable);
            if !slots.restore(
                *number,
                VirtioBlkSlot { request, epoch, attempts, flush, writable, held: true },
            ) {
                return Err(invalid("the saved queue has a request twice, or no such slot"));
            }
        }
        claims.commit();
        seat.detached = false;
        let mut queue = Self {
            waiter: Waiter::new(shared.irq(saved.number), shared.options.poll),
            timeouts,
            listener: shared
                .cache
                .as_ref()
                .map(|cache| saved.told.resume(cache))
                .unwrap_or_default(),
            shared: shared.clone(),
            info: info.clone(),
            number: saved.number,
            virtqueue: Some(virtqueue),
            generation: saved.generation,
            requests,
            slots,
            ended: Vec::with_capacity(saved.slots.into()),
            trouble: None,
            broken: false,
            failure_reported: false,
        };
        queue.virtqueue.iter_mut().for_each(|virtqueue| virtqueue.want_interrupts(false));
        Ok(queue)
    }
}

impl Disk {
    /// Leaves the disk, as it goes, to [`resume`](Self::resume). Its queues were detached or
    /// dropped before.
    pub fn detach(&self) -> Result<Saved, Error> {
        let shared = &*self.shared;
        let mut seats = lock(&shared.seats);
        shared.lifetime.check()?;
        let name = shared.transport.device.name();
        let save = |seat: &VirtqueueSlot| {
            if seat.open && !seat.detached {
                return Err(Error::Busy(format!(
                    "{name}: a queue is open: detach it or drop it, then detach the disk"
                )));
            }
            // That of a queue which was detached before a reset waits for it there.
            let queue = seat.queue.as_ref().map(Virtqueue::save).transpose()?;
            Ok(SavedVirtqueueSlot { places: seat.places, queue, detached: Some(seat.detached) })
        };
        let state = SavedDisk {
            features: shared.features,
            options: shared.options,
            info: (*self.info).clone(),
            shape: shared.shape,
            vectors: shared.vectors.as_ref().map_or(0, |vectors| vectors.len() as u16),
            generation: shared.generation(),
            cache_lost: shared.cache_lost.load(Ordering::SeqCst),
            cache: shared.cache.as_ref().map(SavedCache::of),
            seats: seats.iter().map(save).collect::<Result<_, _>>()?,
        };
        let saved = Saved::new(DISK.0, DISK.1, &state)?;
        // From here on nothing fails.
        for seat in seats.iter_mut() {
            mem::take(&mut seat.queue).iter_mut().for_each(Virtqueue::leave);
        }
        shared.lifetime.detach();
        Ok(saved)
    }

    /// Goes on with the disk that was detached as `saved`, and which has gone since. It polls as
    /// long before it sleeps as `poll` says, or as before.
    ///
    /// What was saved is input: [`Error::Invalid`] if it cannot be of this disk. One that was reset
    /// meanwhile is found like any that is reset behind its driver's back.
    pub fn resume(
        device: Arc<dyn Device>,
        poll: Option<Duration>,
        saved: &Saved,
    ) -> Result<Self, Error> {
        DRIVER.check(&*device)?;
        let saved: SavedDisk = saved.read(DISK.0, DISK.1)?;
        let transport = Transport::find(device, blk::CONFIG_LEAST, saved.options.layout)?;
        let name = transport.device.name().to_owned();
        let invalid = |what: &str| Error::Invalid(format!("{name}: {what}: open the disk anew"));
        let SavedDisk { features, options, info, shape, generation, .. } = saved;
        if !transport.offers(features)
            || shape.entries < 4
            || !shape.entries.is_power_of_two()
            || options.timeout.is_zero()
        {
            return Err(invalid("the saved state is of another disk"));
        }
        let goes = !transport.is_reset();
        if goes && transport.agreed() != features {
            return Err(invalid("the disk has agreed to other features than the saved ones"));
        }
        let (mut now, shape_now) =
            identify(&transport, features, shape.entries, options.max_transfer)?;
        now.serial.clone_from(&info.serial);
        if (&now, shape_now) != (&info, shape) || saved.cache.is_some() != info.volatile_cache {
            return Err(invalid("the saved state is of another disk"));
        }
        if saved.cache.as_ref().is_some_and(|cache| !cache.is_possible()) {
            return Err(invalid("the saved state has a cache that cannot have been"));
        }
        let (most, has) = (usize::from(queues(&transport, features)), saved.seats.len());
        if !(1..=most).contains(&has) {
            return Err(invalid(&format!(
                "the saved state has {has} queues, and the disk has {most}"
            )));
        }
        let numbered = || (0..).zip(&saved.seats);
        if goes && !numbered().all(|(number, seat)| transport.has_queue(number, &seat.places)) {
            return Err(invalid("the disk goes with other virtqueues than the saved ones"));
        }
        let vectors =
            vectors(&*transport.device, options.interrupts, 2, (has as u16).saturating_add(1))?;
        let count = vectors.as_ref().map_or(0, Vec::len);
        if count != usize::from(saved.vectors) {
            return Err(invalid(&format!("it has {count} interrupts, and had {}", saved.vectors)));
        }
        let lifetime = ControllerState::resume(transport.device.name(), generation)?;
        let mut claims = Claims::new(transport.device.dma().arena());
        let mut seat = |(number, saved): (u16, &SavedVirtqueueSlot)| {
            let resume = |queue| {
                Virtqueue::resume(queue, &mut claims, transport.doorbell(number)?, features)
            };
            let queue = saved.queue.as_ref().map(resume).transpose()?;
            let detached = saved.detached.unwrap_or(queue.is_none());
            Ok::<_, Error>(VirtqueueSlot { queue, places: saved.places, open: detached, detached })
        };
        let seats = numbered().map(&mut seat).collect::<Result<Vec<_>, _>>()?;
        if seats
            .iter()
            .any(|seat| seat.queue.as_ref().is_some_and(|queue| queue.places() != seat.places))
        {
            return Err(invalid("the saved state has another virtqueue than the disk"));
        }
        claims.commit();
        let record = Record::find(transport.device.dma().arena().kept(), &name, 0);
        let shared = VirtioBlkShared {
            lifetime,
            transport,
            options: Options { poll: poll.unwrap_or(options.poll), ..options },
            shape,
            info: Arc::new(info.clone()),
            seen: Mutex::new((info.block_size, info.blocks)),
            cache: saved.cache.as_ref().map(|cache| cache.resume(record)),
            cache_lost: AtomicU32::new(saved.cache_lost),
            features,
            vectors,
            seats: Mutex::new(seats),
        };
        Ok(Self { info: Arc::new(info), shared: Arc::new(shared) })
    }
}
