//! The kernel's face of a driver: a class goes in, an ordinary kernel device comes out.
//!
//! An export knows the class of its device and nothing of the driver or the backend behind it.

mod serving;
pub mod tap;
pub mod ublk;
pub mod vduse;
