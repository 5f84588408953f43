//! The ioctls of VFIO, each as a function that is safe to call.
//!
//! # References
//! - `[VFIO]` Linux uapi `linux/vfio.h`, as `vfio-bindings` has it
//!
//! The structs begin with their own size (`argsz`). Where the kernel has more to say than fits, it
//! writes the size it needs and is asked again; see [`Reply`].

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use ring3_device::dma::Pages;
use vfio_bindings::bindings::vfio::*;

const GET_API_VERSION: u32 = VFIO_BASE;
const CHECK_EXTENSION: u32 = VFIO_BASE + 1;
const SET_IOMMU: u32 = VFIO_BASE + 2;
const GROUP_GET_STATUS: u32 = VFIO_BASE + 3;
const GROUP_SET_CONTAINER: u32 = VFIO_BASE + 4;
const GROUP_GET_DEVICE_FD: u32 = VFIO_BASE + 6;
const DEVICE_GET_INFO: u32 = VFIO_BASE + 7;
const DEVICE_GET_REGION_INFO: u32 = VFIO_BASE + 8;
const DEVICE_GET_IRQ_INFO: u32 = VFIO_BASE + 9;
const DEVICE_SET_IRQS: u32 = VFIO_BASE + 10;
const DEVICE_RESET: u32 = VFIO_BASE + 11;
const IOMMU_GET_INFO: u32 = VFIO_BASE + 12;
const IOMMU_MAP_DMA: u32 = VFIO_BASE + 13;
const IOMMU_UNMAP_DMA: u32 = VFIO_BASE + 14;
const DEVICE_BIND_IOMMUFD: u32 = VFIO_BASE + 18;
const DEVICE_ATTACH_IOMMUFD_PT: u32 = VFIO_BASE + 19;

/// The most that a reply with capabilities may ask for, in bytes: far above what any kernel says,
/// far below harm.
const REPLY_LIMIT: usize = 1 << 20;

