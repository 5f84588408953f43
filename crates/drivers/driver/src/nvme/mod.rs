//! NVMe controllers.
//!
//! Turns one PCI function into disks, one for each namespace. Written against `[NVMe]` Base 2.1,
//! `[NVMe-NVM]` 1.1 and `[NVMe-PCIe]` 1.1; `ring3_spec::nvme` names the documents.
//!
//! # Shape
//! [`Controller`] is its owner's handle. `NvmeShared` is what the controller shares with
//! namespaces and queues: the admin queue with the registers, interrupts, features. It implements
//! the engine's trait of a controller. [`Namespace`] is a disk. A queue pair belongs to one thread.
//! It shares nothing with others but the generation counter of the controller, which it loads once
//! per call.
//!
//! The engine (`disk/`) owns the life of a request. `queue.rs` provides the engine with the rings
//! of a queue pair, and `reset.rs` with resets of the controller. A read request passes through
//! `disk/queue.rs` (submit, ring, reap), `queue.rs` (the rings), `command.rs` (the command),
//! `prp.rs` (the location of its bytes) and `disk/slots.rs` (its slot and its id).
//!
//! # Trust
//! What the device wrote is untrusted input: a completion for a request that is not in flight is
//! [`Error::Protocol`](ring3_device::Error::Protocol), and the queue stays usable. Nothing that a
//! device wrote indexes memory unchecked.
//!
//! # Waiting
//! Every wait ends. A start ends by CAP.TO or CRTO, after at most 256 s. An admin command ends
//! after [`Options::timeout`], and then the controller is reset. For a request, recovery begins
//! after `timeout` (for a flush after `flush_timeout`).
//!
//! # Recovery
//! A request that times out is aborted [NVMe 5.1.1]; if that does not help, the controller is
//! reset [NVMe 3.7.2]. The engine has the steps.
//!
//! While requests are in flight, a queue reads CSTS and CC every 50 ms. This detects resets by
//! others. `revalidate.rs` checks after each reset that the controller and its namespaces are
//! still the same.
//!
//! If clearing CC.EN does not stop the controller, the function is reset. If that fails too, all
//! requests fail. Their memory is given back only if bus mastering is known to be off, because
//! otherwise the device may still write to it.

mod admin;
mod adopt;
mod checkpoint;
mod command;
mod controller;
mod discovery;
mod driver;
mod event;
mod host_memory;
mod identity;
mod init;
mod interrupts;
mod management;
mod namespace;
mod options;
mod pause;
mod power;
mod protection;
mod prp;
mod queue;
mod quirks;
mod reset;
mod resume;
mod revalidate;
mod saved;
mod status;

pub use controller::Controller;
pub use driver::DRIVER;
pub use event::Event;
pub use host_memory::HostMemory;
pub use identity::Identity;
pub use management::{Firmware, Format, NamespaceReport, Wanted as WantedFormat};
pub use namespace::Namespace;
pub use options::Options;
pub use power::PowerState;
