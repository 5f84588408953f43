//! AHCI controllers: drives behind Serial ATA ports. `[AHCI]`
//!
//! # Shape
//! [`Controller`] owns the function; [`Drive`] is a disk. `hba.rs` has the controller's registers,
//! `port.rs` a port's, `lists.rs` the memory that a port and its device share, `probe.rs` what is
//! at the ports. One read request walks `queue.rs`, `slots.rs` (its place), `dispatch.rs` (when it
//! starts), `lists.rs` (its command, its bytes), `port.rs` (two register writes), and back,
//! `ends.rs`. A drive has one queue, because a port has one command list. Queues of different
//! drives share nothing but the controller's generation, which they load once per call.
//!
//! # Trust
//! What ended is what PxSACT or PxCI says has ended of what is in flight; frames in memory and log
//! pages are checked against that, and no number in them indexes memory.
//!
//! # Waiting
//! Every wait ends: the controller's by the specification, a drive's by
//! [`Options::ready_timeout`](super::Options::ready_timeout), requests by
//! [`Options::timeout`](super::Options::timeout).
//!
//! # Recovery
//! See `recovery.rs` for commands, `port_reset.rs` for ports and `reset.rs` for the controller.

mod adopt;
mod controller;
mod dispatch;
mod drive;
mod ends;
mod hba;
mod interrupts;
mod lists;
mod port;
mod port_reset;
mod probe;
mod queue;
mod recovery;
mod reset;
mod resume;
mod saved;

pub use controller::Controller;
pub use drive::Drive;
