//! Memory for the bytes of requests that nobody will do.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// A buffer that the kernel may write to and that nobody reads: what a tag lends to the kernel when
/// its own buffer is lost to the driver, or to the device. All such tags share it. Untouched, it
/// costs no memory.
pub struct ScratchBuffer {
    base: NonNull<libc::c_void>,
    len: usize,
}

impl ScratchBuffer {
    /// Of `len` bytes.
    pub fn new(len: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address that the kernel chooses aliases nothing.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let base = NonNull::new(base).ok_or_else(|| io::Error::other("mapping at address 0"))?;
        Ok(Self { base, len })
    }

    /// Where it is, for the kernel.
    pub fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }
}

impl Drop for ScratchBuffer {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and the kernel writes there only within calls of the thread that
        // drops it, for tags that are fetched; the ring, and with it all fetches, is dropped by
        // then or makes no more calls.
        let _ = unsafe { munmap(self.base.as_ptr(), self.len) };
    }
}