/// Issues VFIO ioctl `number` (an `_IO`, without size) with a plain value.
fn call_value(fd: impl AsFd, number: u32, value: u64) -> io::Result<i32> {
    let request = libc::Ioctl::from((VFIO_TYPE as u32) << 8 | number);
    // SAFETY: only for the ioctls below that take an integer or nothing, so the kernel follows no
    // pointer of ours.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, value) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// Issues VFIO ioctl `number` with a pointer.
///
/// # Safety
/// `argument` is what this ioctl reads and writes, with all that its `argsz` announces.
unsafe fn call<T: ?Sized>(fd: impl AsFd, number: u32, argument: *mut T) -> io::Result<i32> {
    let request = libc::Ioctl::from((VFIO_TYPE as u32) << 8 | number);
    // SAFETY: the caller's promise.
    match unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, argument.cast::<u8>()) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// `size_of`, as the structs want it.
const fn argsz<T>() -> u32 {
    size_of::<T>() as u32
}

/// The version of the whole interface; 0 is the only one there is.
pub(super) fn api_version(container: impl AsFd) -> io::Result<i32> {
    call_value(container, GET_API_VERSION, 0)
}

/// Whether the container can be given an IOMMU of this type.
pub(super) fn has_iommu(container: impl AsFd, kind: u32) -> io::Result<bool> {
    Ok(call_value(container, CHECK_EXTENSION, kind.into())? > 0)
}

/// Gives the container, which must hold a group, its IOMMU.
pub(super) fn set_iommu(container: impl AsFd, kind: u32) -> io::Result<()> {
    call_value(container, SET_IOMMU, kind.into()).map(drop)
}

/// The group's `VFIO_GROUP_FLAGS_*`.
pub(super) fn group_flags(group: impl AsFd) -> io::Result<u32> {
    let mut status = vfio_group_status { argsz: argsz::<vfio_group_status>(), flags: 0 };
    // SAFETY: the struct that this ioctl fills.
    unsafe { call(group, GROUP_GET_STATUS, &raw mut status) }?;
    Ok(status.flags)
}

/// Puts the group into the container.
pub(super) fn set_container(group: impl AsFd, container: impl AsFd) -> io::Result<()> {
    let mut fd = container.as_fd().as_raw_fd();
    // SAFETY: this ioctl reads one int, a descriptor.
    unsafe { call(group, GROUP_SET_CONTAINER, &raw mut fd) }.map(drop)
}

/// Opens the group's device of this name, a PCI address.
pub(super) fn device_fd(group: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: this ioctl reads a string up to its NUL.
    let fd = unsafe { call(group, GROUP_GET_DEVICE_FD, name.as_ptr().cast_mut()) }?;
    // SAFETY: a new descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the function behind a node this process's own, with `iommufd` for its translation.
pub(super) fn bind(device: impl AsFd, iommufd: impl AsFd) -> io::Result<()> {
    let mut bind = vfio_device_bind_iommufd {
        argsz: argsz::<vfio_device_bind_iommufd>(),
        iommufd: iommufd.as_fd().as_raw_fd(),
        ..Default::default()
    };
    // SAFETY: the struct that this ioctl reads and fills.
    unsafe { call(device, DEVICE_BIND_IOMMUFD, &raw mut bind) }.map(drop)
}

/// Attaches the bound device to `space` of its iommufd.
pub(super) fn attach(device: impl AsFd, space: u32) -> io::Result<()> {
    // Before there were address spaces of processes, the struct ended in front of theirs.
    let mut attach = vfio_device_attach_iommufd_pt {
        argsz: std::mem::offset_of!(vfio_device_attach_iommufd_pt, pasid) as u32,
        pt_id: space,
        ..Default::default()
    };
    // SAFETY: the struct that this ioctl reads and fills.
    unsafe { call(device, DEVICE_ATTACH_IOMMUFD_PT, &raw mut attach) }.map(drop)
}

/// The device's `VFIO_DEVICE_FLAGS_*`, number of regions and number of interrupt indices.
pub(super) fn device_info(device: impl AsFd) -> io::Result<vfio_device_info> {
    let mut info = vfio_device_info { argsz: argsz::<vfio_device_info>(), ..Default::default() };
    // SAFETY: the struct that this ioctl fills.
    unsafe { call(device, DEVICE_GET_INFO, &raw mut info) }?;
    Ok(info)
}

/// An answer that a chain of capabilities may follow.
pub(super) struct Reply<T> {
    /// The fixed part.
    pub(super) header: T,
    /// All of it, the fixed part included: offsets of capabilities count from its start.
    pub(super) bytes: Vec<u8>,
}

/// What the kernel says about a region of the device.
pub(super) fn region_info(device: impl AsFd, index: u32) -> io::Result<Reply<vfio_region_info>> {
    let ask = |argsz| vfio_region_info { argsz, index, ..Default::default() };
    // SAFETY: the struct that this ioctl fills.
    unsafe { ask_twice(device, DEVICE_GET_REGION_INFO, ask, |info| info.argsz) }
}

/// What the kernel says about the container's IOMMU.
pub(super) fn iommu_info(container: impl AsFd) -> io::Result<Reply<vfio_iommu_type1_info>> {
    let ask = |argsz| vfio_iommu_type1_info { argsz, ..Default::default() };
    // SAFETY: the struct that this ioctl fills.
    unsafe { ask_twice(container, IOMMU_GET_INFO, ask, |info| info.argsz) }
}

/// Asks with the fixed part alone, learns how long the answer is, and asks for all of it.
///
/// # Safety
/// `T` is the plain struct of integers that this ioctl reads and fills.
unsafe fn ask_twice<T: Copy>(
    fd: impl AsFd,
    number: u32,
    ask: impl Fn(u32) -> T,
    size: impl Fn(&T) -> u32,
) -> io::Result<Reply<T>> {
    let mut header = ask(argsz::<T>());
    // SAFETY: the caller's promise.
    unsafe { call(&fd, number, &raw mut header) }?;
    let len = (size(&header) as usize).clamp(size_of::<T>(), REPLY_LIMIT);
    // 64-bit words, because the structs are aligned to them.
    let mut words = vec![0u64; len.div_ceil(8)];
    let start = words.as_mut_ptr().cast::<T>();
    // SAFETY: `words` holds at least a `T`, aligned to 8 bytes, and `len` bytes in all, as `argsz`
    // announces.
    let header = unsafe {
        start.write(ask(len as u32));
        call(&fd, number, start)?;
        start.read()
    };
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.truncate(len);
    Ok(Reply { header, bytes })
}

/// Reads `VFIO_IRQ_INFO_*` flags and the vector count of an interrupt index.
pub(super) fn irq_info(device: impl AsFd, index: u32) -> io::Result<vfio_irq_info> {
    let mut info = vfio_irq_info { argsz: argsz::<vfio_irq_info>(), index, ..Default::default() };
    // SAFETY: the struct that this ioctl fills.
    unsafe { call(device, DEVICE_GET_IRQ_INFO, &raw mut info) }?;
    Ok(info)
}

/// Ties vectors from `start` on to eventfds; `None` unties one.
pub(super) fn set_irq_fds(
    device: impl AsFd,
    index: u32,
    start: u32,
    fds: &[Option<BorrowedFd>],
) -> io::Result<()> {
    let flags = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
    let fds: Vec<i32> = fds.iter().map(|fd| fd.map_or(-1, |fd| fd.as_raw_fd())).collect();
    set_irqs(device, [flags, index, start, fds.len() as u32], &fds)
}

/// Acts (`VFIO_IRQ_SET_ACTION_*`) on `count` vectors from `start` on; triggering none of them
/// disables the index.
pub(super) fn act_on_irqs(
    device: impl AsFd,
    index: u32,
    start: u32,
    count: u32,
    action: u32,
) -> io::Result<()> {
    set_irqs(device, [VFIO_IRQ_SET_DATA_NONE | action, index, start, count], &[])
}

/// `head` is flags, index, start and count of `vfio_irq_set`.
fn set_irqs(device: impl AsFd, head: [u32; 4], fds: &[i32]) -> io::Result<()> {
    let argsz = size_of::<vfio_irq_set>() + size_of_val(fds);
    let mut words: Vec<u32> = Vec::with_capacity(argsz / 4);
    words.push(argsz as u32);
    words.extend(head);
    words.extend(fds.iter().map(|&fd| fd as u32));
    // SAFETY: `vfio_irq_set` is five 32-bit words followed by its data, here 32-bit descriptors;
    // argsz counts them all.
    unsafe { call(device, DEVICE_SET_IRQS, words.as_mut_ptr()) }.map(drop)
}

/// Resets the function.
pub(super) fn reset(device: impl AsFd) -> io::Result<()> {
    call_value(device, DEVICE_RESET, 0).map(drop)
}

/// Lets the device read and write `pages` at `iova`.
pub(super) fn map_dma(container: impl AsFd, pages: &Pages, iova: u64) -> io::Result<()> {
    let mut map = vfio_iommu_type1_dma_map {
        argsz: argsz::<vfio_iommu_type1_dma_map>(),
        flags: VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
        vaddr: pages.as_ptr().as_ptr() as u64,
        iova,
        size: pages.len() as u64,
    };
    // SAFETY: the struct that this ioctl reads. The kernel pins the pages, so they outlive their
    // mapping in this process; no Rust reference to them exists, so that the device's writes meet
    // none.
    unsafe { call(container, IOMMU_MAP_DMA, &raw mut map) }.map(drop)
}

/// Takes `len` bytes at `iova` back; returns how many bytes were mapped there.
pub(super) fn unmap_dma(container: impl AsFd, iova: u64, len: usize) -> io::Result<u64> {
    let mut unmap = vfio_iommu_type1_dma_unmap {
        argsz: argsz::<vfio_iommu_type1_dma_unmap>(),
        iova,
        size: len as u64,
        ..Default::default()
    };
    // SAFETY: the struct that this ioctl reads and fills.
    unsafe { call(container, IOMMU_UNMAP_DMA, &raw mut unmap) }?;
    Ok(unmap.size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_is_not_vfio_answers_with_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(api_version(&file).is_err());
        assert!(iommu_info(&file).is_err());
        assert!(set_irq_fds(&file, 0, 0, &[None, Some(file.as_fd())]).is_err());
    }
}
