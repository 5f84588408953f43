//! The ublk devices of this machine, ring3's and others', and what dead processes have left of
//! them.
//!
//! # Whose is it
//! ring3 marks a device when it creates it, in a field that the kernel keeps and does not look at
//! ([`uapi::MARK`]). So the mark is as old as the device, is gone with it, and is seen from every
//! container; there is no file that could outlive either.
//!
//! # Is it served
//! `/dev/ublkcN` can be open once only, and its server has it open. A device of ring3's that is not
//! started and that can be opened was left behind, because ring3 opens what it has created, and
//! deletes what it has closed, alone (`Control::alone`). Process ids decide nothing: they are used
//! again, and differ from container to container. Of others' devices nothing is concluded.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use ring3_class::Deadline;

use super::control::Control;
use super::uapi::{self, DeviceInfo};
use super::{Error, users};

/// How long the kernel may take to notice that the process behind a device has died, if the
/// device's number is wanted.
const ORPHAN: Duration = Duration::from_secs(5);

/// The same, if it is in nobody's way.
const DYING: Duration = Duration::from_millis(500);

/// What a device is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A process serves it.
    Served,
    /// A process has it open and has not started it, or is about to leave it.
    Held,
    /// ring3's, and nobody's any more.
    Orphan,
    /// Another program's, and not served: it may be being set up.
    Idle,
    /// It waits for a process that recovers it.
    Recovering,
}

/// One ublk device of this machine.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// N in `/dev/ublkbN` and `/dev/ublkcN`.
    pub id: u32,
    /// What it is doing.
    pub state: State,
    /// Whether ring3 has created it.
    pub ring3: bool,
    /// Who serves it, as that process sees its own id.
    pub pid: Option<i32>,
    /// Hardware queues.
    pub queues: u16,
    /// Requests per queue.
    pub depth: u16,
}

/// All ublk devices, by number.
pub fn list() -> Result<Vec<Identity>, Error> {
    Control::open()?.alone(|control| {
        numbers().into_iter().filter_map(|id| control.info(id).ok()).map(identity).collect()
    })
}

/// Deletes the devices with these numbers, or all orphans of ring3 if there are none; returns what
/// is deleted. A device that somebody serves or has open is refused, and then nothing is deleted.
pub fn delete(ids: &[u32]) -> Result<Vec<u32>, Error> {
    Control::open()?.alone(|control| {
        if ids.is_empty() {
            return Ok(sweep(control));
        }
        let ids: BTreeSet<u32> = ids.iter().copied().collect();
        for &id in &ids {
            let info = control.info(id)?;
            let recovering = identity(info).state == State::Recovering;
            if info.state == uapi::STATE_LIVE
                || is_held(id)
                || (recovering && !users::of(&format!("ublkb{id}")).is_empty())
            {
                return Err(Error::Served { id, pid: info.ublksrv_pid });
            }
        }
        ids.into_iter().map(|id| control.delete(id, None).map(|()| id)).collect()
    })?
}

/// Deletes all orphans of ring3, waiting a moment for those whose process is just dying. Call it
/// alone (`Control::alone`).
pub(super) fn sweep(control: &mut Control) -> Vec<u32> {
    let (mut deleted, mut dying) = (Vec::new(), numbers());
    let deadline = Deadline::after(DYING);
    while !dying.is_empty() {
        dying.retain(|&id| match control.info(id) {
            Ok(info) if is_orphan(info) => {
                match control.delete(id, None) {
                    Ok(()) => deleted.push(id),
                    Err(error) => {
                        tracing::warn!(%error, "a device that a dead process has left stays")
                    }
                }
                false
            }
            // One that can be recovered does not die with its process.
            Ok(info) => {
                is_ours(info) && !is_recoverable(info) && info.ublksrv_pid > 0 && !lives(info)
            }
            Err(_) => false,
        });
        if deadline.expired() {
            break;
        }
        if !dying.is_empty() {
            thread::sleep(Duration::from_millis(10));
        }
    }
    if !deleted.is_empty() {
        tracing::info!(?deleted, "ublk devices of ring3 that nobody served are deleted");
    }
    deleted
}

