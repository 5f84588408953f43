//! Access to memory by its device address, for drivers that move the data by the processor instead
//! of by the device (programmed I/O).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Arena, Dma, Pages, bytes};
use crate::Error;

/// What is mapped beside the arena, by its first device address.
#[derive(Default)]
pub(super) struct Mapped {
    pages: Mutex<BTreeMap<u64, Pages>>,
}

impl Mapped {
    pub(super) fn insert(&self, iova: u64, pages: Pages) {
        self.lock().insert(iova, pages);
    }

    pub(super) fn remove(&self, iova: u64) {
        self.lock().remove(&iova);
    }

    /// What is mapped at `iova`, and how far behind its start that is.
    fn find(&self, iova: u64) -> Option<(Pages, usize)> {
        let pages = self.lock();
        let (start, pages) = pages.range(..=iova).next_back()?;
        Some((pages.clone(), (iova - start) as usize))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Pages>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dma {
    /// Copies out what the device would read at `iova`. Fails where it would reach nothing; takes a
    /// lock outside of the arena.
    pub fn read(&self, iova: u64, bytes: &mut [u8]) -> Result<(), Error> {
        if self.arena.read_at(iova, bytes) {
            return Ok(());
        }
        let (pages, offset) = self.mapped.find(iova).ok_or_else(|| nothing_at(iova))?;
        pages.read(offset, bytes)
    }

    /// Copies in what the device would write at `iova`. Fails where it would reach nothing; takes a
    /// lock outside of the arena.
    pub fn write(&self, iova: u64, bytes: &[u8]) -> Result<(), Error> {
        if self.arena.write_at(iova, bytes) {
            return Ok(());
        }
        let (pages, offset) = self.mapped.find(iova).ok_or_else(|| nothing_at(iova))?;
        pages.write(offset, bytes)
    }
}

impl Arena {
    /// False if not all of the bytes lie in the arena.
    fn read_at(&self, iova: u64, bytes: &mut [u8]) -> bool {
        let Some(from) = self.at(iova, bytes.len()) else { return false };
        // SAFETY: `at` proved the range, which is only accessed by raw pointers.
        unsafe { bytes::copy_out(from.as_ptr(), bytes) };
        true
    }

    /// False if not all of the bytes lie in the arena.
    fn write_at(&self, iova: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.at(iova, bytes.len()) else { return false };
        // SAFETY: `at` proved the range, which is only accessed by raw pointers.
        unsafe { bytes::copy_in(bytes, to.as_ptr()) };
        true
    }
}

#[cold]
fn nothing_at(iova: u64) -> Error {
    Error::Invalid(format!("the device reaches nothing at its address {iova:#x}"))
}

#[cfg(test)]
mod tests {
    use super::super::{Foreign, Iommu, Region};
    use super::*;
    use std::ops::RangeInclusive;
    use std::sync::Arc;

    struct Everything;

    impl Iommu for Everything {
        fn map(&self, _: &Pages, _: u64) -> Result<(), Error> {
            Ok(())
        }
        fn unmap(&self, _: u64, _: usize) -> Result<(), Error> {
            Ok(())
        }
        fn ranges(&self) -> Vec<RangeInclusive<u64>> {
            vec![0..=u32::MAX.into()]
        }
        fn page_size(&self) -> usize {
            4096
        }
    }

    fn dma() -> Dma {
        Dma::new(Arena::new(Region::new(8192).unwrap(), 0x10_0000), Arc::new(Everything))
    }

    #[test]
    fn a_buffer_is_reached_by_its_device_address() {
        let dma = dma();
        let buffer = dma.arena().alloc(4096, 4096).unwrap();
        dma.write(buffer.iova() + 2, &[1, 2, 3]).unwrap();
        let mut bytes = [0; 3];
        buffer.read(2, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3]);
        dma.read(buffer.iova() + 3, &mut bytes[..1]).unwrap();
        assert_eq!(bytes[0], 2);
    }

    #[test]
    fn foreign_memory_is_reached_while_it_is_mapped() {
        let (dma, memory) = (dma(), Foreign::new(8192).unwrap());
        let mapping = dma.map(memory.region().pages().unwrap()).unwrap();
        dma.write(mapping.iova() + 5000, &[7]).unwrap();
        let mut byte = [0];
        memory.read(5000, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        assert!(dma.write(mapping.iova() + 8191, &[7, 7]).is_err());
        let iova = mapping.iova();
        drop(mapping);
        assert!(dma.read(iova, &mut byte).is_err());
    }

    #[test]
    fn nothing_is_reached_where_nothing_is() {
        let dma = dma();
        let end = dma.arena().iova() + dma.arena().len() as u64;
        for iova in [0, dma.arena().iova() - 1, end - 1, u64::MAX] {
            assert!(dma.read(iova, &mut [0; 2]).is_err(), "{iova:#x}");
        }
    }
}
