//! A PCI IDE controller as a model: Intel's PIIX3 or PIIX4 in compatibility mode, or CMD's PCI0646
//! in native mode.
//!
//! Written against the same sections as the driver, and sharing only `ring3_spec` with it.
//!
//! # References
//! - `[PCI-IDE]` PCI IDE Controller Specification, Revision 1.0, 4 March 1994
//! - `[BMIDE]` Programming Interface for Bus Master IDE Controller, Revision 1.0, 16 May 1994
//! - `[ATA-6]` AT Attachment with Packet Interface 6, T13/1410-D, Revision 3b, February 2002
//! - `[PIIX4]` Intel 82371AB (PIIX4), 290562-001, April 1997
//! - `[CMD646]` CMD Technology PCI0646 and PCI0646U2 data sheets, 1997
//!
//! # Time
//! A write to the command register, to the data port or to the bus master does what it starts
//! before it returns. Held back or delayed, a command keeps its drive busy until it is released.
//! Commands that are about the drive (IDENTIFY, SET FEATURES) are never held, unless a fault hook
//! does.
//!
//! # Violations
//! A controller does something undefined when a driver breaks a rule; this one notes it down, in
//! words, and a test of a driver asserts that there is nothing to read in
//! [`SimHandle::violations`].

mod bus_master;
mod channel;
mod chip;
mod command;
mod controller;
mod handle;
mod pio;
mod ports;
mod reset;
mod shape;

pub use super::ata::{
    Counters, DriveShape, FAULT_FLUSH, FAULT_LOG, FAULT_READ, FAULT_WRITE, Link, Quirk, Statistics,
};
pub use chip::Chip;
pub use controller::IdeModel;
pub use shape::{Shape, Table};

use ring3_device::Error;

use super::ata::COMMANDS;
use super::fault::Vocabulary;
use super::{SimDevice, SimHandle};
use ring3_device::{OpenOptions, Uri};

/// A simulated IDE controller.
pub type SimIde = SimDevice<IdeModel>;
/// The other side of it.
pub type IdeHandle = SimHandle<IdeModel>;

/// What a fault rule can name.
const WORDS: Vocabulary = Vocabulary { commands: &COMMANDS, faults: &FAULTS };
const FAULTS: [&str; 19] = [
    "drop",
    "delay/TIME",
    "hang",
    "duplicate",
    "error/BITS",
    "fault",
    "busy",
    "busy-until-reset",
    "dma-error",
    "stuck",
    "unplug",
    "no-drive",
    "stuck-ready",
    "remove",
    "storm[/COUNT]",
    "lose-interrupt",
    "wrong-interrupt",
    "corrupt",
    "stray-dma[/ADDRESS]",
];

/// Opens `sim:ide`.
///
/// Options, besides those of [every model](super): `chip=piix4` (or `piix3`, `cmd646`), `disks=1`
/// (primary master, primary slave, secondary master, secondary slave), `size=64M` (of each disk),
/// `block=512` (or `4096`), `lba48=on`, `multiple=16`, `dma=on`, `udma=5` (the drive's best Ultra
/// DMA mode, or `off`), `cable=80` (wires, or `40`), `cache=on`, `fua=on`, `trim=on`,
/// `statistics=on` (or `off`, `invalid`, `refused`), `cdrom=off` (behind the disks), `ready=0us`
/// (time that a reset takes), `model=` and `firmware=` (strings of each disk), `quirk=` (a
/// [`Quirk`], several with `+`), and `fault=`, which is described [there](super::fault).
pub fn open(uri: &Uri, asked: OpenOptions) -> Result<SimIde, Error> {
    let (options, shape) = shape::of_uri(uri)?;
    options.open(asked, &WORDS, |plan| IdeModel::new(shape, plan))
}
