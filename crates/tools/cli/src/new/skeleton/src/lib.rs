//! Driver of a device that sums bytes of memory.
//!
//! # Shape
//! [`spec`] has the registers. [`driver`] and [`model`] both import it, and never each other; only
//! tests join them.

pub mod driver;
pub mod model;
pub mod spec;

/// What the driver needs and nothing else, as `ring3d` reads it.
pub const MANIFEST: &str = include_str!("manifest.toml");
