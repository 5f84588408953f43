//! The descriptors of one queue: memory that the kernel writes and this process reads.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::Error;
use super::uapi::{self, Descriptor};

/// A queue's descriptors, one per tag.
pub struct Descriptors {
    base: NonNull<Descriptor>,
    depth: u16,
    len: usize,
}

// SAFETY: the mapping is read-only memory that is read by volatile copies; it belongs to no thread.
unsafe impl Send for Descriptors {}

impl Descriptors {
    /// Maps those of `queue` of the device behind `file` (`/dev/ublkcN`).
    pub fn map(file: &impl AsFd, queue: u16, depth: u16) -> Result<Self, Error> {
        let page = rustix::param::page_size();
        let len = uapi::descriptors_len(depth, page);
        let offset = uapi::descriptors_offset(queue, page) as u64;
        // SAFETY: a fresh mapping at an address that the kernel chooses aliases nothing.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::POPULATE,
                file,
                offset,
            )
        }
        .map_err(|source| {
            Error::os(format!("mapping the requests of ublk queue {queue}"), source)
        })?;
        let base = NonNull::new(base.cast())
            .ok_or_else(|| Error::os("mapping at address 0", rustix::io::Errno::INVAL))?;
        Ok(Self { base, depth, len })
    }

    /// The descriptor of `tag`; valid after its fetch has completed. A tag that the queue does not
    /// have yields an empty one, which no request is.
    #[inline]
    pub fn read(&self, tag: u16) -> Descriptor {
        if tag >= self.depth {
            return Descriptor::default();
        }
        // SAFETY: `tag` is below the depth for which the mapping was made; the kernel may write at
        // any time, so the copy is volatile, and any bytes are a descriptor.
        unsafe { self.base.as_ptr().add(tag.into()).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and readers hold this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
