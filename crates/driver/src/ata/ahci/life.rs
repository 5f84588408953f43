//! Resets of the controller, its end, and who may still write to memory.
//!
//! # The proof
//! Memory returns to its owner only when the device cannot write to it: its command ended, its port was seen to be stopped
//! (PxCMD.CR = 0), the controller was reset (GHC.HR), the function was reset, or its bus mastering is off.
//!
//! # Who does what
//! A reset of the controller stops all ports. Whoever finds it necessary does it and counts the generation up, first of all; each
//! queue's own thread sees that and makes its own port ready again. What a port's registers say is believed only if the generation is
//! still the same after they were read, because a port that was reset says that all commands have ended.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ring3_class::block::IoError;
use ring3_device::Error;

use super::super::command::Encoder;
use super::controller::{Seat, Shared};
use super::hba::{self, Unstopped};
use super::port::Port;

/// The generation after the last.
pub(super) const DEAD: u32 = u32::MAX;

/// How a controller's life ended.
pub(super) struct Death {
    error: IoError,
    why: String,
    /// The device cannot write to memory any more.
    owns_nothing: bool,
}

/// A thread that panicked leaves what the lock guards as consistent as a device that stopped answering does: recovery is the same.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// The present generation.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// Fails if the controller will never take a command again.
    pub(super) fn alive(&self) -> Result<(), Error> {
        match &*lock(&self.death) {
            None => Ok(()),
            Some(Death { error: IoError::Gone, .. }) => Err(Error::Gone),
            Some(death) => Err(Error::Fatal(format!("{}: {}; open it again", self.device.name(), death.why))),
        }
    }

    /// How requests end now that the controller is dead.
    pub(super) fn last_word(&self) -> IoError {
        lock(&self.death).as_ref().map_or(IoError::Gone, |death| death.error)
    }

    /// Whether the controller is dead and the device cannot write to memory any more.
    pub(super) fn owns_nothing(&self) -> bool {
        lock(&self.death).as_ref().is_some_and(|death| death.owns_nothing)
    }

    /// Resets the controller if it has not been reset since `generation`. All ports are stopped afterwards. [AHCI 10.4.3]
    pub(super) fn reset(&self, generation: u32, why: &str) -> Result<(), Error> {
        let _order = lock(&self.order);
        if self.generation() != generation {
            return self.alive();
        }
        tracing::warn!("{}: resetting the controller: {why}", self.device.name());
        // First of all, and seen by all before the registers change.
        self.generation.swap(generation.wrapping_add(1) % DEAD, Ordering::SeqCst);
        let settled = |seat: &&Seat| seat.settled.load(Ordering::Relaxed) == generation;
        for seat in self.seats.iter().filter(settled).filter(|seat| self.hba.may_have_lost_power(seat.index)) {
            seat.power_lost.store(true, Ordering::Relaxed);
        }
        let stopped = hba::stop(&*self.device, &self.hba);
        let restarted = match stopped {
            Ok(()) => self.device.set_bus_master(true).map_err(|error| Unstopped { error, harmless: true }),
            Err(unstopped) => Err(unstopped),
        };
        match restarted {
            Ok(()) => {
                self.hba.set_interrupts(self.vector.kind().is_some());
                Ok(())
            }
            Err(Unstopped { error, harmless }) => {
                self.die(&error, "it cannot be stopped", harmless);
                Err(error)
            }
        }
    }

    /// Ends the controller's life.
    fn die(&self, error: &Error, what: &str, owns_nothing: bool) {
        tracing::error!("{}: {what}: {error}", self.device.name());
        let io_error = if matches!(error, Error::Gone) { IoError::Gone } else { IoError::Transport };
        *lock(&self.death) = Some(Death { error: io_error, why: format!("{what}: {error}"), owns_nothing });
        self.generation.swap(DEAD, Ordering::SeqCst);
    }

    /// Flushes and parks the drives, stops all ports, in good order where nothing is in flight, and takes bus mastering away.
    pub(super) fn shut_down(&self) -> Result<(), Error> {
        let _order = lock(&self.order);
        self.alive()?;
        let generation = self.generation.swap(DEAD, Ordering::SeqCst);
        self.hba.set_interrupts(false);
        // All of them, whatever becomes of one.
        let parked: Vec<_> = self.seats.iter().map(|seat| self.park(seat, generation)).collect();
        // A port that is not in its seat belongs to an open queue; then, and if one does not obey, all are reset.
        let closed = self.seats.iter().all(|seat| lock(&seat.port).as_mut().is_some_and(|port| port.close().is_ok()));
        let stopped = if closed && self.others.is_empty() { Ok(()) } else { hba::stop(&*self.device, &self.hba) };
        let owns_nothing = stopped.as_ref().err().is_none_or(|unstopped| unstopped.harmless);
        *lock(&self.death) = Some(Death { error: IoError::Gone, why: "it was shut down".into(), owns_nothing });
        let muzzled = self.device.set_bus_master(false);
        stopped.map_err(|unstopped| unstopped.error).and(muzzled).and(parked.into_iter().collect())
    }

    /// Flushes and parks the drive of `seat` if it was used and is ready: not one that is gone, or that an open queue has.
    fn park(&self, seat: &Seat, generation: u32) -> Result<(), Error> {
        let mut held = lock(&seat.port);
        let ready = |port: &&mut Port| port.ready && port.generation == generation;
        let Some(port) = held.as_mut().filter(ready).filter(|_| seat.used.load(Ordering::Relaxed)) else { return Ok(()) };
        if self.hba.running(seat.index).is_err() {
            // A port that somebody else has reset takes no command.
            if port.cache.is_clean() {
                return Ok(());
            }
            port.cache.lose();
        }
        let parked = port.park(&Encoder::new(&seat.identity, &seat.info), &self.options);
        if let Err(error) = &parked {
            tracing::error!("{} port {}: not flushed and parked: {error}", self.device.name(), seat.index);
        }
        parked
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
            tracing::error!("{}: the memory of its ports is given up: it may still write there", self.device.name());
            let seated = self.seats.iter_mut().filter_map(|seat| seat.port());
            seated.chain(&mut self.others).for_each(|port| port.abandon());
        }
    }
}
