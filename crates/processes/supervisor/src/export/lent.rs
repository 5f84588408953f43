//! Memory that clients register with the disks of a device, in which requests need no copy.
//!
//! # Shape
//! A thread handles [`Clients`]. What one registers is registered with the kernel, told to the
//! driver, and then answered; backwards when it is taken back. The [`Table`] is what is lent: a
//! driver that follows another one is told of all of it before it gets any request, and clients
//! notice nothing.
//!
//! # Waiting
//! The kernel registers and forgets when what is in flight has ended, with a lock held that the
//! next driver's start needs. That is for the driver to do, so nothing is registered or forgotten
//! unless one serves, and is not about to leave ([`Table::open`], [`Table::close`]); and it is for
//! neither the keeper nor the thread that gives the kernel other orders. What the driver is to do
//! is said again until a driver has done it, whichever that is.
//!
//! # When ring3d dies
//! Table and clients' sockets are kept with the rest: the next ring3d goes on with both. One index
//! may be the kernel's alone then, of memory that was about to be registered: the lowest that the
//! table does not have.

mod registrar;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ring3_control::drive::{DriverCommand, Region};
use ring3_export::ublk::FrozenQueue;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{Done, EventSender, ServeRequest};
pub use registrar::RegistrationServer;

/// When an order is said again that no driver has answered.
const AGAIN: Duration = Duration::from_secs(1);
/// Between two orders: a driver may say so much in a second, and what clients do is not its fault.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two looks whether a driver is known to be dead.
const LOOK: Duration = Duration::from_millis(20);
/// Why nothing can be done now.
const BUSY: &str = "the disk always has requests in flight, and memory is registered in a moment \
                    in which it has none: try again when it has less to do";
/// Why nothing can be done any more.
const ENDED: &str = "the disk is taken away";

/// Where a region is: the disk's place, and the kernel's index.
type Key = (u16, u16);

/// What is lent.
#[derive(Default)]
pub struct Table {
    lent: Mutex<Lent>,
    heard: Condvar,
}

#[derive(Default)]
struct Lent {
    regions: BTreeMap<Key, StoredRegion>,
    clients: BTreeMap<u64, Client>,
    /// How the kernel merged requests of the disks before there were any regions.
    merges: BTreeMap<u16, String>,
    /// The last order's number, and those of descriptors: never the same again, whichever ring3d
    /// counts.
    last: u64,
    /// What the driver has said of the order that is waited for.
    answer: Option<(u64, Option<String>)>,
    /// Another ring3d has left it.
    adopted: bool,
    /// A driver serves.
    open: bool,
    /// The kernel does something that waits for it.
    busy: bool,
    ended: bool,
}

/// A region, as it is kept.
struct StoredRegion {
    number: u64,
    bytes: u64,
    file: Arc<OwnedFd>,
}

/// Who has heard that its memory is lent.
struct Client {
    keys: Vec<Key>,
    socket: OwnedFd,
}

/// What the next ring3d is told, descriptors beside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Place, index, number and bytes of each.
    regions: Vec<(u16, u16, u64, u64)>,
    /// Number and regions of each.
    clients: Vec<(u64, Vec<Key>)>,
    /// As [`MergeControl`] has found it, of each disk that has any.
    merges: Vec<(u16, String)>,
}

impl Table {
    /// What a driver is told of the disk at `place` before it is served.
    pub fn given(&self, place: u16) -> Result<Vec<ServeRequest>, String> {
        let lent = self.lock();
        let given = |(&(disk, index), kept): (&Key, &StoredRegion)| {
            let file = kept
                .file
                .try_clone()
                .map_err(|error| format!("duplicating clients' memory: {error}"))?;
            Ok(ServeRequest {
                place,
                order: DriverCommand::Region(Region { disk, index, number: 0 }),
                fds: vec![file],
            })
        };
        lent.regions.range((place, 0)..=(place, u16::MAX)).map(given).collect()
    }

    /// A driver serves.
    pub fn open(&self) {
        self.lock().open = true;
        self.heard.notify_all();
    }

