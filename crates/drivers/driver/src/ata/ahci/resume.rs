//! Controllers and queues that are left to another process while they run, and taken up there.
//!
//! The device does not notice: no command is sent, and of the registers only those are written that
//! let interrupts through. What it does meanwhile lies in memory and in PxSACT or PxCI, and is
//! found by the first look; what was submitted and not rung is rung by the next ring.
//!
//! # Who has what
//! Under the lock of the order nobody resets the controller. The port of a queue that was detached
//! is in no seat, so that nobody else can open it, and its memory stays taken in the arena. If the
//! controller is reset before the queue is resumed, its generation says so.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring3_class::Saved;
use ring3_class::block::Info;
use ring3_device::dma::{Claims, PersistentWords};
use ring3_device::{Device, Error};
use ring3_spec::ahci::MAX_REGION_BYTES;

use super::super::{AHCI, quirks};
use super::controller::{AhciShared, Controller, DiskPort};
use super::drive::Drive;
use super::hba::{self, Hba};
use super::interrupts::Vector;
use super::saved::{CONTROLLER, SavedController, SavedDiskPort, SavedPort};
use crate::disk::write_cache::Record;
use crate::lifetime::{ControllerState, lock};

impl Controller {
    /// Leaves the controller, as it runs, to [`resume`](Self::resume). Its queues were detached or
    /// dropped before.
    pub fn detach(&mut self) -> Result<Saved, Error> {
        let shared = &*self.shared;
        let _nobody_resets = lock(&shared.order);
        shared.lifetime.check()?;
        shared.check_detached()?;
        let saved = Saved::new(CONTROLLER.0, CONTROLLER.1, &self.state())?;
        shared.vector.open()?;
        // From here on nothing fails: nobody else holds the memory of a port in its seat.
        for seat in &shared.seats {
            if let Some(mut port) = lock(&seat.port).take() {
                port.release_to_successor()?;
            }
        }
        shared.lifetime.detach();
        Ok(saved)
    }

    /// As it is now.
    pub(super) fn state(&self) -> SavedController {
        let shared = &*self.shared;
        SavedController {
            capabilities: shared.hba.capabilities.0,
            ports: shared.hba.port_mask(),
            options: shared.options.clone(),
            interrupts: shared.vector.kind(),
            generation: shared.generation(),
            seats: shared.seats.iter().map(DiskPort::save).collect(),
            refused: self
                .refused
                .iter()
                .map(|(place, why)| (place.clone(), why.to_string()))
                .collect(),
        }
    }

    /// Goes on with the controller that was detached as `saved`, and which has run since. It polls
    /// as long before it sleeps as `poll` says, or as before.
    ///
    /// Nothing is asked of the drives, and nothing is told to them. A controller that was reset
    /// meanwhile is found like any that is reset behind its driver's back.
    pub fn resume(
        device: Arc<dyn Device>,
        poll: Option<Duration>,
        saved: &Saved,
    ) -> Result<Self, Error> {
        AHCI.check(&*device)?;
        let mut state: SavedController = saved.read(CONTROLLER.0, CONTROLLER.1)?;
        state.options.poll = poll.unwrap_or(state.options.poll);
        let quirks = quirks::of_controller(&*device, &state.options)?;
        let hba = Hba::resume(&*device, quirks, state.capabilities, state.ports)?;
        hba::confine(device.name(), device.dma(), hba.limit())?;
        let mut claims = Claims::new(device.dma().arena());
        let lifetime = ControllerState::resume(device.name(), state.generation)?;
        let seats = state
            .seats
            .iter()
            .map(|seat| {
                DiskPort::resume(seat, &hba, (&mut claims, device.dma().arena().persistent_words()))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let vector = Vector::enable(&*device, state.options.interrupts, seats.len(), &hba.quirks)?;
        if vector.kind() != state.interrupts || state.options.timeout.is_zero() {
            let (name, now, then) = (device.name(), vector.kind(), state.interrupts);
            return Err(Error::Invalid(format!(
                "{name}: its interrupts are {now:?}, and were {then:?} when it was detached"
            )));
        }
        // From here on nothing fails.
        claims.commit();
        let SavedController { options, refused, .. } = state;
        let order = Mutex::new(());
        let shared = Arc::new(AhciShared {
            lifetime,
            order,
            hba,
            seats,
            others: Vec::new(),
            vector,
            options,
            device,
        });
        let drives = (0..shared.seats.len()).map(|seat| Drive::new(shared.clone(), seat)).collect();
        let refused =
            refused.into_iter().map(|(place, why)| (place, Error::Unsupported(why))).collect();
        Ok(Self { shared, refused, drives })
    }
}

impl AhciShared {
    /// Fails unless each port is in its seat, or its queue was detached.
    fn check_detached(&self) -> Result<(), Error> {
        let name = self.device.name();
        if let Some(port) = self.others.first() {
            let index = port.index();
            return Err(Error::Unsupported(format!(
                "{name}: port {index} without a disk does not stop: end the driver, which resets it"
            )));
        }
        let open =
            |seat: &&DiskPort| lock(&seat.port).is_none() && !seat.detached.load(Ordering::Relaxed);
        match self.seats.iter().find(open) {
            Some(seat) => Err(Error::Busy(format!(
                "{name}: the queue of port {} is open: detach it or drop it, then detach the \
                controller",
                seat.index
            ))),
            None => Ok(()),
        }
    }
}

impl DiskPort {
    fn save(&self) -> SavedDiskPort {
        SavedDiskPort {
            index: self.index,
            identity: self.identity.clone(),
            info: (*self.info).clone(),
            level: self.level,
            used: self.used.load(Ordering::Relaxed),
            power_lost: self.power_lost.load(Ordering::Relaxed),
            ready_since: self.ready_since.load(Ordering::Relaxed),
            port: lock(&self.port).as_ref().map(SavedPort::of),
        }
    }

    /// The seat that was saved. It is input.
    fn resume(
        state: &SavedDiskPort,
        hba: &Hba,
        (claims, kept): (&mut Claims, Option<PersistentWords>),
    ) -> Result<Self, Error> {
        let SavedDiskPort { index, identity, info, level, used, power_lost, ready_since, port } =
            state;
        let known = hba.ports().any(|known| known == *index)
            && port.as_ref().is_none_or(|port| port.index == *index);
        if !known || !is_possible(info) {
            return Err(Error::Invalid(format!(
                "the saved drive at port {index} is none of this controller's; open it anew"
            )));
        }
        let record = Record::find(kept, &info.serial, (*index).into());
        let port = port
            .as_ref()
            .map(|port| port.claim(claims, (hba.bar(), hba.limit()), record))
            .transpose()?;
        Ok(Self {
            index: *index,
            identity: identity.clone(),
            info: Arc::new(info.clone()),
            level: *level,
            used: AtomicBool::new(*used),
            power_lost: AtomicBool::new(*power_lost),
            ready_since: AtomicU32::new(*ready_since),
            detached: AtomicBool::new(port.is_none()),
            place: state.port.clone(),
            port: Mutex::new(port),
        })
    }
}

/// Whether a disk of this driver can be as `info` says.
fn is_possible(info: &Info) -> bool {
    [512, 4096].contains(&info.block_size)
        && (info.block_size..=MAX_REGION_BYTES).contains(&info.max_transfer)
        && info.blocks > 0
}
