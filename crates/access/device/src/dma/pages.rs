//! The unit that an IOMMU maps: whole pages of this process, kept alive by their mappings.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::Region;
use crate::Error;

/// A range of a region that starts and ends on page boundaries. A clone is another handle on the
/// same bytes.
///
/// The bytes stay mapped here for as long as any handle lives, so that a backend that keeps one
/// until `unmap` never reaches memory that is gone.
#[derive(Clone, Debug)]
pub struct Pages {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

impl Pages {
    /// `region[offset..offset + len]`, whole pages: what shares its pages would be open to the
    /// device, too.
    pub fn new(region: &Arc<Region>, offset: usize, len: usize) -> Result<Self, Error> {
        let page = rustix::param::page_size();
        let aligned = (region.as_ptr() as usize).wrapping_add(offset).is_multiple_of(page)
            && len.is_multiple_of(page);
        if len == 0 || !aligned || offset.checked_add(len).is_none_or(|end| end > region.len()) {
            return Err(Error::Invalid(format!(
                "mapping bytes {offset}+{len} of {}: not whole pages of it",
                region.len()
            )));
        }
        Ok(Self { region: region.clone(), offset, len })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether they are huge ones.
    pub fn is_huge(&self) -> bool {
        self.region.is_huge()
    }

    /// The first byte, for a kernel interface that takes an address and for a model that plays the
    /// device. Never make a reference of it.
    pub fn as_ptr(&self) -> NonNull<u8> {
        // SAFETY: `new` proved that the offset is within the region, which does not start at
        // address 0.
        unsafe { NonNull::new_unchecked(self.region.as_ptr().add(self.offset)) }
    }

    /// Copies `bytes.len()` bytes out, from `offset` on, as a device does.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.region.read(self.checked(offset, bytes.len())?, bytes)
    }

    /// Copies `bytes` in, from `offset` on, as a device does.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.region.write(self.checked(offset, bytes.len())?, bytes)
    }

    /// Where in the region `offset` lies, if `len` bytes there are within the pages.
    fn checked(&self, offset: usize, len: usize) -> Result<usize, Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.offset + offset),
            _ => Err(Error::Invalid(format!("bytes {offset}+{len} of {} mapped ones", self.len))),
        }
    }

    /// The file and the offset in it, for who must see the same bytes in another process; `None`
    /// for private memory and for pages that do not lie in the order of their file.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.region.file().map(|(fd, start)| (fd, start + self.offset as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_beyond_the_end_are_refused() {
        let memory = Arc::new(Region::new(4096).unwrap());
        let len = memory.len();
        assert!(Pages::new(&memory, 4096, len).is_err());
        assert!(Pages::new(&memory, usize::MAX & !4095, 4096).is_err());
    }

    #[test]
    fn memory_that_shares_its_pages_with_others_is_refused() {
        assert!(Arc::new(Region::from(vec![0u8; 100].into_boxed_slice())).pages().is_err());
    }

    #[test]
    fn the_bytes_outlive_every_other_handle() {
        let memory = Arc::new(Region::new(8192).unwrap());
        let pages = Pages::new(&memory, 4096, 4096).unwrap();
        drop(memory);
        // SAFETY: the page is mapped as long as `pages` lives, and nobody else has it.
        unsafe { pages.as_ptr().write_volatile(7) };
        assert_eq!(pages.file().unwrap().1, 4096);
    }
}
