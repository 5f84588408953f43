//! The kernel's half of an exported disk: an identity that exists apart from the process that
//! serves it.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ring3_class::{Deadline, poll_until};

use super::control::Control;
use super::features::{Commands, Features};
use super::shape::{Recovery, Shape};
use super::uapi::{self, Admin, DeviceInfo, Parameters};
use super::{Error, identities, users};

/// How long the node of a new device may take to appear: devtmpfs makes it at once, a device
/// manager may rename or chown it.
const NODE: Duration = Duration::from_secs(5);

/// How long the kernel may take to end the requests of a queue that nobody serves any more.
const ABANDONED: Duration = Duration::from_secs(5);

/// How often the kernel is asked whether it has seen that a server has died.
const AGAIN: Duration = Duration::from_millis(1);

/// How long a work item of the kernel's may take where nobody tells when it has ended. It takes
/// microseconds once it runs.
const UNFLUSHED: Duration = Duration::from_millis(50);

/// One ublk device: an identity in the kernel, apart from who serves it. Dropping it leaves it as
/// it is, unless this process [owns](Self::own) its end.
pub struct Device {
    control: Control,
    info: DeviceInfo,
    /// `/dev/ublkcN`. While this process has it open, nobody takes the device for an orphan, and
    /// its number is not given away.
    file: Option<Arc<File>>,
    /// How it is started: as a new one, or once more.
    admin: Admin,
    started: bool,
    /// It was taken from a dead server, and no other one has been started.
    taken: bool,
    owned: bool,
    /// A queue's thread has ended before the device did: what waits for that queue may wait in
    /// vain.
    abandoned: Arc<AtomicBool>,
    /// The kernel did not end a command, and would not end the next.
    hung: bool,
    /// What a recovery waits for.
    flush: Option<WorkQueueFlush>,
}

