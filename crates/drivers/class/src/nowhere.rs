//! Address translation for disks and cards without a device.

use std::ops::RangeInclusive;

use ring3_device::Error;
use ring3_device::dma::{Iommu, Pages};

/// The translation of a device that never reaches for memory.
pub(crate) struct NoDma;

impl Iommu for NoDma {
    fn map(&self, _: &Pages, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn unmap(&self, _: u64, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0..=u64::MAX]
    }

    fn page_size(&self) -> usize {
        4096
    }
}
