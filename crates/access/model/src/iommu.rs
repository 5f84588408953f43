//! The address translation between a model and memory: what is not mapped is blocked, counted and
//! reported.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ring3_device::Error;
use ring3_device::dma::{Iommu, Pages};

use super::window::Window;

/// The addresses of x86's message signalled interrupts, which no IOMMU translates.
pub(super) const MSI_WINDOW: RangeInclusive<u64> = 0xfee0_0000..=0xfeef_ffff;
const PAGE: usize = 4096;
/// How many blocked accesses are remembered; all are counted.
const REMEMBERED: usize = 64;

/// An access of the device that was blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaFault {
    /// First device address.
    pub iova: u64,
    /// Bytes.
    pub len: usize,
    /// Whether the device wanted to write.
    pub write: bool,
    /// Why it was blocked.
    pub reason: Blocked,
}

/// Why an access was blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Not all of it is mapped.
    Unmapped,
    /// Bus mastering is off.
    BusMasterOff,
    /// The device was removed.
    Removed,
}

/// The translation of one simulated device.
pub struct SimIommu {
    windows: RwLock<Vec<Window>>,
    usable: Vec<RangeInclusive<u64>>,
    faults: Mutex<(u64, VecDeque<DmaFault>)>,
}

impl SimIommu {
    /// A translation of `bits` address bits in which `reserved` (besides the interrupt window)
    /// cannot be used.
    pub(super) fn new(bits: u32, reserved: &[RangeInclusive<u64>]) -> Self {
        let last = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        let mut usable = vec![0..=last];
        for hole in reserved.iter().chain([&MSI_WINDOW]) {
            usable = usable.into_iter().flat_map(|range| without(&range, hole)).collect();
        }
        Self { windows: RwLock::new(Vec::new()), usable, faults: Mutex::default() }
    }

    /// The first place at or above `base` where `len` bytes fit and end below `below`.
    pub(super) fn place(&self, len: usize, base: u64, below: u64) -> Option<u64> {
        let page = PAGE as u64;
        self.usable.iter().find_map(|range| {
            let start = (*range.start()).max(base).checked_next_multiple_of(page)?;
            let last = start.checked_add(len as u64 - 1)?;
            (last <= *range.end() && last < below).then_some(start)
        })
    }

    /// Runs `access` on the window that takes it; reports it if there is none.
    #[inline]
    pub(super) fn reach<T>(
        &self,
        iova: u64,
        len: usize,
        write: bool,
        mut access: impl FnMut(&Window) -> Option<T>,
    ) -> Result<T, Blocked> {
        match self.windows().iter().find_map(&mut access) {
            Some(done) => Ok(done),
            None => Err(self.block(DmaFault { iova, len, write, reason: Blocked::Unmapped })),
        }
    }

    #[cold]
    pub(super) fn block(&self, fault: DmaFault) -> Blocked {
        tracing::warn!(
            iova = format_args!("{:#x}", fault.iova), len = fault.len, write = fault.write,
            reason = ?fault.reason, "DMA blocked",
        );
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.0 += 1;
        if faults.1.len() == REMEMBERED {
            faults.1.pop_front();
        }
        faults.1.push_back(fault);
        fault.reason
    }