impl Device {
    /// Creates `/dev/ublkcN` and opens it.
    ///
    /// What dead ring3 processes have left behind is deleted before, so that their numbers can be
    /// had.
    pub fn create(mut control: Control, id: Option<u32>, shape: Shape) -> Result<Self, Error> {
        if let Some(id) = id.filter(|&id| id > uapi::MAX_ID) {
            return Err(Error::Id { id: id.into() });
        }
        if shape.shared_memory && !control.features().shared_memory {
            return Err(Error::NoSharedMemory);
        }
        if shape.batches && !control.features().batches {
            return Err(Error::NoBatches);
        }
        let wanted = DeviceInfo {
            nr_hw_queues: shape.queues,
            queue_depth: shape.depth,
            max_io_buf_bytes: shape.buffer,
            dev_id: id.unwrap_or(u32::MAX),
            flags: shape.recovery.flags() | shape.of_requests(),
            ublksrv_flags: uapi::MARK,
            ..DeviceInfo::default()
        };
        let (info, file) = control.alone(|control| {
            identities::sweep(control);
            let info = match (control.add(wanted), id) {
                (Err(Error::Command { cause, .. }), Some(id))
                    if cause.raw_os_error() == Some(libc::EEXIST) =>
                {
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
                Err(refused(info.dev_id, "this kernel's ublk cannot do that"))
            };
            opened.map(|file| (info, file)).inspect_err(|_| drop(control.delete(info.dev_id, None)))
        })??;
        Ok(Self::new(control, info, Some(file), uapi::START_DEV))
    }

    /// Device `id` of ring3's, which outlives its servers, whoever serves it now: to be held, and
    /// [recovered](Self::recover) when that has died.
    pub fn find(mut control: Control, id: u32) -> Result<Self, Error> {
        let info = match control.info(id) {
            Err(Error::Command { cause, .. }) if cause.raw_os_error() == Some(libc::ENODEV) => {
                return Err(refused(id, "there is no such device (`ring3 ublk list`)"));
            }
            info => info?,
        };
        if !identities::is_ours(info) {
            return Err(refused(id, "another program has created it: let that recover it"));
        }
        if !identities::is_recoverable(info) {
            return Err(refused(id, "its disk has ended with the process that served it"));
        }
        let mut device = Self::new(control, info, None, uapi::END_USER_RECOVERY);
        device.started = info.state != uapi::STATE_DEAD;
        Ok(device)
    }

    /// As [`find`](Self::find), for who holds it from now on in the place of a process that did and
    /// has died, maybe while it [took it](Self::recover) from a server.
    pub fn adopt(control: Control, id: u32) -> Result<Self, Error> {
        let mut device = Self::find(control, id)?;
        device.taken = device.started && device.info.state != uapi::STATE_LIVE;
        Ok(device)
    }

    /// Takes it from a server that has died, as soon as the kernel has seen that, and opens it for
    /// the next one. Its users wait, until it is served and [started](Self::start).
    /// [`Error::Taken`] at `deadline`.
    ///
    /// The kernel ends what the dead server had in flight, and waits for RCU: 20 to 40 ms. 6.12
    /// takes 30 s if the server had all tags of a queue.
    ///
    /// Nothing that the dead server has begun may still change the disk: see the fence of the
    /// device's claim.
    pub fn recover(&mut self, deadline: Deadline) -> Result<(), Error> {
        let id = self.id();
        while !self.has_quiesced(deadline)? || !self.try_start_recovery()? {
            if deadline.expired() {
                return Err(Error::Taken { id, pid: self.info.ublksrv_pid });
            }
            thread::sleep(AGAIN);
        }
        (self.taken, self.admin) = (true, uapi::END_USER_RECOVERY);
        self.file = Some(Arc::new(open(id)?));
        Ok(())
    }

    /// Whether the kernel has done with the dead server, so that START_USER_RECOVERY is safe. Waits
    /// until `deadline` at most.
    ///
    /// Before 6.15, ublk cancels the commands of a dead server in a work item (`quiesce_work`,
    /// later `nosrv_work`), after it has changed the device's state. START_USER_RECOVERY checks
    /// the state and that `/dev/ublkcN` is closed, and does not wait for the work item. It resets
    /// the tags that the work item still walks: the kernel then ends a command that is gone, and
    /// dies of a NULL pointer in `io_uring_cmd_done`, or ends commands of the next server. So the
    /// work item must have returned before.
    ///
    /// Each queue's cancellation may queue it once, and that is over when the server's last command
    /// has ended, which closes `/dev/ublkcN`. The kernel's time-out of requests could queue it
    /// later, but runs only while a queue has no free tag, and the holder keeps one free.
    fn has_quiesced(&mut self, deadline: Deadline) -> Result<bool, Error> {
        if self.control.features().waits_for_cancellation {
            return Ok(true);
        }
        let id = self.id();
        match self.control.info(id)?.state {
            uapi::STATE_LIVE => return Ok(false),
            // There is nothing to recover: START_USER_RECOVERY says so.
            uapi::STATE_DEAD => return Ok(true),
            _ => {}
        }
        // One process at a time can have it open.
        match File::options().read(true).write(true).open(node(id)) {
            Ok(file) => drop(file),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(false),
            // A device manager may rename or chown it.
            Err(_) => drop(open(id)?),
        }
        let flush = self.flush.take().map_or_else(WorkQueueFlush::begin, Ok)?;
        match flush.wait(deadline) {
            Ok(()) => Ok(true),
            Err(flush) => {
                self.flush = Some(flush);
                Ok(false)
            }
        }
    }

    /// Has the kernel forget the dead server; `false` if it has not seen yet that it is dead.
    fn try_start_recovery(&mut self) -> Result<bool, Error> {
        let id = self.id();
        match self.control.start_recovery(id) {
            Ok(()) => Ok(true),
            Err(Error::Command { cause, .. }) if cause.raw_os_error() == Some(libc::EBUSY) => {
                Ok(false)
            }
            // The kernel waits for the next server already: the one before ended before it served.
            Err(Error::Command { cause, .. }) if is_invalid(&cause) && self.taken => Ok(true),
            Err(Error::Command { cause, .. }) if is_invalid(&cause) => {
                let reason = "it was never started, or a recovery broke off: `ring3 ublk delete` \
                              it, and start anew";
                Err(refused(id, reason))
            }
            Err(error) => Err(error),
        }
    }

    fn new(control: Control, info: DeviceInfo, file: Option<File>, admin: Admin) -> Self {
        let (abandoned, file) = (Arc::new(AtomicBool::new(false)), file.map(Arc::new));
        Self {
            control,
            info,
            file,
            admin,
            started: false,
            taken: false,
            owned: false,
            abandoned,
            hung: false,
            flush: None,
        }
    }

    /// From now on its end is this process's: dropping it stops it, whoever uses it, and gives its
    /// identity back.
    pub fn own(&mut self) {
        self.owned = true;
    }

    /// The number in its names.
    pub fn id(&self) -> u32 {
        self.info.dev_id
    }

    /// Hardware queues that it really has.
    pub fn queues(&self) -> u16 {
        self.info.nr_hw_queues
    }

    /// What it is: queues that it really has, and the rest as it was created.
    pub fn shape(&self) -> Shape {
        let DeviceInfo {
            nr_hw_queues: queues,
            queue_depth: depth,
            max_io_buf_bytes: buffer,
            flags,
            ..
        } = self.info;
        let has = |flag| flags & flag != 0;
        let (shared_memory, batches) = (has(uapi::F_SHMEM_ZC), has(uapi::F_BATCH_IO));
        Shape { queues, depth, buffer, recovery: Recovery::of(flags), shared_memory, batches }
    }

    /// What the kernel's ublk can do.
    pub fn features(&self) -> Features {
        self.control.features()
    }

    /// How it is served.
    pub fn commands(&self) -> Commands {
        Commands::of(self.shape().batches, self.features().encoded)
    }

    /// `/dev/ublkbN`.
    pub fn path(&self) -> PathBuf {
        format!("/dev/ublkb{}", self.id()).into()
    }

    /// For messages: `/dev/ublkbN`.
    pub fn name(&self) -> String {
        format!("/dev/ublkb{}", self.id())
    }

    /// `/dev/ublkcN`, by which it is served. Whoever only holds the device gives it to the server
    /// and keeps none: while anybody has it, the kernel does not see that the server has died.
    pub fn take_file(&mut self) -> Option<Arc<File>> {
        self.file.take()
    }

    pub(super) fn file(&self) -> Option<Arc<File>> {
        self.file.clone()
    }

    /// `abandoned` is set when whoever serves it ends before the device does.
    pub fn served_by(&mut self, abandoned: Arc<AtomicBool>) {
        self.abandoned = abandoned;
    }

    /// Whether the kernel has shown it and it was not stopped yet.
    pub(super) fn is_started(&self) -> bool {
        self.started
    }

    /// Whether anybody is known to use it.
    pub(super) fn is_used(&self) -> bool {
        users::check(&format!("ublkb{}", self.id())).is_err()
    }

    /// [`Error::Busy`] if anybody is known to use it.
    pub fn check_unused(&self) -> Result<(), Error> {
        users::check(&format!("ublkb{}", self.id()))
    }

    /// Tells the kernel what the disk is, before the first start.
    pub fn set_parameters(&mut self, parameters: Parameters) -> Result<(), Error> {
        self.control.set_parameters(self.info.dev_id, parameters)
    }

    /// What the kernel was told that the disk is.
    pub fn parameters(&mut self) -> Result<Parameters, Error> {
        self.control.parameters(self.info.dev_id)
    }

    /// The CPUs that submit to `queue`.
    pub fn affinity(&mut self, queue: u16) -> Result<Vec<usize>, Error> {
        self.control.affinity(self.info.dev_id, queue)
    }

    /// Creates `/dev/ublkbN` and scans its partitions, or goes on with it when it is recovered.
    /// Process `server` has opened `/dev/ublkcN`, and every queue must be served. [`Error::Hung`]
    /// at once if one is no longer.
    pub fn start(&mut self, server: u32) -> Result<(), Error> {
        let abandoned = self.abandoned.clone();
        self.control
            .start(self.admin, self.info.dev_id, server, &|| abandoned.load(Ordering::Acquire))?;
        (self.started, self.taken) = (true, false);
        Ok(())
    }

    /// Tells its users that it has `sectors` of 512 bytes from now on, after it was
    /// [started](Self::start). Whether the kernel [can](Features::resize): else it keeps its size.
    pub fn resize(&mut self, sectors: u64) -> Result<bool, Error> {
        let can = self.features().resize;
        if can {
            self.control.resize(self.info.dev_id, sectors)?;
        }
        Ok(can)
    }

    /// Removes `/dev/ublkbN` after what is in flight has ended; [`Error::Busy`] if somebody uses it
    /// and not `force`.
    pub fn stop(&mut self, force: bool) -> Result<(), Error> {
        if self.hung {
            return Err(Error::Hung {
                command: "STOP_DEV",
                device: self.name(),
                waited: Duration::ZERO,
            });
        }
        let (began, abandoned) = (Instant::now(), self.abandoned.clone());
        let in_vain = || abandoned.load(Ordering::Acquire) && began.elapsed() > ABANDONED;
        let stopped = if force || !self.started {
            self.control.stop(self.info.dev_id, &in_vain)
        } else {
            self.try_stop(&in_vain)
        };
        match &stopped {
            Err(Error::Busy { .. }) => {}
            Err(Error::Hung { .. }) => self.hung = true,
            _ => self.started = false,
        }
        stopped
    }

    fn try_stop(&mut self, in_vain: &dyn Fn() -> bool) -> Result<(), Error> {
        self.check_unused()?;
        let id = self.info.dev_id;
        if !self.control.features().safe_stop {
            return self.control.stop(id, in_vain);
        }
        match self.control.try_stop(id, in_vain) {
            Err(Error::Command { cause, .. }) if cause.raw_os_error() == Some(libc::EBUSY) => {
                Err(Error::Busy { device: self.name(), users: users::of(&format!("ublkb{id}")) })
            }
            result => result,
        }
    }
}

fn is_invalid(cause: &io::Error) -> bool {
    cause.raw_os_error() == Some(libc::EINVAL)
}

fn refused(id: u32, reason: &'static str) -> Error {
    Error::NotRecoverable { id, reason }
}

/// By which device `id` is served.
fn node(id: u32) -> String {
    format!("/dev/ublkc{id}")
}

/// A wait until all that was queued on the kernel's per-processor work queue has run, if it does
/// not sleep, and takes no longer than 10 ms.
///
/// `vm.stat_refresh` queues an item there for each processor and waits for these
/// (`schedule_on_each_cpu`). A processor's items start in their order: the next one when the one
/// before has ended, sleeps, or has run for so long. The wait is a thread's own, because it cannot
/// be interrupted, and takes for ever where a real-time process keeps a processor.
struct WorkQueueFlush(mpsc::Receiver<()>);

impl WorkQueueFlush {
    fn begin() -> Result<Self, Error> {
        let (ended, end) = mpsc::channel();
        let flush = move || {
            if fs::read("/proc/sys/vm/stat_refresh").is_err() {
                thread::sleep(UNFLUSHED);
            }
            let _ = ended.send(());
        };
        let thread = thread::Builder::new().name("flush".into()).spawn(flush);
        thread.map_err(|error| Error::os("starting a thread", error))?;
        Ok(Self(end))
    }

    /// Gives it back if it has not ended by `deadline`.
    fn wait(self, deadline: Deadline) -> Result<(), Self> {
        match self.0.recv_timeout(deadline.remaining()) {
            Err(mpsc::RecvTimeoutError::Timeout) => Err(self),
            _ => Ok(()),
        }
    }
}

/// Opens `/dev/ublkcN`; one process at a time can.
fn open(id: u32) -> Result<File, Error> {
    let path = node(id);
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    let opened = poll_until(Deadline::after(NODE), "the device node", || {
        match File::options().read(true).write(true).open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(error) => {
                last = error;
                Ok(None)
            }
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
        let result = self
            .stop(true)
            .and_then(|()| self.control.alone(|control| control.delete(id, file))?);
        if let Err(error) = result {
            tracing::warn!(
                %error,
                "a ublk device was left behind; `ring3 ublk delete` removes it when this process \
                 is gone"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_can_be_recovered_by_a_thread_of_its_own() {
        fn sendable<T: Send>() {}
        sendable::<Device>();
    }
}
