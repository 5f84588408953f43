//! Memory for the slots of a kernel file.

use std::ptr::NonNull;
use std::sync::Arc;

use ring3_device::dma::Region;
use rustix::mm::{MapFlags, ProtFlags};

use crate::Error;

/// Bytes of so many slots.
pub(super) fn room(slots: usize, bytes: usize) -> usize {
    slots.saturating_mul(bytes.next_multiple_of(rustix::param::page_size()))
}

/// One mapping, cut into slots that start on pages: anonymous, or somebody's who shares it.
pub(super) struct Buffers {
    base: NonNull<u8>,
    stride: usize,
    /// Bytes that each slot's request must move.
    expected: Vec<u32>,
    /// Whose it is, if it is not this value's.
    region: Option<Arc<Region>>,
}

// SAFETY: the mapping belongs to this value alone and is accessed through it only.
unsafe impl Send for Buffers {}

impl Buffers {
    pub(super) fn new(slots: usize, bytes: usize) -> Result<Self, Error> {
        let stride = bytes.next_multiple_of(rustix::param::page_size());
        ring3_device::dma::admit(slots.saturating_mul(stride))
            .map_err(|error| Error::Invalid(error.to_string()))?;
        // SAFETY: a new anonymous mapping touches no memory that exists.
        let base = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                slots * stride,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        };
        let base = base.map_err(|error| {
            Error::os(format!("mapping {} bytes of buffers", slots * stride), error)
        })?;
        let base = NonNull::new(base.cast())
            .ok_or_else(|| Error::Invalid("buffers at address 0".into()))?;
        Ok(Self { base, stride, expected: vec![0; slots], region: None })
    }

    /// The same in memory that is there already.
    pub(super) fn within(region: Arc<Region>, slots: usize, bytes: usize) -> Result<Self, Error> {
        let needed = room(slots, bytes);
        let base = NonNull::new(region.as_ptr()).filter(|_| needed <= region.len());
        let base = base.ok_or_else(|| {
            Error::Invalid(format!("{needed} bytes of buffers in {} of memory", region.len()))
        })?;
        let stride = bytes.next_multiple_of(rustix::param::page_size());
        Ok(Self { base, stride, expected: vec![0; slots], region: Some(region) })
    }

    /// The start of a slot; the first one for a slot that does not exist.
    pub(super) fn slot(&self, slot: usize) -> *mut u8 {
        let slot = if slot < self.expected.len() { slot } else { 0 };
        // SAFETY: the slot is within the mapping.
        unsafe { self.base.as_ptr().add(slot * self.stride) }
    }

    pub(super) fn iovec(&self, slot: usize) -> libc::iovec {
        libc::iovec { iov_base: self.slot(slot).cast(), iov_len: self.stride }
    }

    pub(super) fn expect(&mut self, slot: u16, len: u32) {
        if let Some(expected) = self.expected.get_mut(usize::from(slot)) {
            *expected = len;
        }
    }

    pub(super) fn is_expected(&self, slot: u16, result: i32) -> bool {
        self.expected.get(usize::from(slot)).is_some_and(|&len| i64::from(len) == i64::from(result))
    }

    /// The first bytes of slot 0, for a call that fills them before it returns. Nothing else may be
    /// in flight.
    pub(super) fn first(&mut self, bytes: u32) -> Result<&mut [u8], Error> {
        self.check(0, bytes as usize)?;
        if self.region.is_some() {
            return Err(Error::Invalid("a reference to memory that others write".into()));
        }
        // SAFETY: the range is within the slot, its bytes are initialized by the mapping, and the
        // borrow is exclusive.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), bytes as usize) })
    }

    /// Copies `bytes` into a slot that is not in flight.
    pub(super) fn fill(&mut self, slot: u16, bytes: &[u8]) -> Result<(), Error> {
        self.check(slot, bytes.len())?;
        // SAFETY: the range is within the slot, which is not in flight; the source is a Rust slice
        // outside of the mapping.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.slot(usize::from(slot)), bytes.len())
        };
        Ok(())
    }

    /// Copies the first bytes of a slot that is not in flight out.
    pub(super) fn copy_out(&self, slot: u16, bytes: &mut [u8]) -> Result<(), Error> {
        self.check(slot, bytes.len())?;
        // SAFETY: as above, the other way round.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.slot(usize::from(slot)),
                bytes.as_mut_ptr(),
                bytes.len(),
            )
        };
        Ok(())
    }

    fn check(&self, slot: u16, len: usize) -> Result<(), Error> {
        match usize::from(slot) < self.expected.len() && len <= self.stride {
            true => Ok(()),
            false => Err(Error::Invalid(format!("slot {slot} does not hold {len} bytes"))),
        }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if self.region.is_some() {
            return;
        }
        // SAFETY: the mapping was made in `new`, and its only users, the ring and this value, are
        // gone. Pages that a request in flight still needs are kept by the kernel.
        let _ = unsafe {
            rustix::mm::munmap(self.base.as_ptr().cast(), self.stride * self.expected.len())
        };
    }
}
