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
    /// What the user and the machine add to the table of quirks.
    #[serde(default, skip_serializing_if = "Circumstances::wants_nothing")]
    pub quirks: Circumstances,
}

/// As a drive behind AHCI has it. The kernel's driver gives a flush of NVMe 30 s and then resets
/// the controller, with all that is in flight.
fn usual_flush_timeout() -> Duration {
    Duration::from_secs(60)
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
            quirks: Circumstances::default(),
        }
    }
}
