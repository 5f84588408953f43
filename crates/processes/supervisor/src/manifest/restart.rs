//! When a driver is started again, and what it may use up.

use std::time::Duration;

use serde::Deserialize;

use super::range;
use crate::policy::RestartPolicy;

/// When a driver is started again, and when it is taken for dead.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Restart {
    /// Deaths within the window that are followed by another start.
    pub burst: u32,
    /// Seconds for which a death counts.
    pub window_s: u64,
    /// Milliseconds before the third start in a row that fails; doubled with each further one.
    pub backoff_ms: u64,
    /// Most milliseconds between two starts.
    pub backoff_max_ms: u64,
    /// Seconds for which I/O waits for a driver.
    pub deadline_s: u64,
    /// Milliseconds after which a thread that works and does not beat is taken for dead.
    pub heartbeat_ms: u64,
    /// The same of one that looks after its device, which may be a reset.
    pub recovery_ms: u64,
    /// From a driver that was killed the next one adopts the device, without a reset, if its driver
    /// can do that.
    pub adopt: bool,
    /// The kernel's RCU is expedited as long as the disks have users, on all processors: shorter
    /// outages for a noisier machine.
    pub expedited_rcu: bool,
}

impl Default for Restart {
    fn default() -> Self {
        let (heartbeat_ms, recovery_ms) = (5000, 120_000);
        let (burst, window_s, backoff_ms, backoff_max_ms, deadline_s) = (5, 60, 100, 10_000, 60);
        Self {
            burst,
            window_s,
            backoff_ms,
            backoff_max_ms,
            deadline_s,
            heartbeat_ms,
            recovery_ms,
            adopt: false,
            expedited_rcu: false,
        }
    }
}

impl Restart {
    /// The same as the policy has it.
    pub fn policy(&self) -> RestartPolicy {
        RestartPolicy {
            burst: self.burst,
            window: Duration::from_secs(self.window_s),
            pause: Duration::from_millis(self.backoff_ms),
            longest_pause: Duration::from_millis(self.backoff_max_ms),
            io_timeout: Duration::from_secs(self.deadline_s),
            recovery: Duration::from_millis(self.recovery_ms),
            lent: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        range("restart.window_s", (1..=86_400).contains(&self.window_s), "1 to 86400")?;
        range("restart.deadline_s", (1..=86_400).contains(&self.deadline_s), "1 to 86400")?;
        range("restart.backoff_ms", (1..=3_600_000).contains(&self.backoff_ms), "1 to 3600000")?;
        range(
            "restart.backoff_max_ms",
            (1..=3_600_000).contains(&self.backoff_max_ms),
            "1 to 3600000",
        )?;
        range(
            "restart.heartbeat_ms",
            (1000..=3_600_000).contains(&self.heartbeat_ms),
            "1000 to 3600000",
        )?;
        range(
            "restart.recovery_ms",
            (1000..=3_600_000).contains(&self.recovery_ms),
            "1000 to 3600000",
        )
    }
}

/// What a driver may use up.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// MiB of memory.
    pub memory_mib: u64,
    /// Percent of one processor.
    pub cpu_percent: u32,
    /// Its part of the processors' time where others want it too, 1 to 10000; the
    /// [device's usual one](super::Device::cpu_weight) if `None`.
    pub cpu_weight: Option<u32>,
    /// Processes and threads.
    pub pids: u32,
    /// Interrupts a second.
    pub irqs_per_s: u32,
    /// Disks: namespaces, or drives.
    pub disks: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mib: 256,
            cpu_percent: 200,
            cpu_weight: None,
            pids: 64,
            irqs_per_s: 200_000,
            disks: 16,
        }
    }
}

impl Limits {
    pub(super) fn check(&self) -> Result<(), String> {
        range("limits.memory_mib", (16..=1 << 20).contains(&self.memory_mib), "16 to 1048576")?;
        range("limits.cpu_percent", (1..=100_000).contains(&self.cpu_percent), "1 to 100000")?;
        range(
            "limits.cpu_weight",
            self.cpu_weight.is_none_or(|weight| (1..=10_000).contains(&weight)),
            "1 to 10000",
        )?;
        range("limits.pids", (8..=4096).contains(&self.pids), "8 to 4096")?;
        range("limits.disks", (1..=128).contains(&self.disks), "1 to 128")?;
        range("limits.irqs_per_s", self.irqs_per_s >= 100, "at least 100")
    }
}
