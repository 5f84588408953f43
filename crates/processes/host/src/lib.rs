//! One driver process: a device, its driver, the exports of its disks, and the signals that end it.
//!
//! # Shape
//! [`Claim::open`](open::Claim::open) turns a device's name into disks; [`attach`](attach::attach)
//! makes room for their export. [`run()`] exports them, says so, and serves until it is told to
//! stop. The process is prepared before by [`ring3_process`]: a driver under a file system must not
//! wait for that file system. [`net::run`] does the same for a network card, whose users wait for
//! nothing, and [`serve::run`] for a disk that several processes share by sockets. [`drive`] is the
//! process of a device that another one holds.
//!
//! # Errors
//! Every way out gives the device back: disks stop before their driver does, and the driver before
//! the claim.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod attach;
mod disks;
pub mod drive;
mod error;
pub mod net;
pub mod open;
pub mod partitions;
mod ready;
mod report;
pub mod run;
pub mod serve;

pub use disks::DiskExportKind;
pub use error::Error;
pub use ready::Ready;
pub use report::{Exported, Report};
pub use run::{ANNOUNCE, ExitReason, Options, check_report, run, say};

/// The sketches of the decision record.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/adr/0011-five-users-of-the-core.md")]
struct DecisionRecord;
