//! The supervisor and its users: `ring3 status`, `restart`, `stop` and so on.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::status::DeviceStatus;

/// The protocol's version.
pub const VERSION: u32 = 1;

/// Where the supervisor listens, if nobody names another place: a SOCK_SEQPACKET socket.
pub const SOCKET: &str = "/run/ring3/control";

/// What a user asks. One reply answers each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// The first of a connection: [`Reply::Hello`].
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// [`Reply::Status`].
    Status,
    /// What the driver of a device wrote, and the supervisor about it, the oldest first:
    /// [`Reply::Logs`].
    Logs {
        /// Which device.
        name: String,
        /// At most so many lines.
        lines: u32,
    },
    /// Replaces the driver's process by way of a fence, or starts a device that has failed or was
    /// stopped: [`Reply::Done`] when it serves.
    Restart {
        /// Which device.
        name: String,
    },
    /// Stops the export and the driver, and keeps the claim: [`Reply::Done`]. Refused while the
    /// disk is in use.
    Stop {
        /// Which device.
        name: String,
        /// Take it away from its users.
        force: bool,
    },
    /// Replaces the driver's program without a reset: [`Reply::Upgraded`].
    Upgrade {
        /// Which device.
        name: String,
        /// The new program; what lies at the old one's path now, if `None`.
        program: Option<PathBuf>,
    },
    /// All counters as Prometheus reads them: [`Reply::Text`].
    Metrics,
    /// The machine is about to sleep: drivers stop their devices and end, and users wait:
    /// [`Reply::Done`] when all have. It counts as awake again after a minute and a half in which
    /// it does not sleep.
    Sleep {
        /// Drivers go on until the kernel freezes them, and their devices are started anew
        /// afterwards: what the kernel does before a hibernation needs them.
        driven: bool,
    },
    /// The machine is awake: devices are started again. [`Reply::Done`] at once.
    Wake,
    /// Reads the manifests again, and starts and stops what that asks for: [`Reply::Done`], or
    /// [`Reply::Text`] if something goes on that they do not name.
    Reload,
}

/// What the supervisor answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It speaks the same version.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// The supervisor's process.
        pid: u32,
    },
    /// All devices, by name.
    Status(Vec<DeviceStatus>),
    /// Lines.
    Logs(Vec<String>),
    /// For programs that read text.
    Text(String),
    /// The answer is longer than a packet. Beside it: a sealed file that holds it.
    Long,
    /// It is done.
    Done,
    /// The new program drives.
    Upgraded {
        /// Milliseconds from the last request of the old process to the first of the new one, as
        /// the supervisor saw it.
        stall_ms: f64,
    },
    /// It is not done, and why; what to do next.
    Refused(String),
}
