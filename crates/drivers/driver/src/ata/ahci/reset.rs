//! Resets of the controller, its end, and who may still write to memory.
//!
//! # The proof
//! Memory returns to its owner only when the device cannot write to it: its command ended, its port
//! was seen to be stopped (PxCMD.CR = 0), the controller was reset (GHC.HR), the function was
//! reset, or its bus mastering is off.
//!
//! # Who does what
//! A reset of the controller stops all ports. Whoever finds it necessary does it and counts the
//! generation up, first of all; each queue's own thread sees that and makes its own port ready
//! again. What a port's registers say is believed only if the generation is still the same after
//! they were read, because a port that was reset says that all commands have ended.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ring3_class::block::Operation;
use ring3_device::Error;

use super::super::command::Encoder;
use super::controller::{AhciShared, DiskPort};
use super::hba;
use super::port::Port;
use crate::disk::{Condition, Controller};
use crate::lifetime::{ControllerState, StopFailed, lock};

impl AhciShared {
    /// The present generation.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        self.lifetime.generation()
    }

    /// Flushes and parks the drives, stops all ports, in good order where nothing is in flight, and
    /// takes bus mastering away.
    pub(super) fn shut_down(&self) -> Result<(), Error> {
        let _order = lock(&self.order);
        self.lifetime.check()?;
        let generation = self.lifetime.close();
        self.hba.set_interrupts(false);
        // All of them, whatever becomes of one.
        let parked: Vec<_> = self.seats.iter().map(|seat| self.park(seat, generation)).collect();
        // A port that is not in its seat belongs to an open queue; then, and if one does not obey,
        // all are reset.
        let closed = self
            .seats
            .iter()
            .all(|seat| lock(&seat.port).as_mut().is_some_and(|port| port.close().is_ok()));
        let stopped = if closed && self.others.is_empty() {
            Ok(())
        } else {
            hba::stop(&*self.device, &self.hba)
        };
        self.lifetime.shut_down(&stopped);
        let silenced = self.device.set_bus_master(false);
        stopped.map_err(|unstopped| unstopped.error).and(silenced).and(parked.into_iter().collect())
    }

    /// Flushes and parks the drive of `seat` if it was used and is ready: not one that is gone, or
    /// that an open queue has.
    fn park(&self, seat: &DiskPort, generation: u32) -> Result<(), Error> {
        let mut held = lock(&seat.port);
        let ready = |port: &&mut Port| port.ready && port.generation == generation;
        let Some(port) = held.as_mut().filter(ready).filter(|_| seat.used.load(Ordering::Relaxed))
        else {
            return Ok(());
        };
        if self.hba.running(seat.index).is_err() {
            // A port that somebody else has reset takes no command.
            if port.cache.is_clean() {
                return Ok(());
            }
            port.cache.disturb();
        }
        let parked = port.park(&Encoder::new(&seat.identity, &seat.info), &self.options);
        if let Err(error) = &parked {
            tracing::error!(
                "{} port {}: not flushed and parked: {error}",
                self.device.name(),
                seat.index
            );
        }
        parked
    }
}

impl Drop for AhciShared {
    fn drop(&mut self) {
        if self.lifetime.check().is_ok()
            && let Err(error) = self.shut_down()
        {
            tracing::warn!("{}: shutdown: {error}", self.device.name());
        }
        if !self.lifetime.is_quiesced() {
            let seated = self.seats.iter_mut().filter_map(|seat| seat.port());
            for port in seated.chain(&mut self.others) {
                tracing::error!(
                    "{} port {}: its memory is given up: it may still write there",
                    self.device.name(),
                    port.index()
                );
                port.abandon();
            }
        }
    }
}

/// The caches are the drives', and so is the question who they are: a port finds both out when it
/// is made ready (`port_reset.rs`).
impl Controller for AhciShared {
    type State = ();

    fn lock(&self) -> MutexGuard<'_, ()> {
        lock(&self.order)
    }

    #[inline]
    fn lifetime(&self) -> &ControllerState {
        &self.lifetime
    }

    fn name(&self) -> &str {
        self.device.name()
    }

    fn timeout(&self, operation: Operation) -> Duration {
        match operation {
            Operation::Flush => self.options.flush_timeout,
            _ => self.options.timeout,
        }
    }

    fn poll(&self) -> Duration {
        self.options.poll
    }

    /// Notes which drives may have lost their power, which the reset wipes from the registers.
    fn condition(&self, (): &()) -> Condition {
        let generation = self.generation();
        for seat in &self.seats {
            let is_news = seat.ready_since.load(Ordering::Relaxed) == generation;
            if is_news && self.hba.may_have_lost_power(seat.index) {
                seat.power_lost.store(true, Ordering::Relaxed);
            }
        }
        Condition::Running
    }

    /// All ports are stopped afterwards. [AHCI 10.4.3]
    fn stop(&self, (): &mut ()) -> Result<(), StopFailed> {
        hba::stop(&*self.device, &self.hba)
    }

    fn start(&self, (): &mut ()) -> Result<(), Error> {
        self.device.set_bus_master(true)?;
        self.hba.set_interrupts(self.vector.kind().is_some());
        Ok(())
    }
}
