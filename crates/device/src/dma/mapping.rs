//! Foreign memory that the device reaches.

use super::{Dma, Foreign, Pages};
use crate::Error;

/// All of one [`Foreign`], mapped at a device address until this is dropped. It keeps the bytes, so it is never stale.
pub struct Mapping {
    dma: Dma,
    pages: Pages,
    iova: u64,
}

impl Mapping {
    pub(super) fn new(dma: &Dma, foreign: &Foreign) -> Result<Self, Error> {
        if !dma.iommu.can_map_later() {
            return Err(Error::Unsupported("this backend maps memory only when the device is opened".into()));
        }
        let pages = Pages::of_foreign(foreign)?;
        let (len, page) = (pages.len() as u64, dma.iommu.page_size() as u64);
        if !len.is_multiple_of(page) || !(pages.as_ptr().addr().get() as u64).is_multiple_of(page) {
            return Err(Error::Invalid(format!("mapping {len} bytes: not whole pages of the IOMMU ({page} bytes)")));
        }
        let iova = dma.space().carve(len, page);
        let iova = iova.ok_or_else(|| Error::Unsupported(format!("no {len} device addresses are free in one piece")))?;
        if let Err(error) = dma.iommu.map(&pages, iova) {
            dma.space().give_back(iova, len);
            return Err(error);
        }
        dma.mapped.insert(iova, pages.clone());
        Ok(Self { dma: dma.clone(), pages, iova })
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