    /// It serves no more, or will not; if `wait`, when this returns nothing waits for it.
    pub fn close(&self, wait: bool) {
        let mut lent = self.lock();
        lent.open = false;
        while wait && lent.busy {
            lent = self.heard.wait(lent).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Does `work` while a driver serves, in a moment in which nothing is in flight: should the
    /// driver die while the kernel does it, neither waits for the other. [`BUSY`] if there is no
    /// such moment.
    fn while_served<T>(
        &self,
        (voice, id): (&EventSender, u32),
        work: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        let mut lent = self.lock();
        while !lent.open || voice.is_dead() {
            if lent.ended {
                return Err(ENDED.into());
            }
            lent = self.heard.wait_timeout(lent, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(lent);
        let frozen = FrozenQueue::of(id, &|| voice.is_dead() || !self.lock().open);
        lent = self.lock();
        if !lent.open || voice.is_dead() {
            drop((lent, frozen));
            return self.while_served((voice, id), work);
        }
        if frozen.is_none() {
            return Err(BUSY.into());
        }
        lent.busy = true;
        drop(lent);
        let done = work();
        self.lock().busy = false;
        self.heard.notify_all();
        done
    }

    /// Has a driver do something, whichever serves then. One that serves, and does not answer, is
    /// not waited for without an end.
    fn tell(
        &self,
        (voice, limit): (&EventSender, Duration),
        order: fn(Region) -> DriverCommand,
        (disk, index): Key,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), String> {
        let number = self.number();
        thread::sleep(PAUSE);
        let mut lent = self.lock();
        let mut waited = Duration::ZERO;
        loop {
            if lent.ended {
                return Err(ENDED.into());
            }
            if waited >= limit {
                return Err(format!("the driver has not answered within {} s", limit.as_secs()));
            }
            let serves = lent.open && !voice.is_dead();
            let since = Instant::now();
            let fds = file
                .map(|file| file.try_clone_to_owned())
                .transpose()
                .map_err(|error| error.to_string())?;
            voice
                .say(Done::Order(order(Region { disk, index, number }), fds.into_iter().collect()));
            let waits = |lent: &mut Lent| {
                !lent.ended && lent.answer.as_ref().is_none_or(|(answered, _)| *answered != number)
            };
            lent = self
                .heard
                .wait_timeout_while(lent, AGAIN, waits)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            match lent.answer.take_if(|(answered, _)| *answered == number) {
                Some((_, None)) => return Ok(()),
                Some((_, Some(reason))) => return Err(reason),
                None if serves => waited += since.elapsed(),
                None => {}
            }
        }
    }

    /// Handles the driver's answer to order `number`: done, or the reason for its refusal.
    pub fn handle_answer(&self, number: u64, refused: Option<String>) {
        self.lock().answer = Some((number, refused));
        self.heard.notify_all();
    }

    /// For the next ring3d.
    pub fn saved(&self) -> Saved {
        let lent = self.lock();
        let regions = lent
            .regions
            .iter()
            .map(|(&(place, index), kept)| (place, index, kept.number, kept.bytes))
            .collect();
        let clients =
            lent.clients.iter().map(|(&number, client)| (number, client.keys.clone())).collect();
        let merges = lent.merges.iter().map(|(&place, before)| (place, before.clone())).collect();
        Saved { regions, clients, merges }
    }

    /// The same, by names.
    pub fn descriptors(&self) -> Vec<(String, OwnedFd)> {
        let lent = self.lock();
        let regions =
            lent.regions.values().map(|kept| (format!("lent.{}", kept.number), kept.file.as_fd()));
        let clients = lent
            .clients
            .iter()
            .map(|(number, client)| (format!("lender.{number}"), client.socket.as_fd()));
        regions
            .chain(clients)
            .filter_map(|(name, fd)| Some((name, fd.try_clone_to_owned().ok()?)))
            .collect()
    }

    /// What was saved, with its descriptors among `fds`. Without those of a region nobody can go
    /// on.
    pub fn adopt(saved: Saved, fds: &mut BTreeMap<String, OwnedFd>) -> Result<Self, String> {
        let mut lent = Lent { adopted: true, ..Lent::default() };
        for (place, index, number, bytes) in saved.regions {
            let file = fds
                .remove(&format!("lent.{number}"))
                .ok_or("memory that a client has lent was not kept")?;
            lent.regions.insert((place, index), StoredRegion { number, bytes, file: file.into() });
        }
        for (number, keys) in saved.clients {
            // A client that was not kept is disconnected.
            let Some(socket) = fds.remove(&format!("lender.{number}")) else { continue };
            lent.clients.insert(number, Client { keys, socket });
        }
        lent.merges = saved.merges.into_iter().collect();
        Ok(Self { lent: Mutex::new(lent), heard: Condvar::new() })
    }

    fn number(&self) -> u64 {
        let mut lent = self.lock();
        lent.last = since_boot().max(lent.last + 1);
        lent.last
    }

    fn lock(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nanoseconds, by a clock that nobody sets back: what is kept, and drivers, last as long as the
/// machine runs.
fn since_boot() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    u64::try_from(now.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests;
