//! The kernel's half of an exported disk: an identity that exists apart from the process that serves it.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ring3_class::{Deadline, poll_until};

use super::control::Control;
use super::uapi::{self, DeviceInfo, Parameters};
use super::{Error, identities, users};

/// How long the node of a new device may take to appear: devtmpfs makes it at once, a device manager may rename or chown it.
const NODE: Duration = Duration::from_secs(5);

/// How long the kernel may take to end the requests of a queue that nobody serves any more.
const ABANDONED: Duration = Duration::from_secs(5);

/// One ublk device. Dropping it stops it, whoever uses it, and gives its identity back.
pub struct Device {
    control: Control,
    info: DeviceInfo,
    /// `/dev/ublkcN`. While this process has it open, nobody takes the device for an orphan, and its number is not given away.
    file: Option<Arc<File>>,
    started: bool,
    /// A queue's thread has ended before the device did: what waits for that queue may wait in vain.
    abandoned: Arc<AtomicBool>,
    /// The kernel did not end a command, and would not end the next.
    hung: bool,
}

impl Device {
    /// Creates `/dev/ublkcN` for `queues` queues of `depth` tags with buffers of `buffer` bytes, and opens it. The kernel may give
    /// fewer queues.
    ///
    /// What dead ring3 processes have left behind is deleted before, so that their numbers can be had.
    pub fn create(mut control: Control, id: Option<u32>, queues: u16, depth: u16, buffer: u32) -> Result<Self, Error> {
        if let Some(id) = id.filter(|&id| id > uapi::MAX_ID) {
            return Err(Error::Id { id: id.into() });
        }
        let wanted = DeviceInfo {
            nr_hw_queues: queues,
            queue_depth: depth,
            max_io_buf_bytes: buffer,
            dev_id: id.unwrap_or(u32::MAX),
            ublksrv_flags: uapi::MARK,
            ..DeviceInfo::default()
        };
        let (info, file) = control.alone(|control| {
            identities::sweep(control);
            let info = match (control.add(wanted), id) {
                (Err(Error::Command { cause, .. }), Some(id)) if cause.raw_os_error() == Some(libc::EEXIST) => {
                    identities::release(control, id)?;
                    control.add(wanted)?
                }
                (result, _) => result?,
            };
            match open(info.dev_id) {
                Ok(file) => Ok((info, Arc::new(file))),
                Err(error) => {
                    let _ = control.delete(info.dev_id, None);
                    Err(error)
                }
            }
        })??;
        let abandoned = Arc::new(AtomicBool::new(false));
        Ok(Self { control, info, file: Some(file), started: false, abandoned, hung: false })
    }

    /// The number in its names.
    pub fn id(&self) -> u32 {
        self.info.dev_id
    }

    /// Hardware queues that it really has.
    pub fn queues(&self) -> u16 {
        self.info.nr_hw_queues
    }

    /// `/dev/ublkbN`.
    pub fn path(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.id()).into()
    }

    /// For messages: `/dev/ublkbN`.
    pub fn name(&self) -> String {
        format!("/dev/ublkb{}", self.id())
    }

    /// `/dev/ublkcN`, by which it is served.
    pub(super) fn file(&self) -> Option<Arc<File>> {
        self.file.clone()
    }

    /// To be set when a queue's thread ends before the device does.
    pub(super) fn abandoned(&self) -> Arc<AtomicBool> {
        self.abandoned.clone()
    }

    /// Whether the kernel has shown it and it was not stopped yet.
    pub(super) fn is_started(&self) -> bool {
        self.started
    }

    /// Whether anybody is known to use it.
    pub(super) fn is_used(&self) -> bool {
        !users::of(self.id()).is_empty() || users::is_claimed(self.id())
    }

    pub(super) fn set_parameters(&mut self, parameters: Parameters) -> Result<(), Error> {
        self.control.set_parameters(self.info.dev_id, parameters)
    }

    pub(super) fn affinity(&mut self, queue: u16) -> Result<Vec<usize>, Error> {
        self.control.affinity(self.info.dev_id, queue)
    }

    /// Creates `/dev/ublkbN` and scans its partitions; every queue must be served. [`Error::Hung`] at once if one is no longer.
    pub(super) fn start(&mut self) -> Result<(), Error> {
        let abandoned = self.abandoned.clone();
        self.control.start(self.info.dev_id, &|| abandoned.load(Ordering::Acquire))?;
        self.started = true;
        Ok(())
    }

    /// Removes `/dev/ublkbN` after what is in flight has ended; [`Error::Busy`] if somebody uses it and not `force`.
    pub(super) fn stop(&mut self, force: bool) -> Result<(), Error> {
        if self.hung {
            return Err(Error::Hung { command: "STOP_DEV", device: self.name(), waited: Duration::ZERO });
        }
        let (began, abandoned) = (Instant::now(), self.abandoned.clone());
        let in_vain = || abandoned.load(Ordering::Acquire) && began.elapsed() > ABANDONED;
        let stopped =
            if force || !self.started { self.control.stop(self.info.dev_id, &in_vain) } else { self.try_stop(&in_vain) };
        match &stopped {
            Err(Error::Busy { .. }) => {}
            Err(Error::Hung { .. }) => self.hung = true,
            _ => self.started = false,
        }
        stopped
    }

    fn try_stop(&mut self, in_vain: &dyn Fn() -> bool) -> Result<(), Error> {
        let id = self.info.dev_id;
        let busy = |users| Error::Busy { device: format!("/dev/ublkb{id}"), users };
        let users = users::of(id);
        if !users.is_empty() || users::is_claimed(id) {
            return Err(busy(users));
        }
        if !self.control.features().safe_stop {
            return self.control.stop(id, in_vain);
        }
        match self.control.try_stop(id, in_vain) {
            Err(Error::Command { cause, .. }) if cause.raw_os_error() == Some(libc::EBUSY) => Err(busy(users::of(id))),
            result => result,
        }
    }
}

/// Opens `/dev/ublkcN`; one process at a time can.
fn open(id: u32) -> Result<File, Error> {
    let path = format!("/dev/ublkc{id}");
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    let opened =
        poll_until(Deadline::after(NODE), "the device node", || match File::options().read(true).write(true).open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(error) => {
                last = error;
                Ok(None)
            }
        });
    opened.map_err(|_| Error::os(format!("opening {path}"), last))
}

impl Drop for Device {
    fn drop(&mut self) {
        let (id, file) = (self.info.dev_id, self.file.take());
        let result = self.stop(true).and_then(|()| self.control.alone(|control| control.delete(id, file))?);
        if let Err(error) = result {
            tracing::warn!(%error, "a ublk device was left behind; `ring3 ublk delete` removes it when this process is gone");
        }
    }
}
