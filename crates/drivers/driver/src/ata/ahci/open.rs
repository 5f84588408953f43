//! How a queue takes its port, and gives it back.
//!
//! A queue that is dropped under load waits for what the drive is doing. To stop it would cost a
//! reset of the drive, and more time; that is for drives that do not end. (QEMU 7.2 moves the data
//! of queued commands even after that.)

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ring3_device::{Deadline, Error, poll_until};
use ring3_spec::ahci::SLOTS;

use super::controller::AhciShared;
use super::port_reset::PortState;
use super::queue::{Parts, PortQueue};
use super::slots::bits;
use crate::lifetime::{GENERATION_DETACHED, lock};

/// A drive is given this long to end what it is doing when its queue is dropped.
const DRAIN: Duration = Duration::from_secs(2);

impl PortQueue {
    /// Takes the port of `seat` for up to `depth` requests at once.
    pub(super) fn open(shared: Arc<AhciShared>, seat: usize, depth: u16) -> Result<Self, Error> {
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
        let depth = depth.clamp(1, SLOTS.into()).min(port.lists.slots().into()) as u8;
        let irq = match shared.vector.of_port(port.gate()) {
            Ok(irq) => irq,
            Err(error) => {
                *lock(&place.port) = Some(port);
                return Err(error);
            }
        };
        let mut queue = Self::new(Parts { port, depth, irq, shared, seat });
        // From here on dropping the queue gives the port back.
        let current = queue.port.ready && queue.port.generation == queue.shared.generation();
        queue.shared.seats[seat].used.store(true, Ordering::Relaxed);
        let state =
            if current { PortState::Ready } else { queue.reset_port("it was left busy")? };
        let why = match state {
            PortState::Ready => return Ok(queue),
            PortState::Absent => "there is no drive any more",
            PortState::Unusable(_, why) => why,
        };
        let (name, index) = (queue.shared.device.name(), queue.port.index());
        Err(Error::Fatal(format!("{name} port {index}: {why}; open the controller again")))
    }
}

impl Drop for PortQueue {
    fn drop(&mut self) {
        if self.port.generation == GENERATION_DETACHED {
            return;
        }
        self.gate.close();
        let shared = self.shared.clone();
        if self.issued & self.cached != 0 {
            self.port.cache.wrote();
        }
        if self.issued != 0 && !self.drained() && !self.withdrawn() {
            tracing::error!(
                "{} port {}: the memory of its requests is given up: the device may still write to \
                it",
                shared.device.name(),
                self.port.index()
            );
            for slot in bits(self.slots.occupied()) {
                std::mem::forget(self.slots.end(slot, Ok(())));
            }
        }
        match self.port.again() {
            Ok(port) => *lock(&shared.seats[self.seat].port) = Some(port),
            Err(error) => {
                tracing::error!("{} port {}: {error}", shared.device.name(), self.port.index())
            }
        }
    }
}

impl PortQueue {
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
