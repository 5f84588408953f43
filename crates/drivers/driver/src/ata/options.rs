//! What the user can choose.

use std::time::Duration;

use crate::{Circumstances, Interrupts};

/// How data move between drive and memory; each is slower and simpler than the next.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The processor moves every word. IDE controllers only: AHCI has no such way and uses DMA.
    Pio,
    /// The controller moves them, for one command at a time.
    Dma,
    /// The drive takes many commands and chooses the order. AHCI controllers only.
    Queued,
}

impl Level {
    /// The next slower one.
    pub(super) fn lower(self) -> Option<Self> {
        match self {
            Self::Queued => Some(Self::Dma),
            Self::Dma => Some(Self::Pio),
            Self::Pio => None,
        }
    }
}

/// How to drive a controller.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Options {
    /// Which interrupts.
    pub interrupts: Interrupts,
    /// The best level that may be used, whatever drive and controller can do.
    pub level: Level,
    /// Most requests that one queue holds, 1 to 1023. AHCI has at most 32 in the device's hands;
    /// IDE has one, and others wait.
    pub max_depth: u16,
    /// Most bytes of one request, if less than the drive's and the controller's own limit is
    /// wanted.
    pub max_transfer: Option<u32>,
    /// How long a command may take before its drive is reset.
    pub timeout: Duration,
    /// How long a flush may take, if that is longer: all of a full cache is written. [ACS-3 7.10:
    /// it may take longer than 30 seconds]
    pub flush_timeout: Duration,
    /// How long a drive may take to become ready after a reset. [ATA-6 9.2 gives it 31 seconds]
    pub ready_timeout: Duration,
    /// How long a drive that was there may take, after each of two resets, until the controller
    /// notices it again (AHCI).
    #[serde(default = "usual_link_timeout")]
    pub link_timeout: Duration,
    /// How long a wait polls at most before it sleeps; see [`ring3_device::wait`].
    pub poll: Duration,
    /// What the user and the machine add to the table of quirks.
    #[serde(default, skip_serializing_if = "Circumstances::wants_nothing")]
    pub quirks: Circumstances,
}

/// As the kernel's libata waits for a link that comes and goes. Drives that spin up, and slow
/// links, need more than a tenth of a second.
fn usual_link_timeout() -> Duration {
    Duration::from_secs(2)
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interrupts: Interrupts::Auto,
            level: Level::Queued,
            max_depth: 64,
            max_transfer: None,
            // As long as a drive may need to recover a sector, and as the kernel's drivers wait.
            timeout: Duration::from_secs(30),
            flush_timeout: Duration::from_secs(60),
            ready_timeout: Duration::from_secs(31),
            link_timeout: usual_link_timeout(),
            poll: ring3_device::wait::DEFAULT_POLL,
            quirks: Circumstances::default(),
        }
    }
}
