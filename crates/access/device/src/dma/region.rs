//! Memory that devices may access, mapped once in this process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FileType, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{Pages, admit, bytes, tmpfs};
use crate::Error;

/// The size of a huge page on x86-64, in bytes.
pub const HUGE_PAGE: usize = 2 << 20;

/// A shared file, a part of one, or memory of this process alone, mapped read and write for as long
/// as this value lives.
///
/// Any number of devices may map it, each at an address of its own, and any number of processes if
/// it is a file. What maps it holds it.
pub struct Region {
    id: u64,
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

enum Backing {
    /// A file, mapped from byte `offset` on.
    File { fd: Arc<OwnedFd>, offset: u64, huge: bool },
    /// The same of a file that somebody else keeps.
    Registered { huge: bool },
    /// Huge pages of a file, in another order than there.
    Shuffled(OwnedFd),
    /// Pages without a file.
    Anonymous,
    /// A boxed slice, taken apart.
    Boxed,
}

// SAFETY: the bytes are only accessed by atomics through raw pointers, as a device does; the value
// itself is immutable after construction.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A memfd of `len` bytes (rounded up to a page), zeroed, of huge pages if the system has that
    /// many free and of small ones if not. Of these [`admit`](super::admit) decides how many may be
    /// taken; huge pages were set aside by somebody.
    pub fn new(len: usize) -> Result<Self, Error> {
        let round = |page: usize| {
            len.checked_next_multiple_of(page)
                .ok_or_else(|| Error::Invalid(format!("{len} bytes of DMA memory")))
        };
        Self::create(round(HUGE_PAGE)?, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).or_else(|_| {
            let len = round(rustix::param::page_size())?;
            admit(len)?;
            Self::create(len, MemfdFlags::empty())
        })
    }

    /// As [`new`](Self::new), of small pages, and at the address `near` of this process if nothing
    /// is there: for a process whose memory shall hold the same pointers each time.
    pub fn new_near(len: usize, near: usize) -> Result<Self, Error> {
        let len = len.checked_next_multiple_of(rustix::param::page_size());
        let len =
            len.ok_or_else(|| Error::Invalid("more DMA memory than there are addresses".into()))?;
        admit(len)?;
        Self::map_near(memfd(len, MemfdFlags::empty())?.into(), 0, len, near)
    }

    /// As [`new`](Self::new), for memory that a device has as a whole and for long, and that one
    /// process after the other maps: of huge pages, too, where nobody has set such aside, if the
    /// machine has free memory in such pieces and this process may mount. Each saves 511 faults and
    /// as many entries to take down, for which the users of a driver that dies wait.
    pub fn pinned(len: usize) -> Result<Self, Error> {
        let whole = len
            .checked_next_multiple_of(HUGE_PAGE)
            .ok_or_else(|| Error::Invalid(format!("{len} bytes of DMA memory")))?;
        if let Ok(region) = Self::create(whole, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) {
            return Ok(region);
        }
        match tmpfs::file(whole) {
            Ok(file) => admit(whole).and_then(|()| Self::map(file.into(), 0, whole)),
            Err(_) => Self::new(len),
        }
    }

    /// `len` zeroed bytes without a file, rounded up to whole pages; shared rather than private,
    /// because a fork must not move them away from the device.
    pub fn anonymous(len: usize) -> Result<Self, Error> {
        let len = len.max(1).next_multiple_of(rustix::param::page_size());
        admit(len)?;
        // SAFETY: a fresh mapping at an address that the kernel chooses aliases nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        };
        let base =
            base.map_err(|error| Error::os(format!("allocating {len} bytes of memory"), error))?;
        Ok(Self::own(not_null(base)?, len, Backing::Anonymous))
    }

