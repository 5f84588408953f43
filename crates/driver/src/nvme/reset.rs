//! Resets of the controller, its end, and who may still write to memory.
//!
//! # The proof
//! Memory returns to its owner only when the device cannot write to it: its completion came, CSTS.RDY was seen to be 0, the
//! function was reset, or its bus mastering is off.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ring3_class::block::IoError;
use ring3_device::Error;

use super::admin::Admin;
use super::cache::WriteCache;
use super::controller::{Shared, lock, settle};
use super::init::{self, Unstopped};

/// The generation after the last.
pub(super) const DEAD: u32 = u32::MAX;

/// What the controller's life is at.
pub(super) struct Life {
    /// I/O queue ids in use, from 1 on.
    queues: Vec<bool>,
    /// The volatile caches, by namespace.
    caches: Vec<(u32, Arc<WriteCache>)>,
    death: Option<Death>,
}

struct Death {
    error: IoError,
    why: String,
    /// The device cannot write to memory any more.
    owns_nothing: bool,
}

impl Life {
    pub(super) fn new(queues: u16) -> Self {
        Self { queues: vec![false; queues.into()], caches: Vec::new(), death: None }
    }
}

impl Shared {
    /// Fails if the controller will never take a command again.
    pub(super) fn alive(&self) -> Result<(), Error> {
        match &lock(&self.life).death {
            None => Ok(()),
            Some(Death { error: IoError::Gone, .. }) => Err(Error::Gone),
            Some(death) => Err(Error::Fatal(format!("{}: {}; open it again", self.device.name(), death.why))),
        }
    }

    /// How requests end now that the controller is dead.
    pub(super) fn last_word(&self) -> IoError {
        lock(&self.life).death.as_ref().map_or(IoError::Gone, |death| death.error)
    }

    /// Whether the controller is dead and the device cannot write to memory any more.
    pub(super) fn owns_nothing(&self) -> bool {
        lock(&self.life).death.as_ref().is_some_and(|death| death.owns_nothing)
    }

    pub(super) fn take_queue_id(&self) -> Result<u16, Error> {
        let mut life = lock(&self.life);
        let count = life.queues.len();
        let Some(index) = life.queues.iter().position(|used| !used) else {
            let name = self.device.name();
            return Err(Error::Busy(format!("all {count} queues of {name} are open: close one, or open the device with more")));
        };
        life.queues[index] = true;
        Ok(index as u16 + 1)
    }

    pub(super) fn give_queue_id_back(&self, id: u16) {
        if let Some(used) = lock(&self.life).queues.get_mut(usize::from(id.wrapping_sub(1))) {
            *used = false;
        }
    }

    /// Resets the controller if it has not been reset since `generation`, and starts it again. [NVMe 3.7.2]
    pub(super) fn reset(&self, generation: u32, why: &str) -> Result<(), Error> {
        let mut admin = lock(&self.admin);
        if self.generation() != generation {
            return self.alive();
        }
        tracing::warn!("{}: resetting the controller: {why}", self.device.name());
        let lost_power = init::may_have_lost_power(admin.registers());
        // First, so that queues stop ringing doorbells of a controller that does not know them.
        let next = generation.wrapping_add(1) % DEAD;
        self.generation.store(next, Ordering::Relaxed);
        if lost_power {
            self.lose_caches(next);
        }
        if let Err(Unstopped { error, harmless }) = init::stop(&*self.device, admin.registers(), self.cap) {
            self.die(&error, "it cannot be stopped", harmless);
            return Err(error);
        }
        let queues = self.traits.identity.queues;
        let restarted = self.device.set_bus_master(true).and_then(|()| init::enable(&mut admin, self.cap));
        let settled = restarted.and_then(|()| settle(&mut admin, &self.traits, queues));
        let error = match settled {
            Ok(granted) if granted >= queues => return Ok(()),
            Ok(granted) => Error::Protocol(format!("it grants {granted} queues after a reset, {queues} before")),
            Err(error) => error,
        };
        self.give_up(&admin, &error, "it did not come back from a reset");
        Err(error)
    }

    /// Makes the cache of namespace `id`.
    pub(super) fn new_cache(&self, id: u32) -> Arc<WriteCache> {
        let cache = Arc::new(WriteCache::default());
        lock(&self.life).caches.push((id, cache.clone()));
        cache
    }

    /// Whether the caches were lost since `generation` began.
    #[inline]
    pub(super) fn lost_cache_after(&self, generation: u32) -> bool {
        self.cache_lost.load(Ordering::SeqCst) > generation
    }

    /// The controller came to `generation` by a reset that nobody here asked for.
    fn lose_caches(&self, generation: u32) {
        self.cache_lost.store(generation, Ordering::SeqCst);
        let life = lock(&self.life);
        for (id, _) in life.caches.iter().filter(|(_, cache)| cache.lose()) {
            tracing::error!(
                "{} namespace {id}: the controller was reset by somebody else, or its power failed: writes since the last flush may be \
                 lost, and the next flush fails; check what was written last",
                self.device.name()
            );
        }
    }

    /// Stops the controller for good.
    pub(super) fn give_up(&self, admin: &Admin, error: &Error, what: &str) {
        let harmless = match init::stop(&*self.device, admin.registers(), self.cap) {
            Ok(()) => true,
            Err(unstopped) => unstopped.harmless,
        };
        self.die(error, what, harmless);
    }

    /// Ends the controller's life. The admin queue is locked.
    fn die(&self, error: &Error, what: &str, owns_nothing: bool) {
        tracing::error!("{}: {what}: {error}", self.device.name());
        let io_error = if matches!(error, Error::Gone) { IoError::Gone } else { IoError::Transport };
        lock(&self.life).death = Some(Death { error: io_error, why: format!("{what}: {error}"), owns_nothing });
        self.generation.store(DEAD, Ordering::Relaxed);
    }

    /// Orderly shutdown. [NVMe 3.6.1]
    pub(super) fn shut_down(&self) -> Result<(), Error> {
        let admin = lock(&self.admin);
        self.alive()?;
        let consent = init::shut_down(admin.registers(), self.traits.shutdown);
        let stopped = init::stop(&*self.device, admin.registers(), self.cap);
        let owns_nothing = stopped.as_ref().err().is_none_or(|unstopped| unstopped.harmless);
        lock(&self.life).death = Some(Death { error: IoError::Gone, why: "it was shut down".into(), owns_nothing });
        self.generation.store(DEAD, Ordering::Relaxed);
        consent.and(stopped.map_err(|unstopped| unstopped.error))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.alive().is_ok()
            && let Err(error) = self.shut_down()
        {
            tracing::warn!("{}: shutdown: {error}", self.device.name());
        }
        if !self.owns_nothing() {
            lock(&self.admin).abandon();
        }
    }
}
