//! What is in flight, in a file that outlives its writer.
//!
//! # Why
//! A driver's ring says what was offered and what was used. What a server has taken and not yet
//! given back is known to nobody when it dies, because places of the ring are used again. So each
//! chain's head has a byte here, set when it is taken and cleared after it was given back; and
//! beside it stands the used index up to which that has been done. All else follows: the chains
//! used since then are read from the device's ring, and what was taken are the used and those in
//! flight. One store takes a chain, whenever the process dies.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Error;

const MAGIC: [u8; 8] = *b"vduselog";
const VERSION: u32 = 1;
/// Bytes of the head, and of what stands before a queue's bytes.
const HEAD: usize = 256;
const BEFORE: usize = 64;
/// Bytes of an identity.
pub const IDENTITY: usize = 192;

/// The log of one device.
#[derive(Debug)]
pub struct Inflight {
    map: Arc<Map>,
    queues: u16,
    size: u16,
}

/// The log of one queue.
#[derive(Clone, Debug)]
pub struct Log {
    map: Arc<Map>,
    at: usize,
    size: u16,
}

#[derive(Debug)]
struct Map {
    base: NonNull<u8>,
    bytes: usize,
    path: PathBuf,
}

// SAFETY: the mapping belongs to this value, and is only accessed by atomics.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Inflight {
    /// A new one, in place of any that is there. `identity` says what the device is, in at most
    /// [`IDENTITY`] bytes.
    pub fn create(path: &Path, (queues, size): (u16, u16), identity: &[u8]) -> Result<Self, Error> {
        let failed = |cause| {
            Error::os(format!("{}: making the log of what is in flight", path.display()), cause)
        };
        let _ = std::fs::remove_file(path);
        let opened = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path);
        let mut file = opened.map_err(failed)?;
        file.set_len(bytes(queues, size) as u64).map_err(failed)?;
        file.write_all(&head(queues, size, identity)).map_err(failed)?;
        Self::map(path, &file, (queues, size))
    }

    /// The one that a dead server has left, if it is of such a device.
    pub fn open(path: &Path, (queues, size): (u16, u16), identity: &[u8]) -> Result<Self, Error> {
        let refused = |reason: String| Error::Log { path: path.display().to_string(), reason };
        let opened =
            File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path);
        let mut file = opened.map_err(|error| {
            refused(format!(
                "what was in flight is not known without it ({error}): nobody can go \
                 on with this device"
            ))
        })?;
        let about = file.metadata().map_err(|error| refused(error.to_string()))?;
        let mut found = [0; HEAD];
        let read = file.read_exact(&mut found);
        if about.uid() != rustix::process::geteuid().as_raw()
            || about.len() != bytes(queues, size) as u64
            || read.is_err()
            || found != head(queues, size, identity)[..]
        {
            return Err(refused(
                "the device was started as another one (size, blocks, queues, \
                 depth): go on with that"
                    .into(),
            ));
        }
        Self::map(path, &file, (queues, size))
    }

    /// The one that is there, of whatever device: for who ends it.
    pub fn left(path: &Path) -> Result<Self, Error> {
        let refused = |reason: String| Error::Log { path: path.display().to_string(), reason };
        let opened =
            File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path);
        let mut file = opened.map_err(|error| refused(error.to_string()))?;
        let about = file.metadata().map_err(|error| refused(error.to_string()))?;
        let mut found = [0; HEAD];
        let word = |found: &[u8; HEAD], at: usize| u16::from_ne_bytes([found[at], found[at + 1]]);
        let read = file.read_exact(&mut found).is_ok()
            && found[..8] == MAGIC
            && found[8..12] == VERSION.to_ne_bytes();
        let (queues, size) = (word(&found, 12), word(&found, 14));
        if !read
            || size == 0
            || about.uid() != rustix::process::geteuid().as_raw()
            || about.len() != bytes(queues, size) as u64
        {
            return Err(refused("it is no log of what is in flight".into()));
        }
        Self::map(path, &file, (queues, size))
    }

    fn map(path: &Path, file: &File, (queues, size): (u16, u16)) -> Result<Self, Error> {
        let bytes = bytes(queues, size);
        // SAFETY: a new mapping, anywhere.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        let base = base.ok().and_then(|base| NonNull::new(base.cast()));
        let base = base.ok_or_else(|| {
            Error::os(format!("{}: mapping it", path.display()), std::io::Error::last_os_error())
        })?;
        Ok(Self { map: Arc::new(Map { base, bytes, path: path.into() }), queues, size })
    }

    /// Of one queue; `None` if there is no such.
    pub fn queue(&self, queue: u16) -> Option<Log> {
        let at = HEAD + usize::from(queue) * stride(self.size);
        (queue < self.queues).then(|| Log { map: self.map.clone(), at, size: self.size })
    }

    /// Its device is no more.
    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.map.path);
    }
}

