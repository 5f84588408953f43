//! Controllers and queues that are left to another process while they run, and taken up there.
//!
//! Neither side of it writes a register or a command: the device does not notice. What it does
//! meanwhile lies in the rings and is found by the first look; what was submitted and not rung is
//! rung by the next ring.
//!
//! # Who has what
//! Under the admin queue's lock nobody resets the controller. A queue that was detached keeps its
//! id, which nobody else can have, and its memory stays taken in the arena. If the controller is
//! reset before the queue is resumed, its generation says so, and it repeats what was in flight, as
//! every queue does.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring3_class::Saved;
use ring3_class::block::{Info, Operation};
use ring3_device::dma::Claims;
use ring3_device::{Device, Error, Registers};
use ring3_spec::nvme::registers::{ACQ, ASQ, doorbells_end};

use super::DRIVER;
use super::admin::Admin;
use super::controller::{Controller, NvmeShared};
use super::init;
use super::interrupts::Vectors;
use super::namespace::{Namespace, Unit};
use super::open::Parts;
use super::prp::{Lists, MAX_TRANSFER};
use super::queue::QueuePair;
use super::reset::{Members, Use};
use super::saved::{
    CONTROLLER, QUEUE, SavedAdmin, SavedCache, SavedController, SavedNamespace, SavedPair,
    SavedRing, SavedSlot,
};
use super::slots::{MAX_SLOTS, NvmeSlot, Slots};
use crate::lifetime::{ControllerState, GENERATION_DETACHED, lock};
use crate::timeouts::Timeouts;
use crate::write_cache::{Record, SavedListener};

impl Controller {
    /// Leaves the controller, as it runs, to [`resume`](Self::resume). Its queues were detached or
    /// dropped before.
    pub fn detach(&mut self) -> Result<Saved, Error> {
        let shared = &*self.shared;
        let mut admin = lock(&shared.admin);
        shared.lifetime.check()?;
        let queues = shared.detached_queues()?;
        let saved = Saved::new(CONTROLLER.0, CONTROLLER.1, &self.state(&admin, queues))?;
        shared.vectors.open()?;
        admin.leave();
        shared.lifetime.detach();
        Ok(saved)
    }

    /// As it is now, with the I/O `queues` that the device has.
    pub(super) fn state(&self, admin: &Admin, queues: Vec<u16>) -> SavedController {
        let shared = &*self.shared;
        let namespace = |namespace: &Namespace| SavedNamespace {
            id: namespace.id(),
            info: (*namespace.unit.info).clone(),
            cache: namespace.unit.cache.as_deref().map(SavedCache::of).unwrap_or_default(),
            unique: namespace.unit.unique,
        };
        SavedController {
            cap: shared.cap.0,
            options: shared.options.clone(),
            traits: shared.traits.clone(),
            vectors: shared.vectors.count(),
            generation: shared.generation(),
            cache_lost: shared.cache_lost.load(Ordering::SeqCst),
            power: lock(&shared.members).power,
            admin: SavedAdmin::of(admin),
            queues,
            namespaces: self.namespaces.iter().map(namespace).collect(),
            refused: self.refused.iter().map(|(id, why)| (*id, why.to_string())).collect(),
        }
    }

    /// Goes on with the controller that was detached as `saved`, and which has run since. It polls
    /// as long before it sleeps as `poll` says, or as before.
    ///
    /// Nothing is asked of the controller, and nothing is told to it. One that was reset meanwhile
    /// is found like any that is reset behind its driver's back.
    pub fn resume(
        device: Arc<dyn Device>,
        poll: Option<Duration>,
        saved: &Saved,
    ) -> Result<Self, Error> {
        DRIVER.check(&*device)?;
        Self::go_on(device, poll, saved.read(CONTROLLER.0, CONTROLLER.1)?)
    }

    /// Goes on with the controller that runs as `state` says.
    pub(super) fn go_on(
        device: Arc<dyn Device>,
        poll: Option<Duration>,
        mut state: SavedController,
    ) -> Result<Self, Error> {
        state.options.poll = poll.unwrap_or(state.options.poll);
        let registers = Registers::new(device.bar(0)?, doorbells_end(1, 0))?;
        let cap = init::capabilities(&registers)?;
        state.check(cap.0, init::page_size(cap))?;
        let mut claims = Claims::new(device.dma().arena());
        let admin = Admin::resume(registers, &mut claims, &state, cap.stride())?;
        check_admin_queue(&admin)?;
        let lifetime = ControllerState::resume(device.name(), state.generation)?;
        let members = Members::resume(state.traits.identity.queues, &state.queues)?;
        let members = Mutex::new(Members { power: state.power, ..members });
        let admin = Arc::new(Mutex::new(admin));
        let for_interrupts = admin.clone();
        let vectors = Vectors::enable(&*device, &state.options, move || {
            if let Ok(mut admin) = for_interrupts.try_lock() {
                let _ = admin.service();
            }
        })?;
        if vectors.count() != state.vectors {
            let (now, then) = (vectors.count(), state.vectors);
            return Err(Error::Invalid(format!(
                "{}: it has {now} interrupts, and had {then} when it was detached",
                device.name()
            )));
        }
        // From here on nothing fails.
        claims.commit();
        lock(&admin).detached = false;
        let (cache_lost, zeroes_hang) = (AtomicU32::new(state.cache_lost), AtomicBool::new(false));
        let SavedController { traits, options, namespaces, refused, .. } = state;
        let shared = Arc::new(NvmeShared {
            lifetime,
            cache_lost,
            zeroes_hang,
            vectors,
            admin,
            members,
            traits,
            cap,
            options,
            device,
        });
        let kept = shared.device.dma().arena().kept();
        let namespace = |SavedNamespace { id, info, cache, unique }| {
            let cache = info
                .volatile_cache
                .then(|| cache.resume(Record::find(kept.clone(), &info.serial, id)));
            Namespace::new(shared.clone(), Unit::new(id, info, unique, cache))
        };
        let namespaces = namespaces.into_iter().map(namespace).collect();
        let refused = refused.into_iter().map(|(id, why)| (id, Error::Unsupported(why))).collect();
        Ok(Self { shared, refused, namespaces })
    }
}

