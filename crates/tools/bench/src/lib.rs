//! Load generators, measurements and reports.
//!
//! [`load`] makes the load, [`cpu`] counts what it costs, [`measure`] ties both to one measurement;
//! [`disk`] repeats measurements in alternating rounds; [`journal`] keeps those that are finished;
//! [`report`] is the schema that comes out.

pub mod cpu;
pub mod disk;
mod error;
pub mod fio;
pub mod instructions;
pub mod irq_delay;
pub mod journal;
pub mod kill;
pub mod load;
pub mod measure;
pub mod net;
pub mod packets;
pub mod paper;
pub mod places;
pub mod plot;
pub mod provenance;
pub mod report;
pub mod restart;
pub mod stats;
pub mod table;
pub mod trace;
pub mod workload;

pub use error::Error;
