//! The ways to reach a device.
//!
//! Each backend implements [`ring3_device::Device`]; a driver cannot see which one it runs on. The
//! user names a device by a [`Uri`]. [`claim`] and [`attach`] are the two halves of [`open`], for a
//! device that outlives its drivers.

mod claim;
mod config;
mod eventfd;
mod guard;
mod irqs;
mod lease;
mod open;
mod ports;
pub mod qtest;
pub mod uio;
pub mod vfio;
pub mod vfio_user;

pub use lease::{Claim, Fenced, Lease, SavedClaim, attach, attach_running, claim};
pub use open::{class_of, manifest, open};
pub use ring3_device::{OpenOptions, Uri, UriError, parse_size};
pub use ring3_lease::Quiesce;
