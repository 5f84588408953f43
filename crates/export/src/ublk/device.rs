//! The kernel's half of an exported disk: an identity that exists apart from the process that serves it.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ring3_class::{Deadline, poll_until};

use super::control::Control;
use super::uapi::{self, Admin, DeviceInfo, Parameters};
use super::{Error, identities, users};

/// How long the node of a new device may take to appear: devtmpfs makes it at once, a device manager may rename or chown it.
const NODE: Duration = Duration::from_secs(5);

/// How long the kernel may take to end the requests of a queue that nobody serves any more.
const ABANDONED: Duration = Duration::from_secs(5);

/// How long the kernel may take to see that a device's server has died: it ends what that had in flight, and waits for RCU. 6.12 takes 30 s if the
/// server had all tags of a queue.
const DEATH: Duration = Duration::from_secs(60);

/// The same while the server can still be seen: it may be dying, or well.
const DYING: Duration = Duration::from_secs(5);

/// How often it is asked whether the kernel has seen that.
const AGAIN: Duration = Duration::from_millis(5);

/// What becomes of a device whose server dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recovery {
    /// It goes, with errors for what is in flight.
    #[default]
    None,
    /// It stays, and the next server is given what the dead one had. Requests wait meanwhile.
    Reissue,
    /// It stays. What the dead server had fails; what comes waits for the next one.
    Wait,
    /// It stays. What the dead server had fails, and what comes until there is a next one. Kernels from 6.13 on.
    Fail,
}

impl Recovery {
    fn flags(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Reissue => uapi::F_USER_RECOVERY | uapi::F_USER_RECOVERY_REISSUE,
            Self::Wait => uapi::F_USER_RECOVERY,
            Self::Fail => uapi::F_USER_RECOVERY | uapi::F_USER_RECOVERY_FAIL_IO,
        }
    }
}

/// What a device is to be.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Queues; the kernel may give fewer.
    pub queues: u16,
    /// Tags of each.
    pub depth: u16,
    /// Bytes of each tag's buffer.
    pub buffer: u32,
    /// What becomes of it when its server dies.
    pub recovery: Recovery,
}

/// One ublk device: an identity in the kernel, apart from who serves it. Dropping it leaves it as it is, unless this process
/// [owns](Self::own) its end.
pub struct Device {
    control: Control,
    info: DeviceInfo,
    /// `/dev/ublkcN`. While this process has it open, nobody takes the device for an orphan, and its number is not given away.
    file: Option<Arc<File>>,
    /// How it is started: as a new one, or once more.
    admin: Admin,
    started: bool,
    owned: bool,
    /// A queue's thread has ended before the device did: what waits for that queue may wait in vain.
    abandoned: Arc<AtomicBool>,
    /// The kernel did not end a command, and would not end the next.
    hung: bool,
}

