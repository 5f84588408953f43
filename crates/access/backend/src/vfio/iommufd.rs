//! The ioctls of iommufd, each as a function that is safe to call.
//!
//! # References
//! - `[IOMMUFD]` Linux uapi `linux/iommufd.h`, as `iommufd-bindings` has it
//!
//! The structs begin with their own size. A space of device addresses is an object of the
//! descriptor, by a number.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};

use iommufd_bindings::iommufd::*;
use ring3_device::dma::Pages;

/// The most ranges that are taken: a machine has a handful.
const RANGES_LIMIT: u32 = 1 << 12;

/// Issues ioctl `number` (an `_IO`, without size).
///
/// # Safety
/// `T` is the struct that this ioctl reads and writes, with its size in it, and what it points to
/// is what the ioctl expects there.
unsafe fn call<T>(fd: impl AsFd, number: u32, argument: &mut T) -> io::Result<()> {
    let request = libc::Ioctl::from((IOMMUFD_TYPE as u32) << 8 | number);
    // SAFETY: the caller's promise.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw mut *argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// Makes an empty space of device addresses; its number.
pub(super) fn make_space(iommufd: impl AsFd) -> io::Result<u32> {
    let mut space = iommu_ioas_alloc { size: size::<iommu_ioas_alloc>(), ..Default::default() };
    // SAFETY: the struct that this ioctl fills.
    unsafe { call(iommufd, IOMMUFD_CMD_IOAS_ALLOC, &mut space) }?;
    Ok(space.out_ioas_id)
}

/// Which device addresses of `space` may be mapped, and on which boundary, in bytes.
pub(super) fn ranges(
    iommufd: impl AsFd,
    space: u32,
) -> io::Result<(Vec<RangeInclusive<u64>>, u64)> {
    let mut found: Vec<iommu_iova_range> = Vec::new();
    loop {
        let mut ask = iommu_ioas_iova_ranges {
            size: size::<iommu_ioas_iova_ranges>(),
            ioas_id: space,
            num_iovas: found.len() as u32,
            allowed_iovas: found.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: the struct that this ioctl fills; it writes as many ranges as `num_iovas` says.
        let told = unsafe { call(&iommufd, IOMMUFD_CMD_IOAS_IOVA_RANGES, &mut ask) };
        match told {
            Ok(()) => {
                found.truncate(ask.num_iovas as usize);
                let ranges = found.iter().map(|range| range.start..=range.last).collect();
                return Ok((ranges, ask.out_iova_alignment));
            }
            // There are more than there was room for.
            Err(error)
                if error.raw_os_error() == Some(libc::EMSGSIZE)
                    && (found.len() as u32) < ask.num_iovas.min(RANGES_LIMIT) =>
            {
                found.resize(ask.num_iovas.min(RANGES_LIMIT) as usize, Default::default());
            }
            Err(error) => return Err(error),
        }
    }
}

/// Lets the devices of `space` read and write `pages` at `iova`.
pub(super) fn map(iommufd: impl AsFd, space: u32, pages: &Pages, iova: u64) -> io::Result<()> {
    let mut map = iommu_ioas_map {
        size: size::<iommu_ioas_map>(),
        flags: iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA
            | iommufd_ioas_map_flags_IOMMU_IOAS_MAP_READABLE
            | iommufd_ioas_map_flags_IOMMU_IOAS_MAP_WRITEABLE,
        ioas_id: space,
        user_va: pages.as_ptr().as_ptr() as u64,
        length: pages.len() as u64,
        iova,
        ..Default::default()
    };
    // SAFETY: the struct that this ioctl reads. The kernel pins the pages, so they outlive their
    // mapping in this process; no Rust reference to them exists, so that the device's writes meet
    // none.
    unsafe { call(iommufd, IOMMUFD_CMD_IOAS_MAP, &mut map) }
}

/// Takes `len` bytes at `iova` back; returns how many bytes were mapped there.
pub(super) fn unmap(iommufd: impl AsFd, space: u32, iova: u64, len: usize) -> io::Result<u64> {
    let mut unmap = iommu_ioas_unmap {
        size: size::<iommu_ioas_unmap>(),
        ioas_id: space,
        iova,
        length: len as u64,
    };
    // SAFETY: the struct that this ioctl reads and fills.
    unsafe { call(iommufd, IOMMUFD_CMD_IOAS_UNMAP, &mut unmap) }?;
    Ok(unmap.length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_is_not_iommufd_answers_with_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(make_space(&file).is_err());
        assert!(ranges(&file, 1).is_err());
        assert!(unmap(&file, 1, 0, 4096).is_err());
    }
}
