//! Devices around devices, over any backend: a driver cannot see them, and they know neither
//! drivers nor backends.
//!
//! - [`VirtualConfig`]: a configuration space that takes what a driver for a whole machine writes.
//! - [`Record`] and [`Replay`]: what passed between a device and its driver, to a file and back.
//! - [`Fault`]: a device that misbehaves by the rules of a [`plan::Plan`].
#![forbid(unsafe_code)]

mod damage;
mod fault;
mod mirror;
mod msix_table;
mod names;
pub mod plan;
mod record;
pub mod recording;
mod replay;
mod tape;
mod threads;
mod verdict;
mod virtual_config;

pub use fault::Fault;
pub use record::Record;
pub use replay::{Divergence, Replay};
pub use verdict::take_failure;
pub use virtual_config::{Change, VirtualConfig};
