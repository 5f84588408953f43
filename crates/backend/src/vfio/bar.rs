//! BARs: mapped memory where the kernel allows it, system calls where it does not (holes in the mapping); ports by system calls, or by
//! instruction if the user wants that.

use std::sync::Arc;

use ring3_device::{Bar, Error};

use super::claim::Claim;
use super::region::Region;
use crate::guard::Mapping;
use crate::ports::{Port, PortRange, Ports, drain, fill};

/// A BAR of a claimed function. The claim lives as long as any clone.
#[derive(Clone)]
pub struct VfioBar {
    inner: Arc<Inner>,
}

struct Inner {
    /// The first part that is mapped, nearly always the whole BAR.
    first: Option<Area>,
    others: Vec<Area>,
    // Before the claim: it may hold a copy of the device's descriptor, which is closed before the group's.
    ports: Option<Ports>,
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
    fn new(claim: Arc<Claim>, region: Region, ports: Option<Ports>) -> Self {
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
        Self { inner: Arc::new(Inner { first, others, ports, region, claim }) }
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
    fn read<T: Port>(&self, offset: u64) -> T {
        match self.mapped(offset, size_of::<T>()) {
            Some((mapping, at)) => mapping.read(at),
            None => self.read_slowly(offset),
        }
    }

    #[inline]
    fn write<T: Port>(&self, offset: u64, value: T) {
        match self.mapped(offset, size_of::<T>()) {
            Some((mapping, at)) => mapping.write(at, value),
            None => self.write_slowly(offset, value),
        }
    }

    #[cold]
    fn read_slowly<T: Port>(&self, offset: u64) -> T {
        if let Some(ports) = &self.inner.ports {
            return ports.read(offset);
        }
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..size_of::<T>()];
        let read = self.place(offset, bytes.len()).map(|at| rustix::io::pread(self.inner.claim.device(), &mut *bytes, at));
        if read == Some(Ok(bytes.len())) { T::from_le(bytes) } else { T::ALL_ONES }
    }

    #[cold]
    fn write_slowly<T: Port>(&self, offset: u64, value: T) {
        if let Some(ports) = &self.inner.ports {
            return ports.write(offset, value);
        }
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

    /// Where one access of 64 bits reaches `offset`; ports and holes take 32 bits at a time.
    #[inline]
    fn wide(&self, offset: u64) -> Option<(&Mapping, usize)> {
        self.mapped(offset, 8).filter(|_| offset.is_multiple_of(8))
    }
}

impl Bar for VfioBar {
    fn len(&self) -> u64 {
        self.inner.ports.as_ref().map_or(self.inner.region.size, Ports::len)
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
        if let Some((mapping, at)) = self.wide(offset) {
            return mapping.read(at);
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
        if let Some((mapping, at)) = self.wide(offset) {
            return mapping.write(at, value);
        }
        self.write(offset, value as u32);
        if let Some(high) = offset.checked_add(4) {
            self.write(high, (value >> 32) as u32);
        }
    }
    fn read_string16(&self, offset: u64, bytes: &mut [u8]) {
        match &self.inner.ports {
            Some(ports) => ports.read_string::<u16>(offset, bytes),
            None => fill(bytes, || self.read16(offset)),
        }
    }
    fn write_string16(&self, offset: u64, bytes: &[u8]) {
        match &self.inner.ports {
            Some(ports) => ports.write_string::<u16>(offset, bytes),
            None => drain(bytes, |word| self.write16(offset, word)),
        }
    }
    fn read_string32(&self, offset: u64, bytes: &mut [u8]) {
        match &self.inner.ports {
            Some(ports) => ports.read_string::<u32>(offset, bytes),
            None => fill(bytes, || self.read32(offset)),
        }
    }
    fn write_string32(&self, offset: u64, bytes: &[u8]) {
        match &self.inner.ports {
            Some(ports) => ports.write_string::<u32>(offset, bytes),
            None => drain(bytes, |word| self.write32(offset, word)),
        }
    }
}

/// BAR `index` of `claim`.
pub(super) fn open(claim: &Arc<Claim>, index: u8) -> Result<VfioBar, Error> {
    let region = claim.region(index)?;
    if region.size == 0 {
        return Err(Error::Unsupported(format!("{}: it has no BAR {index}", claim.name())));
    }
    let ports = ports(claim, index, &region)?;
    Ok(VfioBar::new(claim.clone(), region, ports))
}

/// The ports that BAR `index` means, if it is of ports: those that the kernel lists for the function, and nothing else of `region`.
fn ports(claim: &Claim, index: u8, region: &Region) -> Result<Option<Ports>, Error> {
    let function = claim.function()?;
    let Some(resource) = function.bars.iter().find(|bar| bar.index == index && bar.port) else { return Ok(None) };
    let range = PortRange::of(&function, resource)?;
    if resource.size != region.size {
        return Err(Error::Invalid(format!(
            "{}: BAR {index} has {} ports here and {} there",
            claim.name(),
            region.size,
            resource.size
        )));
    }
    if claim.direct_ports() {
        range.check_owner(&function, "vfio")?;
    }
    let device = claim.device().try_clone_to_owned().map_err(|error| Error::os("copying a descriptor", error))?;
    Ok(Some(Ports::new(range, claim.direct_ports(), device.into(), region.offset)))
}
