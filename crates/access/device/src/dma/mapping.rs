//! Memory outside the arena that is mapped for the device.

use super::{Dma, Pages};
use crate::Error;

/// Pages, mapped at a device address until this is dropped. It keeps the bytes, so it is never
/// stale.
pub struct Mapping {
    dma: Dma,
    pages: Pages,
    iova: u64,
    ended: bool,
}

impl Mapping {
    pub(super) fn new(dma: &Dma, pages: Pages, iova: u64) -> Self {
        dma.mapped.insert(iova, pages.clone());
        Self { dma: dma.clone(), pages, iova, ended: false }
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

impl Mapping {
    /// Takes the pages from the device: after `Ok` it reaches them no more. After an error it may,
    /// and neither they nor the addresses are used again.
    pub fn unmap(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let len = self.pages.len();
        self.dma.mapped.remove(self.iova);
        self.dma
            .iommu
            .unmap(self.iova, len)
            .inspect_err(|_| std::mem::forget(self.pages.clone()))?;
        self.dma.space().give_back(self.iova, len as u64);
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(
                "{} bytes at device address {:#x} stay mapped and are lost: {error}",
                self.len(),
                self.iova
            );
        }
    }
}
