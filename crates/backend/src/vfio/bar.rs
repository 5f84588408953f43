//! BARs: mapped memory where the kernel allows it, system calls where it does not (ports, and holes in the mapping).

use std::sync::Arc;

use ring3_device::{Bar, Error};

use super::claim::Claim;
use super::region::Region;
use crate::guard::{Mapping, Word};

/// A BAR of a claimed function. The claim lives as long as any clone.
#[derive(Clone)]
pub struct VfioBar {
    inner: Arc<Inner>,
}

struct Inner {
    /// The first part that is mapped, nearly always the whole BAR.
    first: Option<Area>,
    others: Vec<Area>,
    region: Region,
    claim: Arc<Claim>,
}

struct Area {
    start: u64,
    /// Bytes of the BAR, which may end within the mapping's last page.
    len: u64,
    mapping: Mapping,
}

impl Area {
    /// Where in the mapping `size` bytes at `offset` of the BAR lie.
    #[inline]
    fn find(&self, offset: u64, size: usize) -> Option<usize> {
        let at = offset.checked_sub(self.start)?;
        (at.checked_add(size as u64)? <= self.len).then_some(at as usize)
    }
}

impl VfioBar {
    /// Maps what can be mapped of `region`. A part for which that fails is reached by system calls, slower but as well.
    pub(super) fn new(claim: Arc<Claim>, region: Region) -> Self {
        let map = |area: &std::ops::Range<u64>| {
            let len = usize::try_from(area.end - area.start).ok()?;
            match Mapping::new(claim.device(), region.offset + area.start, len) {
                Ok(mapping) => Some(Area { start: area.start, len: area.end - area.start, mapping }),
                Err(error) => {
                    tracing::warn!("{}: BAR bytes {area:#x?} are not mapped: {error}", claim.name());
                    None
                }
            }
        };
        let mut areas = region.mappable.iter().filter_map(map);
        let (first, others) = (areas.next(), areas.collect());
        Self { inner: Arc::new(Inner { first, others, region, claim }) }
    }

    /// Whether `size` bytes at `offset` are reached without a system call.
    pub(super) fn is_mapped(&self, offset: u64, size: usize) -> bool {
        self.mapped(offset, size).is_some()
    }

    #[inline]
    fn mapped(&self, offset: u64, size: usize) -> Option<(&Mapping, usize)> {
        let inner = &*self.inner;
        if let Some(area) = &inner.first
            && let Some(at) = area.find(offset, size)
        {
            return Some((&area.mapping, at));
        }
        inner.others.iter().find_map(|area| Some((&area.mapping, area.find(offset, size)?)))
    }

    #[inline]
    fn read<T: Word>(&self, offset: u64) -> T {
        match self.mapped(offset, size_of::<T>()) {
            Some((mapping, at)) => mapping.read(at),
            None => self.read_slowly(offset),
        }
    }

    #[inline]
    fn write<T: Word>(&self, offset: u64, value: T) {
        match self.mapped(offset, size_of::<T>()) {
            Some((mapping, at)) => mapping.write(at, value),
            None => self.write_slowly(offset, value),
        }
    }

    #[cold]
    fn read_slowly<T: Word>(&self, offset: u64) -> T {
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..size_of::<T>()];
        let read = self.place(offset, bytes.len()).map(|at| rustix::io::pread(self.inner.claim.device(), &mut *bytes, at));
        if read == Some(Ok(bytes.len())) { T::from_le(bytes) } else { T::ALL_ONES }
    }

    #[cold]
    fn write_slowly<T: Word>(&self, offset: u64, value: T) {
        if let Some(at) = self.place(offset, size_of::<T>()) {
            // A device that is gone loses writes; there is nobody to tell.
            let _ = rustix::io::pwrite(self.inner.claim.device(), &value.to_le()[..size_of::<T>()], at);
        }
    }

    /// Where in the device's descriptor `size` bytes at `offset` of the BAR lie.
    fn place(&self, offset: u64, size: usize) -> Option<u64> {
        let region = &self.inner.region;
        let fits = offset.checked_add(size as u64)? <= region.size && offset.is_multiple_of(size as u64);
        fits.then_some(region.offset + offset)
    }

    /// Whether one access of 64 bits reaches `offset`; ports and holes take 32 bits at a time.
    #[inline]
    fn is_wide(&self, offset: u64) -> bool {
        offset.is_multiple_of(8) && self.mapped(offset, 8).is_some()
    }
}

impl Bar for VfioBar {
    fn len(&self) -> u64 {
        self.inner.region.size
    }
    #[inline]
    fn read8(&self, offset: u64) -> u8 {
        self.read(offset)
    }
    #[inline]
    fn read16(&self, offset: u64) -> u16 {
        self.read(offset)
    }
    #[inline]
    fn read32(&self, offset: u64) -> u32 {
        self.read(offset)
    }
    #[inline]
    fn read64(&self, offset: u64) -> u64 {
        if self.is_wide(offset) {
            return self.read(offset);
        }
        let low = self.read::<u32>(offset);
        u64::from(low) | u64::from(offset.checked_add(4).map_or(u32::MAX, |high| self.read(high))) << 32
    }
    #[inline]
    fn write8(&self, offset: u64, value: u8) {
        self.write(offset, value);
    }
    #[inline]
    fn write16(&self, offset: u64, value: u16) {
        self.write(offset, value);
    }
    #[inline]
    fn write32(&self, offset: u64, value: u32) {
        self.write(offset, value);
    }
    #[inline]
    fn write64(&self, offset: u64, value: u64) {
        if self.is_wide(offset) {
            return self.write(offset, value);
        }
        self.write(offset, value as u32);
        if let Some(high) = offset.checked_add(4) {
            self.write(high, (value >> 32) as u32);
        }
    }
}

/// BAR `index` of `claim`.
pub(super) fn open(claim: &Arc<Claim>, index: u8) -> Result<VfioBar, Error> {
    let region = claim.region(index)?;
    if region.size == 0 {
        return Err(Error::Unsupported(format!("{}: it has no BAR {index}", claim.name())));
    }
    Ok(VfioBar::new(claim.clone(), region))
}
