//! `/dev/ublk-control`: one command at a time, each with a deadline.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::squeue::Entry128;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use ring3_class::dma::Region;
use ring3_class::{Deadline, poll_until};
use rustix::fs::FlockOperation;

use super::features::Features;
use super::uapi::{self, Admin, AdminCommand, DeviceInfo, Parameters, SharedBuffer};
use super::{Error, server_id as server};

/// Most commands end at once; kernels that lose one never end it.
const QUICK: Duration = Duration::from_secs(30);

/// START_DEV reads the partition table and STOP_DEV waits for requests in flight: both as slow as
/// the disk.
const SLOW: Duration = Duration::from_secs(120);

/// Between two looks whether what a command waits for can still come.
const LOOK: Duration = Duration::from_millis(100);

/// How long another ring3 may take to create or delete a device.
const LOCKED: Duration = Duration::from_secs(60);

/// Says that what a command waits for cannot come any more.
pub(super) type IsCancelled<'a> = &'a dyn Fn() -> bool;

/// A command that depends on nobody.
pub(super) fn never() -> bool {
    false
}

/// Not about a queue.
const NO_QUEUE: u16 = u16::MAX;

/// Bytes of a CPU mask, for up to 8192 CPUs.
const CPU_MASK: usize = 1024;

/// The kernel's ublk, opened.
pub struct Control {
    file: File,
    ring: IoUring<Entry128, cqueue::Entry>,
    features: Features,
    sequence: u64,
}

impl Control {
    /// Opens it and asks what it can do.
    pub fn open() -> Result<Self, Error> {
        let file =
            File::options().read(true).write(true).open("/dev/ublk-control").map_err(|source| {
                match source.kind() {
                    io::ErrorKind::NotFound => Error::NoUblk,
                    io::ErrorKind::PermissionDenied => Error::Permission,
                    _ => Error::os("opening /dev/ublk-control", source),
                }
            })?;
        let ring = IoUring::builder()
            .build(4)
            .map_err(|source| Error::os("creating an io_uring for ublk commands", source))?;
        let features = Features::none(true);
        let mut control = Self { file, ring, features, sequence: 0 };
        let answer = match control.exchange(uapi::GET_FEATURES, u32::MAX, 0, Box::new(0u64), 8) {
            Ok(bits) => Ok(*bits),
            Err(Error::Command { cause, .. }) => Err(cause.raw_os_error().unwrap_or(libc::EIO)),
            Err(error) => return Err(error),
        };
        control.features = Features::decide(answer).map_err(|errno| match errno {
            libc::EPERM | libc::EACCES => Error::Permission,
            errno => Error::os("asking ublk for its features", io::Error::from_raw_os_error(errno)),
        })?;
        Ok(control)
    }

    /// What this kernel's ublk can do.
    pub fn features(&self) -> Features {
        self.features
    }

    pub(super) fn add(&mut self, wanted: DeviceInfo) -> Result<DeviceInfo, Error> {
        self.exchange(uapi::ADD_DEV, wanted.dev_id, 0, Box::new(wanted), size_of::<DeviceInfo>())
            .map(|info| *info)
    }

    pub(super) fn info(&mut self, id: u32) -> Result<DeviceInfo, Error> {
        self.exchange(uapi::GET_DEV_INFO, id, 0, Box::default(), size_of::<DeviceInfo>())
            .map(|info: Box<DeviceInfo>| *info)
    }

    pub(super) fn set_parameters(&mut self, id: u32, parameters: Parameters) -> Result<(), Error> {
        self.exchange(uapi::SET_PARAMS, id, 0, Box::new(parameters), Parameters::LEN as usize)
            .map(drop)
    }

    pub(super) fn parameters(&mut self, id: u32) -> Result<Parameters, Error> {
        let room = Box::new(Parameters { len: Parameters::LEN, ..Parameters::default() });
        self.exchange(uapi::GET_PARAMS, id, 0, room, Parameters::LEN as usize)
            .map(|parameters| *parameters)
    }

    /// The CPUs that submit to `queue`.
    pub(super) fn affinity(&mut self, id: u32, queue: u16) -> Result<Vec<usize>, Error> {
        let mask = self.exchange(
            uapi::GET_QUEUE_AFFINITY,
            id,
            queue.into(),
            Box::new([0u64; CPU_MASK / 8]),
            CPU_MASK,
        )?;
        Ok((0..CPU_MASK * 8).filter(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1).collect())
    }

