//! What a process needs that stands under a file system, whether it drives a disk or supervises who does.
//!
//! # Shape
//! [`prepare`] makes it independent of disks; [`log`] writes its words without waiting for who reads them; [`Signals`] are a descriptor for its event loop.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod log;
mod prepare;
mod signals;

pub use prepare::{Error, peak_memory, prepare, raise_files, stay_in_memory};
pub use signals::{Signals, Wishes, held_back};
