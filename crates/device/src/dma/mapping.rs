//! Memory beside the arena that the device reaches.

use super::{Dma, Pages};

/// Pages, mapped at a device address until this is dropped. It keeps the bytes, so it is never stale.
pub struct Mapping {
    dma: Dma,
    pages: Pages,
    iova: u64,
}

impl Mapping {
    pub(super) fn new(dma: &Dma, pages: Pages, iova: u64) -> Self {
        dma.mapped.insert(iova, pages.clone());
        Self { dma: dma.clone(), pages, iova }
    }

    /// The device address of the first byte.
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Never: there is at least one page.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let len = self.pages.len();
        self.dma.mapped.remove(self.iova);
        match self.dma.iommu.unmap(self.iova, len) {
            Ok(()) => self.dma.space().give_back(self.iova, len as u64),
            Err(error) => {
                // The device may still reach the bytes: neither they nor the addresses are used again.
                std::mem::forget(self.pages.clone());
                tracing::error!("{len} bytes at device address {:#x} stay mapped and are lost: {error}", self.iova);
            }
        }
    }
}
