//! BARs: memory mapped from sysfs, ports by instruction or, where that is refused, by sysfs.

use std::sync::Arc;

use ring3_device::{Access, Bar, Error};

use super::claim::Claim;
use crate::guard::{self, Mapped, Mapping};
use crate::ports::{self, PortRange, Ports};

/// Memory of a claimed function, which keeps the claim.
struct Memory {
    mapping: Mapping,
    /// Where the BAR starts in its first page.
    start: usize,
    len: u64,
    _claim: Arc<Claim>,
}

impl Memory {
    fn at(&self, offset: u64, width: usize) -> Option<usize> {
        (offset.checked_add(width as u64)? <= self.len).then(|| self.start + offset as usize)
    }
}

impl Access for Memory {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, width: usize) -> u64 {
        if width == 8 && !offset.is_multiple_of(8) {
            return self.read_halves(offset);
        }
        self.at(offset, width).map_or(u64::MAX, |at| self.mapping.read(at, width))
    }

    fn write(&self, offset: u64, width: usize, value: u64) {
        if width == 8 && !offset.is_multiple_of(8) {
            return self.write_halves(offset, value);
        }
        if let Some(at) = self.at(offset, width) {
            self.mapping.write(at, width, value);
        }
    }
}

impl Mapped for Memory {
    fn window(&self) -> Option<(&Mapping, usize, u64)> {
        Some((&self.mapping, self.start, self.len))
    }
}

/// BAR `index` of `claim`.
pub(super) fn open(claim: &Arc<Claim>, index: u8) -> Result<Bar, Error> {
    let (function, resource, file) = claim.bar(index)?;
    if resource.port {
        let range = PortRange::of(&function, &resource)?;
        range.check_owner(&function, "uio")?;
        return Ok(ports::bar(Ports::new(range, true, file, 0), claim.clone()));
    }
    let start = resource.start as usize % rustix::param::page_size();
    let len = usize::try_from(resource.size).ok().and_then(|size| size.checked_add(start));
    let len = len.ok_or_else(|| {
        Error::Invalid(format!("{}: BAR {index} of {} bytes", claim.name(), resource.size))
    })?;
    let mapping = Mapping::new(&file, 0, len)?;
    Ok(guard::bar(Arc::new(Memory { mapping, start, len: resource.size, _claim: claim.clone() })))
}
