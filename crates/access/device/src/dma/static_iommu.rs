//! A device without translation: the memory that it can reach is decided when it is opened.

use std::ops::RangeInclusive;

use super::{Iommu, Pages};
use crate::Error;

/// The absence of an IOMMU: the device reaches its arena, at addresses of this range, and nothing
/// is ever added. Foreign memory goes through bounce buffers.
pub struct StaticIommu {
    /// The device addresses that it reaches.
    pub range: RangeInclusive<u64>,
    /// See [`Iommu::is_bypassable`].
    pub bypassable: bool,
}

impl StaticIommu {
    /// That of a device whose addresses of `range` are the machine's, so that there is nothing to
    /// go around.
    pub fn identity(range: RangeInclusive<u64>) -> Self {
        Self { range, bypassable: false }
    }
}

impl Iommu for StaticIommu {
    fn map(&self, _: &Pages, _: u64) -> Result<(), Error> {
        Err(Error::Unsupported("mapping memory without an IOMMU".into()))
    }
    fn unmap(&self, _: u64, _: usize) -> Result<(), Error> {
        Err(Error::Unsupported("unmapping memory without an IOMMU".into()))
    }
    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![self.range.clone()]
    }
    fn page_size(&self) -> usize {
        4096
    }
    fn can_map(&self, _: &Pages) -> bool {
        false
    }
    fn is_bypassable(&self) -> bool {
        self.bypassable
    }
}
