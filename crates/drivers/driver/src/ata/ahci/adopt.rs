//! A controller whose driver's process was killed, and which goes on: its drives end what they are
//! doing, and neither is reset.
//!
//! # The proof
//! A port has nothing of the dead process once PxSACT and PxCI are zero without an error: its
//! commands have ended, and moved their data before that. [AHCI 5.5.1] Until then they use memory
//! that nobody else uses: only the ports' lists are claimed, and they are where they were. To stop
//! the port instead would leave a drive with commands that only a reset takes back.
//!
//! # Trust
//! The state is what a dead process has said. A port must have the addresses that it says, must
//! run, and must know of no error and of no loss of its link; then its drive identifies itself,
//! with the serial number that the state says, and says how often it was powered on if it did so
//! before. Whatever else happens, or takes too long, stops the
//! controller: then it is one to be opened.

use std::sync::Arc;
use std::time::Duration;

use ring3_class::Saved;
use ring3_device::{Deadline, Device, Error, poll_until};
use ring3_spec::ahci::port::Interrupts;

use super::super::Identity;
use super::controller::{Controller, DiskPort};
use super::hba::{self, Hba};
use super::port::{Port, is_link_change};
use super::saved::{CONTROLLER, SavedController};
use crate::lifetime::lock;

/// All of it ends within this: a controller that takes longer is not faster than one that is reset.
const LIMIT: Duration = Duration::from_millis(500);

impl Controller {
    /// By what another process can [`adopt`](Self::adopt) the controller if this one is killed from
    /// now on. Nothing has to be said later.
    pub fn record(&self) -> Result<Saved, Error> {
        let shared = &self.shared;
        shared.lifetime.check()?;
        if shared.generation() != 0
            || !shared.others.is_empty()
            || shared.seats.iter().any(|seat| seat.place.is_none())
        {
            let text = "a controller that had to be reset, or of which a port without a disk does \
                        not stop, is not adopted: it is fenced";
            return Err(Error::Unsupported(text.into()));
        }
        let mut state = self.state();
        for (saved, seat) in state.seats.iter_mut().zip(&shared.seats) {
            saved.port = seat.place.clone();
        }
        Saved::new(CONTROLLER.0, CONTROLLER.1, &state)
    }

    /// Goes on with a controller whose driver, which had [recorded](Self::record) `saved`, was
    /// killed; nothing goes on that it had begun. The memory that nobody has claimed is free
    /// afterwards: whoever has adopted the arena releases it.
    ///
    /// After an error the controller may run or not, and may still reach what it could reach:
    /// [`open`](Self::open) stops it first.
    pub fn adopt(
        device: Arc<dyn Device>,
        poll: Option<Duration>,
        saved: &Saved,
    ) -> Result<Self, Error> {
        let state: SavedController = saved.read(CONTROLLER.0, CONTROLLER.1)?;
        if state.generation != 0 || state.seats.iter().any(|seat| seat.port.is_none()) {
            return Err(Error::Invalid(
                "what was saved is of a controller that was left, and not of one whose driver was \
                 killed"
                    .into(),
            ));
        }
        let controller = Self::resume(device, poll, saved)?;
        let (shared, deadline) = (&controller.shared, Deadline::after(LIMIT));
        let name = shared.device.name();
        let drained =
            shared.seats.iter().try_for_each(|seat| seat.drain(&shared.hba, (name, deadline)));
        if let Err(error) = drained {
            let stopped = hba::stop(&*shared.device, &shared.hba);
            let quiesced = stopped.err().is_none_or(|unstopped| unstopped.quiesced);
            shared.lifetime.fail(&error, "it cannot be adopted", quiesced);
            return Err(error);
        }
        Ok(controller)
    }
}

impl DiskPort {
    /// Has the drive end what it is doing.
    fn drain(&self, hba: &Hba, (name, deadline): (&str, Deadline)) -> Result<(), Error> {
        let mut held = lock(&self.port);
        let port = held
            .as_mut()
            .ok_or_else(|| Error::Fatal(format!("port {} is not there", self.index)))?;
        hba.running(self.index)?;
        if Port::addresses_at(&hba.bar(), self.index)? != port.lists.addresses() {
            return Err(Error::Fatal(format!(
                "port {} has other memory than was saved",
                self.index
            )));
        }
        let ended =
            poll_until(deadline, "the end of what a drive was doing for a dead driver", || {
                let outstanding = port.outstanding(true) | port.outstanding(false);
                // Read after that, so that an end by an error is seen as one.
                port.check(self.index)?;
                Ok((outstanding == 0).then_some(()))
            });
        ended?;
        port.reinitialise();
        let found = Identity::new(&port.identify(deadline.remaining())?)?.serial;
        if found != self.identity.serial {
            return Err(Error::Fatal(format!(
                "the drive at port {} is {found:?} and not {:?}",
                self.index, self.identity.serial
            )));
        }
        // Whatever the dead driver has written.
        port.cache.wrote();
        port.look_for_loss(deadline.remaining())?;
        port.report_loss(name);
        Ok(())
    }
}

impl Port {
    /// Fails unless it runs, and knows of no error and no loss of its link.
    fn check(&self, index: u8) -> Result<(), Error> {
        let events = self.events()?;
        if events.0 & Interrupts::FATAL.0 != 0 || is_link_change(events) || !self.is_running() {
            return Err(Error::Fatal(format!(
                "port {index} does not run, or has met an error (PxIS {:#010x})",
                events.0
            )));
        }
        Ok(())
    }
}
