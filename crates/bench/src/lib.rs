//! Load generators, measurements and reports.
//!
//! [`load`] makes the load, [`cpu`] counts what it costs, [`measure`] ties both to one measurement; [`campaign`] repeats
//! measurements in alternating rounds and keeps what is finished; [`report`] is the schema that comes out.

pub mod cpu;
mod error;
pub mod load;
pub mod measure;
pub mod report;
pub mod stats;
pub mod workload;

pub use error::Error;
