//! An NVMe controller as a model, with memory for a medium.
//!
//! Written against the same sections as the driver, and sharing only `ring3_spec` with it.
//!
//! # References
//! - `[NVMe]` NVM Express Base Specification, Revision 2.1, 5 August 2024
//! - `[NVMe-NVM]` NVM Express NVM Command Set Specification, Revision 1.1, 5 August 2024
//! - `[NVMe-PCIe]` NVM Express NVMe over PCIe Transport Specification, Revision 1.1, 5 August 2024
//!
//! # Time
//! A doorbell write takes the commands and does them before it returns. Held back or delayed, a
//! command moves its data when it is released, not when it is taken. Admin commands are never held,
//! unless a fault hook does.

mod admin;
mod controller;
mod data;
mod events;
mod features;
mod handle;
mod host_memory;
mod identify;
mod io;
mod logs;
mod namespace;
mod power;
mod process;
mod protection;
mod prp;
mod queue;
mod quirk;
mod registers;
mod shape;

pub use controller::{Counters, NvmeModel};
pub use handle::Change;
pub use host_memory::{HostMemoryCounters, Wanted};
pub use power::{PowerCounters, Sleep};
pub use quirk::Quirk;
pub use shape::{NamespaceShape, Shape};

use ring3_device::Error;

use ring3_spec::nvme::opcode::{admin as admin_opcode, nvm};

use super::fault::{CommandName, Queues, Vocabulary};
use super::{SimDevice, SimHandle};
use ring3_device::{OpenOptions, Uri};

/// A simulated NVMe disk.
pub type SimNvme = SimDevice<NvmeModel>;
/// The other side of it.
pub type NvmeHandle = SimHandle<NvmeModel>;

/// What a fault rule can name.
const WORDS: Vocabulary = Vocabulary { commands: &COMMANDS, faults: &FAULTS };
const FAULTS: [&str; 19] = [
    "drop",
    "delay/TIME",
    "hang",
    "duplicate",
    "reorder",
    "wrong-id[/BITS]",
    "invent[/BITS]",
    "wrong-phase",
    "status/CODE",
    "stuck-ready",
    "fatal",
    "remove",
    "storm[/COUNT]",
    "lose-interrupt",
    "corrupt",
    "stray-dma[/ADDRESS]",
    "function-reset",
    "lose-power",
    "endless-list",
];
const COMMANDS: [CommandName; 15] = [
    ("read", Queues::Io, nvm::READ),
    ("write", Queues::Io, nvm::WRITE),
    ("flush", Queues::Io, nvm::FLUSH),
    ("zeroes", Queues::Io, nvm::WRITE_ZEROES),
    ("discard", Queues::Io, nvm::DATASET_MANAGEMENT),
    ("identify", Queues::Admin, admin_opcode::IDENTIFY),
    ("create-cq", Queues::Admin, admin_opcode::CREATE_CQ),
    ("create-sq", Queues::Admin, admin_opcode::CREATE_SQ),
    ("delete-cq", Queues::Admin, admin_opcode::DELETE_CQ),
    ("delete-sq", Queues::Admin, admin_opcode::DELETE_SQ),
    ("set-features", Queues::Admin, admin_opcode::SET_FEATURES),
    ("get-features", Queues::Admin, admin_opcode::GET_FEATURES),
    ("log", Queues::Admin, admin_opcode::GET_LOG_PAGE),
    ("abort", Queues::Admin, admin_opcode::ABORT),
    ("event", Queues::Admin, admin_opcode::ASYNC_EVENT),
];

/// Opens `sim:nvme`.
///
/// Options, besides those of [every model](super): `size=64M` (of each namespace), `namespaces=1`,
/// `block=512` (or `4096`, `512m8` with metadata, `512p1` with protection information, `512+4096`
/// one for each namespace), `sets=nvm` (or `nvm+zoned`, as `block`), `readonly=off`, `queues=4`,
/// `entries=1024`, `mdts=5`, `mpsmin=0`, `mtfa=0us` (with notices of the activation of firmware),
/// `noiob=0` (blocks), `hmb=0`, `hmb-min=0`, `hmb-piece=0`, `hmb-pieces=0` and `hmb-miss=50us`
/// (what it asks for of the host's memory, and what a read costs that misses its mapping),
/// `sleep=2ms/3ms` (ENLAT and EXLAT of its states that take no commands, several with `+`),
/// `vectors=5` (MSI-X; 0 for none), `cache=on`, `stride=0`, `sgl=on`, `text=plain` (or `wild`),
/// `ready=0us` (time to become ready), `id=1234:0802` (PCI vendor and device), `model=` and
/// `firmware=` (its strings), `quirk=` (a [`Quirk`], several with `+`), and `fault=`, which is
/// described [there](super::fault).
pub fn open(uri: &Uri, asked: OpenOptions) -> Result<SimNvme, Error> {
    let (options, shape) = shape::of_uri(uri)?;
    options.open(asked, &WORDS, |plan| NvmeModel::new(shape, plan))
}