impl Device {
    /// Creates `/dev/ublkcN` and opens it.
    ///
    /// What dead ring3 processes have left behind is deleted before, so that their numbers can be had.
    pub fn create(mut control: Control, id: Option<u32>, shape: Shape) -> Result<Self, Error> {
        if let Some(id) = id.filter(|&id| id > uapi::MAX_ID) {
            return Err(Error::Id { id: id.into() });
        }
        let wanted = DeviceInfo {
            nr_hw_queues: shape.queues,
            queue_depth: shape.depth,
            max_io_buf_bytes: shape.buffer,
            dev_id: id.unwrap_or(u32::MAX),
            flags: shape.recovery.flags(),
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
            // A kernel that does not know a flag takes it away.
            let kept = info.flags & wanted.flags == wanted.flags;
            let opened = if kept {
                open(info.dev_id)
            } else {
                Err(refused(info.dev_id, "this kernel's ublk cannot do that: another --recoverable, or none"))
            };
            opened.map(|file| (info, file)).inspect_err(|_| drop(control.delete(info.dev_id, None)))
        })??;
        Ok(Self::new(control, info, file, uapi::START_DEV))
    }

    /// What device `id` of ring3's is, that another server can go on with.
    pub(super) fn recoverable(control: &mut Control, id: u32) -> Result<DeviceInfo, Error> {
        match control.info(id) {
            Err(Error::Command { cause, .. }) if cause.raw_os_error() == Some(libc::ENODEV) => {
                Err(refused(id, "there is no such device (`ring3 ublk list`)"))
            }
            Ok(info) if !identities::is_ours(info) => Err(refused(id, "another program has created it: let that recover it")),
            Ok(info) if !identities::is_recoverable(info) => Err(refused(id, "it was not started with --recoverable")),
            info => info,
        }
    }

    /// Takes device `id` from a server that has died, and opens it. Its users wait, until it is served and [started](Self::start).
    ///
    /// Nothing that the dead server has begun may still change the disk: see the fence of the device's claim.
    pub fn recover(mut control: Control, id: u32) -> Result<Self, Error> {
        let info = Self::recoverable(&mut control, id)?;
        let deadline = Deadline::after(if identities::lives(info) { DYING } else { DEATH });
        loop {
            match control.start_recovery(id) {
                Ok(()) => break,
                Err(Error::Command { cause, .. }) if cause.raw_os_error() == Some(libc::EBUSY) => {}
                Err(Error::Command { cause, .. }) if cause.raw_os_error() == Some(libc::EINVAL) => {
                    return Err(refused(
                        id,
                        "it was never started, or a recovery broke off: `ring3 ublk delete` it, and start anew",
                    ));
                }
                Err(error) => return Err(error),
            }
            if deadline.expired() {
                return Err(Error::Taken { id, pid: info.ublksrv_pid });
            }
            thread::sleep(AGAIN);
        }
        let file = open(id)?;
        Ok(Self::new(control, info, file, uapi::END_USER_RECOVERY))
    }

    fn new(control: Control, info: DeviceInfo, file: File, admin: Admin) -> Self {
        let abandoned = Arc::new(AtomicBool::new(false));
        Self { control, info, file: Some(Arc::new(file)), admin, started: false, owned: false, abandoned, hung: false }
    }

    /// From now on its end is this process's: dropping it stops it, whoever uses it, and gives its identity back.
    pub fn own(&mut self) {
        self.owned = true;
    }

    pub(super) fn is_owned(&self) -> bool {
        self.owned
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

    /// `/dev/ublkcN`, by which it is served. Whoever only holds the device gives it to the server and keeps none: while anybody has it, the kernel does
    /// not see that the server has died.
    pub fn take_file(&mut self) -> Option<Arc<File>> {
        self.file.take()
    }

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

    /// Tells the kernel what the disk is, before the first start.
    pub fn set_parameters(&mut self, parameters: Parameters) -> Result<(), Error> {
        self.control.set_parameters(self.info.dev_id, parameters)
    }

    pub(super) fn affinity(&mut self, queue: u16) -> Result<Vec<usize>, Error> {
        self.control.affinity(self.info.dev_id, queue)
    }

    /// Creates `/dev/ublkbN` and scans its partitions, or goes on with it when it is recovered. Process `server` has opened `/dev/ublkcN`, and every queue
    /// must be served. [`Error::Hung`] at once if one is no longer.
    pub fn start(&mut self, server: u32) -> Result<(), Error> {
        let abandoned = self.abandoned.clone();
        self.control.start(self.admin, self.info.dev_id, server, &|| abandoned.load(Ordering::Acquire))?;
        self.started = true;
        Ok(())
    }

    /// Removes `/dev/ublkbN` after what is in flight has ended; [`Error::Busy`] if somebody uses it and not `force`.
    pub fn stop(&mut self, force: bool) -> Result<(), Error> {
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

fn refused(id: u32, reason: &'static str) -> Error {
    Error::NotRecoverable { id, reason }
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
        if !self.owned {
            return;
        }
        let (id, file) = (self.info.dev_id, self.file.take());
        let result = self.stop(true).and_then(|()| self.control.alone(|control| control.delete(id, file))?);
        if let Err(error) = result {
            tracing::warn!(%error, "a ublk device was left behind; `ring3 ublk delete` removes it when this process is gone");
        }
    }
}
