//! Making a port ready again.
//!
//! # Steps
//! An error of the drive: the port is stopped and started. Anything else, or if that fails: the
//! drive is reset over its link, and asked whether it is still the same. If that fails, too, the
//! controller is reset, which all its drives notice and none loses a request by. A drive that is
//! not there any more ends its requests and leaves the others alone; it is looked for again when
//! there is a request. One that no reset wakes up, and another one in its place are not used until
//! the controller is opened again. A drive that counts how often it was powered on is asked; one
//! that has lost writes, or may have (`cache.rs`), says so by its next flush.

use std::sync::atomic::Ordering;

use ring3_class::block::IoError;
use ring3_device::{Deadline, Error};
use ring3_spec::ata::Signature;

use super::super::Identity;
use super::port::NOTICE;
use super::queue::PortQueue;
use super::recovery::OWN;
use crate::disk::Controller as _;
use crate::disk::write_cache::PowerCount;
use crate::lifetime::{GENERATION_CLOSED, lock};

/// Further resets of a drive that was there and is not noticed after the first one.
const RETURNS: u32 = 2;

/// What became of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortState {
    /// It takes commands again.
    Ready,
    /// There is no drive. It may come back.
    Absent,
    /// There is one, and it must not be used: how requests end, and why.
    Unusable(IoError, &'static str),
}

impl PortQueue {
    /// Makes the port ready. Whatever the end, the device owns nothing of what was in flight, or
    /// the controller is dead.
    ///
    /// An error is the drive's last: neither its own reset nor the controller's has helped.
    pub(super) fn reset_port(&mut self, why: &str) -> Result<PortState, Error> {
        let shared = self.shared.clone();
        let mut repeated = false;
        loop {
            let order = lock(&shared.order);
            let generation = shared.generation();
            if generation == GENERATION_CLOSED {
                drop(order);
                return shared.lifetime.check().map(|()| PortState::Absent);
            }
            if self.port.generation == generation
                && let Err(reset) = shared.hba.running(self.port.index())
            {
                // Before the controller is taken over again, the registers of its ports mean
                // nothing.
                drop(order);
                shared.reset(generation, &reset.to_string())?;
                continue;
            }
            tracing::warn!(
                "{} port {}: {why}: resetting the drive",
                shared.device.name(),
                self.port.index()
            );
            self.begin_reset(generation);
            // A drive may take seconds to come back. Other ports are mended meanwhile, and may have
            // the controller reset.
            drop(order);
            let noticed = self.is_noticed();
            let order = lock(&shared.order);
            if shared.generation() != generation {
                continue;
            }
            let result = noticed.and_then(|noticed| self.end_reset(generation, noticed));
            let proven = result.is_ok() || self.port.stop().is_ok();
            drop(order);
            let Err(error) = result else { return result };
            // One reset of the controller for the drive's sake; a second only as the proof that the
            // device owns nothing.
            if !(repeated && proven) {
                shared.reset(generation, &format!("port {}: {error}", self.port.index()))?;
            }
            if std::mem::replace(&mut repeated, true) {
                // Whoever opens the drive once more must not believe that it was there all the
                // time.
                self.port.cache.mark_lost();
                return Err(error);
            }
        }
    }

    /// Resets the drive.
    fn begin_reset(&mut self, generation: u32) {
        if self.shared.seats[self.seat].power_lost.swap(false, Ordering::Relaxed) {
            self.port.cache.lose_link();
        }
        if self.port.generation == generation {
            self.port.begin_link_reset();
        } else {
            // The controller was reset and the drive with it.
            self.port.begin();
            self.port.generation = generation;
        }
    }

    /// Whether the drive is noticed after its reset.
    ///
    /// One that was there is given time and further resets, as a drive that spins up may need:
    /// without it, all that is in flight ends. One that was missing before is not waited for again,
    /// or each request to it would take as long.
    fn is_noticed(&mut self) -> Result<bool, Error> {
        let shared = &self.shared;
        let mut noticed = self.port.has_drive(shared.hba.link_deadline(), NOTICE);
        if matches!(noticed, Err(Error::Timeout { .. }))
            && shared.hba.free_link(&*shared.device, self.port.index())?
        {
            self.port.cache.disturb();
            self.port.comreset();
            noticed = self.port.has_drive(shared.hba.link_deadline(), NOTICE);
        }
        for _ in 0..RETURNS {
            if self.recovery.missing || !matches!(noticed, Ok(false)) {
                break;
            }
            // In so long a time its power may have gone and come back.
            self.port.cache.disturb();
            self.port.comreset();
            noticed = self.port.has_drive(shared.hba.link_deadline(), shared.options.link_timeout);
        }
        match noticed {
            // A link that stays without communication is that of a drive that cannot be reached.
            Err(Error::Timeout { .. }) => Ok(false),
            noticed => noticed,
        }
    }

    /// Waits until the drive, if it was `noticed`, is ready, and asks whether it is the one that it
    /// was, with all that it was given.
    fn end_reset(&mut self, generation: u32, noticed: bool) -> Result<PortState, Error> {
        self.port.end_link_reset()?;
        let ready = self.shared.options.ready_timeout;
        if !noticed || self.port.signature(Deadline::after(ready))? != Signature::Ata {
            self.port.cache.disturb();
            return Ok(PortState::Absent);
        }
        self.port.start()?;
        let identity = Identity::new(&self.port.identify(OWN)?)?;
        let useless = if !self.is_same(&identity) {
            Some((IoError::Gone, "there is another drive now"))
        } else if identity.cache && !self.shared.seats[self.seat].identity.cache {
            Some((
                IoError::Transport,
                "its write cache was off and is on, so that its users do not flush it",
            ))
        } else {
            None
        };
        if let Some((error, why)) = useless {
            // It is not asked for the count of the drive that was there.
            let undisturbed = !self.port.cache.take_disturbance();
            self.port.cache.compare(PowerCount::UNKNOWN, undisturbed);
            self.port.report_loss(self.shared.device.name());
            self.port.stop()?;
            return Ok(PortState::Unusable(error, why));
        }
        let looked = self.port.look_for_loss(OWN.min(self.shared.options.timeout));
        self.port.report_loss(self.shared.device.name());
        looked?;
        self.shared.seats[self.seat].ready_since.store(generation, Ordering::Relaxed);
        if self.armed {
            self.gate.open();
        }
        Ok(PortState::Ready)
    }

    fn is_same(&self, now: &Identity) -> bool {
        let before = &self.shared.seats[self.seat].identity;
        let what = |identity: &Identity| {
            (identity.serial.clone(), identity.model.clone(), identity.blocks, identity.block_size)
        };
        what(now) == what(before)
    }
}
