//! A controller: what the owner of the function holds.

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::{Identity, Level, Options, quirks};
use super::drive::Drive;
use super::hba::{self, Hba};
use super::interrupts::Vector;
use super::port::Port;
use super::probe::{self, Found};
use super::saved::SavedPort;
use crate::disk::Controller as _;
use crate::lifetime::{ControllerState, StopFailed};
use ring3_class::block::Info;
use ring3_device::irq::IrqKind;
use ring3_device::{Device, Error};

/// An AHCI controller with its drives.
///
/// Dropping the last of a controller, its disks and its queues flushes and parks the drives that
/// were used, stops all ports and takes bus mastering away.
pub struct Controller {
    pub(super) shared: Arc<AhciShared>,
    pub(super) refused: Vec<(String, Error)>,
    pub(super) drives: Vec<Drive>,
}

/// What a controller, its disks and its queues share. A queue's thread looks at the generation
/// alone.
pub(super) struct AhciShared {
    pub(super) lifetime: ControllerState,
    /// Held by whoever resets the controller or makes a port ready: one at a time.
    pub(super) order: Mutex<()>,
    pub(super) hba: Hba,
    pub(super) seats: Vec<DiskPort>,
    /// Ports without a usable drive that could not be stopped by themselves.
    pub(super) others: Vec<Port>,
    pub(super) vector: Vector,
    pub(super) options: Options,
    pub(super) device: Arc<dyn Device>,
}

/// A port with a drive that is a disk.
pub(super) struct DiskPort {
    pub(super) index: u8,
    pub(super) identity: Identity,
    pub(super) info: Arc<Info>,
    /// How it is driven, at best.
    pub(super) level: Level,
    /// A queue was open, so that the drive may have been written.
    pub(super) used: AtomicBool,
    /// The drive may have lost its power, which a reset of the controller has wiped from the
    /// registers.
    pub(super) power_lost: AtomicBool,
    /// The controller's generation in which the port was last made ready: what its registers say of
    /// the link is news since then.
    pub(super) ready_since: AtomicU32,
    /// Its queue was detached, so that nobody has the port.
    pub(super) detached: AtomicBool,
    /// Where the port's memory is, whoever has the port; `None` if a queue has it that was detached
    /// and is not resumed.
    pub(super) place: Option<SavedPort>,
    /// The port, unless a queue has it.
    pub(super) port: Mutex<Option<Port>>,
}

impl DiskPort {
    /// The port, unless a queue has it.
    pub(super) fn port(&mut self) -> Option<&mut Port> {
        self.port.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut()
    }
}

impl Controller {
    /// Takes the function over: stops what runs on it, and looks for a drive at each port.
    ///
    /// Fails with [`Error::Timeout`] if the controller cannot be reset, with [`Error::Unsupported`]
    /// if it cannot reach the memory that the device was opened with. Drives that cannot be disks
    /// are no failure: see [`refused`](Self::refused).
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self, Error> {
        let quirks = quirks::of_controller(&*device, &options)?;
        let hba = match Hba::take_over(&*device, quirks.clone()) {
            Err(error @ Error::Timeout { .. }) => {
                tracing::warn!("{}: {error}; resetting the function", device.name());
                device.reset().map_err(|_| error)?;
                Hba::take_over(&*device, quirks)?
            }
            other => other?,
        };
        hba::confine(device.name(), device.dma(), hba.limit())?;
        device.set_bus_master(true)?;
        let mut found = Found::default();
        let vector = probe::all(&*device, &hba, &options, &mut found).and_then(|()| {
            Vector::enable(&*device, options.interrupts, found.seats.len(), &hba.quirks)
        });
        let vector = match vector {
            Ok(vector) => vector,
            Err(error) => {
                if let Err(StopFailed { quiesced: false, .. }) = hba::stop(&*device, &hba) {
                    found.abandon();
                }
                return Err(error);
            }
        };
        let Found { seats, refused, others } = found;
        hba.set_interrupts(vector.kind().is_some());
        let (lifetime, order) = (ControllerState::new(device.name()), Mutex::new(()));
        let shared =
            Arc::new(AhciShared { lifetime, order, hba, seats, others, vector, options, device });
        let drives = (0..shared.seats.len()).map(|seat| Drive::new(shared.clone(), seat)).collect();
        Ok(Self { shared, refused, drives })
    }

    /// The disks, by ascending port.
    pub fn drives(&self) -> &[Drive] {
        &self.drives
    }

    /// Drives that cannot be used, and why, by where they are: `port 3`.
    pub fn refused(&self) -> &[(String, Error)] {
        &self.refused
    }

    /// How completions are signalled; `None` if they are looked for.
    pub fn interrupts(&self) -> Option<IrqKind> {
        self.shared.vector.kind()
    }

    /// Resets the controller and all ports. Queues take their requests back and repeat them.
    pub fn reset(&self) -> Result<(), Error> {
        self.shared.reset(self.shared.generation(), "it was asked for")
    }

    /// Flushes and parks the drives that were used, stops all ports and takes bus mastering away.
    /// Queues that are still open end their requests with an error, and their drives are not
    /// flushed.
    ///
    /// Fails if a drive did not flush; everything is stopped nevertheless.
    pub fn shutdown(&self) -> Result<(), Error> {
        self.shared.shut_down()
    }
}
