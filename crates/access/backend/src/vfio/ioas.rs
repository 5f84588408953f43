//! The address translation behind a function's own node: a space of device addresses of iommufd.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ring3_device::Error;
use ring3_device::dma::{Iommu, Pages};
use ring3_pci::Address;

use super::iommufd;
use super::type1::{not_mapped, unmapped};

/// A space of device addresses, with the descriptor that it lives in.
pub(super) struct Ioas {
    iommufd: OwnedFd,
    space: u32,
    address: Address,
    ranges: Vec<RangeInclusive<u64>>,
    page_size: usize,
}

impl Ioas {
    /// Asks what may be mapped where in `space`, to which the function at `address` is attached.
    pub(super) fn new(iommufd: OwnedFd, space: u32, address: Address) -> Result<Self, Error> {
        let (mut ranges, boundary) = iommufd::ranges(&iommufd, space)
            .map_err(|error| Error::os(format!("vfio:{address}: asking its IOMMU"), error))?;
        ranges.sort_by_key(|range| *range.start());
        let page_size = (boundary as usize).max(rustix::param::page_size());
        Ok(Self { iommufd, space, address, ranges, page_size })
    }

    /// The descriptor.
    pub(super) fn iommufd(&self) -> BorrowedFd<'_> {
        self.iommufd.as_fd()
    }

    /// The space's number in it.
    pub(super) fn space(&self) -> u32 {
        self.space
    }
}

impl Iommu for Ioas {
    fn map(&self, pages: &Pages, iova: u64) -> Result<(), Error> {
        iommufd::map(&self.iommufd, self.space, pages, iova)
            .map_err(|error| not_mapped(self.address, pages.len(), iova, error))
    }

    fn unmap(&self, iova: u64, len: usize) -> Result<(), Error> {
        let done = match iommufd::unmap(&self.iommufd, self.space, iova, len) {
            // Of type 1 that is no error, and the bytes are counted.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                let address = self.address;
                return Err(Error::Invalid(format!(
                    "vfio:{address}: {iova:#x}+{len:#x} is not mapped, or not as a whole"
                )));
            }
            done => done,
        };
        unmapped(self.address, len, iova, done)
    }

    fn ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.ranges.clone()
    }

    fn page_size(&self) -> usize {
        self.page_size
    }
}
