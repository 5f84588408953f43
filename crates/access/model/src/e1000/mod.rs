//! An 82574L, and its near kin 82573, 82574LA and 82583V, as a model, with a wire whose other end
//! is a test, another model or a mirror.
//!
//! Written against the same sections as the driver, and sharing only `ring3_spec` with it.
//!
//! # References
//! - `[82574]` Intel 82574 GbE Controller Family Datasheet, Revision 3.4, February 2014
//! - `[802.3]` IEEE Std 802.3, clauses 3, 22 and 28
//! - `[Linux, NAME]` what Linux 6.12 does in the function NAME of `e1000e`: no data sheet says
//!   what the reserved bits are for, and the 82573's was not at hand
//!
//! # Time
//! A write to the transmit tail sends before it returns, and a frame that comes is stored at once;
//! held back or delayed, sending waits. Interrupt throttling is of real time, as ITR and EITR say.
//! A link that is down stops the transmitter, as it stops the card's.
//!
//! # What it leaves out
//! Packet split, RSS (RETA is not there: queue 0 receives all), the packet checksum of RXCSUM.PCSS,
//! the absolute and relative timers of interrupts (RDTR, RADV, TIDV, TADV: what they delay comes at
//! once), pause frames, management, wake-up.
//!
//! # Violations
//! Where a driver breaks a rule of the data sheet, the model notes it down, in words; a test of a
//! driver asserts that there is nothing to read in [`violations`](SimHandle::violations).

mod controller;
mod descriptor;
mod filter;
mod handle;
mod interrupts;
mod nvm;
mod offload;
mod receive;
mod registers;
mod shape;
mod store;
mod transmit;

pub use controller::{Counters, E1000Model};
pub use shape::{Card, Nvm, Shape};

use ring3_device::{Error, OpenOptions, Uri};

use super::fault::{CommandName, Queues, Vocabulary};
use super::{SimDevice, SimHandle};

/// A simulated 82574L.
pub type SimE1000 = SimDevice<E1000Model>;
/// The other side of it.
pub type E1000Handle = SimHandle<E1000Model>;

/// How fault rules name the sending of a frame (a large send is one).
pub const FAULT_SEND: u8 = 1;
/// How fault rules name the reception of a frame.
pub const FAULT_RECEIVE: u8 = 2;

const WORDS: Vocabulary = Vocabulary { commands: &COMMANDS, faults: &FAULTS };
const COMMANDS: [CommandName; 2] =
    [("send", Queues::Io, FAULT_SEND), ("receive", Queues::Io, FAULT_RECEIVE)];
const FAULTS: [&str; 14] = [
    "drop",
    "delay/TIME",
    "hang",
    "stuck-ready",
    "remove",
    "storm[/COUNT]",
    "lose-interrupt",
    "late-interrupt/TIME",
    "corrupt",
    "stray-dma[/ADDRESS]",
    "function-reset",
    "wrong-length[/BITS]",
    "garbage",
    "link-down/TIME",
];

/// Opens `sim:e1000`.
///
/// Options, besides those of [every model](super): `card=82574l` (or `82573e`, `82573l`, `82574la`,
/// `82583v`), `mac=52:54:00:12:34:56`, `wire=test` (a test's [handle](E1000Handle); or `mirror`:
/// what is sent comes back with its addresses exchanged; or `cable/NAME`: the other model of the
/// process with the same name), `link=on`, `vectors=5` (MSI-X; 0 for none), `ready=0us` (time that
/// a reset takes), `nvm=good` (or `bad`: its checksum is wrong; or `flaky`: the first time; or
/// `flash`: a Flash), `port=0` (or 1), `firmware=0us` (time for which firmware has NVM and PHY),
/// and `fault=`, which is described [there](super::fault).
pub fn open(uri: &Uri, asked: OpenOptions) -> Result<SimE1000, Error> {
    let (options, shape) = shape::of_uri(uri)?;
    options.open(asked, &WORDS, |plan| E1000Model::new(shape, plan))
}
