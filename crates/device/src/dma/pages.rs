//! What an IOMMU maps: whole pages of this process, kept alive by whoever maps them.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::foreign::Allocation;
use super::{Foreign, Memory, bytes};
use crate::Error;

/// A range of this process' memory that starts and ends on page boundaries. A clone is another handle on the same bytes.
///
/// The bytes stay mapped here for as long as any handle lives, so that a backend that keeps one until `unmap` never reaches
/// memory that is gone.
#[derive(Clone)]
pub struct Pages {
    owner: Owner,
    offset: usize,
    len: usize,
}

#[derive(Clone)]
enum Owner {
    Memory(Arc<Memory>),
    Foreign(Arc<Allocation>),
}

impl Pages {
    /// `memory[offset..offset + len]`.
    pub fn of_memory(memory: &Arc<Memory>, offset: usize, len: usize) -> Result<Self, Error> {
        check(memory.as_ptr(), memory.len(), offset, len)?;
        Ok(Self { owner: Owner::Memory(memory.clone()), offset, len })
    }

    /// All of `foreign`, which must start and end on page boundaries: what shares its pages would be open to the device, too.
    pub fn of_foreign(foreign: &Foreign) -> Result<Self, Error> {
        check(foreign.as_ptr(), foreign.len(), 0, foreign.len())?;
        Ok(Self { owner: Owner::Foreign(foreign.allocation().clone()), offset: 0, len: foreign.len() })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte, for a kernel interface that takes an address and for a model that plays the device. Never make a
    /// reference of it.
    pub fn as_ptr(&self) -> NonNull<u8> {
        let base = match &self.owner {
            Owner::Memory(memory) => memory.as_ptr(),
            Owner::Foreign(allocation) => allocation.as_ptr(),
        };
        // SAFETY: `check` proved that the offset is within the owner's range, which does not start at address 0.
        unsafe { NonNull::new_unchecked(base.add(self.offset)) }
    }

    /// Copies `bytes.len()` bytes out, from `offset` on, as a device does.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let from = self.checked(offset, bytes.len())?;
        // SAFETY: `checked` proved the range, which is only accessed by raw pointers.
        unsafe { bytes::copy_out(from, bytes) };
        Ok(())
    }

    /// Copies `bytes` in, from `offset` on, as a device does.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let to = self.checked(offset, bytes.len())?;
        // SAFETY: `checked` proved the range, which is only accessed by raw pointers.
        unsafe { bytes::copy_in(bytes, to) };
        Ok(())
    }

    fn checked(&self, offset: usize, len: usize) -> Result<*mut u8, Error> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::Invalid(format!("bytes {offset}+{len} of {} mapped ones", self.len)));
        }
        // SAFETY: offset is within the pages.
        Ok(unsafe { self.as_ptr().as_ptr().add(offset) })
    }

    /// The file and the offset in it, for who must see the same bytes in another process; `None` for private memory and for pages that
    /// do not lie in the order of their file.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.owner {
            Owner::Memory(memory) if memory.is_in_file_order() => Some((memory.as_fd(), self.offset as u64)),
            Owner::Memory(_) | Owner::Foreign(_) => None,
        }
    }
}

fn check(base: *const u8, total: usize, offset: usize, len: usize) -> Result<(), Error> {
    let page = rustix::param::page_size();
    let aligned = (base as usize).wrapping_add(offset).is_multiple_of(page) && len.is_multiple_of(page);
    if len == 0 || !aligned || offset.checked_add(len).is_none_or(|end| end > total) {
        return Err(Error::Invalid(format!("mapping bytes {offset}+{len} of {total}: not whole pages of it")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_beyond_the_end_are_refused() {
        let memory = Arc::new(Memory::new(4096).unwrap());
        let len = memory.len();
        assert!(Pages::of_memory(&memory, 4096, len).is_err());
        assert!(Pages::of_memory(&memory, usize::MAX & !4095, 4096).is_err());
    }

    #[test]
    fn memory_that_shares_its_pages_with_others_is_refused() {
        assert!(Pages::of_foreign(&Foreign::from(vec![0u8; 100])).is_err());
    }

    #[test]
    fn the_bytes_outlive_every_other_handle() {
        let memory = Arc::new(Memory::new(8192).unwrap());
        let pages = Pages::of_memory(&memory, 4096, 4096).unwrap();
        drop(memory);
        // SAFETY: the page is mapped as long as `pages` lives, and nobody else has it.
        unsafe { pages.as_ptr().write_volatile(7) };
        assert_eq!(pages.file().unwrap().1, 4096);
    }
}
