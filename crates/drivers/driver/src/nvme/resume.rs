//! Hand-over of a running controller to another process.
//!
//! Neither process writes a register or sends a command for it, so the device does not notice. The
//! engine hands over the queues (`disk/saved.rs`).

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring3_class::Saved;
use ring3_class::block::Info;
use ring3_device::dma::Claims;
use ring3_device::{Device, Error, Registers};
use ring3_spec::nvme::registers::{ACQ, ASQ, doorbells_end};

use super::DRIVER;
use super::admin::Admin;
use super::controller::{Controller, NvmeShared};
use super::init;
use super::interrupts::Vectors;
use super::namespace::{Description, Namespace, Unit};
use super::prp::MAX_TRANSFER;
use super::reset::{Members, Use};
use super::saved::{SavedAdmin, SavedCache, SavedController, SavedNamespace};
use crate::disk::Losses;
use crate::disk::write_cache::Record;
use crate::lifetime::{ControllerState, lock};

impl Controller {
    /// Leaves the controller, as it runs, to [`resume`](Self::resume). Its queues were detached or
    /// dropped before.
    pub fn detach(&mut self) -> Result<Saved, Error> {
        let shared = &*self.shared;
        let mut admin = lock(&shared.admin);
        shared.lifetime.check()?;
        let queues = shared.detached_queues()?;
        let saved = self.state(&admin, queues).to_saved()?;
        shared.vectors.open()?;
        admin.release_to_successor();
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
            protection: namespace.unit.protection,
        };
        SavedController {
            cap: shared.cap.0,
            options: shared.options.clone(),
            traits: shared.traits.clone(),
            vectors: shared.vectors.count(),
            generation: shared.generation(),
            cache_lost: shared.losses.last(),
            power: shared.losses.power(),
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
        Self::resume_running(device, poll, SavedController::of_saved(saved)?)
    }

    /// Goes on with the controller that runs as `state` says.
    pub(super) fn resume_running(
        device: Arc<dyn Device>,
        poll: Option<Duration>,
        mut state: SavedController,
    ) -> Result<Self, Error> {
        state.options.poll = poll.unwrap_or(state.options.poll);
        let registers = Registers::new(device.bar(0)?, doorbells_end(1, 0))?;
        let cap = init::capabilities(&registers)?;
        state.check(cap.0, init::page_size(cap))?;
        init::confine(&*device, &state.traits.quirks)?;
        let mut claims = Claims::new(device.dma().arena());
        let admin = Admin::resume(registers, &mut claims, &state, cap.stride())?;
        check_admin_queue(&admin)?;
        let lifetime = ControllerState::resume(device.name(), state.generation)?;
        let members = Members::resume(state.traits.identity.queues, &state.queues)?;
        let members = Mutex::new(members);
        let admin = Arc::new(Mutex::new(admin));
        let for_interrupts = admin.clone();
        let vectors = Vectors::enable(&*device, &state.options, &state.traits.quirks, move || {
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
        let losses = Losses::resume(state.cache_lost, state.power);
        let (zeroes_hang, kept_from) = (AtomicBool::new(false), AtomicBool::new(false));
        let SavedController { traits, options, namespaces, refused, .. } = state;
        let shared = Arc::new(NvmeShared {
            lifetime,
            losses,
            zeroes_hang,
            kept_from,
            vectors,
            admin,
            members,
            traits,
            cap,
            options,
            device,
        });
        let kept = shared.device.dma().arena().persistent_words();
        let namespace = |SavedNamespace { id, info, cache, unique, protection }| {
            let cache = info
                .volatile_cache
                .then(|| cache.resume(Record::find(kept.clone(), &info.serial, id)));
            let what = Description { info, unique, protection };
            Namespace::new(shared.clone(), Unit::new(id, what, cache))
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
            tracing::warn!("the resumed controller does not run ({why}): its queues will reset it");
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