    /// Starts the device by `admin` ([`uapi::START_DEV`], or [`uapi::END_USER_RECOVERY`]); process
    /// `pid` must serve it already. `in_vain`: nobody serves it any more, so that it will not
    /// start.
    pub(super) fn start(
        &mut self,
        admin: Admin,
        id: u32,
        pid: u32,
        in_vain: IsCancelled<'_>,
    ) -> Result<(), Error> {
        let mut numbers = server::numbers(pid).into_iter().peekable();
        while let Some(number) = numbers.next() {
            match self.plain(admin, id, number.into(), (SLOW, in_vain)) {
                Err(Error::Command { cause, .. })
                    if cause.raw_os_error() == Some(libc::EINVAL) && numbers.peek().is_some() => {}
                result => return result,
            }
        }
        Ok(())
    }

    /// Takes the device from a dead server.
    pub(super) fn start_recovery(&mut self, id: u32) -> Result<(), Error> {
        self.plain(uapi::START_USER_RECOVERY, id, 0, (QUICK, &never))
    }

    /// The device has `sectors` of 512 bytes from now on. It must have been started.
    pub(super) fn resize(&mut self, id: u32, sectors: u64) -> Result<(), Error> {
        self.plain(uapi::UPDATE_SIZE, id, sectors, (QUICK, &never))
    }

    /// Registers `memory`, whole pages and 4 GiB at most, with device `id`, which must have been
    /// created for that: requests that lie in it come with the index that is returned. The kernel
    /// pins the pages until they are [unregistered](Self::unregister_memory) or the device is
    /// deleted, whatever becomes of `memory` and of this process.
    ///
    /// The kernel waits until all requests in flight have ended, with the device locked. So the
    /// caller must not be a queue's thread; nor its process: one that is killed meanwhile could not
    /// give up what it serves, and the kernel would wait for ever.
    pub fn register_memory(&mut self, id: u32, memory: &Region) -> Result<u16, Error> {
        let buffer = SharedBuffer {
            addr: memory.as_ptr() as u64,
            len: memory.len() as u64,
            ..SharedBuffer::default()
        };
        let (_, index) = self.exchange_within(
            uapi::REG_BUF,
            (id, 0),
            Box::new(buffer),
            size_of::<SharedBuffer>(),
            SLOW,
        )?;
        Ok(index as u16)
    }

    /// Has the kernel forget what it calls `index`: when this returns, no request lies there. As
    /// [`register_memory`](Self::register_memory), for who may wait.
    pub fn unregister_memory(&mut self, id: u32, index: u16) -> Result<(), Error> {
        self.plain(uapi::UNREG_BUF, id, index.into(), (SLOW, &never))
    }

    /// Stops the device, whoever uses it; what is in flight ends first. `in_vain`: nobody is there
    /// to end it.
    pub(super) fn stop(&mut self, id: u32, in_vain: IsCancelled<'_>) -> Result<(), Error> {
        self.plain(uapi::STOP_DEV, id, 0, (SLOW, in_vain))
    }

    /// Stops the device unless it is open: EBUSY. Only with [`Features::safe_stop`].
    pub(super) fn try_stop(&mut self, id: u32, in_vain: IsCancelled<'_>) -> Result<(), Error> {
        self.plain(uapi::TRY_STOP_DEV, id, 0, (SLOW, in_vain))
    }

