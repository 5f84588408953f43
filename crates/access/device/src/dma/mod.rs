//! Memory that the device can reach.
//!
//! # Shape
//! A [`Region`] is a shared file or a part of one. It is mapped once in this process, and its
//! descriptor can be passed to other processes. Any number of devices may map its [`Pages`].
//!
//! An [`Arena`] is the memory of one device: regions that are mapped through its IOMMU in advance,
//! so that translation from a virtual to a device address is one addition. A [`DmaBuffer`] is an
//! owned range of the arena, a [`Span`] names one.
//!
//! A [`SegmentList`] is what a driver gives to its device: addresses that only this layer can make,
//! of spans that it has checked or of memory that it has mapped. [`Dma`] combines an arena with the
//! device's [`Iommu`] and lets it grow.
//!
//! [`Foreign`] memory was not allocated for the device; [`Streams`] make pieces of it accessible to
//! the device, mapped or copied.
//!
//! # Trust
//! No Rust reference to this memory exists, because a device or another process can write it at any
//! time. Bytes are copied in and out by relaxed atomics; shared words are atomics.

mod arena;
mod buffer;
mod bytes;
mod claims;
mod extents;
mod foreign;
mod kept;
mod ledger;
mod list;
mod mapped;
mod mapping;
mod no_device;
mod numa;
mod pages;
mod region;
mod saved;
mod segment;
mod share;
mod span;
mod static_iommu;
mod streams;
mod tmpfs;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use arena::{Arena, MAX_REGIONS, Placed};
pub use buffer::{DmaBuffer, WordPair};
pub use claims::Claims;
pub use foreign::Foreign;
pub use kept::PersistentWords;
pub use list::SegmentList;
pub use mapping::Mapping;
pub use no_device::NoDevice;
pub use numa::on_node;
pub use pages::Pages;
pub use region::{HUGE_PAGE, Region};
pub use saved::{SavedArena, SavedRange, SavedRegion};
pub use segment::{Segment, SegmentRules};
pub use share::{MemoryReservation, admit, budget};
pub use span::Span;
pub use static_iommu::StaticIommu;
pub use streams::{
    CacheLimits, Direction, Mode, Piece, Stream, StreamLimits, StreamStats, Streams, Transfer,
};

use crate::Error;
use extents::Extents;
use mapped::Mapped;

/// The address translation of one device, as a backend offers it.
pub trait Iommu: Send + Sync {
    /// Lets the device reach `pages` at `iova`, both multiples of [`page_size`](Iommu::page_size).
    /// A backend that reaches the memory itself keeps a clone of `pages` until `unmap`.
    fn map(&self, pages: &Pages, iova: u64) -> Result<(), Error>;
    /// Takes the range back; when it returns, the device reaches it no more.
    fn unmap(&self, iova: u64, len: usize) -> Result<(), Error>;
    /// The device addresses that may be used, reserved ones left out, ascending.
    fn ranges(&self) -> Vec<RangeInclusive<u64>>;
    /// The smallest unit of mapping, in bytes.
    fn page_size(&self) -> usize;
    /// Whether `pages` can be mapped after the device was opened. Those of a file may be where
    /// others are not: another process has to map them, too. What cannot be mapped goes through
    /// bounce buffers.
    fn can_map(&self, _pages: &Pages) -> bool {
        true
    }
    /// Whether a function that takes its addresses for those of the machine's memory, as a virtio
    /// device without `ACCESS_PLATFORM` does, would reach memory that it was not given. Who does
    /// not know says yes.
    fn is_bypassable(&self) -> bool {
        true
    }
}

/// The memory of one device: its arena and its translation.
#[derive(Clone)]
pub struct Dma {
    arena: Arena,
    iommu: Arc<dyn Iommu>,
    /// Device addresses that nothing is mapped at.
    space: Arc<Mutex<Extents>>,
    /// What is mapped beside the arena.
    mapped: Arc<Mapped>,
}

impl Dma {
    /// Ties `arena`, whose regions are mapped already, to the translation behind it.
    pub fn new(arena: Arena, iommu: Arc<dyn Iommu>) -> Self {
        let mut space = Extents::default();
        for range in iommu.ranges() {
            let (start, last) = (*range.start(), *range.end());
            // The end of a range must be a number, so the topmost address of all is never used.
            space.give_back(
                start,
                last.saturating_sub(start).saturating_add(1).min(u64::MAX - start),
            );
        }
        // Some devices take address 0 for "none".
        space.exclude(0, iommu.page_size() as u64);
        arena.regions().for_each(|placed| space.exclude(placed.iova, placed.region.len() as u64));
        Self { arena, iommu, space: Arc::new(Mutex::new(space)), mapped: Arc::default() }
    }

    /// The same for a device that reaches only addresses below `limit`: memory that is mapped later
    /// lies below it, too.
    pub fn below(self, limit: u64) -> Self {
        self.space().exclude(limit, u64::MAX);
        self
    }

    /// Whether a device that reaches only addresses below `limit` reaches all of the arena. What is
    /// mapped from now on lies below, too. Nothing changes otherwise.
    pub fn confine(&self, limit: u64) -> bool {
        let reached = self.arena.is_below(limit);
        if reached {
            self.space().exclude(limit, u64::MAX);
        }
        reached
    }

    /// The memory that is mapped for the life of the device.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The device's address translation.
    pub fn iommu(&self) -> &Arc<dyn Iommu> {
        &self.iommu
    }

    /// Adds at least `bytes` bytes to the arena, in one piece. For start-up, as allocation is;
    /// requests that are under way do not notice.
    ///
    /// [`Error::Unsupported`] where memory can only be mapped when the device is opened, so with a
    /// larger arena.
    pub fn grow(&self, bytes: usize) -> Result<(), Error> {
        let page = self.iommu.page_size();
        let bytes = bytes.max(1).checked_next_multiple_of(page);
        let bytes =
            bytes.ok_or_else(|| Error::Invalid("growing an arena beyond all memory".into()))?;
        self.add(Arc::new(Region::new(bytes)?))
    }

