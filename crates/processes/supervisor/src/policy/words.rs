//! What a [`Machine`](super::Machine) hears, and what it says.

use std::fmt;
use std::time::Duration;

use super::Sleep;

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// [`Action::Claim`]: the device is ours, and does nothing.
    Claimed,
    /// [`Action::Claim`]: it is not there, or cannot be had.
    Missing,
    /// The device has vanished.
    Gone,
    /// The standby waits for a lease.
    Ready,
    /// The standby has ended, or could not be started.
    StandbyEnded,
    /// The standby has broken the protocol.
    StandbyLied,
    /// The driver drives its device.
    Offers,
    /// It waits for the requests of all its disks.
    Serving,
    /// It has left the device running, for the next one, and does nothing any more: a process that
    /// was killed has its memory to give back at most.
    Left,
    /// It misses its heartbeat, or has broken the protocol, or says that it cannot go on.
    Unhealthy,
    /// Its process is gone.
    Ended,
    /// The same: somebody else has killed it, and it has said by what its device can be adopted.
    Killed,
    /// [`Action::Fence`]: nothing of a dead driver goes on.
    Fenced,
    /// [`Action::Fence`]: that is not so.
    FenceFailed,
    /// [`Action::Create`], [`Action::Recover`]: the kernel's half can be served.
    Prepared,
    /// [`Action::Start`]: users have it.
    Started,
    /// [`Action::Create`], [`Action::Recover`], [`Action::Serve`] or [`Action::Start`] has failed.
    ExportFailed,
    /// [`Action::Create`]: somebody has what it needs, whoever drives.
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
    /// Make sure that nothing of the last driver goes on: [`Event::Fenced`] or
    /// [`Event::FenceFailed`].
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
    /// Ask the driver to leave the device to the next one.
    Leave,
    /// Ask the driver to stop its device and to end.
    StopDriver,
    /// The same, while the kernel's half stays, and what its users want waits.
    Rest,
    /// From now on standbys are made of the new program.
    Adopt,
    /// Tell the user who waits.
    Answer(Verdict),
    /// Say why a process is ended.
    Late(Late),
}

/// What a process has not done in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
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

impl fmt::Display for Late {
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

/// How a driver finds its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// It does nothing.
    Fenced,
    /// The last driver has left it, and has saved what is to be known.
    Left,
    /// The last driver was killed, and nothing was stopped.
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
    /// The kernel does not end what it was asked about the disks.
    Stuck,
}
