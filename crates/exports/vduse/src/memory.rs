//! The driver's memory as far as the device reaches it: regions of the IOTLB, each mapped when it
//! is first needed.
//!
//! # Pages that are not there
//! Within its bounce region the kernel has only those pages that something was ever bounced by;
//! touching another one kills the process (SIGBUS). So each page is asked for once
//! (`MADV_POPULATE_WRITE`), which fails instead, and is remembered: it stays until the region is
//! unmapped. On the way of requests that is a look into a bitmap.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::uapi::{READ, WRITE};
use crate::{Device, Fault};

/// Regions that a driver can have at most: rings are one each, data another.
const MOST_REGIONS: usize = 256;

/// What the device does there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

/// Bytes of the driver's memory that were found to be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    region: u32,
    pub(crate) len: u32,
    offset: u64,
}

#[derive(Debug)]
struct Region {
    start: u64,
    bytes: u64,
    base: NonNull<u8>,
    access: u8,
    /// A bit for each page, set when it is known to be there.
    present: Box<[u64]>,
}

/// The memory, for one thread. Pointers into it are nobody's but its owner's.
#[derive(Debug)]
pub struct Memory {
    device: Option<Arc<Device>>,
    regions: Vec<Region>,
    page: u64,
}

// SAFETY: the mappings belong to this value, and are only accessed by raw pointers.
unsafe impl Send for Memory {}

impl Memory {
    /// Of the driver of `device`; nothing is mapped yet.
    pub fn new(device: Arc<Device>) -> Self {
        Self {
            device: Some(device),
            regions: Vec::with_capacity(MOST_REGIONS),
            page: rustix::param::page_size() as u64,
        }
    }

    /// Of no device: zeroes at these addresses, so many bytes each. For tests of what is above.
    #[doc(hidden)]
    pub fn of_zeroes(ranges: &[(u64, usize)]) -> std::io::Result<Self> {
        let mut memory =
            Self { device: None, regions: Vec::new(), page: rustix::param::page_size() as u64 };
        for &(start, bytes) in ranges {
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping, anywhere.
            let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
            memory.add(start, bytes as u64, base.cast(), READ | WRITE);
        }
        Ok(memory)
    }

    fn add(&mut self, start: u64, bytes: u64, base: *mut u8, access: u8) {
        let words = bytes.div_ceil(self.page).div_ceil(64) as usize;
        let Some(base) = NonNull::new(base) else { return };
        self.regions.push(Region { start, bytes, base, access, present: vec![0; words].into() });
    }

    /// Finds `len` bytes at `iova`, all in one region and there for `access`. Maps the region if
    /// that was not needed before.
    #[inline]
    pub fn place(&mut self, iova: u64, len: u32, access: Access) -> Result<Place, Fault> {
        let unmapped = Fault::Unmapped { iova, len: len.into() };
        let find = |regions: &[Region]| {
            regions.iter().position(|region| iova.wrapping_sub(region.start) < region.bytes)
        };
        let number = match find(&self.regions) {
            Some(number) => number,
            None => {
                self.map(iova).ok_or(unmapped)?;
                find(&self.regions).ok_or(unmapped)?
            }
        };
        let region = &mut self.regions[number];
        let (offset, wanted) =
            (iova - region.start, if access == Access::Write { WRITE } else { READ });
        if u64::from(len) > region.bytes - offset
            || region.access & wanted == 0
            || !region.populate(offset, len, self.page)
        {
            return Err(unmapped);
        }
        Ok(Place { region: number as u32, len, offset })
    }

    #[cold]
    fn map(&mut self, iova: u64) -> Option<()> {
        let (fd, entry) = self.device.as_ref()?.region(iova, iova).ok().flatten()?;
        let bytes = entry.last.checked_sub(entry.start)?.checked_add(1)?;
        // Regions that overlap are no two regions.
        let overlaps = self.regions.iter().any(|known| {
            known.start <= entry.last && entry.start <= known.start + (known.bytes - 1)
        });
        if overlaps || self.regions.len() == MOST_REGIONS {
            return None;
        }
        let base = map(&fd, entry.offset, usize::try_from(bytes).ok()?, entry.access)?;
        self.add(entry.start, bytes, base, entry.access);
        Some(())
    }

    /// Where `len` bytes from `skip` on of `place` are; `None` if it does not have them.
    #[inline]
    pub(crate) fn pointer(&self, place: Place, skip: u32, len: u32) -> Option<NonNull<u8>> {
        let region = self.regions.get(place.region as usize)?;
        let offset = place.offset + u64::from(skip);
        let fits = u64::from(skip) + u64::from(len) <= place.len.into()
            && offset + u64::from(len) <= region.bytes;
        // SAFETY: within the region's mapping, as was just seen.
        fits.then(|| unsafe { region.base.add(offset as usize) })
    }

