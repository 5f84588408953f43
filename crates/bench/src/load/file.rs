//! A kernel block device, or a file, through io_uring as the target.
//!
//! The kernel's side is given what makes it fast: registered file and buffers, completions run in the submitter's own system call,
//! one system call per turn. What the comparison shows is then the driver's place, not a lazy generator.
//!
//! # Waiting
//! A timeout operation of one second is always in flight, so that no wait is unbounded and none pays for a timer of its own.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use io_uring::{IoUring, opcode, types};

use super::buffers::Buffers;
use super::{Done, Target};
use crate::Error;

/// The timeout operation's name among the slots.
const TIMER: u64 = u64::MAX;

/// How a file is opened.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Whether it will be written. A block device is then opened exclusively: one that is mounted is refused.
    pub write: bool,
    /// Whether the page cache is left out.
    pub direct: bool,
}

/// An open file with a ring and a registered buffer for each slot.
pub struct File {
    // Field order is drop order: the ring goes before the memory that it refers to.
    ring: IoUring,
    _file: std::fs::File,
    memory: Buffers,
    /// Where the kernel reads the timeout's length while it is submitted.
    second: Box<types::Timespec>,
    timer_armed: bool,
    name: String,
    capacity: u64,
    depth: u16,
    /// Calls of io_uring_enter.
    enters: u64,
}

impl File {
    /// Opens `path` for `depth` requests of up to `bytes` bytes.
    pub fn open(path: &Path, depth: u16, bytes: u32, options: FileOptions) -> Result<Self, Error> {
        let name = path.display().to_string();
        let failed = |what: &str, error: io::Error| Error::os(format!("{what} {name}"), error);
        let (file, capacity) = open(path, options)?;
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        let ring =
            builder.build(u32::from(depth) + 1).map_err(|error| failed("making an io_uring (Linux 6.1 or later) for", error))?;
        let memory = Buffers::new(usize::from(depth), bytes as usize)?;
        let iovecs: Vec<_> = (0..usize::from(depth)).map(|slot| memory.iovec(slot)).collect();
        // SAFETY: the buffers are a mapping that `File` keeps until after the ring is gone.
        unsafe { ring.submitter().register_buffers(&iovecs) }
            .map_err(|error| failed("registering buffers (enough locked memory? ulimit -l) for", error))?;
        ring.submitter().register_files(&[file.as_raw_fd()]).map_err(|error| failed("registering", error))?;
        let second = Box::new(types::Timespec::new().sec(1));
        Ok(Self { ring, _file: file, memory, second, timer_armed: false, name, capacity, depth, enters: 0 })
    }

    /// Calls of io_uring_enter so far.
    pub fn enters(&self) -> u64 {
        self.enters
    }

    fn push(&mut self, entry: &io_uring::squeue::Entry) -> Result<(), Error> {
        // SAFETY: what the entries refer to, the slots' buffers and the timeout's length, lives as long as the ring.
        unsafe { self.ring.submission().push(entry) }
            .map_err(|_| Error::Invalid(format!("{}: more requests than the ring has slots", self.name)))
    }

    fn arm_timer(&mut self) -> Result<(), Error> {
        let entry = opcode::Timeout::new(&raw const *self.second).build().user_data(TIMER);
        self.timer_armed = true;
        self.push(&entry)
    }
}

/// The file and its size in bytes.
pub(super) fn open(path: &Path, options: FileOptions) -> Result<(std::fs::File, u64), Error> {
    let name = path.display();
    let block =
        std::fs::metadata(path).map_err(|error| Error::os(format!("looking at {name}"), error))?.file_type().is_block_device();
    let mut flags = if options.direct { libc::O_DIRECT } else { 0 };
    if block && options.write {
        flags |= libc::O_EXCL;
    }
    let opened = OpenOptions::new().read(true).write(options.write).custom_flags(flags).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => Error::os(format!("{name} is in use: unmount it before it is overwritten"), error),
        _ => Error::os(format!("opening {name}"), error),
    })?;
    // A block device has no length in its metadata, but its end can be sought.
    let capacity =
        rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|error| Error::os(format!("size of {name}"), error))?;
    Ok((file, capacity))
}

impl Target for File {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn depth(&self) -> u16 {
        self.depth
    }

    #[inline]
    fn queue(&mut self, slot: u16, write: bool, offset: u64, len: u32) -> Result<(), Error> {
        let (buffer, file) = (self.memory.slot(usize::from(slot)), types::Fixed(0));
        let entry = match write {
            true => opcode::WriteFixed::new(file, buffer, len, slot).offset(offset).build(),
            false => opcode::ReadFixed::new(file, buffer, len, slot).offset(offset).build(),
        };
        self.memory.expect(slot, len);
        self.push(&entry.user_data(u64::from(slot)))
    }

    #[inline]
    fn proceed(&mut self) -> Result<(), Error> {
        if !self.timer_armed {
            self.arm_timer()?;
        }
        self.enters += 1;
        match self.ring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(()),
            Err(error) => Err(Error::os(format!("submitting to {}", self.name), error)),
        }
    }

    #[inline]
    fn finished(&mut self) -> Result<Option<Done>, Error> {
        while let Some(entry) = self.ring.completion().next() {
            if entry.user_data() == TIMER {
                self.timer_armed = false;
                continue;
            }
            let slot = entry.user_data() as u16;
            return Ok(Some(Done { slot, ok: self.memory.is_expected(slot, entry.result()) }));
        }
        Ok(None)
    }

    fn fill(&mut self, slot: u16, bytes: &[u8]) -> Result<(), Error> {
        self.memory.fill(slot, bytes)
    }

    fn copy_out(&self, slot: u16, bytes: &mut [u8]) -> Result<(), Error> {
        self.memory.copy_out(slot, bytes)
    }
}
