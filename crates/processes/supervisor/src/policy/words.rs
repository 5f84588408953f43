//! The events that a [`Machine`](super::Machine) handles, and the actions that it decides on.

use std::fmt;
use std::time::Duration;

use super::Sleep;

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Reply to [`Action::Claim`]: the device is claimed and stopped.
    Claimed,
    /// Reply to [`Action::Claim`]: the device is not there, or cannot be claimed.
    Missing,
    /// The device was removed.
    Gone,
    /// The standby waits for a lease.
    Ready,
    /// The standby has ended, or could not be started.
    StandbyEnded,
    /// The standby has broken the protocol.
    StandbyLied,
    /// The driver has opened its device and has reported its disks.
    Offers,
    /// The driver's threads wait for requests of all its disks.
    Serving,
    /// The driver has handed over: the device runs, its state is saved, and the process does
    /// nothing any more. If it was killed, it may still be giving its memory back.
    HandedOver,
    /// The driver misses its heartbeat, has broken the protocol, or says that it cannot go on.
    Unhealthy,
    /// Its process is gone.
    Ended,
    /// The same: somebody else has killed it, and it has said by what its device can be adopted.
    Killed,
    /// Reply to [`Action::Fence`]: the device is stopped.
    Fenced,
    /// Reply to [`Action::Fence`]: the device could not be stopped.
    FenceFailed,
    /// [`Action::Create`], [`Action::Recover`]: the kernel's half can be served.
    Prepared,
    /// [`Action::Start`]: users have it.
    Started,
    /// [`Action::Create`], [`Action::Recover`], [`Action::Serve`] or [`Action::Start`] has failed.
    ExportFailed,
    /// Reply to [`Action::Create`]: another program has the requested `export.id`. Another driver
    /// process would fail, too.
    ExportRefused,
    /// [`Action::StopExport`]: the kernel's half is gone.
    ExportStopped,
    /// [`Action::StopExport`]: somebody uses it.
    ExportBusy,
    /// A user wants another process, or another try.
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

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Claim the device: [`Event::Claimed`] or [`Event::Missing`].
    Claim,
    /// Give a vanished device up.
    Release,
    /// Start a standby.
    Spawn {
        /// From the program that is to take over.
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
    /// Make the kernel's half: [`Event::Prepared`] or [`Event::ExportFailed`].
    Create,
    /// Take the kernel's half back from a dead driver: the same.
    Recover,
    /// Give the kernel's half to the driver.
    Serve,
    /// Let users have it: [`Event::Started`] or [`Event::ExportFailed`].
    Start,
    /// Take it from users, whose I/O fails if `force`: [`Event::ExportStopped`] or
    /// [`Event::ExportBusy`].
    StopExport {
        /// Whoever uses it.
        force: bool,
    },
    /// Ask the driver to hand the device over to the next one: [`Event::HandedOver`].
    HandOver,
    /// Ask the driver to stop its device and to end.
    StopDriver,
    /// The same, while the kernel's half stays, and what its users want waits.
    Rest,
    /// Commit the upgrade: standbys are started from the new program from now on.
    CommitUpgrade,
    /// Tell the user who waits.
    Answer(Verdict),
    /// Say why a process is ended.
    MissedDeadline(MissedDeadline),
}

/// What a process has not done in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissedDeadline {
    /// The standby has not begun to wait for a lease.
    Standby(Duration),
    /// The driver does not say what it offers.
    Open(Duration),
    /// It does not serve.
    Take(Duration),
    /// It has not left its device.
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

/// What became of what a user wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is so.
    Done,
    /// Somebody uses the disk.
    Busy,
    /// The device is not there.
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

/// What the user wants of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredState {
    /// That it is driven.
    Run,
    /// That nothing drives it.
    Stop {
        /// Whoever uses it.
        force: bool,
    },
    /// Nothing: it was given up.
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
