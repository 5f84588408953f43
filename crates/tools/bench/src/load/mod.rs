//! The load generator: one loop, four targets.
//!
//! # Shape
//! A [`Target`] is what requests go to: a kernel block device or file through io_uring ([`File`])
//! or read() in a loop ([`Pread`]), the kernel's NVMe driver past its block layer
//! ([`Passthrough`]), or a class queue in this process ([`Direct`]). [`run`] keeps `depth` requests
//! in flight on it until the time or the count is over.
//!
//! # Cost
//! Nothing is allocated per request. The clock is read only if latency is asked for, and then once
//! per turn of the loop, not per request; a thread that sleeps says when time is over.

mod buffers;
mod direct;
mod file;
mod offsets;
mod passthrough;
mod pread;
mod ring;
mod run;
pub mod stamp;
mod stop;
mod threaded;

pub use direct::{Direct, Streaming};
pub use file::{File, FileOptions};
pub use passthrough::{Passthrough, generic_device};
pub use pread::Pread;
pub use run::{Latency, Limit, Load, Outcome, run};
pub use threaded::Threaded;

use ring3_device::dma::StreamStats;
use ring3_device::wait::WaitStats;

use std::time::Instant;

use crate::Error;

/// What requests go to. Slots are numbered from 0; the generator gives each at most one request at
/// a time.
pub trait Target {
    /// Bytes of the disk or file.
    fn capacity(&self) -> u64;

    /// Requests that it can hold at once.
    fn depth(&self) -> u16;

    /// Queues a read or a write of `len` bytes at `offset`, both multiples of the block size, into
    /// or from the slot's buffer.
    fn queue(&mut self, slot: u16, write: bool, offset: u64, len: u32) -> Result<(), Error>;

    /// Publishes what was queued and waits until something is finished, a tick passes (0.1 to 1 s)
    /// or the target is idle.
    fn proceed(&mut self) -> Result<(), Error>;

    /// The same, until `time` at the latest, for a load that has a rate.
    fn proceed_until(&mut self, _time: Instant) -> Result<(), Error> {
        Err(Error::Invalid(
            "a load with a rate (-atN) is for a disk that is driven in this process".into(),
        ))
    }

    /// The next finished request.
    fn finished(&mut self) -> Result<Option<Done>, Error>;

    /// Lets time pass, about ten times a second.
    fn tick(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// What of foreign memory was mapped and copied so far; `None` where there is none.
    fn stream_stats(&self) -> Option<StreamStats> {
        None
    }

    /// What waiting for the device's interrupt has cost so far; `None` where there is no such
    /// waiting, or others do it.
    fn wait_stats(&self) -> Option<WaitStats> {
        None
    }

    /// Fills the first bytes of the slot's buffer. The slot is not in flight.
    fn fill(&mut self, slot: u16, bytes: &[u8]) -> Result<(), Error>;

    /// Copies the first bytes of the slot's buffer out. The slot is not in flight.
    fn copy_out(&self, slot: u16, bytes: &mut [u8]) -> Result<(), Error>;
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its slot.
    pub slot: u16,
    /// Whether all bytes were moved.
    pub ok: bool,
}
