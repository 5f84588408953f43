//! Memory whose physical addresses are known and stay: huge pages in one piece.
//!
//! # References
//! - `[PAGEMAP]` Linux, `Documentation/admin-guide/mm/pagemap.rst`
//! - `[HUGETLB]` Linux, `Documentation/admin-guide/mm/hugetlbpage.rst`
//!
//! Huge pages are never paged out. The kernel may still move one when memory is taken out of the
//! machine while it runs (hot-unplug, or memory kept for that); see docs/uio.md.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use ring3_device::Error;
use ring3_device::dma::{HUGE_PAGE, Region};
use ring3_pci::{Address, Host, Obstacle, huge_pages};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::{blocked, run};

const PAGE: u64 = HUGE_PAGE as u64;
/// Bytes of the pages that pagemap counts in.
const SMALL_PAGE: u64 = 4096;
/// pagemap: the page is in memory, and its number. [PAGEMAP]
const PRESENT: u64 = 1 << 63;
const NUMBER: u64 = (1 << 55) - 1;

/// At least `bytes` in one piece of physical memory that ends at or below `below`, and the physical
/// address of the first.
pub(super) fn allocate(
    host: &Host,
    address: Address,
    bytes: usize,
    below: u64,
) -> Result<(Region, u64), Error> {
    let needed = bytes.div_ceil(HUGE_PAGE).max(1);
    let mut hoard = HugePagePool::new()?;
    // As few pages as will do: others want some, too, and each costs the time to be cleared.
    let mut wanted = needed;
    let run = loop {
        let complete = hoard.grow(wanted)?;
        match run::find(&hoard.addresses(address)?, PAGE, needed, below) {
            Ok(run) => break run,
            Err(_) if complete => wanted *= 2,
            Err(found) => {
                let (needed, found, total) = (needed as u64, found as u64, huge_pages(host).total);
                return Err(blocked(
                    address,
                    Obstacle::NoHugePages { needed, found, below, total },
                ));
            }
        }
    };
    hoard.keep(&run, address)
}

/// Huge pages in a file, from which some are chosen.
struct HugePagePool {
    file: OwnedFd,
    pages: usize,
}

impl HugePagePool {
    fn new() -> Result<Self, Error> {
        let flags = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB | MemfdFlags::CLOEXEC;
        let file = memfd_create("ring3-dma", flags)
            .map_err(|error| Error::os("creating a file of huge pages (memfd)", error))?;
        Ok(Self { file, pages: 0 })
    }

    /// Takes pages until there are `wanted`; false if the kernel has no more.
    fn grow(&mut self, wanted: usize) -> Result<bool, Error> {
        while self.pages < wanted {
            match fallocate(&self.file, FallocateFlags::empty(), self.pages as u64 * PAGE, PAGE) {
                Ok(()) => self.pages += 1,
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::NOMEM) => return Ok(false),
                Err(error) => return Err(Error::os("taking a huge page", error)),
            }
        }
        Ok(true)
    }

    /// The physical address of each page.
    fn addresses(&self, address: Address) -> Result<Vec<u64>, Error> {
        if self.pages == 0 {
            return Ok(Vec::new());
        }
        physical(
            &Region::from_huge_pages(self.copy()?, &(0..self.pages as u64).collect::<Vec<_>>())?,
            address,
        )
    }

    /// Maps the pages that `run` numbers in that order, and gives the others back.
    fn keep(self, run: &[u64], address: Address) -> Result<(Region, u64), Error> {
        let memory = Region::from_huge_pages(self.copy()?, run)?;
        for page in (0..self.pages as u64).filter(|page| !run.contains(page)) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, flags, page * PAGE, PAGE)
                .map_err(|error| Error::os("giving a huge page back", error))?;
        }
        lock(&memory)?;
        // Only now nothing moves them any more: what was found before is looked at again.
        let addresses = physical(&memory, address)?;
        let first = addresses.first().copied().unwrap_or(0);
        if addresses.iter().zip(0..).any(|(&address, place)| address != first + place * PAGE) {
            return Err(Error::Busy(
                "huge pages were moved while they were taken; try again".into(),
            ));
        }
        Ok((memory, first))
    }

    fn copy(&self) -> Result<OwnedFd, Error> {
        self.file
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| Error::os("copying a descriptor", error))
    }
}

/// Where the huge pages of `memory` lie.
fn physical(memory: &Region, address: Address) -> Result<Vec<u64>, Error> {
    let failed = |error| Error::os("reading /proc/self/pagemap", error);
    let pagemap = File::open("/proc/self/pagemap").map_err(failed)?;
    let base = memory.as_ptr() as u64;
    (0..memory.len() as u64 / PAGE)
        .map(|page| {
            let mut entry = [0; 8];
            pagemap
                .read_exact_at(&mut entry, (base + page * PAGE) / SMALL_PAGE * 8)
                .map_err(failed)?;
            match u64::from_ne_bytes(entry) {
                entry if entry & PRESENT == 0 => Err(Error::Busy(
                    "a huge page left memory while it was looked at; try again".into(),
                )),
                // What the kernel shows to those who may not know. [PAGEMAP]
                entry if entry & NUMBER == 0 => {
                    Err(blocked(address, Obstacle::NoPhysicalAddresses))
                }
                entry => Ok((entry & NUMBER) * SMALL_PAGE),
            }
        })
        .collect()
}

/// Locks `memory`, and keeps it out of processes that are forked: the file alone decides how long
/// its pages live.
fn lock(memory: &Region) -> Result<(), Error> {
    let (start, len) = (memory.as_ptr().cast(), memory.len());
    // SAFETY: the range is mapped as long as `memory` lives; neither call changes what is in it.
    unsafe {
        rustix::mm::mlock(start, len)
            .map_err(|error| Error::os(format!("locking {len} bytes of huge pages"), error))?;
        rustix::mm::madvise(start, len, Advice::LinuxDontFork)
            .map_err(|error| Error::os("keeping memory out of forks", error))
    }
}
