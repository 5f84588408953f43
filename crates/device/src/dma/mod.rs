//! Memory that the device can reach.
//!
//! # Shape
//! [`Memory`] is an anonymous shared file (memfd), mapped here and handed by descriptor to whoever must see it too.
//! An [`Arena`] is the memory of one device, mapped once through its IOMMU, so that virtual to device address is one addition.
//! A [`DmaBuffer`] is an owned range of the arena. [`Dma`] ties an arena to the device's [`Iommu`].
//! [`Foreign`] memory is what was not made for the device. [`Pages`] of either kind are what an [`Iommu`] maps.
//!
//! # Trust
//! No Rust reference to this memory exists: a device or another process can write it at any time. Bytes are copied in and
//! out; shared words are atomics.

mod arena;
mod buffer;
mod foreign;
mod memory;
mod pages;

use std::ops::RangeInclusive;
use std::sync::Arc;

pub use arena::Arena;
pub use buffer::DmaBuffer;
pub use foreign::Foreign;
pub use memory::Memory;
pub use pages::Pages;

use crate::Error;

/// A range of device addresses, contiguous for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First device address.
    pub iova: u64,
    /// Bytes.
    pub len: u32,
}

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
}

impl Dma {
    /// Ties `arena`, which is mapped already, to the translation behind it.
    pub fn new(arena: Arena, iommu: Arc<dyn Iommu>) -> Self {
        Self { arena, iommu }
    }

    /// The memory that is mapped for the life of the device.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The device's address translation.
    pub fn iommu(&self) -> &Arc<dyn Iommu> {
        &self.iommu
    }
}