/// Fails if a controller that runs has another admin queue: then it is not ours.
fn check_admin_queue(admin: &Admin) -> Result<(), Error> {
    let registers = admin.registers();
    match init::running(registers) {
        Ok(()) if (registers.read(ASQ), registers.read(ACQ)) == admin.addresses() => Ok(()),
        Ok(()) => Err(Error::Invalid(
            "the controller runs with another admin queue than the one that was saved: somebody \
            has started it anew; open it"
                .into(),
        )),
        Err(Error::Gone) => Err(Error::Gone),
        Err(why) => {
            tracing::warn!("the controller that is resumed is reset: {why}");
            Ok(())
        }
    }
}

impl SavedController {
    /// Fails unless it can be the state of a controller with capabilities `cap` and memory pages of
    /// `page` bytes.
    fn check(&self, cap: u64, page: u64) -> Result<(), Error> {
        let fits = self.cap == cap
            && u64::from(self.traits.page) == page
            && !self.options.timeout.is_zero();
        if fits
            && self
                .namespaces
                .iter()
                .all(|namespace| is_possible(&namespace.info) && namespace.cache.is_possible())
        {
            return Ok(());
        }
        Err(Error::Invalid(
            "the saved state is of another controller: give each its own, or open the device anew"
                .into(),
        ))
    }
}

/// Whether a disk of this driver can be as `info` says.
fn is_possible(info: &Info) -> bool {
    [512, 4096].contains(&info.block_size)
        && (info.block_size..=MAX_TRANSFER).contains(&info.max_transfer)
        && info.blocks > 0
}

impl Members {
    /// With `queues` ids, of which the device has `detached`.
    fn resume(queues: u16, detached: &[u16]) -> Result<Self, Error> {
        let mut members = Self::new(queues);
        for &id in detached {
            match members.queues.get_mut(usize::from(id.wrapping_sub(1))) {
                Some(used) if *used == Use::Free => *used = Use::Detached,
                _ => {
                    return Err(Error::Invalid(format!(
                        "the saved state has queue {id} of {queues} twice or in vain"
                    )));
                }
            }
        }
        Ok(members)
    }
}

impl NvmeShared {
    /// The ids of the queues that were detached, if all were that are not closed.
    fn detached_queues(&self) -> Result<Vec<u16>, Error> {
        let members = lock(&self.members);
        if let Some(open) = members.queues.iter().position(|&used| used == Use::Open) {
            let (name, id) = (self.device.name(), open + 1);
            return Err(Error::Busy(format!(
                "{name}: queue {id} is open: detach it or drop it, then detach the controller"
            )));
        }
        Ok((1..)
            .zip(&members.queues)
            .filter(|(_, used)| **used == Use::Detached)
            .map(|(id, _)| id)
            .collect())
    }
}

impl QueuePair {
    /// See [`Queue::detach`](ring3_class::block::Queue::detach).
    pub(super) fn leave(&mut self) -> Result<Saved, Error> {
        let shared = self.shared.clone();
        let _nobody_resets = lock(&shared.admin);
        self.check_attached()?;
        shared.lifetime.check()?;
        if !self.is_current_generation() {
            return Err(Error::Busy(
                "the controller was reset: reap and tick, then detach again".into(),
            ));
        }
        // What waits for its repetition is not written down as such: it goes to the device now.
        self.send_delayed(|_| true);
        let saved = Saved::new(QUEUE.0, QUEUE.1, &self.state()?)?;
        // From here on nothing fails.
        self.submission.words_mut().leave();
        self.completion.words_mut().leave();
        self.encoder.lists().memory().leave();
        for slot in 0..self.slots.count() {
            if let Some(slot) = self.slots.vacate(slot) {
                slot.complete(Ok(())).data.leave();
            }
        }
        self.slots = Slots::none();
        self.ended.clear();
        self.generation = GENERATION_DETACHED;
        shared.change_use(self.id, Use::Open, Use::Detached);
        Ok(saved)
    }

