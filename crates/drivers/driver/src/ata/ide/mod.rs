//! PCI IDE controllers.
//!
//! Turns one PCI function into disks, up to four. Written against `[PCI-IDE]`, `[BMIDE]`, `[ATA-6]`
//! and the chips' data sheets; `ring3_spec::ide` names the documents.
//!
//! # Shape
//! [`Controller`] owns the function. A channel, with its two drives, its registers and its one
//! command, is behind a lock, because the hardware is one command wide (`channel.rs`). [`Drive`] is
//! a disk, with one queue.
//!
//! One read request walks `queue.rs` (submit, ring, reap), `channel.rs` (whose turn it is, how it
//! ends), `transfer.rs` (start and looks), `prd.rs` (where its bytes are) or `pio.rs` (who moves
//! them), and `ports.rs` (the registers).
//!
//! # Trust
//! A command has ended well when drive and bus master both say so. What a drive says of itself is
//! believed only after a reset has shown that it is there (`probe.rs`). No register's value indexes
//! memory.
//!
//! # Waiting
//! Every wait ends: commands by [`Options::timeout`](super::Options::timeout), resets by
//! [`Options::ready_timeout`](super::Options::ready_timeout). Without an interrupt, ends are found
//! by looking.
//!
//! # Recovery
//! Damage on the cable costs a repetition, and the transfer mode if it goes on. A command that
//! takes too long, a bus master that meets an error or does not stop, and a drive that breaks its
//! protocol cost a software reset of the channel's drives, after which the command is repeated. A
//! drive that does not come back ends its requests with an error; the channel's other drive goes
//! on.

mod channel;
mod chip;
mod controller;
mod drive;
mod function;
mod interrupts;
mod mode;
mod pio;
mod ports;
mod prd;
mod probe;
mod queue;
mod recovery;
mod settings;
mod state;
mod stats;
mod transfer;

pub use controller::Controller;
pub use drive::Drive;
pub use stats::Stats;
