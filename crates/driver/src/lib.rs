//! The drivers: edu (the teaching device) and nvme.
#![forbid(unsafe_code)]

pub mod edu;
pub mod nvme;
