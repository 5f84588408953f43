//! `bench disk`: one disk, its driver in different places.
//!
//! # Shape
//! [`Plan`] says what is measured. [`run_here`] measures it on this machine, in alternating rounds,
//! and tells each step as an [`Event`]. The lab's side boots a guest in which the same runs, reads
//! the events and keeps finished rounds in a [`Journal`](crate::journal::Journal).

mod export;
mod here;
mod kernel;
pub mod leslie;
mod placement;
mod plan;
mod qemu;
mod targets;
pub mod timeline;
pub mod work;

pub use export::Export;
pub use here::{
    HandOver, LendMemory, Lent, OpenDisk, Programs, Supervisor, Waiting, machine, run_here,
};
pub use kernel::{KernelDisk, block_facts};
pub use leslie::Leslie;
pub use placement::{Driver, Placement, Tuning};
pub use plan::{Controller, Event, Pace, Plan, Progress, Study};
pub use qemu::Qemu;
pub use targets::{Target, call_targets, targets};
pub use timeline::Timeline;
pub use work::Work;
