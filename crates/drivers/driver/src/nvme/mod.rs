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
//! A request that times out is handled in steps (`recovery.rs`):
//! 1. The driver sends one Abort command for it.
//! 2. If the Abort fails, or the request does not complete within a grace period, the driver resets
//!    the controller (`reset.rs`).
//! 3. If the reset fails, or a queue cannot be re-created three times in a row, the controller is
//!    failed: all requests complete with an error.
//!
//! The thread that detects the failure resets the controller and increments its generation. Each
//! queue's thread compares the generation at its next `reap` or `tick`. It consumes the old
//! completions, re-creates its own queue, and resubmits its requests in flight. A request that
//! times out, or that a reset interrupts, is submitted at most `status::ATTEMPTS` (3) times.
//!
//! Resubmission is safe: a controller with CSTS.RDY = 0 does no DMA [NVMe 3.7.2]. Before any queue
//! resubmits, `revalidate.rs` checks that the controller and its namespaces are still the same.
//!
//! While requests are in flight, `tick` reads CSTS and CC every 50 ms. This detects resets by
//! others. Such a reset may be a loss of power: `write_cache/` fails the next flush of each queue
//! if unflushed writes may be lost.
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
