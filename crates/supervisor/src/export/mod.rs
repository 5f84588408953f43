//! What the disks of a device become, apart from who serves them.
//!
//! # Shape
//! [`Export`] is the half that outlives drivers. Its work may wait for the kernel, so that it is done by a thread of its own ([`Exporter`]), while the driver is fenced and
//! the next one starts.

mod exporter;
mod links;
mod partitions;
pub mod ublk;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ring3_control::drive::{DiskFacts, Serve};
use ring3_control::status::DiskStatus;

pub use exporter::{Done, Exporter, Job};

/// Why a disk could not be taken from its users.
#[derive(Debug)]
pub enum Refusal {
    /// They use it.
    Busy(String),
    /// Something else; it is not there any more, or cannot be reached.
    Failed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(text) | Self::Failed(text) => f.write_str(text),
        }
    }
}

/// Says to a job under way that what it waits for does not come any more.
#[derive(Clone, Debug, Default)]
pub struct Vain {
    /// The driver has died.
    pub dead: Arc<AtomicBool>,
    /// Nobody wants it any more.
    pub given_up: Arc<AtomicBool>,
}

impl Vain {
    /// Whether nobody wants it any more.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }
}

/// The disks of a device as their users have them. Errors are words for the log.
pub trait Export: Send {
    /// Makes it for disks that a driver offers, unseen by users.
    fn create(&mut self, disks: &[DiskFacts], vain: &Vain) -> Result<(), String>;
    /// Takes it back from a driver that has died; users wait.
    fn recover(&mut self, vain: &Vain) -> Result<(), String>;
    /// What a driver needs to serve each disk, of which nothing is kept. It must offer the same disks.
    fn serve(&mut self, disks: &[DiskFacts]) -> Result<Vec<(Serve, OwnedFd)>, String>;
    /// Gives it to users: the driver serves. How it does is seen by what is returned.
    fn start(&mut self) -> Result<Arc<dyn Look>, String>;
    /// Has the driver hear, where that can be, that nothing more comes to it: it leaves.
    fn quiesce(&mut self) -> Result<(), String>;
    /// Goes on with what another supervisor has [saved](Look::saved), of `disks`: users have it, and a driver serves or is to follow.
    fn adopt(&mut self, _saved: &serde_json::Value, _disks: &[DiskFacts]) -> Result<Arc<dyn Look>, String> {
        Err("these disks end with their supervisor".into())
    }
    /// Takes it from its users, whose I/O fails.
    fn stop(&mut self, force: bool) -> Result<(), Refusal>;
}

/// How users' disks do.
pub trait Look: Send + Sync {
    /// Requests that users wait for.
    fn in_flight(&self) -> u64;
    /// What another supervisor needs to go on with them; null if none can.
    fn saved(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
    /// All that is counted.
    fn disks(&self) -> Vec<DiskStatus>;
}
