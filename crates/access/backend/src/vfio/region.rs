//! A region of the device: a BAR, or its configuration space.

use std::ops::Range;
use std::os::fd::AsFd;

use ring3_device::Error;
use ring3_device::config::Msix;
use vfio_bindings::bindings::vfio::{
    VFIO_REGION_INFO_CAP_MSIX_MAPPABLE, VFIO_REGION_INFO_CAP_SPARSE_MMAP,
    VFIO_REGION_INFO_FLAG_CAPS, VFIO_REGION_INFO_FLAG_MMAP,
};

use super::{capability, ioctl};

/// Where a region lies in the device's descriptor, and what of it can be mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// Bytes; 0 if there is no such region.
    pub(super) size: u64,
    /// Its first byte in the descriptor.
    pub(super) offset: u64,
    /// What of it may be mapped; the rest is reached by `pread` and `pwrite`.
    pub(super) mappable: Vec<Range<u64>>,
}

impl Region {
    /// Asks the kernel. `msix` is the part of the region that holds the MSI-X table, if it does.
    pub(super) fn read(
        device: impl AsFd,
        index: u32,
        msix: Option<Range<u64>>,
    ) -> Result<Self, Error> {
        let info = ioctl::region_info(device, index)
            .map_err(|error| Error::os(format!("asking for region {index}"), error))?;
        let header = info.header;
        let mut region = Self { size: header.size, offset: header.offset, mappable: Vec::new() };
        if header.flags & VFIO_REGION_INFO_FLAG_MMAP == 0 || header.size == 0 {
            return Ok(region);
        }
        let start =
            if header.flags & VFIO_REGION_INFO_FLAG_CAPS != 0 { header.cap_offset } else { 0 };
        let with_id =
            |id| capability::chain(&info.bytes, start).find(|found| u32::from(found.id) == id);
        region.mappable = match (
            with_id(VFIO_REGION_INFO_CAP_SPARSE_MMAP),
            with_id(VFIO_REGION_INFO_CAP_MSIX_MAPPABLE),
            msix,
        ) {
            (Some(sparse), ..) => sparse.sparse_areas(),
            (None, None, Some(table)) => around(header.size, table),
            _ => Vec::from([Range { start: 0, end: header.size }]),
        };
        Ok(region)
    }
}

/// The bytes of BAR `index` that hold the table, if it is that BAR.
pub(super) fn table_in(msix: Option<Msix>, index: u8) -> Option<Range<u64>> {
    let table = msix.filter(|table| table.bar == index)?;
    Some(table.offset..table.offset + 16 * u64::from(table.entries))
}

/// The whole pages before and after `hole`.
fn around(size: u64, hole: Range<u64>) -> Vec<Range<u64>> {
    let page = rustix::param::page_size() as u64;
    let (before, after) =
        (0..hole.start.min(size) / page * page, hole.end.next_multiple_of(page)..size);
    [before, after].into_iter().filter(|area| !area.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_may_not_be_mapped_leaves_the_pages_around_it() {
        assert_eq!(around(0x10000, 0x2000..0x2410), [0..0x2000, 0x3000..0x10000]);
        assert_eq!(around(0x4000, 0x0800..0x0810).first(), Some(&(0x1000..0x4000)));
        assert_eq!(around(0x1000, 0x0..0x10), []);
    }
}
