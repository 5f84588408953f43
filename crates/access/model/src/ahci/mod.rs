//! An AHCI controller as a model, with a simulated drive in some of its ports.
//!
//! Written against the same sections as the driver, and sharing only `ring3_spec` with it.
//!
//! # References
//! - `[AHCI]` Serial ATA AHCI Specification, Revision 1.3.1, 2012
//! - `[SATA]` Serial ATA Revision 3.0, June 2009
//! - `[ACS-3]` ATA/ATAPI Command Set 3, T13/2161-D, Revision 5, October 2013
//!
//! # Time
//! A write to PxCI takes the commands and does them before it returns. Held back or delayed, a
//! command moves its data when it is released, not when it is taken. Commands that are about the
//! drive (IDENTIFY, SET FEATURES, logs) are never held, unless a fault hook does.
//!
//! # Violations
//! A controller does something undefined when a driver breaks a rule; this one notes it down, in
//! words, and a test of a driver asserts that there is nothing to read in
//! [`SimHandle::violations`].

mod controller;
mod ending;
mod handle;
mod link;
mod memory;
mod port;
mod process;
mod quirk;
mod receive;
mod registers;
mod shape;

pub use super::ata::{
    Counters, DriveShape, FAULT_FLUSH, FAULT_LOG, FAULT_READ, FAULT_WRITE, Link, Quirk, Statistics,
};
pub use controller::AhciModel;
pub use quirk::Quirk as HbaQuirk;
pub use shape::Shape;

use ring3_device::Error;

use super::ata::COMMANDS;
use super::fault::Vocabulary;
use super::{SimDevice, SimHandle};
use ring3_device::{OpenOptions, Uri};

/// A simulated AHCI controller.
pub type SimAhci = SimDevice<AhciModel>;
/// The other side of it.
pub type AhciHandle = SimHandle<AhciModel>;

/// What a fault rule can name.
const WORDS: Vocabulary = Vocabulary { commands: &COMMANDS, faults: &FAULTS };
const FAULTS: [&str; 22] = [
    "drop",
    "delay/TIME",
    "hang",
    "duplicate",
    "reorder",
    "error/BITS",
    "fault",
    "busy",
    "busy-until-reset",
    "dma-error",
    "fatal",
    "stuck",
    "unplug",
    "no-drive",
    "stuck-ready",
    "lying-log",
    "remove",
    "storm[/COUNT]",
    "lose-interrupt",
    "wrong-interrupt",
    "corrupt",
    "stray-dma[/ADDRESS]",
];

/// Opens `sim:ahci`.
///
/// Options, besides those of [every model](super): `disks=1` (in the first ports), `ports=6`,
/// `slots=32`, `size=64M` (of each disk), `block=512` (or `4096`), `ncq=on`, `depth=32`,
/// `cache=on`, `fua=on`, `trim=on`, `statistics=on` (or `off`, `invalid`, `refused`), `lba48=on`,
/// `multiple=16`, `text=plain` (or `wild`), `wide=on` (64-bit addresses), `msi=on`, `cdrom=off` (in
/// the port behind the disks), `multiplier=off` (in the last port), `handoff=off` (firmware owns
/// the controller at first), `ready=0us` (time that a reset takes), `id=8086:2922` (PCI vendor and
/// device), `model=` and `firmware=` (strings of each disk), `quirk=` (a [`Quirk`] of each disk,
/// several with `+`), `hba=` (a [`HbaQuirk`], several with `+`), and `fault=`, which is described
/// [there](super::fault).
pub fn open(uri: &Uri, asked: OpenOptions) -> Result<SimAhci, Error> {
    let (options, shape) = shape::of_uri(uri)?;
    options.open(asked, &WORDS, |plan| AhciModel::new(shape, plan))
}