    /// Does `work` while no other ring3 is in one. Between its creation and its opening, and
    /// between its closing and its deletion, a device looks like one that a dead process has left:
    /// none of ring3's is in between while the lock is held.
    ///
    /// The lock is one on `/dev/ublk-control` itself: it is there, it is the same file in every
    /// container that has the kernel's devices, and it goes with the process that holds it.
    pub(super) fn alone<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Result<T, Error> {
        let held = poll_until(Deadline::after(LOCKED), "the lock", || {
            Ok(rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive).ok())
        });
        held.map_err(|_| Error::Locked { waited: LOCKED })?;
        let done = work(self);
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        Ok(done)
    }

    /// Gives the identity back, without waiting for those who still hold the dead device open where
    /// the kernel can do that.
    ///
    /// `file` is this process's `/dev/ublkcN`, if it has it: it is closed after the kernel has
    /// taken the command, where that can be, because the number can be given to another device as
    /// soon as it is closed.
    pub(super) fn delete(&mut self, id: u32, file: Option<Arc<File>>) -> Result<(), Error> {
        if self.features.encoded {
            match self.plain(uapi::DEL_DEV_ASYNC, id, 0, (QUICK, &never)) {
                Err(Error::Command { cause, .. })
                    if cause.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                result => return result,
            }
        }
        drop(file);
        self.plain(uapi::DEL_DEV, id, 0, (QUICK, &never))
    }

    /// A command without memory, waited for until the limit, or until it waits in vain.
    fn plain(
        &mut self,
        admin: Admin,
        id: u32,
        data: u64,
        patience: (Duration, IsCancelled<'_>),
    ) -> Result<(), Error> {
        let argument = AdminCommand { dev_id: id, data, ..AdminCommand::default() };
        // SAFETY: there is no memory for the kernel to use.
        let end = unsafe { self.send(admin, argument, patience) };
        Self::judge(admin, id, patience.0, end).map(drop)
    }

    /// A command with `len` bytes of memory that the kernel reads, writes, or both.
    fn exchange<T: Copy>(
        &mut self,
        admin: Admin,
        id: u32,
        data: u64,
        memory: Box<T>,
        len: usize,
    ) -> Result<Box<T>, Error> {
        self.exchange_within(admin, (id, data), memory, len, QUICK).map(|(memory, _)| memory)
    }

    /// The same within `limit`, and with the result.
    fn exchange_within<T: Copy>(
        &mut self,
        admin: Admin,
        (id, data): (u32, u64),
        memory: Box<T>,
        len: usize,
        limit: Duration,
    ) -> Result<(Box<T>, i32), Error> {
        debug_assert!(len <= size_of::<T>());
        let pointer = Box::into_raw(memory);
        let argument = AdminCommand {
            dev_id: id,
            len: len as u16,
            addr: pointer as u64,
            data,
            ..AdminCommand::default()
        };
        // SAFETY: the memory is `T`'s, of at least `len` bytes, and stays until the command has
        // ended.
        let end = unsafe { self.send(admin, argument, (limit, &never)) };
        // A command that has not ended keeps its memory: the kernel may still write there.
        let memory = matches!(end, Ok(Some(_))).then(|| {
            // SAFETY: it came out of a box above, and the kernel has done with it. `T` is plain
            // integers, for which any bytes do.
            unsafe { Box::from_raw(pointer) }
        });
        let result = Self::judge(admin, id, limit, end)?;
        let memory =
            memory.ok_or_else(|| Error::os(admin.name, io::Error::from_raw_os_error(libc::EIO)))?;
        Ok((memory, result))
    }

    fn judge(
        admin: Admin,
        id: u32,
        waited: Duration,
        end: io::Result<Option<i32>>,
    ) -> Result<i32, Error> {
        let device = if id == u32::MAX { "ublk".into() } else { format!("/dev/ublkb{id}") };
        let command = admin.name;
        match end {
            Ok(Some(result)) if result >= 0 => Ok(result),
            Ok(Some(errno)) => {
                Err(Error::Command { command, device, cause: io::Error::from_raw_os_error(-errno) })
            }
            Ok(None) => Err(Error::Hung { command, device, waited }),
            Err(cause) => Err(Error::Command { command, device, cause }),
        }
    }

    /// Sends one command and waits for its result; `None` at the deadline, or when it waits in
    /// vain.
    ///
    /// # Safety
    /// `argument.addr` is zero, or memory of `argument.len` bytes that stays valid until this has
    /// returned a result; for ever, if it returns none.
    unsafe fn send(
        &mut self,
        admin: Admin,
        argument: AdminCommand,
        (limit, in_vain): (Duration, IsCancelled<'_>),
    ) -> io::Result<Option<i32>> {
        self.sequence += 1;
        let argument = AdminCommand { queue_id: NO_QUEUE, ..argument };
        let entry =
            opcode::UringCmd80::new(Fd(self.file.as_raw_fd()), admin.opcode(self.features.encoded))
                .cmd(argument.to_bytes())
                .build()
                .user_data(self.sequence);
        // SAFETY: the caller promises the memory; the file lives as long as the ring.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        let start = Instant::now();
        loop {
            let sequence = self.sequence;
            // Earlier completions are of commands that were given up.
            if let Some(entry) = self.ring.completion().find(|entry| entry.user_data() == sequence)
            {
                return Ok(Some(entry.result()));
            }
            let left = limit.saturating_sub(start.elapsed());
            if left.is_zero() || in_vain() {
                return Ok(None);
            }
            let timespec = Timespec::from(left.min(LOOK));
            match self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&timespec))
            {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR)) => {
                    return Err(error);
                }
                _ => {}
            }
        }
    }
}