    /// Fails if it was detached.
    pub(super) fn check_attached(&self) -> Result<(), Error> {
        match self.generation {
            GENERATION_DETACHED => {
                Err(Error::Fatal("the queue was detached: resume it, and use that one".into()))
            }
            _ => Ok(()),
        }
    }

    fn state(&mut self) -> Result<SavedPair, Error> {
        self.submission.retire_all_but(self.slots.in_flight().into());
        let slot = |number: u16| {
            let slot = self.slots.get(number)?;
            let age = self.timeouts.age(slot.epoch);
            let (id, attempts, aborted, flush) =
                (slot.id(), slot.attempts, slot.aborted, slot.flush);
            Some(slot.request.save().map(|request| SavedSlot {
                id,
                age,
                attempts,
                aborted,
                flush,
                request,
            }))
        };
        Ok(SavedPair {
            namespace: self.encoder.namespace(),
            serial: self.unit.info.serial.clone(),
            blocks: self.unit.info.blocks,
            id: self.id,
            generation: self.generation,
            held: (0..self.slots.count()).filter_map(slot).collect::<Result<_, _>>()?,
            submission: SavedRing::new(self.submission.words(), self.submission.state()),
            completion: SavedRing::new(self.completion.words(), self.completion.state()),
            lists: self.encoder.lists().memory().span(),
            slots: self.slots.count(),
            next: self.slots.next(),
            ended: self.ended.clone(),
            told: SavedListener::of(&self.listener),
        })
    }

    /// The queue of `namespace` that was detached as `saved`.
    pub(super) fn resume(namespace: &Namespace, saved: &Saved) -> Result<Self, Error> {
        let state: SavedPair = saved.read(QUEUE.0, QUEUE.1)?;
        let shared = &namespace.shared;
        shared.lifetime.check()?;
        let info = &namespace.unit.info;
        let is_same = (state.namespace, &state.serial) == (namespace.id(), &info.serial);
        // One that has grown meanwhile has all that the queue is about.
        if !is_same || state.blocks > info.blocks {
            let (namespace, serial) = (state.namespace, &state.serial);
            return Err(Error::Invalid(format!(
                "the saved queue is of namespace {namespace} of {serial}: resume it there"
            )));
        }
        if !shared.change_use(state.id, Use::Detached, Use::Open) {
            let (name, id) = (shared.device.name(), state.id);
            return Err(Error::Invalid(format!(
                "{name} has no queue {id} that was detached, or it is resumed already"
            )));
        }
        let parts = Parts::resume(namespace, &state);
        let resumed = parts.and_then(|(parts, claims)| {
            Self::of(namespace, state.id, parts).inspect(|_| claims.commit())
        });
        if resumed.is_err() {
            shared.change_use(state.id, Use::Open, Use::Detached);
        }
        resumed
    }
}

impl Parts {
    /// What the queue is made of that was saved as `state`, and the claims to it.
    fn resume(namespace: &Namespace, state: &SavedPair) -> Result<(Self, Claims), Error> {
        let (shared, info) = (&namespace.shared, &namespace.unit.info);
        let mut claims = Claims::new(shared.device.dma().arena());
        let submission = state.submission.claim(&mut claims)?;
        let completion = state.completion.claim(&mut claims)?;
        let count = state.slots;
        if !(1..=MAX_SLOTS).contains(&count)
            || u32::from(count) >= submission.size().min(completion.size())
        {
            return Err(Error::Invalid(format!(
                "a saved queue of {count} requests in rings of {} entries",
                submission.size()
            )));
        }
        let memory = claims.claim(state.lists)?;
        let lists =
            Lists::resume(memory, count.into(), info.max_transfer, init::page_size(shared.cap))?;
        let timeouts = Timeouts::new(shared.options.timeout);
        let mut slots = Slots::new(count);
        slots.resume_at(state.next);
        for SavedSlot { id, age, attempts, aborted, flush, request } in &state.held {
            let request = request.claim(&mut claims, info)?;
            // Of others, the number means nothing: it is their slot's last flush's.
            let cache =
                namespace.unit.cache.as_ref().filter(|_| request.operation == Operation::Flush);
            if cache.is_some_and(|cache| !cache.has_begun(*flush)) {
                return Err(Error::Invalid(format!(
                    "the saved queue has command {id:#06x} as a flush that was not begun"
                )));
            }
            let slot =
                NvmeSlot::of(request, timeouts.epoch_of(*age), (*attempts, *aborted), *flush);
            if !slots.restore(*id, slot) {
                return Err(Error::Invalid(format!(
                    "the saved queue has command {id:#06x} twice, or has no such slot"
                )));
            }
        }
        let mut ended = Vec::with_capacity(count.into());
        ended.extend(&state.ended);
        let generation = state.generation;
        let listener =
            namespace.unit.cache.as_ref().map(|cache| state.told.resume(cache)).unwrap_or_default();
        Ok((
            Self { submission, completion, lists, slots, ended, timeouts, generation, listener },
            claims,
        ))
    }
}
