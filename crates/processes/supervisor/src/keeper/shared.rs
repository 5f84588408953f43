//! What others may know of a device while its keeper works.

use std::fs;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use ring3_control::status::{DeviceStatus, State};
use ring3_stats::{Counters, Segment};

use crate::export::StatusSource;
use crate::health::UserLoad;
use crate::journal::{Journal, seconds};
use crate::process::QUEUES;

/// Of one device. No lock is held while anything is waited for.
pub struct PublishedState {
    status: Mutex<DeviceStatus>,
    journal: Mutex<Journal>,
    look: Mutex<Option<Arc<dyn StatusSource>>>,
    stats: Mutex<Option<Arc<Segment>>>,
    /// Why the device does not go on as it should, since that was last taken.
    reason: Mutex<Option<String>>,
    /// Who uses it, for which a stop was refused.
    users: Mutex<Option<String>>,
    ended: AtomicBool,
}

impl PublishedState {
    pub(crate) fn new(name: &str, driver: &str) -> Self {
        let status = DeviceStatus {
            name: name.to_owned(),
            device: String::new(),
            driver: driver.to_owned(),
            state: State::Absent,
            since: seconds(SystemTime::now()),
            pid: 0,
            standby: 0,
            disks: Vec::new(),
            interfaces: Vec::new(),
            restarts: 0,
            upgrades: 0,
            last_end: None,
            outages: Vec::new(),
            interrupts: 0,
            iommu_faults: 0,
            cpu_ms: 0,
            memory: 0,
            shared_hits: 0,
            unlimited: Vec::new(),
        };
        let (status, journal, look, stats) =
            (Mutex::new(status), Mutex::default(), Mutex::default(), Mutex::default());
        let (reason, users) = (Mutex::default(), Mutex::default());
        let ended = AtomicBool::new(false);
        Self { status, journal, look, stats, reason, users, ended }
    }

    /// Where it is, without the figures of [`now`](Self::now).
    pub fn state(&self) -> State {
        self.status().state
    }

    /// Whether users have it, with all partitions of its disks.
    pub fn is_settled(&self) -> bool {
        let look = held(&self.look).clone();
        look.is_some_and(|look| look.is_settled())
    }

    /// Drivers that have died.
    pub fn restarts(&self) -> u64 {
        self.status().restarts
    }

    /// Why the device could not be claimed, driven, given to users or stopped: the last reason
    /// since this was last asked.
    pub fn take_reason(&self) -> Option<String> {
        held(&self.reason).take()
    }

    pub(super) fn set_reason(&self, reason: &str) {
        *held(&self.reason) = Some(reason.to_owned());
    }

    /// Who uses the device, for which a stop was refused since this was last asked.
    pub fn take_users(&self) -> Option<String> {
        held(&self.users).take()
    }

    pub(super) fn set_users(&self, users: &str) {
        *held(&self.users) = Some(users.to_owned());
    }

    /// All that is known now.
    pub fn now(&self) -> DeviceStatus {
        let mut status = self.status().clone();
        let look = held(&self.look).clone();
        if let Some(look) = look {
            (status.disks, status.interfaces) = (look.disks(), look.interfaces());
        }
        if let Some(stats) = held(&self.stats).clone() {
            let counters: Vec<_> = (0..QUEUES).map(|queue| stats.counters(Some(queue))).collect();
            let sum = |of: fn(&Counters) -> u64| counters.iter().map(of).fold(0, u64::wrapping_add);
            let (interrupts, errors) =
                (sum(|counters| counters.interrupts), sum(|counters| counters.errors));
            (status.interrupts, status.shared_hits) =
                (interrupts, sum(|counters| counters.shared_hits));
            // Which disk a queue is of, the driver knows.
            status.disks.iter_mut().take(1).for_each(|disk| disk.errors = errors);
            for interface in status.interfaces.iter_mut().take(1) {
                interface.rx_missed = sum(|counters| counters.lost.rx_missed);
                interface.rx_errors = sum(|counters| counters.lost.rx_errors);
                interface.tx_lost = sum(|counters| counters.lost.tx_lost);
            }
        }
        if status.pid != 0 {
            (status.cpu_ms, status.memory) =
                (cpu_ms(status.pid).unwrap_or(0), memory(status.pid).unwrap_or(0));
        }
        status
    }

    /// Its log.
    pub fn journal(&self) -> MutexGuard<'_, Journal> {
        held(&self.journal)
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, DeviceStatus> {
        held(&self.status)
    }

    /// What the kernel says of its users' requests.
    pub(super) fn users(&self) -> UserLoad {
        let Some(look) = held(&self.look).clone() else { return UserLoad::default() };
        let in_flight = look.in_flight();
        // At rest one look has to do.
        UserLoad { in_flight, ended: (in_flight > 0).then(|| look.ended()).flatten() }
    }

    /// What the next ring3d needs to go on with the users' disks; null if there are none.
    pub(super) fn saved(&self) -> serde_json::Value {
        let look = held(&self.look).clone();
        look.map_or(serde_json::Value::Null, |look| look.saved())
    }

    /// The same: descriptors.
    pub(super) fn descriptors(&self) -> Vec<(String, OwnedFd)> {
        let look = held(&self.look).clone();
        look.map(|look| look.descriptors()).unwrap_or_default()
    }

    pub(super) fn publish(&self, look: Option<Arc<dyn StatusSource>>) {
        *held(&self.look) = look;
    }

    pub(super) fn watch(&self, stats: Option<Arc<Segment>>) {
        *held(&self.stats) = stats;
    }

    pub(super) fn end(&self, ended: bool) {
        self.ended.store(ended, Ordering::Release);
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

fn held<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time of the processor that a process has had. [proc(5)]
fn cpu_ms(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Resident memory of a process that is its own, in bytes: DMA memory is shared. [proc(5)]
fn memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    Some((of("RssAnon:")? + of("RssFile:")?) << 10)
}
