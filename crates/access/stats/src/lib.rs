//! The stats segment: what a driver process is doing, in memory that its supervisor sees, too.
//!
//! # Shape
//! A [`Segment`] is a sealed memory file with a part for the process and one for each queue: a
//! phase, a beat, counters, and the flight recorder, a ring of the last [`ENTRIES`] operations.
//! Each part has one writer, a [`Recorder`], which stores plain words: no lock, no call, no locked
//! instruction. The supervisor makes the segment and reads it whenever it wants, also after the
//! writer has died.
//!
//! # Trust
//! The writer may be hostile: the reader goes by the geometry that it has chosen itself, and any
//! word means something.
//!
//! # Ordering
//! Words are independent. A reader may see an entry of the flight recorder half written, if it
//! reads while the writer lives; the entry's number, which is written last and erased first, tells.

mod recorder;
mod segment;

pub use recorder::{Entry, Operation, Recorder};
pub use segment::{Counters, ENTRIES, Lost, Phase, Segment};
