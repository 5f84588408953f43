//! The options of the NVMe driver.

use std::time::Duration;

use crate::{Circumstances, Interrupts};

/// How to drive a controller.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Options {
    /// Which interrupts.
    pub interrupts: Interrupts,
    /// Most I/O queues, at least 1; the controller may have fewer.
    pub max_queues: u16,
    /// Most requests that one queue holds, 1 to 1023, whatever its opener asks for.
    pub max_depth: u16,
    /// Most bytes of one request, if less than the controller's own limit is wanted.
    pub max_transfer: Option<u32>,
    /// How long a request or an admin command may take before it is aborted.
    pub timeout: Duration,
    /// How long a flush may take, if that is longer: all of a full cache is written.
    #[serde(default = "usual_flush_timeout")]
    pub flush_timeout: Duration,
    /// How long a wait polls at most before it sleeps; see [`ring3_device::wait`].
    pub poll: Duration,
    /// Most bytes of memory that a controller gets for itself, if it asks for such (HMPRE); 0 is
    /// none.
    #[serde(default = "usual_host_memory", skip_serializing_if = "is_usual_host_memory")]
    pub host_memory: u64,
    /// How long a controller may take to leave a power state that it enters by itself; 0 keeps it
    /// awake.
    #[serde(default = "usual_power_latency", skip_serializing_if = "is_usual_power_latency")]
    pub power_latency: Duration,
    /// What the user and the machine add to the table of quirks.
    #[serde(default, skip_serializing_if = "Circumstances::wants_nothing")]
    pub quirks: Circumstances,
}

/// As a drive behind AHCI has it. The kernel's driver gives a flush of NVMe 30 s and then resets
/// the controller, with all that is in flight.
fn usual_flush_timeout() -> Duration {
    Duration::from_secs(60)
}

/// As the kernel's driver has it by default (max_host_mem_size_mb).
fn usual_host_memory() -> u64 {
    128 << 20
}

fn is_usual_host_memory(bytes: &u64) -> bool {
    *bytes == usual_host_memory()
}

/// As the kernel's driver has it by default (default_ps_max_latency_us).
fn usual_power_latency() -> Duration {
    Duration::from_millis(100)
}

fn is_usual_power_latency(latency: &Duration) -> bool {
    *latency == usual_power_latency()
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interrupts: Interrupts::Auto,
            max_queues: 16,
            max_depth: 1023,
            max_transfer: None,
            // Longer than a drive may need to recover a block, as the kernel's driver has it by
            // default.
            timeout: Duration::from_secs(30),
            flush_timeout: usual_flush_timeout(),
            poll: ring3_device::wait::DEFAULT_POLL,
            host_memory: usual_host_memory(),
            power_latency: usual_power_latency(),
            quirks: Circumstances::default(),
        }
    }
}
