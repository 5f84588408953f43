//! A kernel block device, or a file, through io_uring as the target.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use io_uring::{cqueue, opcode, squeue, types};
use ring3_device::dma::Region;

use super::buffers::{self, Buffers};
use super::ring::Ring;
use super::{Done, Target};
use crate::Error;

/// How long a device may be somebody else's before it is in use. A process that was killed under a
/// load has its ring torn down by a worker of the kernel, which a busy host lets wait for seconds.
const GRACE: Duration = Duration::from_secs(5);

/// How a file is opened.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Whether it will be written. A block device is then opened exclusively: one that is mounted
    /// is refused.
    pub write: bool,
    /// Whether the page cache is left out.
    pub direct: bool,
}

/// An open file with a ring and a registered buffer for each slot.
pub struct File {
    ring: Ring<squeue::Entry, cqueue::Entry>,
    capacity: u64,
}

impl File {
    /// Opens `path` for `depth` requests of up to `bytes` bytes.
    pub fn open(path: &Path, depth: u16, bytes: u32, options: FileOptions) -> Result<Self, Error> {
        let (file, capacity) = open(path, options)?;
        Ok(Self { ring: Ring::new(file, path.display().to_string(), depth, bytes)?, capacity })
    }

    /// The same, past the page cache, for a device that the kernel polls for completions: its
    /// driver needs queues for that (nvme.poll_queues).
    pub fn polled(path: &Path, depth: u16, bytes: u32, write: bool) -> Result<Self, Error> {
        let (file, capacity) = open(path, FileOptions { write, direct: true })?;
        let memory = Buffers::new(usize::from(depth), bytes as usize)?;
        Ok(Self {
            ring: Ring::over(file, path.display().to_string(), (depth, memory), true)?,
            capacity,
        })
    }

    /// The same as `open`, with the data of requests in `memory`, of [`room`](Self::room) bytes at
    /// least.
    pub fn open_in(
        memory: Arc<Region>,
        path: &Path,
        (depth, bytes): (u16, u32),
        options: FileOptions,
    ) -> Result<Self, Error> {
        let (file, capacity) = open(path, options)?;
        let memory = Buffers::within(memory, usize::from(depth), bytes as usize)?;
        Ok(Self {
            ring: Ring::over(file, path.display().to_string(), (depth, memory), false)?,
            capacity,
        })
    }

    /// Bytes of memory for `depth` requests of up to `bytes` bytes.
    pub fn room(depth: u16, bytes: u32) -> usize {
        buffers::room(depth.into(), bytes as usize)
    }

    /// Calls of io_uring_enter so far.
    pub fn enters(&self) -> u64 {
        self.ring.enters()
    }
}

/// What `open` gives, once nobody else has the device for himself.
fn once_free<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let begin = Instant::now();
    loop {
        match open() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && begin.elapsed() < GRACE => {
                sleep(Duration::from_millis(10))
            }
            opened => return opened,
        }
    }
}

/// The file and its size in bytes.
pub(super) fn open(path: &Path, options: FileOptions) -> Result<(std::fs::File, u64), Error> {
    let name = path.display();
    let block = std::fs::metadata(path)
        .map_err(|error| Error::os(format!("looking at {name}"), error))?
        .file_type()
        .is_block_device();
    let mut flags = if options.direct { libc::O_DIRECT } else { 0 };
    if block && options.write {
        flags |= libc::O_EXCL;
    }
    let opened = once_free(|| {
        OpenOptions::new().read(true).write(options.write).custom_flags(flags).open(path)
    });
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            Error::os(format!("{name} is in use: unmount it before it is overwritten"), error)
        }
        _ => Error::os(format!("opening {name}"), error),
    })?;
    // A block device has no length in its metadata, but its end can be sought.
    let capacity = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
        .map_err(|error| Error::os(format!("size of {name}"), error))?;
    Ok((file, capacity))
}

impl Target for File {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn depth(&self) -> u16 {
        self.ring.depth()
    }

    #[inline]
    fn queue(&mut self, slot: u16, write: bool, offset: u64, len: u32) -> Result<(), Error> {
        let (buffer, file) = (self.ring.memory.slot(usize::from(slot)), types::Fixed(0));
        let entry = match write {
            true => opcode::WriteFixed::new(file, buffer, len, slot).offset(offset).build(),
            false => opcode::ReadFixed::new(file, buffer, len, slot).offset(offset).build(),
        };
        self.ring.memory.expect(slot, len);
        self.ring.push(&entry.user_data(u64::from(slot)))
    }

    #[inline]
    fn proceed(&mut self) -> Result<(), Error> {
        self.ring.proceed()
    }

    #[inline]
    fn finished(&mut self) -> Result<Option<Done>, Error> {
        let done = self.ring.finished();
        Ok(done.map(|(slot, result)| Done { slot, ok: self.ring.memory.is_expected(slot, result) }))
    }

    fn fill(&mut self, slot: u16, bytes: &[u8]) -> Result<(), Error> {
        self.ring.memory.fill(slot, bytes)
    }

    fn copy_out(&self, slot: u16, bytes: &mut [u8]) -> Result<(), Error> {
        self.ring.memory.copy_out(slot, bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_device_that_is_let_go_of_a_little_later_is_opened_and_one_that_is_not_is_in_use() {
        let busy = || io::Error::from_raw_os_error(libc::EBUSY);
        let left = Cell::new(3);
        let freed =
            once_free(|| if left.replace(left.get() - 1) > 0 { Err(busy()) } else { Ok(()) });
        assert!(freed.is_ok() && left.get() == -1);
        assert_eq!(
            once_free(|| Err::<(), _>(busy())).unwrap_err().raw_os_error(),
            Some(libc::EBUSY)
        );
    }
}