    /// Copies bytes out, from `skip` on; false if the place does not have them.
    #[inline]
    pub fn read(&self, place: Place, skip: u32, to: &mut [u8]) -> bool {
        let Some(from) = self.pointer(place, skip, to.len() as u32) else { return false };
        // SAFETY: `pointer` has proved the range. The driver may write it meanwhile: any bytes will
        // do, and no reference is made to it.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies `bytes` in, from `skip` on; false if the place has no room for them.
    #[inline]
    pub fn write(&self, place: Place, skip: u32, bytes: &[u8]) -> bool {
        let Some(to) = self.pointer(place, skip, bytes.len() as u32) else { return false };
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        true
    }
}

impl Region {
    /// Whether all pages of the range are there.
    #[inline]
    fn populate(&mut self, offset: u64, len: u32, page: u64) -> bool {
        let last = (offset + u64::from(len.max(1)) - 1) / page;
        (offset / page..=last).all(|number| {
            let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
            if self.present[word] & bit == 0 && !self.ask(number, page) {
                return false;
            }
            self.present[word] |= bit;
            true
        })
    }

    #[cold]
    fn ask(&self, number: u64, page: u64) -> bool {
        let at = number * page;
        let len = page.min(self.bytes - at);
        let advice = if self.access & WRITE == 0 {
            Advice::LinuxPopulateRead
        } else {
            Advice::LinuxPopulateWrite
        };
        // SAFETY: within the region's mapping; the bytes stay as they are.
        unsafe { madvise(self.base.add(at as usize).as_ptr().cast(), len as usize, advice) }.is_ok()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for region in &self.regions {
            // SAFETY: mapped by this value, and all that points there ends with it.
            let _ = unsafe { munmap(region.base.as_ptr().cast(), region.bytes as usize) };
        }
    }
}

fn map(fd: &OwnedFd, offset: u64, bytes: usize, access: u8) -> Option<*mut u8> {
    let write = if access & WRITE == 0 { ProtFlags::empty() } else { ProtFlags::WRITE };
    // SAFETY: a new mapping, anywhere.
    let base = unsafe {
        mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | write, MapFlags::SHARED, fd, offset)
    };
    base.ok().map(|base| base.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_at_an_address_is_read_there() {
        let mut memory = Memory::of_zeroes(&[(0x1000, 4096), (0x10_0000, 8192)]).unwrap();
        let place = memory.place(0x10_0ffe, 4, Access::Write).unwrap();
        assert!(memory.write(place, 0, &[1, 2, 3, 4]));
        let mut read = [0; 2];
        assert!(memory.read(place, 1, &mut read) && read == [2, 3]);
    }

    #[test]
    fn a_range_beyond_its_region_is_not_mapped() {
        let mut memory = Memory::of_zeroes(&[(0x1000, 4096)]).unwrap();
        for (iova, len) in
            [(0, 1), (0xfff, 2), (0x1fff, 2), (0x2000, 1), (u64::MAX, 2), (0x1000, u32::MAX)]
        {
            assert_eq!(
                memory.place(iova, len, Access::Read),
                Err(Fault::Unmapped { iova, len: len.into() })
            );
        }
    }

    #[test]
    fn a_page_that_would_kill_the_process_is_not_mapped() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let base = map(&file.into(), 0, 3 * 4096, READ | WRITE).unwrap();
        let mut memory = Memory::of_zeroes(&[]).unwrap();
        memory.add(0, 3 * 4096, base, READ | WRITE);
        assert!(memory.place(0, 4096, Access::Write).is_ok());
        assert!(memory.place(4000, 4096, Access::Write).is_err());
        assert!(memory.place(8192, 1, Access::Read).is_err());
    }

    #[test]
    fn a_region_that_the_device_may_only_read_is_not_written() {
        let mut memory = Memory::of_zeroes(&[(0, 4096)]).unwrap();
        memory.regions[0].access = READ;
        assert!(memory.place(0, 8, Access::Read).is_ok());
        assert!(memory.place(0, 8, Access::Write).is_err());
    }

    #[test]
    fn bytes_beyond_a_place_are_not_copied() {
        let mut memory = Memory::of_zeroes(&[(0, 4096)]).unwrap();
        let place = memory.place(0, 8, Access::Write).unwrap();
        assert!(
            !memory.write(place, 4, &[0; 5])
                && !memory.read(place, 9, &mut [])
                && memory.read(place, 8, &mut [])
        );
    }
}
