//! The fuzz targets, and what they share.
//!
//! # Shape
//! [`targets`] has a module for each target: its promises, and what it does with an input. Two
//! programs run them: libFuzzer (`fuzz/libfuzzer`, a workspace of its own), and [`replay`] in a
//! build without instrumentation, with the inputs of the corpus and [mutations](mutate) of them.
//!
//! [`Input`] takes values off an input. [`clock`] replaces the monotonic clock and all sleeps of
//! the process, so that a driver waits for seconds of virtual time in microseconds; [`trap`]
//! brings it the system calls that do not go through the C library. [`memory`] counts what is
//! allocated. [`hostile`] is a device whose registers, memory and interrupts follow the input;
//! [`disk`] and [`card`] are the users of the drivers that meet it.

pub mod card;
pub mod clock;
pub mod disk;
pub mod hostile;
pub mod input;
pub mod memory;
pub mod models;
pub mod mutate;
pub mod replay;
pub mod targets;
pub mod trap;

pub use input::Input;
