//! What a process needs that stands under a file system, whether it drives a disk or supervises who
//! does.
//!
//! # Shape
//! [`prepare`] makes it independent of disks; [`log`] writes its words without waiting for who
//! reads them; [`Signals`] are a descriptor for its event loop; [`mark_process`] has it outlive all
//! others at a shutdown; [`end_with_this`] is for children that may not outlive it.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod child;
pub mod log;
mod mark;
mod prepare;
mod signals;
mod standard;

pub use child::end_with_this;
pub use mark::{mark_process, marked};
pub use prepare::{Error, peak_memory, prepare, raise_files, stay_in_memory};
pub use signals::{PendingSignals, Signals, held_back};
pub use standard::output_was_closed;
