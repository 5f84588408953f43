//! The address translation behind a VFIO container.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ring3_device::Error;
use ring3_device::dma::{Iommu, Pages};
use ring3_pci::{Address, Obstacle};
use rustix::process::{Resource, getrlimit};
use vfio_bindings::bindings::vfio::{
    VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_INFO_PGSIZES, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE,
    VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL,
};

use super::way::blocked;
use super::{capability, ioctl};

/// Device addresses that every x86 machine has: 39 bits is the least of VT-d, without the window of
/// interrupts.
pub(crate) const USUAL_RANGES: [RangeInclusive<u64>; 2] =
    [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff];

/// A container with a type 1 IOMMU.
pub(super) struct Type1 {
    container: OwnedFd,
    address: Address,
    ranges: Vec<RangeInclusive<u64>>,
    page_size: usize,
}

impl Type1 {
    /// Asks `container`, which has its IOMMU, what may be mapped where.
    pub(super) fn new(container: OwnedFd, address: Address) -> Result<Self, Error> {
        let info = ioctl::iommu_info(&container)
            .map_err(|error| Error::os(format!("vfio:{address}: asking its IOMMU"), error))?;
        let mut ranges = Vec::new();
        if info.header.flags & VFIO_IOMMU_INFO_CAPS != 0 {
            let mut chain = capability::chain(&info.bytes, info.header.cap_offset);
            let found = chain.find(|capability| {
                u32::from(capability.id) == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE
            });
            ranges = found.map(|capability| capability.iova_ranges()).unwrap_or_default();
        }
        if ranges.is_empty() {
            // Kernels before 5.4 do not say.
            ranges = USUAL_RANGES.to_vec();
        }
        ranges.sort_by_key(|range| *range.start());
        let sizes = if info.header.flags & VFIO_IOMMU_INFO_PGSIZES != 0 {
            info.header.iova_pgsizes
        } else {
            0
        };
        let smallest = 1usize.checked_shl(sizes.trailing_zeros()).unwrap_or(0);
        Ok(Self { container, address, ranges, page_size: smallest.max(rustix::param::page_size()) })
    }

    /// The container.
    pub(super) fn container(&self) -> BorrowedFd<'_> {
        self.container.as_fd()
    }

    /// Mappings that can still be made, where the kernel says.
    fn available(&self) -> Option<u32> {
        let info = ioctl::iommu_info(&self.container).ok()?;
        let mut chain = capability::chain(&info.bytes, info.header.cap_offset);
        chain
            .find(|capability| u32::from(capability.id) == VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL)?
            .dma_available()
    }

    fn refused(&self, len: usize, iova: u64, error: io::Error) -> Error {
        match error.raw_os_error() {
            Some(libc::ENOSPC) => Error::Claim(format!(
                "vfio:{}: no DMA mapping is left for this container ({} available); \
                 raise /sys/module/vfio_iommu_type1/parameters/dma_entry_limit or map larger \
                 pieces",
                self.address,
                self.available().unwrap_or(0)
            )),
            _ => not_mapped(self.address, len, iova, error),
        }
    }
}

/// Why `len` bytes of memory were not mapped at `iova`, for the function at `address`.
pub(super) fn not_mapped(address: Address, len: usize, iova: u64, error: io::Error) -> Error {
    let limit = getrlimit(Resource::Memlock).current;
    match (error.raw_os_error(), limit) {
        (Some(libc::ENOMEM), Some(limit)) => {
            blocked(address, Obstacle::Memlock { needed: len as u64, limit })
        }
        (Some(libc::ENOMEM), None) => {
            Error::os(format!("vfio:{address}: mapping {len} bytes of DMA memory"), error)
        }
        (Some(libc::EEXIST), _) => Error::Invalid(format!(
            "vfio:{address}: device addresses {iova:#x}+{len:#x} are mapped already"
        )),
        _ => Error::os(
            format!("vfio:{address}: mapping {len} bytes of DMA memory at {iova:#x}"),
            error,
        ),
    }
}

/// What it means that `done` bytes were unmapped of the `len` at `iova` that should be, for the
/// function at `address`.
pub(super) fn unmapped(
    address: Address,
    len: usize,
    iova: u64,
    done: io::Result<u64>,
) -> Result<(), Error> {
    let failed = |error| Error::os(format!("vfio:{address}: unmapping {iova:#x}+{len:#x}"), error);
    match done.map_err(failed)? {
        done if done == len as u64 => Ok(()),
        done => Err(Error::Invalid(format!(
            "vfio:{address}: of the {len:#x} bytes to unmap at {iova:#x}, {done:#x} were mapped"
        ))),
    }
}

impl Iommu for Type1 {
    fn map(&self, pages: &Pages, iova: u64) -> Result<(), Error> {
        ioctl::map_dma(&self.container, pages, iova)
            .map_err(|error| self.refused(pages.len(), iova, error))
    }

    fn unmap(&self, iova: u64, len: usize) -> Result<(), Error> {
        unmapped(self.address, len, iova, ioctl::unmap_dma(&self.container, iova, len))
    }

    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.ranges.clone()
    }

    fn page_size(&self) -> usize {
        self.page_size
    }
}
