//! Shared memory by descriptor: a memfd and its mapping.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::admit;
use crate::Error;

/// The size of a huge page on x86-64, in bytes.
pub const HUGE_PAGE: usize = 2 << 20;

/// An anonymous shared file, mapped read and write for as long as this value lives.
pub struct Memory {
    fd: OwnedFd,
    /// Byte n of the mapping is byte n of the file.
    in_file_order: bool,
    base: NonNull<u8>,
    len: usize,
    huge: bool,
}

// SAFETY: the mapping is shared memory that is only accessed by atomics through raw pointers; the value itself
// is immutable after construction.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len` bytes (rounded up to a page), zeroed, of huge pages if the system has that many free and of small ones if not. Of these
    /// [`admit`](super::admit) decides how many may be taken; huge pages were set aside by somebody.
    pub fn new(len: usize) -> Result<Self, Error> {
        let round =
            |page: usize| len.checked_next_multiple_of(page).ok_or_else(|| Error::Invalid(format!("{len} bytes of DMA memory")));
        Self::create(round(HUGE_PAGE)?, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB, true).or_else(|_| {
            let len = round(rustix::param::page_size())?;
            admit(len)?;
            Self::create(len, MemfdFlags::empty(), false)
        })
    }

    /// Maps a file that someone else made, from its start to its end.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, Error> {
        let len = rustix::fs::fstat(&fd).map_err(|error| Error::os("looking at a shared memory file", error))?.st_size as usize;
        Self::map(fd, len, false)
    }

    /// Maps the huge pages of `fd` that `pages` numbers, one behind the other in that order: memory that is in one piece for a device
    /// which sees physical addresses. The file must hold these pages already.
    pub fn from_huge_pages(fd: OwnedFd, pages: &[u64]) -> Result<Self, Error> {
        let len = pages.len().max(1) * HUGE_PAGE;
        let failed = |error| Error::os(format!("mapping {len} bytes of huge pages"), error);
        // Room for the range wherever it must start to be aligned; what is not used of it goes back below.
        // SAFETY: a fresh mapping at an address that the kernel chooses aliases nothing.
        let room = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len + HUGE_PAGE,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let room = room.map_err(failed)?.cast::<u8>();
        let before = room.align_offset(HUGE_PAGE);
        let base = NonNull::new(room.wrapping_add(before)).ok_or_else(|| Error::Invalid("mapping at address 0".into()))?;
        let give_back = |start: *mut u8, len: usize| {
            // SAFETY: a part of `room` that nothing uses.
            (len > 0).then(|| unsafe { rustix::mm::munmap(start.cast(), len) })
        };
        give_back(room, before);
        give_back(base.as_ptr().wrapping_add(len), HUGE_PAGE - before);
        // From here on, dropping it unmaps the whole range, whatever was put into it.
        let memory = Self { fd, in_file_order: false, base, len, huge: true };
        for (place, page) in pages.iter().enumerate() {
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
            let (at, offset) = (base.as_ptr().wrapping_add(place * HUGE_PAGE), page * HUGE_PAGE as u64);
            // SAFETY: the range lies in `room`, which is ours and which nobody has seen yet.
            unsafe { rustix::mm::mmap(at.cast(), HUGE_PAGE, ProtFlags::READ | ProtFlags::WRITE, flags, &memory.fd, offset) }
                .map_err(failed)?;
        }
        Ok(memory)
    }

    fn create(len: usize, flags: MemfdFlags, huge: bool) -> Result<Self, Error> {
        let fd = rustix::fs::memfd_create("ring3-dma", flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|error| Error::os("creating DMA memory (memfd)", error))?;
        rustix::fs::ftruncate(&fd, len as u64).map_err(|error| Error::os(format!("sizing DMA memory to {len} bytes"), error))?;
        // Whoever gets the descriptor knows by this that the pages stay where they are.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).map_err(|error| Error::os("sealing DMA memory", error))?;
        Self::map(fd, len, huge)
    }

    fn map(fd: OwnedFd, len: usize, huge: bool) -> Result<Self, Error> {
        // Huge pages are reserved by populating: without it a missing one would be a SIGBUS at first touch.
        let populate = if huge { MapFlags::POPULATE } else { MapFlags::empty() };
        // SAFETY: a fresh mapping at an address that the kernel chooses aliases nothing.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | populate, &fd, 0)
        }
        .map_err(|error| {
            // What a process maps that locks all its memory is locked at once. [mmap(2)]
            let limit = if error == Errno::AGAIN { " (more than may be locked: raise `ulimit -l`)" } else { "" };
            Error::os(format!("mapping {len} bytes of DMA memory{limit}"), error)
        })?;
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::Invalid("mapping at address 0".into()))?;
        Ok(Self { fd, in_file_order: true, base, len, huge })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it lies in huge pages.
    pub fn is_huge(&self) -> bool {
        self.huge
    }

    /// Whether the mapping and the file have the same order.
    pub(super) fn is_in_file_order(&self) -> bool {
        self.in_file_order
    }

    /// Where it is mapped in this process, for a kernel interface that takes an address. Never make a reference of it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and every user of it holds this value.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_rounded_up_to_whole_pages() {
        let memory = Memory::new(5000).unwrap();
        assert_eq!(memory.len() % rustix::param::page_size(), 0);
        assert!(memory.len() >= 5000);
    }

    #[test]
    fn a_second_mapping_of_the_descriptor_sees_the_same_bytes() {
        let one = Memory::new(4096).unwrap();
        let two = Memory::from_fd(one.as_fd().try_clone_to_owned().unwrap()).unwrap();
        // SAFETY: both mappings are at least one byte long and nobody else touches them.
        let seen = unsafe {
            one.as_ptr().write_volatile(0x5a);
            two.as_ptr().read_volatile()
        };
        assert_eq!(seen, 0x5a);
    }
}