    /// A buffer of `bytes` bytes, rounded up to pages of the IOMMU, in a region of the arena that
    /// is made for it: for much memory that the device has for long. Nothing is taken of what the
    /// arena was made with, which its users have counted. The bytes are zero, or what such a buffer
    /// has left that was dropped before.
    ///
    /// [`Error::Unsupported`] as of [`grow`](Self::grow).
    pub fn alloc_region(&self, bytes: usize) -> Result<DmaBuffer, Error> {
        let page = self.iommu.page_size();
        let bytes = bytes
            .max(1)
            .checked_next_multiple_of(page)
            .filter(|&bytes| u32::try_from(bytes).is_ok())
            .ok_or_else(|| Error::Invalid(format!("a DMA buffer of {bytes} bytes")))?;
        if let Some(buffer) = self.arena.carve_region(bytes) {
            return Ok(buffer);
        }
        self.grow(bytes)?;
        self.arena.carve_region(bytes).ok_or_else(|| {
            Error::Busy("somebody has taken of a region that an arena has just got".into())
        })
    }

    /// Makes all of `region`, of whole pages of the IOMMU, a part of the arena.
    pub fn add(&self, region: Arc<Region>) -> Result<(), Error> {
        let len = region.len();
        self.take_in(region, len)
    }

    /// Maps all of `region`, which consists of whole pages of the IOMMU, for the device. Nothing is
    /// allocated from it, and [`Streams`] need not map pieces of it. It is registered for all
    /// queues; a second call changes nothing.
    pub fn register_region(&self, region: &Arc<Region>) -> Result<(), Error> {
        if self.arena.address(region).is_some() {
            return Ok(());
        }
        self.take_in(region.clone(), 0)
    }

    /// Makes `region` a part of the arena, of which the first `given` bytes are given out.
    fn take_in(&self, region: Arc<Region>, given: usize) -> Result<(), Error> {
        let pages = region.pages()?;
        // So that the IOMMU can use large pages.
        let iova = self.place(&pages, HUGE_PAGE as u64)?;
        let len = pages.len();
        if self.arena.add(Placed { region, iova }, 0, given).is_some() {
            return Ok(());
        }
        self.iommu.unmap(iova, len)?;
        self.space().give_back(iova, len as u64);
        Err(Error::Unsupported(format!(
            "an arena of more than {MAX_REGIONS} regions: let it grow by larger ones"
        )))
    }

    /// Lets the device reach `pages`, outside of the arena, for as long as the mapping lives. Two
    /// system calls, so not for each request: [`Streams`] keeps mappings.
    pub fn map(&self, pages: Pages) -> Result<Mapping, Error> {
        // So that the IOMMU can use large pages for what may have such.
        let align = if pages.len() >= HUGE_PAGE { HUGE_PAGE as u64 } else { 1 };
        let iova = self.place(&pages, align)?;
        Ok(Mapping::new(self, pages, iova))
    }

    /// As [`map`](Self::map), at the device address `iova`: where another device has the same
    /// bytes, or where they were before. Fails with [`Error::Busy`] if anything is mapped there.
    pub fn map_at(&self, pages: Pages, iova: u64) -> Result<Mapping, Error> {
        self.check(&pages, iova)?;
        if !self.space().take(iova, pages.len() as u64) {
            return Err(Error::Busy(format!(
                "device addresses {iova:#x}+{:#x} are in use, or none of this device's",
                pages.len()
            )));
        }
        self.map_taken(&pages, iova)?;
        Ok(Mapping::new(self, pages, iova))
    }

    /// Maps `pages` wherever device addresses are free, beginning at a multiple of `align` if there
    /// are such.
    fn place(&self, pages: &Pages, align: u64) -> Result<u64, Error> {
        self.check(pages, 0)?;
        let (len, page) = (pages.len() as u64, self.iommu.page_size() as u64);
        let carve = |align| self.space().carve(len, align, 0);
        let iova = carve(align.max(page)).or_else(|| carve(page));
        let iova = iova.ok_or_else(|| {
            Error::Unsupported(format!("no {len} device addresses are free in one piece"))
        })?;
        self.map_taken(pages, iova)?;
        Ok(iova)
    }

    fn map_taken(&self, pages: &Pages, iova: u64) -> Result<(), Error> {
        self.iommu
            .map(pages, iova)
            .inspect_err(|_| self.space().give_back(iova, pages.len() as u64))
    }

    /// Fails unless `pages` are whole pages of the IOMMU that it maps.
    fn check(&self, pages: &Pages, iova: u64) -> Result<(), Error> {
        if !self.iommu.can_map(pages) {
            return Err(Error::Unsupported(
                "this backend maps memory only when the device is opened: open it with a larger \
                arena (arena=64M in its name)"
                    .into(),
            ));
        }
        let page = self.iommu.page_size() as u64;
        if [pages.len() as u64, pages.as_ptr().addr().get() as u64, iova]
            .iter()
            .all(|number| number.is_multiple_of(page))
        {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "mapping {} bytes: not whole pages of the IOMMU ({page} bytes)",
            pages.len()
        )))
    }

    fn space(&self) -> MutexGuard<'_, Extents> {
        // The set is consistent between any two statements that can panic, so a poisoned lock is
        // still good.
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The examples of the decision record.
#[cfg(doctest)]
#[doc = include_str!("../../../../../docs/adr/0006-memory-is-regions.md")]
struct DecisionRecord;

#[cfg(test)]
mod tests;
