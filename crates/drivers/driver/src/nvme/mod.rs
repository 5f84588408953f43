//! NVMe controllers.
//!
//! Turns one PCI function into disks, one for each namespace. Written against `[NVMe]` Base 2.1,
//! `[NVMe-NVM]` 1.1 and `[NVMe-PCIe]` 1.1; `ring3_spec::nvme` names the documents.
//!
//! # Shape
//! [`Controller`] owns the function: registers, the admin queue, interrupts. [`Namespace`] is a
//! disk. A queue pair belongs to one thread and shares nothing with others but the generation
//! counter of the controller, which it loads once per call.
//!
//! One read request walks `queue.rs` (submit, ring, reap), `command.rs` (what the device is told),
//! `prp.rs` (where its bytes are) and `slots.rs` (its place and its id).
//!
//! # Trust
//! What the device wrote is input: a completion for nothing in flight is
//! [`Error::Protocol`](ring3_device::Error::Protocol), and the queue stays usable. Nothing that a
//! device wrote indexes memory unchecked.
//!
//! # Waiting
//! Every wait ends: initialisation by CAP.TO, admin commands and requests by [`Options::timeout`].
//!
//! # Recovery
//! A request that takes too long is aborted; if that does not end it, the controller is reset.
//! While CSTS.RDY is zero the device owns no memory, and that is the proof on which every queue
//! takes its requests back and repeats them, a bounded number of times. Who finds the failure
//! resets; each queue's own thread then builds its queue anew when it sees the generation changed.
//! A reset that the driver did not ask for is seen by CSTS.RDY or CC.EN at the next look, within 50
//! ms of ticks. It may have been a loss of power: `write_cache/` makes the next flush of each queue
//! fail where writes may be lost. What comes back is identified before anything is repeated
//! (`revalidate.rs`). If the controller cannot be stopped by its registers, the function is reset;
//! if that fails, too, requests end with an error and their memory is never given back, because the
//! device may still write to it.

mod admin;
mod adopt;
mod checkpoint;
mod command;
mod controller;
mod discovery;
mod driver;
mod event;
mod identity;
mod init;
mod interrupts;
mod namespace;
mod open;
mod options;
mod prp;
mod queue;
mod recovery;
mod reset;
mod resume;
mod revalidate;
mod saved;
mod slots;
mod status;

pub use controller::Controller;
pub use driver::DRIVER;
pub use event::Event;
pub use identity::Identity;
pub use namespace::Namespace;
pub use options::Options;