    pub(super) fn fault_count(&self) -> u64 {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn faults(&self) -> Vec<DmaFault> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).1.iter().copied().collect()
    }

    fn windows(&self) -> RwLockReadGuard<'_, Vec<Window>> {
        self.windows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn windows_mut(&self) -> RwLockWriteGuard<'_, Vec<Window>> {
        self.windows.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Iommu for SimIommu {
    fn map(&self, pages: &Pages, iova: u64) -> Result<(), Error> {
        let len = pages.len();
        let inside = |last: &u64| {
            self.usable.iter().any(|range| range.contains(&iova) && range.contains(last))
        };
        // Last addresses are compared: the end of the topmost page is no number.
        let last = (len as u64).checked_sub(1).and_then(|more| iova.checked_add(more));
        let Some(last) = last.filter(inside).filter(|_| iova.is_multiple_of(PAGE as u64)) else {
            return Err(Error::Invalid(format!(
                "mapping {len:#x} bytes at {iova:#x}: not on a page, or not in a usable range"
            )));
        };
        let window = Window::new(pages.clone(), iova);
        let mut windows = self.windows_mut();
        let last_of = |other: &Window| other.iova() + (other.len() as u64 - 1);
        if windows.iter().any(|other| iova <= last_of(other) && other.iova() <= last) {
            return Err(Error::Busy(format!(
                "device addresses {iova:#x}+{len:#x} are mapped already"
            )));
        }
        windows.push(window);
        Ok(())
    }

    fn unmap(&self, iova: u64, len: usize) -> Result<(), Error> {
        // The write lock waits for accesses that are under way, so after it the device reaches the
        // range no more.
        let mut windows = self.windows_mut();
        let found = windows.iter().position(|window| window.iova() == iova && window.len() == len);
        let index = found.ok_or_else(|| {
            Error::Invalid(format!("{iova:#x}+{len:#x} was not mapped as one range"))
        })?;
        windows.swap_remove(index);
        Ok(())
    }

    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.usable.clone()
    }

    fn page_size(&self) -> usize {
        PAGE
    }

    /// A model reaches what is mapped alone.
    fn is_bypassable(&self) -> bool {
        false
    }
}

/// What is left of `range` around `hole`.
fn without(range: &RangeInclusive<u64>, hole: &RangeInclusive<u64>) -> Vec<RangeInclusive<u64>> {
    if hole.end() < range.start() || range.end() < hole.start() {
        return vec![range.clone()];
    }
    let before = (range.start() < hole.start()).then(|| *range.start()..=hole.start() - 1);
    let after = (hole.end() < range.end()).then(|| hole.end() + 1..=*range.end());
    before.into_iter().chain(after).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_device::dma::Region;
    use std::sync::Arc;

    fn pages(len: usize) -> Pages {
        Pages::new(&Arc::new(Region::new(len).unwrap()), 0, len).unwrap()
    }

    #[test]
    fn reserved_ranges_are_left_out_and_mapping_there_is_refused() {
        let iommu = SimIommu::new(48, std::slice::from_ref(&(0x1000..=0x1fff)));
        let ranges = iommu.ranges();
        assert_eq!(ranges, [0..=0xfff, 0x2000..=0xfedf_ffff, 0xfef0_0000..=(1 << 48) - 1]);
        let pages = pages(4096);
        assert!(iommu.map(&pages, 0x1000).is_err());
        assert!(iommu.map(&pages, 0xfee0_0000).is_err());
        assert!(iommu.map(&pages, 0x2000).is_ok());
    }

    #[test]
    fn a_place_is_found_behind_a_reserved_range_and_below_the_limit() {
        let iommu = SimIommu::new(48, std::slice::from_ref(&(0x1000..=0x1fff)));
        assert_eq!(iommu.place(0x2000, 0x1000, 1 << 32), Some(0x2000));
        assert_eq!(iommu.place(1 << 32, 0, 1 << 32), None);
    }

    #[test]
    fn the_topmost_page_of_all_is_mapped_once() {
        let iommu = SimIommu::new(64, &[]);
        let (pages, top) = (pages(4096), u64::MAX - 4095);
        iommu.map(&pages, 0x10000).unwrap();
        iommu.map(&pages, top).unwrap();
        assert!(matches!(iommu.map(&pages, top), Err(Error::Busy(_))));
        assert!(matches!(iommu.map(&pages, u64::MAX), Err(Error::Invalid(_))));
        iommu.unmap(top, 4096).unwrap();
        iommu.map(&pages, top).unwrap();
    }

    #[test]
    fn an_address_is_mapped_once_and_unmapped_as_it_was_mapped() {
        let iommu = SimIommu::new(48, &[]);
        let pages = pages(8192);
        iommu.map(&pages, 0x10000).unwrap();
        assert!(matches!(iommu.map(&pages, 0x11000), Err(Error::Busy(_))));
        assert!(iommu.unmap(0x10000, 4096).is_err());
        iommu.unmap(0x10000, 8192).unwrap();
        let mut byte = [0];
        assert_eq!(
            iommu.reach(0x10000, 1, false, |w| w.read(0x10000, &mut byte).then_some(())),
            Err(Blocked::Unmapped)
        );
        assert_eq!(iommu.fault_count(), 1);
    }
}
