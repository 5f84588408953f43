//! What the fuzz targets share.
//!
//! # Shape
//! [`Input`] takes values off an input. [`clock`] replaces the monotonic clock and all sleeps of
//! the process, so that a driver waits for seconds of virtual time in microseconds. [`memory`]
//! counts what is allocated. [`hostile`] is a device whose registers, memory and interrupts follow
//! the input; [`disk`] and [`card`] are the users of the drivers that meet it.

pub mod card;
pub mod clock;
pub mod disk;
pub mod hostile;
pub mod input;
pub mod memory;
pub mod models;

pub use input::Input;