    /// Maps a file that somebody else made, from its start to its end.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, Error> {
        match file_size(&fd)? {
            Some(size) if size > 0 => Self::map(fd.into(), 0, size as usize),
            Some(_) => Err(Error::Invalid(
                "mapping a file of 0 bytes as DMA memory: give it its size first (ftruncate)"
                    .into(),
            )),
            None => Err(Error::Invalid(
                "mapping a character device as DMA memory: it has no size, so say how many bytes"
                    .into(),
            )),
        }
    }

    /// Maps `len` bytes of a file that somebody else made, from `offset` on: of a memfd, of a file
    /// in hugetlbfs, or of a character device, which has no size, so that only the caller knows how
    /// much of it there is.
    ///
    /// What lies beyond the end of a file is refused now. Whoever shrinks it later kills this
    /// process at its next access (SIGBUS), which a memfd's owner can rule out by the seal
    /// F_SEAL_SHRINK.
    pub fn part_of(fd: OwnedFd, offset: u64, len: usize) -> Result<Self, Error> {
        Self::part_of_shared(fd.into(), offset, len)
    }

    /// As [`part_of`](Self::part_of), of a file of which others map parts by the same descriptor.
    pub fn part_of_shared(fd: Arc<OwnedFd>, offset: u64, len: usize) -> Result<Self, Error> {
        let page = rustix::param::page_size();
        let end = offset.checked_add(len as u64);
        let size = file_size(&fd)?;
        if len == 0
            || !len.is_multiple_of(page)
            || !offset.is_multiple_of(page as u64)
            || end.is_none()
            || end > size.or(end)
        {
            let of = size.map_or("a device".into(), |size| format!("a file of {size}"));
            return Err(Error::Invalid(format!(
                "mapping bytes {offset}+{len} of {of} as DMA memory: not whole pages of it"
            )));
        }
        Self::map(fd, offset, len)
    }

    /// As [`part_of`](Self::part_of), without keeping the file: an untrusted user of this region
    /// cannot shrink the file or pass it on.
    pub fn registered(fd: OwnedFd, offset: u64, len: usize) -> Result<Self, Error> {
        let mut region = Self::part_of(fd, offset, len)?;
        region.backing = Backing::Registered { huge: region.is_huge() };
        Ok(region)
    }

    /// Maps the huge pages of `fd` that `pages` numbers, one behind the other in that order: memory
    /// that is in one piece for a device which sees physical addresses. The file must hold these
    /// pages already.
    pub fn from_huge_pages(fd: OwnedFd, pages: &[u64]) -> Result<Self, Error> {
        let len = pages.len().max(1) * HUGE_PAGE;
        let failed = |error| Error::os(format!("mapping {len} bytes of huge pages"), error);
        let base = room(len, 0).map_err(failed)?;
        // From here on, dropping it unmaps the whole range, whatever was put into it.
        let region = Self::own(not_null(base.cast())?, len, Backing::Shuffled(fd));
        let Backing::Shuffled(fd) = &region.backing else { return Ok(region) };
        for (place, page) in pages.iter().enumerate() {
            let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
            let (at, offset) = (base.wrapping_add(place * HUGE_PAGE), page * HUGE_PAGE as u64);
            // SAFETY: the range lies in `room`, which is ours and which nobody has seen yet.
            unsafe {
                rustix::mm::mmap(
                    at.cast(),
                    HUGE_PAGE,
                    ProtFlags::READ | ProtFlags::WRITE,
                    flags,
                    fd,
                    offset,
                )
            }
            .map_err(failed)?;
        }
        Ok(region)
    }

    /// Takes the pages of a file out of this process's memory, where they count as its own and stay
    /// locked if it locks what it has. They are the file's, and whatever maps them for a device
    /// holds them; who looks again finds them.
    pub fn release_pages(&self) {
        if !matches!(self.backing, Backing::File { .. } | Backing::Shuffled(_)) {
            return;
        }
        let base = self.base.as_ptr().cast();
        // SAFETY: the range is this value's mapping of a shared file, whose bytes stay what they
        // are.
        let _ = unsafe { rustix::mm::munlock(base, self.len) };
        // SAFETY: as above.
        let _ = unsafe { rustix::mm::madvise(base, self.len, rustix::mm::Advice::LinuxDontNeed) };
    }

    fn create(len: usize, flags: MemfdFlags) -> Result<Self, Error> {
        Self::map(memfd(len, flags)?.into(), 0, len)
    }

    fn map(fd: Arc<OwnedFd>, offset: u64, len: usize) -> Result<Self, Error> {
        Self::map_near(fd, offset, len, 0)
    }

    /// Where the kernel chooses if `near` is 0.
    fn map_near(fd: Arc<OwnedFd>, offset: u64, len: usize, near: usize) -> Result<Self, Error> {
        // Huge pages are reserved by populating: without it a missing one would be a SIGBUS at
        // first touch.
        let huge = is_huge(&fd);
        let populate = if huge { MapFlags::POPULATE } else { MapFlags::empty() };
        // Where a huge page of the file, if it has such, is one entry of the page table.
        let fits = !huge && len >= HUGE_PAGE && offset.is_multiple_of(HUGE_PAGE as u64);
        let at = if fits {
            room(len, near).unwrap_or(std::ptr::null_mut())
        } else {
            std::ptr::null_mut()
        };
        let fixed = if at.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
        // SAFETY: a fresh mapping aliases nothing: at an address that the kernel chooses, or in
        // `room`, which is ours and which nobody has seen yet.
        let base = unsafe {
            rustix::mm::mmap(
                at.cast(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | populate | fixed,
                &fd,
                offset,
            )
        }
        .map_err(|error| {
            // SAFETY: as above.
            (!at.is_null()).then(|| unsafe { rustix::mm::munmap(at.cast(), len) });
            // What a process maps that locks all its memory is locked at once. [mmap(2)]
            let limit = if error == Errno::AGAIN {
                " (more than may be locked: raise `ulimit -l`)"
            } else {
                ""
            };
            Error::os(format!("mapping {len} bytes of DMA memory{limit}"), error)
        })?;
        Ok(Self::own(not_null(base)?, len, Backing::File { fd, offset, huge }))
    }

    fn own(base: NonNull<u8>, len: usize, backing: Backing) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), base, len, backing }
    }

    /// Its number, never used twice in this process.
    pub fn id(&self) -> u64 {
        self.id
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
        matches!(
            self.backing,
            Backing::File { huge: true, .. }
                | Backing::Registered { huge: true }
                | Backing::Shuffled(_)
        )
    }

    /// The file that holds its pages, in whichever order; `None` if no other process can have them.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.backing {
            Backing::File { fd, .. } => Some(fd.as_fd()),
            Backing::Shuffled(fd) => Some(fd.as_fd()),
            Backing::Registered { .. } | Backing::Anonymous | Backing::Boxed => None,
        }
    }

    /// The file and where in it this begins, if the bytes have the order that they have there.
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match &self.backing {
            Backing::File { fd, offset, .. } => Some((fd.as_fd(), *offset)),
            _ => None,
        }
    }

    /// All of it, for an IOMMU. Fails if it shares its first or last page with others.
    pub fn pages(self: &Arc<Self>) -> Result<Pages, Error> {
        Pages::new(self, 0, self.len)
    }

    /// Where it is mapped in this process, for a kernel interface that takes an address. Never make
    /// a reference of it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Copies `bytes.len()` bytes out, from `offset` on.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let from = self.at(offset, bytes.len())?;
        // SAFETY: `at` proved the range, which is only accessed by raw pointers.
        unsafe { bytes::copy_out(from, bytes) };
        Ok(())
    }

    /// Copies `bytes` in, from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let to = self.at(offset, bytes.len())?;
        // SAFETY: `at` proved the range, which is only accessed by raw pointers.
        unsafe { bytes::copy_in(bytes, to) };
        Ok(())
    }

    /// The first of `len` bytes at `offset`, if they lie within.
    pub(super) fn at(&self, offset: usize, len: usize) -> Result<*mut u8, Error> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::Invalid(format!(
                "bytes {offset}+{len} of a region of {}",
                self.len
            )));
        }
        // SAFETY: offset is within the mapping.
        Ok(unsafe { self.as_ptr().add(offset) })
    }
}

