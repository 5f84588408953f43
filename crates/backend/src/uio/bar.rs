//! BARs: memory mapped from sysfs, ports by instruction or, where that is refused, by sysfs.

use std::sync::Arc;

use ring3_device::{Bar, Error};

use super::claim::Claim;
use crate::guard::Mapping;
use crate::ports::{PortRange, Ports, drain, fill};

/// A BAR of a claimed function. The claim lives as long as any clone.
#[derive(Clone)]
pub struct UioBar {
    inner: Arc<Inner>,
}

struct Inner {
    space: Space,
    _claim: Arc<Claim>,
}

enum Space {
    Memory {
        mapping: Mapping,
        /// Where the BAR starts in its first page.
        start: usize,
        len: u64,
    },
    Ports(Ports),
}

/// BAR `index` of `claim`.
pub(super) fn open(claim: &Arc<Claim>, index: u8) -> Result<UioBar, Error> {
    let (function, resource, file) = claim.bar(index)?;
    let space = if resource.port {
        let range = PortRange::of(&function, &resource)?;
        range.check_owner(&function, "uio")?;
        Space::Ports(Ports::new(range, true, file, 0))
    } else {
        let start = resource.start as usize % rustix::param::page_size();
        let len = usize::try_from(resource.size).ok().and_then(|size| size.checked_add(start));
        let len = len.ok_or_else(|| Error::Invalid(format!("{}: BAR {index} of {} bytes", claim.name(), resource.size)))?;
        Space::Memory { mapping: Mapping::new(&file, 0, len)?, start, len: resource.size }
    };
    Ok(UioBar { inner: Arc::new(Inner { space, _claim: claim.clone() }) })
}

/// Reads or writes at an offset of the BAR in the space that it has.
macro_rules! access {
    ($self:ident, $offset:ident, $size:expr, $mapping:ident, $at:ident => $memory:expr, $ports:ident => $port:expr, $none:expr) => {
        match &$self.inner.space {
            Space::Memory { mapping: $mapping, start, len } => match $offset.checked_add($size) {
                Some(end) if end <= *len => {
                    let $at = start + $offset as usize;
                    $memory
                }
                _ => $none,
            },
            Space::Ports($ports) => $port,
        }
    };
}

impl Bar for UioBar {
    fn len(&self) -> u64 {
        match &self.inner.space {
            Space::Memory { len, .. } => *len,
            Space::Ports(ports) => ports.len(),
        }
    }
    #[inline]
    fn read8(&self, offset: u64) -> u8 {
        access!(self, offset, 1, mapping, at => mapping.read(at), ports => ports.read(offset), u8::MAX)
    }
    #[inline]
    fn read16(&self, offset: u64) -> u16 {
        access!(self, offset, 2, mapping, at => mapping.read(at), ports => ports.read(offset), u16::MAX)
    }
    #[inline]
    fn read32(&self, offset: u64) -> u32 {
        access!(self, offset, 4, mapping, at => mapping.read(at), ports => ports.read(offset), u32::MAX)
    }
    #[inline]
    fn read64(&self, offset: u64) -> u64 {
        let halves =
            || u64::from(self.read32(offset)) | u64::from(offset.checked_add(4).map_or(u32::MAX, |high| self.read32(high))) << 32;
        access!(self, offset, 8, mapping, at => if at.is_multiple_of(8) { mapping.read(at) } else { halves() }, _ports => halves(), u64::MAX)
    }
    #[inline]
    fn write8(&self, offset: u64, value: u8) {
        access!(self, offset, 1, mapping, at => mapping.write(at, value), ports => ports.write(offset, value), ());
    }
    #[inline]
    fn write16(&self, offset: u64, value: u16) {
        access!(self, offset, 2, mapping, at => mapping.write(at, value), ports => ports.write(offset, value), ());
    }
    #[inline]
    fn write32(&self, offset: u64, value: u32) {
        access!(self, offset, 4, mapping, at => mapping.write(at, value), ports => ports.write(offset, value), ());
    }
    #[inline]
    fn write64(&self, offset: u64, value: u64) {
        let halves = || {
            self.write32(offset, value as u32);
            if let Some(high) = offset.checked_add(4) {
                self.write32(high, (value >> 32) as u32);
            }
        };
        access!(self, offset, 8, mapping, at => if at.is_multiple_of(8) { mapping.write(at, value) } else { halves() }, _ports => halves(), ());
    }
    fn read_string16(&self, offset: u64, bytes: &mut [u8]) {
        match &self.inner.space {
            Space::Ports(ports) => ports.read_string::<u16>(offset, bytes),
            Space::Memory { .. } => fill(bytes, || self.read16(offset)),
        }
    }
    fn write_string16(&self, offset: u64, bytes: &[u8]) {
        match &self.inner.space {
            Space::Ports(ports) => ports.write_string::<u16>(offset, bytes),
            Space::Memory { .. } => drain(bytes, |word| self.write16(offset, word)),
        }
    }
    fn read_string32(&self, offset: u64, bytes: &mut [u8]) {
        match &self.inner.space {
            Space::Ports(ports) => ports.read_string::<u32>(offset, bytes),
            Space::Memory { .. } => fill(bytes, || self.read32(offset)),
        }
    }
    fn write_string32(&self, offset: u64, bytes: &[u8]) {
        match &self.inner.space {
            Space::Ports(ports) => ports.write_string::<u32>(offset, bytes),
            Space::Memory { .. } => drain(bytes, |word| self.write32(offset, word)),
        }
    }
}
