//! Memory that no device reaches: disks and cards that are this process alone.

use std::ops::RangeInclusive;

use super::{Iommu, Pages};
use crate::Error;

/// The translation where nobody but this process reads and writes memory: everything is within
/// reach, and mapping it does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDevice {
    /// Huge pages are not: their owner may take one out of its file, and this process would be
    /// killed when it copies from there.
    pub refuses_huge: bool,
}

impl Iommu for NoDevice {
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
    fn can_map(&self, pages: &Pages) -> bool {
        !(self.refuses_huge && pages.is_huge())
    }
}
