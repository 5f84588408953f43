//! Making a port ready again.
//!
//! # Steps
//! An error of the drive: the port is stopped and started. Anything else, or if that fails: the drive is reset over its link, and asked
//! whether it is still the same. If that fails, too, the controller is reset, which all its drives notice and none loses a request by. A
//! drive that is not there any more ends its requests and leaves the others alone; it is looked for again when there is a request.

use ring3_device::{Deadline, Device, Error};
use ring3_spec::ata::Signature;

use super::super::Identity;
use super::life::{DEAD, lock};
use super::port::Port;
use super::queue::PortQueue;
use super::recovery::OWN;

impl<D: Device> PortQueue<D> {
    /// Makes the port ready; false if there is no drive any more. Whatever the end, the device owns nothing of what was in flight, or
    /// the controller is dead.
    pub(super) fn revive(&mut self, why: &str) -> Result<bool, Error> {
        let shared = self.shared.clone();
        loop {
            let order = lock(&shared.order);
            let generation = shared.generation();
            if generation == DEAD {
                drop(order);
                return shared.alive().map(|()| false);
            }
            tracing::warn!("{} port {}: {why}: resetting the drive", shared.device.name(), self.port.index());
            let result = self.relink(generation);
            let proven = result.is_ok() || self.port.stop().is_ok();
            drop(order);
            match result {
                Ok(ready) => {
                    self.recovery.futile &= !ready;
                    return Ok(ready);
                }
                Err(error) => {
                    // One reset of the controller for the drive's sake; a second only as the proof that the device owns nothing.
                    let futile = std::mem::replace(&mut self.recovery.futile, true);
                    if !(futile && proven) {
                        shared.reset(generation, &format!("port {}: {error}", self.port.index()))?;
                    }
                    if futile {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Resets the drive, waits for it, and asks whether it is the one that it was; false if not, or if there is none.
    fn relink(&mut self, generation: u32) -> Result<bool, Error> {
        let (ready, shared) = (self.shared.options.ready_timeout, self.shared.clone());
        let linked = if self.port.generation == generation {
            self.port.reset_link()?
        } else {
            // The controller was reset and the drive with it.
            self.port.begin();
            self.port.generation = generation;
            matches!(self.port.has_drive(Port::<D::Bar>::link_deadline()), Ok(true))
        };
        if !linked {
            return Ok(false);
        }
        if self.port.signature(Deadline::after(ready))? != Signature::Ata {
            return Ok(false);
        }
        self.port.start()?;
        let identity = Identity::new(&self.port.identify(OWN)?)?;
        if !self.is_same(&identity) {
            tracing::error!("{} port {}: there is another drive now; open it again", shared.device.name(), self.port.index());
            self.port.stop()?;
            return Ok(false);
        }
        if self.waiter.armed() {
            self.gate.open();
        }
        Ok(true)
    }

    fn is_same(&self, now: &Identity) -> bool {
        let before = &self.shared.seats[self.seat].identity;
        let what = |identity: &Identity| (identity.serial.clone(), identity.model.clone(), identity.blocks, identity.block_size);
        what(now) == what(before)
    }
}
