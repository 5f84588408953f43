//! What the disks and the network card of a device become, apart from who serves them.
//!
//! # Shape
//! [`Export`] is the half that outlives drivers. Its work may wait for the kernel, so that it is
//! done by a thread of its own ([`Exporter`]), while the driver is fenced and the next one starts.

mod exporter;
mod ids;
mod lent;
mod links;
mod partitions;
pub mod tap;
pub mod ublk;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ring3_class::net::Link;
use ring3_control::drive::{DriverCommand, Offered};
use ring3_control::status::{DiskStatus, InterfaceStatus};

pub use exporter::{Done, EventSender, Exporter, Job};
pub use ids::ReservedIds;

/// Why a disk could not be given to its users, or taken from them.
#[derive(Debug)]
pub enum Refusal {
    /// Somebody uses it, or has what it needs.
    Busy(String),
    /// Something else; it is not there any more, or cannot be reached.
    Failed(String),
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Self::Failed(text)
    }
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
pub struct CancelFlags {
    /// The driver has died.
    pub dead: Arc<AtomicBool>,
    /// Nobody wants it any more.
    pub given_up: Arc<AtomicBool>,
}

impl CancelFlags {
    /// Whether nobody wants it any more.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }
}

/// What a driver needs to serve a disk or a card, of which nothing is kept but what is the
/// supervisor's, too.
pub struct ServeRequest {
    /// Its place among those that the driver offers.
    pub place: u16,
    /// What the driver is told.
    pub order: DriverCommand,
    /// What goes beside it.
    pub fds: Vec<OwnedFd>,
}

/// What a device offers as its users have it. Errors are words for the log.
pub trait Export: Send {
    /// By `voice` it says what the driver is to be told while it serves.
    fn speak(&mut self, _voice: EventSender) {}
    /// Makes it for what a driver offers, unseen or unusable for users. [`Refusal::Busy`] if
    /// another try with another driver would not change anything.
    fn create(&mut self, offered: &Offered, vain: &CancelFlags) -> Result<(), Refusal>;
    /// Takes it back from a driver that has died; users wait.
    fn recover(&mut self, vain: &CancelFlags) -> Result<(), String>;
    /// What a driver needs to serve each disk or card. It must offer the same ones.
    fn serve(&mut self, offered: &Offered) -> Result<Vec<ServeRequest>, String>;
    /// Gives it to users: the driver serves. How it does is seen by what is returned.
    fn start(&mut self) -> Result<Arc<dyn StatusSource>, String>;
    /// Handles the driver's report on the link of a card.
    fn handle_link(&mut self, _nic: u16, _link: &Link) {}
    /// The driver has begun to share it with clients: by their own memory, if the device reaches
    /// that; of a card, with the addresses of all their places.
    fn handle_shared(&mut self, _mapped: bool, _addresses: Vec<[u8; 6]>) {}
    /// Handles the driver's answer to a command about a client's memory: done, or the reason for
    /// its refusal.
    fn handle_registration(&mut self, _number: u64, _refused: Option<String>) {}
    /// A driver serves what was [adopted](Self::adopt).
    fn go_on(&mut self) {}
    /// Nothing is done for clients from now on that the driver would have to end requests for,
    /// until it is [started](Self::start) again.
    fn hold_clients(&mut self) {}
    /// Goes on with what another supervisor has [saved](StatusSource::saved), of what was
    /// `offered`, with [descriptors](StatusSource::descriptors) among `fds`: users have it, and a
    /// driver serves or is to follow.
    fn adopt(
        &mut self,
        _saved: &serde_json::Value,
        _offered: &Offered,
        _fds: &mut BTreeMap<String, OwnedFd>,
    ) -> Result<Arc<dyn StatusSource>, String> {
        Err("these disks end with their supervisor".into())
    }
    /// Takes it from its users, whose I/O fails.
    fn stop(&mut self, force: bool) -> Result<(), Refusal>;
}

/// How users' disks and interfaces do.
pub trait StatusSource: Send + Sync {
    /// Requests that users wait for; of an interface, queues in which packets wait for the driver.
    fn in_flight(&self) -> u64;
    /// How many requests have ended, as the kernel counts them; `None` where it counts none. Asked
    /// for while some are in flight.
    fn ended(&self) -> Option<u64> {
        None
    }
    /// Whether the partitions of all disks were looked for once.
    fn is_settled(&self) -> bool {
        true
    }
    /// What another supervisor needs to go on with them; null if none can.
    fn saved(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
    /// The same, by names that no other object ever has.
    fn descriptors(&self) -> Vec<(String, OwnedFd)> {
        Vec::new()
    }
    /// All that is counted.
    fn disks(&self) -> Vec<DiskStatus>;
    /// The same of interfaces.
    fn interfaces(&self) -> Vec<InterfaceStatus> {
        Vec::new()
    }
}