impl Log {
    #[inline]
    fn byte(&self, head: u16) -> &AtomicU8 {
        let at = self.at + BEFORE + usize::from(head.min(self.size - 1));
        // SAFETY: within the mapping, and only accessed so.
        unsafe { AtomicU8::from_ptr(self.map.base.add(at).as_ptr()) }
    }

    fn used(&self) -> &AtomicU16 {
        // SAFETY: within the mapping, aligned as pages are, and only accessed so.
        unsafe { AtomicU16::from_ptr(self.map.base.add(self.at).cast().as_ptr()) }
    }

    /// Chains that it has room for.
    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    pub(crate) fn has(&self, head: u16) -> bool {
        self.byte(head).load(Ordering::Relaxed) != 0
    }

    /// `head` is in flight from now on.
    #[inline]
    pub(crate) fn take(&self, head: u16) {
        self.byte(head).store(1, Ordering::Release);
    }

    /// It is no more, because the driver has been shown so.
    #[inline]
    pub(crate) fn give_back(&self, head: u16) {
        self.byte(head).store(0, Ordering::Release);
    }

    /// All that was used up to `index` is given back.
    #[inline]
    pub(crate) fn settle(&self, index: u16) {
        self.used().store(index, Ordering::Release);
    }

    /// Up to where that is so.
    pub(crate) fn settled(&self) -> u16 {
        self.used().load(Ordering::Acquire)
    }

    /// What is in flight.
    pub fn heads(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.size).filter(|&head| self.has(head))
    }

    /// Nothing is in flight, and nothing was used.
    pub fn clear(&self) {
        (0..self.size).for_each(|head| self.give_back(head));
        self.settle(0);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped by this value, and all that points there ends with it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

fn stride(size: u16) -> usize {
    BEFORE + usize::from(size).next_multiple_of(BEFORE)
}

fn bytes(queues: u16, size: u16) -> usize {
    HEAD + usize::from(queues) * stride(size)
}

fn head(queues: u16, size: u16, identity: &[u8]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    head[12..14].copy_from_slice(&queues.to_ne_bytes());
    head[14..16].copy_from_slice(&size.to_ne_bytes());
    let identity = &identity[..identity.len().min(IDENTITY)];
    head[16..20].copy_from_slice(&(identity.len() as u32).to_ne_bytes());
    head[64..64 + identity.len()].copy_from_slice(identity);
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_known_to_who_opens_the_log_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = Inflight::create(&path, (2, 128), b"disk").unwrap();
        log.queue(1).unwrap().take(127);
        log.queue(1).unwrap().settle(9);
        drop(log);
        let log = Inflight::open(&path, (2, 128), b"disk").unwrap();
        let queue = log.queue(1).unwrap();
        assert_eq!((queue.heads().collect::<Vec<_>>(), queue.settled()), (vec![127], 9));
        assert_eq!(log.queue(0).unwrap().heads().count(), 0);
        assert!(log.queue(2).is_none());
    }

    #[test]
    fn who_ends_a_device_opens_its_log_without_knowing_what_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        Inflight::create(&path, (2, 128), b"disk").unwrap().queue(1).unwrap().take(3);
        let log = Inflight::left(&path).unwrap();
        assert_eq!(log.queue(1).unwrap().heads().collect::<Vec<_>>(), [3]);
        std::fs::write(&path, b"vduselog").unwrap();
        assert!(matches!(Inflight::left(&path), Err(Error::Log { .. })));
    }

    #[test]
    fn a_log_of_another_device_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        drop(Inflight::create(&path, (1, 64), b"disk").unwrap());
        for (shape, identity) in
            [((2, 64), &b"disk"[..]), ((1, 128), b"disk"), ((1, 64), b"other"), ((1, 64), b"disk2")]
        {
            assert!(matches!(Inflight::open(&path, shape, identity), Err(Error::Log { .. })));
        }
        assert!(matches!(
            Inflight::open(&folder.path().join("none"), (1, 64), b"disk"),
            Err(Error::Log { .. })
        ));
    }
}