/// Makes number `id` free if what has it is ring3's and left behind. Call it alone
/// (`Control::alone`).
pub(super) fn release(control: &mut Control, id: u32) -> Result<(), Error> {
    let deadline = Deadline::after(ORPHAN);
    loop {
        let info = match control.info(id) {
            Err(Error::Command { cause, .. }) if cause.raw_os_error() == Some(libc::ENODEV) => {
                return Ok(());
            }
            info => info?,
        };
        if is_orphan(info) {
            return control.delete(id, None);
        }
        if identity(info).state == State::Recovering {
            return Err(Error::Recovering { id });
        }
        let served = info.state == uapi::STATE_LIVE || info.ublksrv_pid > 0;
        if !is_ours(info) && !served {
            return Err(Error::Foreign { id });
        }
        if !is_ours(info) || lives(info) || deadline.expired() {
            return Err(Error::Taken { id, pid: info.ublksrv_pid });
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn identity(info: DeviceInfo) -> Identity {
    let state = match info.state {
        uapi::STATE_LIVE => State::Served,
        uapi::STATE_DEAD if is_orphan(info) => State::Orphan,
        uapi::STATE_DEAD if is_ours(info) => State::Held,
        uapi::STATE_DEAD => State::Idle,
        _ => State::Recovering,
    };
    Identity {
        id: info.dev_id,
        state,
        ring3: is_ours(info),
        pid: (info.ublksrv_pid > 0).then_some(info.ublksrv_pid),
        queues: info.nr_hw_queues,
        depth: info.queue_depth,
    }
}

/// Whether the device outlives its server.
pub(super) fn is_recoverable(info: DeviceInfo) -> bool {
    info.flags & uapi::F_USER_RECOVERY != 0
}

pub(super) fn is_ours(info: DeviceInfo) -> bool {
    info.ublksrv_flags == uapi::MARK
}

/// Whether a device is ring3's, not started, and open nowhere. What cannot be opened for another
/// reason may be open somewhere.
fn is_orphan(info: DeviceInfo) -> bool {
    is_ours(info) && info.state == uapi::STATE_DEAD && open(info.dev_id).is_ok()
}

fn is_held(id: u32) -> bool {
    open(id).is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
}

fn open(id: u32) -> io::Result<File> {
    File::open(format!("/dev/ublkc{id}"))
}

/// Whether its process can be seen from here. One that cannot may be dying, or live in another
/// container.
pub(super) fn lives(info: DeviceInfo) -> bool {
    Path::new(&format!("/proc/{}", info.ublksrv_pid)).exists()
}

/// The numbers of all ublk devices.
fn numbers() -> Vec<u32> {
    let entries = fs::read_dir("/sys/class/ublk-char").into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(ublksrv_flags: u64, state: u16) -> DeviceInfo {
        // A number that no kernel gives, so that nothing can be opened by it.
        DeviceInfo {
            dev_id: uapi::MAX_ID + 1,
            ublksrv_flags,
            state,
            ublksrv_pid: -1,
            ..DeviceInfo::default()
        }
    }

    #[test]
    fn what_cannot_be_opened_is_no_orphan() {
        assert_eq!(identity(info(uapi::MARK, uapi::STATE_DEAD)).state, State::Held);
    }

    #[test]
    fn another_programs_device_is_never_an_orphan() {
        assert_eq!(identity(info(0, uapi::STATE_DEAD)).state, State::Idle);
        assert_eq!(identity(info(1, uapi::STATE_DEAD)).state, State::Idle);
    }

    #[test]
    fn a_device_that_is_started_is_served_whoever_made_it() {
        assert_eq!(identity(info(uapi::MARK, uapi::STATE_LIVE)).state, State::Served);
        assert_eq!(identity(info(0, uapi::STATE_LIVE)).state, State::Served);
    }

    #[test]
    fn a_device_without_a_process_has_no_process_id() {
        assert_eq!(identity(info(0, uapi::STATE_DEAD)).pid, None);
    }
}
