//! Memory that the device can reach.
//!
//! # Shape
//! [`Memory`] is an anonymous shared file (memfd), mapped here and handed by descriptor to whoever must see it too.
//! An [`Arena`] is the memory of one device, mapped once through its IOMMU, so that virtual to device address is one addition.
//! A [`DmaBuffer`] is an owned range of the arena. [`Dma`] ties an arena to the device's [`Iommu`].
//! [`Foreign`] memory is what was not made for the device. [`Pages`] of either kind are what an [`Iommu`] maps; [`Streams`] lend
//! pieces of foreign memory to a device, mapped or copied.
//!
//! # Trust
//! No Rust reference to this memory exists: a device or another process can write it at any time. Bytes are copied in and
//! out by relaxed atomics; shared words are atomics.

mod arena;
mod buffer;
mod bytes;
mod extents;
mod fixed;
mod foreign;
mod mapping;
mod memory;
mod pages;
mod pool;
mod reach;
mod segment;
mod share;
mod streams;

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use arena::Arena;
pub use buffer::DmaBuffer;
pub use fixed::Fixed;
pub use foreign::Foreign;
pub use mapping::Mapping;
pub use memory::{HUGE_PAGE, Memory};
pub use pages::Pages;
pub use pool::Pool;
pub use segment::{Segment, SegmentRules};
pub use share::admit;
pub use streams::{CacheLimits, Direction, Mappings, Mode, Piece, Stream, StreamLimits, StreamStats, Streams, Transfer};

use crate::Error;
use extents::Extents;
use reach::Mapped;

/// The address translation of one device, as a backend offers it.
pub trait Iommu: Send + Sync {
    /// Lets the device reach `pages` at `iova`, both multiples of [`page_size`](Iommu::page_size). A backend that reaches the memory
    /// itself keeps a clone of `pages` until `unmap`.
    fn map(&self, pages: &Pages, iova: u64) -> Result<(), Error>;
    /// Takes the range back; when it returns, the device reaches it no more.
    fn unmap(&self, iova: u64, len: usize) -> Result<(), Error>;
    /// The device addresses that may be used, reserved ones left out, ascending.
    fn ranges(&self) -> Vec<RangeInclusive<u64>>;
    /// The smallest unit of mapping, in bytes.
    fn page_size(&self) -> usize;
    /// Whether memory can be mapped after the device was opened. If not, foreign memory goes through bounce buffers.
    fn can_map_later(&self) -> bool {
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
    /// Ties `arena`, which is mapped already, to the translation behind it.
    pub fn new(arena: Arena, iommu: Arc<dyn Iommu>) -> Self {
        let mut space = Extents::default();
        for range in iommu.ranges() {
            let (start, last) = (*range.start(), *range.end());
            // The end of a range must be a number, so the topmost address of all is never used.
            space.give_back(start, last.saturating_sub(start).saturating_add(1).min(u64::MAX - start));
        }
        // Some devices take address 0 for "none".
        space.exclude(0, iommu.page_size() as u64);
        space.exclude(arena.iova(), arena.memory().len() as u64);
        Self { arena, iommu, space: Arc::new(Mutex::new(space)), mapped: Arc::default() }
    }

    /// The same for a device that reaches only addresses below `limit`: memory that is mapped later lies below it, too.
    pub fn below(self, limit: u64) -> Self {
        self.space().exclude(limit, u64::MAX);
        self
    }

    /// The memory that is mapped for the life of the device.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The device's address translation.
    pub fn iommu(&self) -> &Arc<dyn Iommu> {
        &self.iommu
    }

    /// Lets the device reach all of `foreign`, outside of the arena, for as long as the mapping lives. Two system calls, so not
    /// for each request: [`Streams`] keeps mappings.
    pub fn map(&self, foreign: &Foreign) -> Result<Mapping, Error> {
        Mapping::new(self, foreign)
    }

    fn space(&self) -> MutexGuard<'_, Extents> {
        // The set is consistent between any two statements that can panic, so a poisoned lock is still good.
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
