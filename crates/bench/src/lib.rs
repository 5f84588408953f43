//! Load generators, measurements and reports.
//!
//! [`load`] makes the load, [`cpu`] counts what it costs, [`measure`] ties both to one measurement; [`campaign`] repeats
//! measurements in alternating rounds and keeps what is finished; [`report`] is the schema that comes out.

mod error;
pub mod load;
pub mod workload;

pub use error::Error;