impl From<Box<[u8]>> for Region {
    fn from(bytes: Box<[u8]>) -> Self {
        let len = bytes.len();
        // SAFETY: a box is never null.
        let base = unsafe { NonNull::new_unchecked(Box::into_raw(bytes).cast::<u8>()) };
        Self::own(base, len, Backing::Boxed)
    }
}

/// A file in memory whose pages stay where they are.
fn memfd(len: usize, flags: MemfdFlags) -> Result<OwnedFd, Error> {
    let fd = rustix::fs::memfd_create(
        "ring3-dma",
        flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )
    .map_err(|error| Error::os("creating DMA memory (memfd)", error))?;
    rustix::fs::ftruncate(&fd, len as u64)
        .map_err(|error| Error::os(format!("sizing DMA memory to {len} bytes"), error))?;
    // Whoever gets the descriptor knows by this that the pages stay where they are.
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)
        .map_err(|error| Error::os("sealing DMA memory", error))?;
    Ok(fd)
}

/// Addresses for `len` bytes, from a multiple of [`HUGE_PAGE`] on, at which there is nothing: from
/// `near` on if it is so there.
fn room(len: usize, near: usize) -> Result<*mut u8, Errno> {
    let whole = len.checked_add(HUGE_PAGE).ok_or(Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address that the kernel chooses aliases nothing.
    let room = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::without_provenance_mut(near),
            whole,
            ProtFlags::empty(),
            flags,
        )
    }?
    .cast::<u8>();
    let before = room.align_offset(HUGE_PAGE);
    let base = room.wrapping_add(before);
    let give_back = |start: *mut u8, len: usize| {
        // SAFETY: a part of `room` that nothing uses.
        (len > 0).then(|| unsafe { rustix::mm::munmap(start.cast(), len) })
    };
    give_back(room, before);
    // As the kernel counts: whole pages.
    let end = len.next_multiple_of(rustix::param::page_size());
    give_back(
        base.wrapping_add(end),
        whole.next_multiple_of(rustix::param::page_size()) - before - end,
    );
    Ok(base)
}

