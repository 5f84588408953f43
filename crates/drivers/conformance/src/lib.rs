//! What every driver of a class does, whatever its device and its backend: one suite for each
//! class, and each driver passes it on each backend.

#![forbid(unsafe_code)]

pub mod block;
pub mod net;
mod report;
mod step;

pub use report::{Finding, Report, Verdict};
