//! The kernel's half of an exported disk: an identity that exists apart from the process that serves it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ring3_class::{Deadline, poll_until};

use super::control::Control;
use super::uapi::{self, DeviceInfo, Parameters};
use super::{Error, users};

/// How long the node of a new device may take to appear: devtmpfs makes it at once, a device manager may rename or chown it.
const NODE: Duration = Duration::from_secs(5);

/// How long the kernel may take to notice that the process behind a device has died.
const ORPHAN: Duration = Duration::from_secs(5);

/// One ublk device. Dropping it stops it, whoever uses it, and gives its identity back.
pub struct Device {
    control: Control,
    info: DeviceInfo,
    started: bool,
}

impl Device {
    /// Creates `/dev/ublkcN` for `queues` queues of `depth` tags with buffers of `buffer` bytes. The kernel may give fewer queues.
    ///
    /// An identity that a dead process has left behind is taken over.
    pub fn create(mut control: Control, id: Option<u32>, queues: u16, depth: u16, buffer: u32) -> Result<Self, Error> {
        let wanted = DeviceInfo {
            nr_hw_queues: queues,
            queue_depth: depth,
            max_io_buf_bytes: buffer,
            dev_id: id.unwrap_or(u32::MAX),
            ..DeviceInfo::default()
        };
        let info = match (control.add(wanted), id) {
            (Err(Error::Command { cause, .. }), Some(id)) if cause.raw_os_error() == Some(libc::EEXIST) => {
                Self::remove_orphan(&mut control, id)?;
                control.add(wanted)?
            }
            (result, _) => result?,
        };
        Ok(Self { control, info, started: false })
    }

    /// Deletes device `id` if nobody serves it. The kernel takes a moment to notice that a process has died.
    fn remove_orphan(control: &mut Control, id: u32) -> Result<(), Error> {
        let deadline = Deadline::after(ORPHAN);
        loop {
            let info = control.info(id)?;
            let is_open = File::open(format!("/dev/ublkc{id}")).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
            if !is_open && info.state == uapi::STATE_DEAD {
                tracing::info!(id, "taking over the identity of a ublk device that nobody serves");
                return control.delete(id);
            }
            // A device that is being set up has no process yet, but is open.
            let lives = info.ublksrv_pid <= 0 || Path::new(&format!("/proc/{}", info.ublksrv_pid)).exists();
            if (is_open && lives) || deadline.expired() {
                return Err(Error::Taken { id, pid: info.ublksrv_pid });
            }
            thread::sleep(Duration::from_millis(10));
        }
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

    /// Opens `/dev/ublkcN`, by which it is served; one process at a time.
    pub(super) fn open(&self) -> Result<File, Error> {
        let path = format!("/dev/ublkc{}", self.id());
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

    pub(super) fn set_parameters(&mut self, parameters: Parameters) -> Result<(), Error> {
        self.control.set_parameters(self.info.dev_id, parameters)
    }

    pub(super) fn affinity(&mut self, queue: u16) -> Result<Vec<usize>, Error> {
        self.control.affinity(self.info.dev_id, queue)
    }

    /// Creates `/dev/ublkbN` and scans its partitions; every queue must be served.
    pub(super) fn start(&mut self) -> Result<(), Error> {
        self.control.start(self.info.dev_id)?;
        self.started = true;
        Ok(())
    }

    /// Removes `/dev/ublkbN` after what is in flight has ended; [`Error::Busy`] if somebody uses it and not `force`.
    pub(super) fn stop(&mut self, force: bool) -> Result<(), Error> {
        let id = self.info.dev_id;
        if force || !self.started {
            self.started = false;
            return self.control.stop(id);
        }
        let busy = |users| Error::Busy { device: format!("/dev/ublkb{id}"), users };
        let users = users::of(id);
        if !users.is_empty() || users::is_claimed(id) {
            return Err(busy(users));
        }
        if self.control.features().safe_stop {
            match self.control.try_stop(id) {
                Err(Error::Command { cause, .. }) if cause.raw_os_error() == Some(libc::EBUSY) => {
                    return Err(busy(users::of(id)));
                }
                result => result?,
            }
        } else {
            self.control.stop(id)?;
        }
        self.started = false;
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let id = self.info.dev_id;
        let result = self.control.stop(id).and_then(|()| self.control.delete(id));
        if let Err(error) = result {
            tracing::warn!(%error, "a ublk device was left behind");
        }
    }
}
