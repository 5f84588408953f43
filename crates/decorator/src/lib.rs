//! Devices around devices, over any backend: a driver cannot see them, and they know neither drivers nor backends.
//!
//! - [`VirtualConfig`]: a configuration space that takes what a driver for a whole machine writes.
#![forbid(unsafe_code)]

mod msix_table;
mod virtual_config;

pub use virtual_config::{Change, VirtualConfig};
