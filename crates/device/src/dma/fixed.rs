//! No translation: what the device reaches is decided when it is opened.

use std::ops::RangeInclusive;

use super::{Iommu, Pages};
use crate::Error;

/// The absence of an IOMMU. The device reaches its arena; foreign memory goes through bounce buffers.
pub struct Fixed {
    reachable: RangeInclusive<u64>,
    why: &'static str,
}

impl Fixed {
    /// The device uses the addresses `reachable`; `why` no memory can be added, for the message.
    pub fn new(reachable: RangeInclusive<u64>, why: &'static str) -> Self {
        Self { reachable, why }
    }

    fn refused(&self) -> Error {
        Error::Unsupported(format!("{}: foreign memory goes through bounce buffers", self.why))
    }
}

impl Iommu for Fixed {
    fn map(&self, _: &Pages, _: u64) -> Result<(), Error> {
        Err(self.refused())
    }
    fn unmap(&self, _: u64, _: usize) -> Result<(), Error> {
        Err(self.refused())
    }
    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![self.reachable.clone()]
    }
    fn page_size(&self) -> usize {
        4096
    }
    fn can_map_later(&self) -> bool {
        false
    }
}
