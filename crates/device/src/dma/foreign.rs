//! Memory that was not made for a device: an application's own.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use rustix::mm::{MapFlags, ProtFlags};

use super::{DmaBuffer, Memory, admit, bytes};
use crate::Error;

/// An allocation outside of the arena that a device may be pointed at. A clone is another handle on the same bytes.
///
/// An owned allocation *becomes* foreign memory: nobody holds a reference to its bytes from then on, because a device may write
/// them. Whole pages ([`Foreign::new`], [`Foreign::from_memory`]) can be mapped for the device; a `Vec` or a boxed slice shares its
/// pages with others, so its bytes are copied through the arena instead.
#[derive(Clone)]
pub struct Foreign {
    handle: Arc<Handle>,
}

/// What the users of an allocation share; mappings of it hold the allocation alone.
pub(super) struct Handle {
    allocation: Arc<Allocation>,
}

/// The bytes, kept for users and mappings.
pub(super) struct Allocation {
    id: u64,
    base: NonNull<u8>,
    len: usize,
    kind: Kind,
}

enum Kind {
    /// A mapping of our own.
    Mapping,
    /// A boxed slice, taken apart.
    Boxed,
    /// Shared memory, dropped with this.
    Memory(#[allow(dead_code, reason = "held for its mapping")] Memory),
}

// SAFETY: the bytes are only accessed by relaxed atomics, as a device does; everything else is immutable.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Foreign {
    /// `len` zeroed bytes, rounded up to whole pages, shared rather than private: a fork must not move them away from the device.
    pub fn new(len: usize) -> Result<Self, Error> {
        let len = len.max(1).next_multiple_of(rustix::param::page_size());
        admit(len)?;
        // SAFETY: a fresh mapping at an address that the kernel chooses aliases nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
        }
        .map_err(|error| Error::os(format!("allocating {len} bytes of memory"), error))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::Invalid("mapping at address 0".into()))?;
        Ok(Self::own(base, len, Kind::Mapping))
    }

    /// The bytes of a shared memory file.
    pub fn from_memory(memory: Memory) -> Result<Self, Error> {
        let base = NonNull::new(memory.as_ptr()).ok_or_else(|| Error::Invalid("mapping at address 0".into()))?;
        Ok(Self::own(base, memory.len(), Kind::Memory(memory)))
    }

    fn own(base: NonNull<u8>, len: usize, kind: Kind) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { handle: Arc::new(Handle { allocation: Arc::new(Allocation { id, base, len, kind }) }) }
    }

    /// Its number, never used twice in this process.
    pub fn id(&self) -> u64 {
        self.handle.allocation.id
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.handle.allocation.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.handle.allocation.len == 0
    }

    /// Where it lies in this process, for a kernel interface that takes an address. Never make a reference of it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.handle.allocation.as_ptr()
    }

    /// The bytes, for a mapping that must outlive its users.
    pub(super) fn allocation(&self) -> &Arc<Allocation> {
        &self.handle.allocation
    }

    /// Tells whether anyone still uses the bytes, without being a user.
    pub(super) fn users(&self) -> Weak<Handle> {
        Arc::downgrade(&self.handle)
    }

    /// Copies `bytes.len()` bytes out, from `offset` on.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let from = self.checked(offset, bytes.len())?;
        // SAFETY: `checked` proved the range, which is only accessed by raw pointers.
        unsafe { bytes::copy_out(from, bytes) };
        Ok(())
    }

    /// Copies `bytes` in, from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let to = self.checked(offset, bytes.len())?;
        // SAFETY: `checked` proved the range, which is only accessed by raw pointers.
        unsafe { bytes::copy_in(bytes, to) };
        Ok(())
    }

    /// Copies `len` bytes from `offset` on to `buffer[at..]`.
    pub(super) fn copy_to(&self, offset: usize, buffer: &DmaBuffer, at: usize, len: usize) -> Result<(), Error> {
        let (from, to) = (self.checked(offset, len)?, buffer.checked(at, len)?);
        // SAFETY: both ranges were checked, and an arena's memory is never foreign memory, so they do not overlap.
        unsafe { bytes::copy(from, to, len) };
        Ok(())
    }

    /// Copies `len` bytes from `buffer[at..]` to `offset`.
    pub(super) fn copy_from(&self, offset: usize, buffer: &DmaBuffer, at: usize, len: usize) -> Result<(), Error> {
        let (to, from) = (self.checked(offset, len)?, buffer.checked(at, len)?);
        // SAFETY: both ranges were checked, and an arena's memory is never foreign memory, so they do not overlap.
        unsafe { bytes::copy(from, to, len) };
        Ok(())
    }

    /// The first of `len` bytes at `offset`, if they lie within.
    pub(super) fn checked(&self, offset: usize, len: usize) -> Result<*mut u8, Error> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            return Err(Error::Invalid(format!("bytes {offset}+{len} of foreign memory of {}", self.len())));
        }
        // SAFETY: offset is within the allocation.
        Ok(unsafe { self.as_ptr().add(offset) })
    }
}

impl From<Box<[u8]>> for Foreign {
    fn from(bytes: Box<[u8]>) -> Self {
        let len = bytes.len();
        // SAFETY: a box is never null.
        let base = unsafe { NonNull::new_unchecked(Box::into_raw(bytes).cast::<u8>()) };
        Self::own(base, len, Kind::Boxed)
    }
}

impl From<Vec<u8>> for Foreign {
    fn from(bytes: Vec<u8>) -> Self {
        bytes.into_boxed_slice().into()
    }
}

impl Allocation {
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        match self.kind {
            Kind::Mapping => {
                // SAFETY: `new` mapped the range, and this was the last handle on it.
                let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
            }
            Kind::Boxed => {
                let bytes = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.len);
                // SAFETY: pointer and length are those of the box that `from` took apart, and this was the last handle on it.
                drop(unsafe { Box::from_raw(bytes) });
            }
            Kind::Memory(_) => {}
        }
    }
}

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Foreign({}, {} bytes)", self.id(), self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_becomes_foreign_memory_with_its_bytes() {
        let foreign = Foreign::from(vec![1u8, 2, 3]);
        let mut bytes = [0; 2];
        foreign.read(1, &mut bytes).unwrap();
        assert_eq!(bytes, [2, 3]);
    }

    #[test]
    fn a_copy_beyond_the_end_is_refused() {
        let foreign = Foreign::new(1).unwrap();
        assert!(foreign.write(foreign.len() - 1, &[0, 0]).is_err());
        assert!(foreign.read(usize::MAX, &mut [0]).is_err());
    }

    #[test]
    fn two_allocations_never_have_the_same_number() {
        let first = Foreign::from(vec![0]).id();
        assert_ne!(first, Foreign::from(vec![0]).id());
    }
}
