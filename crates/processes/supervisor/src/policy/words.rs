//! The events that a [`Machine`](super::Machine) handles, and the actions that it decides on.

use std::fmt;
use std::time::Duration;

use super::Sleep;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Reply to [`Action::Claim`]: the device is claimed and stopped.
    Claimed,
    /// Reply to [`Action::Claim`]: the device does not exist, or cannot be claimed.
    Missing,
    /// The device was removed.
    Gone,
    /// The standby is ready and waits for a lease.
    Ready,
    /// The standby has ended, or could not be started.
    StandbyEnded,
    /// The standby has broken the protocol.
    StandbyLied,
    /// The driver has opened its device and has reported its disks.
    Offers,
    /// The driver's threads wait for requests of all its disks.
    Serving,
    /// The driver has handed over: the device runs, its state is saved, and the process is idle
    /// from now on. If it was killed, it may still be freeing its memory.
    HandedOver,
    /// The driver misses its heartbeat, has violated the protocol, or reports that it cannot
    /// continue.
    Unhealthy,
    /// Its process is gone.
    Ended,
    /// The same, killed from outside, and it has left a saved state by which its device can be
    /// adopted.
    Killed,
    /// Reply to [`Action::Fence`]: the device is stopped.
    Fenced,
    /// Reply to [`Action::Fence`]: the device could not be stopped.
    FenceFailed,
    /// Reply to [`Action::Create`] or [`Action::Recover`]: the kernel device can be served.
    Prepared,
    /// Reply to [`Action::Start`]: the kernel device is announced to users.
    Started,
    /// [`Action::Create`], [`Action::Recover`], [`Action::Serve`] or [`Action::Start`] has failed.
    ExportFailed,
    /// Reply to [`Action::Create`]: another program has the requested `export.id`. Another driver
    /// process would fail, too.
    ExportRefused,
    /// Reply to [`Action::StopExport`]: the kernel device is removed.
    ExportStopped,
    /// Reply to [`Action::StopExport`]: it is in use.
    ExportBusy,
    /// A user wants a restart, or another attempt.
    Restart,
    /// A user wants it stopped.
    Stop {
        /// Whoever uses it.
        force: bool,
    },
    /// A user wants another program.
    Upgrade,
    /// The machine is about to sleep.
    Sleep(Sleep),
    /// It is awake.
    Wake,
    /// Time has passed.
    Timer,
}

/// An action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Claim the device: [`Event::Claimed`] or [`Event::Missing`].
    Claim,
    /// Release a removed device.
    Release,
    /// Start a standby.
    Spawn {
        /// From the new program of an upgrade.
        upgraded: bool,
    },
    /// End the standby: [`Event::StandbyEnded`].
    KillStandby,
    /// End the driver: [`Event::Ended`].
    Kill,
    /// Stop the device, so that no command of the last driver is executed any more:
    /// [`Event::Fenced`] or [`Event::FenceFailed`].
    Fence,
    /// Give the device to the standby, which is the driver from now on.
    Drive(Start),
    /// Create the kernel device: [`Event::Prepared`] or [`Event::ExportFailed`].
    Create,
    /// Recover the kernel device from a dead driver: the same replies.
    Recover,
    /// Give the kernel device to the driver.
    Serve,
    /// Announce it to users: [`Event::Started`] or [`Event::ExportFailed`].
    Start,
    /// Remove it from users, whose I/O fails if `force`: [`Event::ExportStopped`] or
    /// [`Event::ExportBusy`].
    StopExport {
        /// Whoever uses it.
        force: bool,
    },
    /// Ask the driver to hand the device over to the next one: [`Event::HandedOver`].
    HandOver,
    /// Ask the driver to stop its device and to exit.
    StopDriver,
    /// The same, while the kernel device stays, and users' requests wait.
    Rest,
    /// Commit the upgrade: standbys are started from the new program from now on.
    CommitUpgrade,
    /// Send the result to the waiting user.
    Answer(Verdict),
    /// Log why a process is killed.
    MissedDeadline(MissedDeadline),
}

/// What a process has not done before its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissedDeadline {
    /// The standby is not ready.
    Standby(Duration),
    /// The driver has not reported its disks or card.
    Open(Duration),
    /// It has not started to serve.
    Take(Duration),
    /// It has not handed its device over.
    Leave(Duration),
    /// It has not stopped its device.
    Stop(Duration),
}

impl fmt::Display for MissedDeadline {
    /// What follows the process's number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, after) = match self {
            Self::Standby(after) => ("is not ready", after),
            Self::Open(after) => ("has not opened its device (restart.recovery_ms)", after),
            Self::Take(after) => ("does not serve its users", after),
            Self::Leave(after) => ("has not left its device", after),
            Self::Stop(after) => ("has not stopped its device", after),
        };
        write!(f, "{what} after {} ms, and is ended", after.as_millis())
    }
}

/// State in which a driver gets its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Stopped.
    Fenced,
    /// Running: the last driver has handed it over, and has saved its state.
    HandedOver,
    /// Running: the last driver was killed, and nothing was stopped.
    Adopted,
}

/// Result of a user command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done.
    Done,
    /// The disk is in use.
    Busy,
    /// The device does not exist.
    Absent,
    /// Nothing is served that could be replaced.
    NotRunning,
    /// The new program did not become healthy: the old one drives, or is about to.
    WentBack,
    /// The device was given up.
    Failed,
    /// The kernel has not answered a command about the disks.
    KernelTimeout,
}

/// The desired state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredState {
    /// It is driven.
    Run,
    /// It is not driven.
    Stop {
        /// Whoever uses it.
        force: bool,
    },
    /// None: it was given up.
    Fail,
}

/// State of a device that an earlier supervisor had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreviousState {
    /// The device is claimed.
    pub held: bool,
    /// A driver serves it.
    pub driven: bool,
    /// The kernel has a device for users.
    pub shown: bool,
}