fn not_null(base: *mut std::ffi::c_void) -> Result<NonNull<u8>, Error> {
    NonNull::new(base.cast()).ok_or_else(|| Error::Invalid("mapping at address 0".into()))
}

/// The size of a file; `None` for a character device. Other things are refused.
fn file_size(fd: &OwnedFd) -> Result<Option<u64>, Error> {
    let stat = rustix::fs::fstat(fd)
        .map_err(|error| Error::os("looking at a file that shall be DMA memory", error))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Some(stat.st_size as u64)),
        FileType::CharacterDevice => Ok(None),
        other => Err(Error::Invalid(format!(
            "mapping a {other:?} as DMA memory: a file or a character device is needed"
        ))),
    }
}

/// Whether a file consists of huge pages: one in hugetlbfs, or a memfd made of them.
fn is_huge(fd: &OwnedFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_type == libc::HUGETLBFS_MAGIC)
}

impl Drop for Region {
    fn drop(&mut self) {
        if matches!(self.backing, Backing::Boxed) {
            let bytes = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.len);
            // SAFETY: pointer and length are those of the box that `from` took apart, and every
            // user of the bytes held this value.
            return drop(unsafe { Box::from_raw(bytes) });
        }
        // SAFETY: a constructor mapped the range, and every user of it held this value.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({}, {} bytes)", self.id, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(region: &Region) -> OwnedFd {
        region.fd().unwrap().try_clone_to_owned().unwrap()
    }

    #[test]
    fn memory_is_rounded_up_to_whole_pages() {
        let region = Region::new(5000).unwrap();
        assert_eq!(region.len() % rustix::param::page_size(), 0);
        assert!(region.len() >= 5000);
    }

    #[test]
    fn a_second_mapping_of_the_descriptor_sees_the_same_bytes() {
        // As many huge pages, if there are such.
        let one = Region::new(2 * HUGE_PAGE).unwrap();
        let two = Region::from_fd(share(&one)).unwrap();
        let part = Region::part_of(share(&one), HUGE_PAGE as u64, HUGE_PAGE).unwrap();
        one.write(HUGE_PAGE + 4, &[0x5a]).unwrap();
        let mut seen = [0; 2];
        two.read(HUGE_PAGE + 4, &mut seen[..1]).unwrap();
        part.read(4, &mut seen[1..]).unwrap();
        assert_eq!((seen, part.file().unwrap().1), ([0x5a; 2], HUGE_PAGE as u64));
    }

    #[test]
    fn memory_for_long_starts_where_a_huge_page_can_whoever_maps_it() {
        let one = Region::pinned(HUGE_PAGE + 1).unwrap();
        let two = Region::part_of(share(&one), 0, one.len()).unwrap();
        one.write(HUGE_PAGE, &[0x5a]).unwrap();
        let mut seen = [0];
        two.read(HUGE_PAGE, &mut seen).unwrap();
        assert_eq!(
            (seen, one.as_ptr().align_offset(HUGE_PAGE), two.as_ptr().align_offset(HUGE_PAGE)),
            ([0x5a], 0, 0)
        );
    }

    #[test]
    fn a_registered_region_has_the_bytes_and_not_the_file() {
        let one = Region::new(8192).unwrap();
        let lent = Region::registered(share(&one), 4096, 4096).unwrap();
        one.write(4096, &[0x5a]).unwrap();
        let mut seen = [0];
        lent.read(0, &mut seen).unwrap();
        assert_eq!((seen, lent.fd().is_none(), lent.file().is_none()), ([0x5a], true, true));
    }

    #[test]
    fn a_part_beyond_the_end_of_its_file_or_within_a_page_is_refused() {
        let one = Region::new(8192).unwrap();
        let len = one.len();
        for (offset, len) in
            [(0, len + 4096), (len as u64, 4096), (!4095, 4096), (100, 4096), (0, 100), (0, 0)]
        {
            assert!(
                matches!(Region::part_of(share(&one), offset, len), Err(Error::Invalid(_))),
                "{offset}+{len}"
            );
        }
    }

    #[test]
    fn a_character_device_is_mapped_by_the_length_that_the_caller_knows() {
        let zero =
            || std::fs::File::options().read(true).write(true).open("/dev/zero").unwrap().into();
        let error = Region::from_fd(zero()).unwrap_err().to_string();
        assert!(error.contains("say how many bytes"), "{error}");
        let region = Region::part_of(zero(), 0, 8192).unwrap();
        region.write(8191, &[7]).unwrap();
        assert_eq!(region.len(), 8192);
    }

    #[test]
    fn what_is_no_file_and_what_is_empty_is_refused() {
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        assert!(matches!(Region::from_fd(pipe), Err(Error::Invalid(_))));
        let empty = rustix::fs::memfd_create("empty", MemfdFlags::CLOEXEC).unwrap();
        assert!(matches!(Region::from_fd(empty), Err(Error::Invalid(_))));
    }

    #[test]
    fn a_vector_becomes_a_region_with_its_bytes() {
        let region = Region::from(vec![1u8, 2, 3].into_boxed_slice());
        let mut bytes = [0; 2];
        region.read(1, &mut bytes).unwrap();
        assert_eq!(bytes, [2, 3]);
        assert!(region.read(usize::MAX, &mut [0]).is_err() && region.write(3, &[0]).is_err());
    }
}
