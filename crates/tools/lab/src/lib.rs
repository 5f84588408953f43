//! The lab: a guest machine under QEMU with the devices that a driver writer asks for, on the
//! distribution's kernels, without root, without KVM and without touching the host.
//!
//! A [`Guest`] names a kernel, a clock, devices and steps; [`Guest::run`] boots it, streams what
//! the steps print and gives back an [`Outcome`]: exit code, files, JSON. A [`Scenario`] is the
//! same as a TOML file.
//!
//! # Shape
//!
//! [`Cache`] holds what was fetched and built; `initramfs` puts a root file system together; `qemu`
//! writes the command line; `session` owns the running process and the one port that job and
//! results go through.
//!
//! # Waiting
//!
//! A run ends at its time limit, whatever the guest does: QEMU is killed and the console's end is
//! in the error.
//!
//! # Trust
//!
//! What comes out of the guest is input: sizes and names are checked, nothing is written outside
//! the place asked for.
#![deny(unsafe_code)]

mod archive;
mod bzimage;
mod cache;
mod card;
mod closure;
mod console;
mod device;
mod disk;
mod drive;
mod error;
mod folder;
mod guest;
mod initramfs;
mod job;
mod kernel;
mod limits;
mod machine;
mod modules;
mod monitor;
mod outcome;
mod qemu;
mod scenario;
mod session;
mod setup;
mod snapshot;
mod tsc;

pub use cache::Cache;
pub use device::Device;
pub use disk::{Backing, Bad, Disk, Size, Transfer};
pub use error::Error;
pub use folder::abandon;
pub use guest::{Boot, Guest, Mode, Step};
pub use kernel::{DEFAULT_KERNEL, Kernel};
pub use machine::{Iommu, Machine};
pub use outcome::{Event, Outcome, SharedOutcome, StepOutcome};
pub use scenario::Scenario;
pub use setup::{Need, prepare, verify};
