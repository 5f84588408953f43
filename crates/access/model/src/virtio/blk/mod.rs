//! A virtio disk as a model, with memory for a medium. [virtio 5.2]
//!
//! # Time
//! A notification takes the requests and does them before it returns. Held back or delayed, a
//! request moves its data when it is released, not when it is taken.

mod controller;
mod handle;
mod process;
mod request;
mod shape;

pub use controller::{Counters, VirtioBlkModel};
pub use handle::Lie;
pub use shape::Shape;

use ring3_device::{Error, OpenOptions, Uri};
use ring3_spec::virtio::blk;

use crate::fault::{CommandName, Queues, Vocabulary};
use crate::{SimDevice, SimHandle};

/// A simulated virtio disk.
pub type SimVirtioBlk = SimDevice<VirtioBlkModel>;
/// The other side of it. Its medium is number 1.
pub type VirtioBlkHandle = SimHandle<VirtioBlkModel>;

/// What a fault rule can name.
const WORDS: Vocabulary = Vocabulary { commands: &COMMANDS, faults: &FAULTS };
const FAULTS: [&str; 15] = [
    "drop",
    "delay/TIME",
    "hang",
    "duplicate",
    "reorder",
    "wrong-id[/BITS]",
    "invent[/BITS]",
    "status/CODE",
    "stuck-ready",
    "fatal",
    "remove",
    "lose-interrupt",
    "corrupt",
    "stray-dma[/ADDRESS]",
    "function-reset",
];
const COMMANDS: [CommandName; 6] = [
    ("read", Queues::Io, blk::IN as u8),
    ("write", Queues::Io, blk::OUT as u8),
    ("flush", Queues::Io, blk::FLUSH_REQUEST as u8),
    ("identify", Queues::Io, blk::GET_ID as u8),
    ("discard", Queues::Io, blk::DISCARD_REQUEST as u8),
    ("zeroes", Queues::Io, blk::WRITE_ZEROES_REQUEST as u8),
];

/// Opens `sim:virtio-blk`.
///
/// Options, besides those of [every model](crate): `size=64M`, `block=512` (or 4096),
/// `readonly=off`, `queues=4`, `entries=256`, `segments=126` (of a request), `cache=on`,
/// `indirect=on` (requests may lie in tables of their own), `packed=off` (offers packed
/// virtqueues), `events=on` (offers to be told by positions), `structures=together` (in BAR 4;
/// `apart`: each in a BAR of its own), `vectors=5` (MSI-X; 0 for none), `ready=0us` (how long a
/// reset takes), and `fault=`, which is described [there](crate::fault).
pub fn open(uri: &Uri, asked: OpenOptions) -> Result<SimVirtioBlk, Error> {
    let (options, shape) = shape::of_uri(uri)?;
    options.open(asked, &WORDS, |plan| VirtioBlkModel::new(shape, plan))
}
