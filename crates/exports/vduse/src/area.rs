//! Words that driver and device share.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use crate::Fault;
use crate::memory::{Access, Memory};

/// Words that the driver reaches, too.
#[derive(Debug)]
pub struct Area {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it lies in memory that the queue owns, and is only accessed by atomics.
unsafe impl Send for Area {}

impl Area {
    /// `bytes` at `iova`, which are aligned as what is in them.
    pub fn new(
        memory: &mut Memory,
        iova: u64,
        bytes: usize,
        access: Access,
    ) -> Result<Self, Fault> {
        let place = memory.place(iova, bytes as u32, access)?;
        let base = memory
            .pointer(place, 0, bytes as u32)
            .ok_or(Fault::Unmapped { iova, len: bytes as u64 })?;
        Ok(Self { base, bytes })
    }

    #[inline]
    fn at<T>(&self, at: usize) -> *mut T {
        assert!(at + size_of::<T>() <= self.bytes, "the queue counts within its ring");
        // SAFETY: within the area, as was just seen.
        unsafe { self.base.add(at).cast().as_ptr() }
    }

    #[inline]
    pub fn word16(&self, at: usize) -> &AtomicU16 {
        // SAFETY: in the area, which is aligned (`Queue::open`), as are the places within it; only
        // accessed so.
        unsafe { AtomicU16::from_ptr(self.at(at)) }
    }

    #[inline]
    pub fn word32(&self, at: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.at(at)) }
    }

    #[inline]
    pub fn word64(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at(at)) }
    }
}
