//! ATA disks behind IDE and AHCI controllers.
//!
//! Turns one PCI function into disks, one for each drive. Written against `[ACS-3]`, `[ATA-6]`,
//! `[PCI-IDE]`, `[BMIDE]` and `[AHCI]`; `ring3_spec::{ata, ide, ahci}` name the documents.
//!
//! # Shape
//! One command layer under two host controllers. [`Identity`] is what a drive says about itself;
//! `command.rs` makes a command of a request; `status.rs` says what a failed one means;
//! `statistics.rs` asks a drive how often it was powered on, by which `cache.rs` knows what is
//! lost; `quirks.rs` and `quirks.toml` know drives that are otherwise than they say. `ide` and
//! `ahci` carry commands to drives, each in its own way.
//!
//! # Trust
//! What a drive or a controller wrote is input: an end of nothing in flight is an error value, and
//! nothing it wrote indexes memory unchecked.
//!
//! # Recovery
//! A command that fails in transfer is repeated; one that goes on failing is repeated at a lower
//! [`Level`]: queued commands become plain DMA, DMA becomes PIO where the controller has it. A
//! command that takes too long ends with a reset of its drive, and then of its controller; what the
//! device owned is taken back only when the reset has proved that it stopped.

pub mod ahci;
pub mod ide;

mod cache;
mod command;
mod controller;
mod driver;
mod identity;
mod options;
mod quirks;
mod statistics;
mod status;

pub use controller::{Controller, Member};
pub use driver::{AHCI, IDE};
pub use identity::{Flush, Identity};
pub use options::{Level, Options};
