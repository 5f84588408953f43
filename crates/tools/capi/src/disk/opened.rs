//! A disk that ring3 drives for this program.

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use ring3_backend::{Uri, UriError};
use ring3_class::Error;
use ring3_class::block::{Discard, Info};
use ring3_class::dma::Region;
use ring3_driver::Interrupts;
use ring3_driver::registry::Settings;
use ring3_host::open::{Claim, Requirements};

use super::{Disk, DiskInfo, Side};
use crate::dma::{Buffer, Held, alloc};
use crate::error::{fail, hand_out, not_open};
use crate::log;

/// What a program asks for when it opens a disk. Zeroes are the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskOptions {
    /// Bytes of memory for ring3_disk_alloc, beside what the driver needs; 0 for 16 MiB. The URI's
    /// `arena=` counts more.
    pub arena: u64,
    /// With `choose`, the disk's number: the namespace of an NVMe controller, or the place of an
    /// ATA drive, from 0.
    pub part: u32,
    /// Queues that will be open at the same time; 0 for 1.
    pub queues: u16,
    /// The device has several disks, and `part` is meant.
    pub choose: bool,
    /// The device raises no interrupts: queues are polled while requests are in flight.
    pub polled: bool,
    /// The user has said that no IOMMU need stand between the device and memory.
    pub unprotected: bool,
}

/// A disk, and what it is a part of.
pub(crate) struct OpenedDisk {
    pub(crate) disk: Arc<dyn ring3_class::block::Disk>,
    /// Behind the disk, which is dropped first.
    pub(crate) device: Held,
    name: CString,
    texts: [CString; 3],
}

/// Bytes for buffers if the program does not say how many.
const ARENA: u64 = 16 << 20;
/// Bytes that a driver needs for its rings and lists: for each queue, and beside them.
const QUEUE: usize = 8 << 20;
const CONTROLLER: usize = 4 << 20;

/// Opens the disk that `uri` names, starts its driver, and claims the device exclusively:
/// `vfio:0000:01:00.0`, `uio:0000:01:00.0`, `qtest:nvme`, `vfio-user:PATH`, `sim:nvme`; or
/// `remote:PATH`, which another process drives and shares. `options` may be NULL.
///
/// # Safety
/// `uri` is a text, and `disk` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_open(
    uri: *const c_char,
    options: *const DiskOptions,
    disk: *mut *mut Disk,
) -> c_int {
    log::start();
    // SAFETY: the caller's.
    let (uri, options) =
        unsafe { (CStr::from_ptr(uri), options.as_ref().copied().unwrap_or_default()) };
    let Ok(uri) = uri.to_str() else {
        return fail(libc::EINVAL, "the device's name is not UTF-8".into());
    };
    match OpenedDisk::open(uri, options) {
        // SAFETY: the caller's.
        Ok(opened) => unsafe { hand_out(Ok(Disk(Side::Ring3(opened))), disk) },
        Err(error) => not_open(&error),
    }
}

/// The name of an opened disk, for messages: `sim:nvme namespace 1`. NULL of one that this program
/// drives. Valid until it is closed.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_disk_name(disk: &Disk) -> *const c_char {
    disk.opened().map_or(std::ptr::null(), |opened| opened.name.as_ptr())
}

/// What an opened disk is and can.
///
/// # Safety
/// `info` points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_describe(disk: &Disk, info: *mut DiskInfo) -> c_int {
    let Some(opened) = disk.opened() else { return not_opened() };
    // SAFETY: the caller's.
    unsafe { info.write(opened.info()) };
    0
}

/// Most queues of an opened disk that can be open at the same time: one for each thread is best. 0
/// of a disk that this program drives.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_disk_max_queues(disk: &Disk) -> u16 {
    disk.opened().map_or(0, |opened| opened.disk.max_queues())
}

/// Takes `len` bytes of the memory that an opened disk's device reaches, zeroed, from a page on,
/// for requests of all its queues. -ENOMEM says how large the arena is.
///
/// # Safety
/// `buffer` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_alloc(
    disk: &Disk,
    len: usize,
    buffer: *mut *mut Buffer,
) -> c_int {
    let Some(opened) = disk.opened() else { return not_opened() };
    let page = rustix::param::page_size();
    let made = alloc(opened.disk.dma().arena(), len, page)
        .map(|made| made.with_device(opened.device.clone()));
    // SAFETY: the caller's.
    unsafe { hand_out(made, buffer) }
}

/// Maps the `len` bytes from `offset` on, whole pages, of a file in memory (memfd, hugetlbfs) for
/// an opened disk's device, so that requests of all its queues reach them: memory that the program
/// shares with others, or has mapped itself. `buffer` has its own mapping of the same bytes. They
/// stay registered until the disk is closed. -EOPNOTSUPP of a backend that maps memory only when
/// the device is opened.
///
/// # Safety
/// `buffer` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_disk_register(
    disk: &Disk,
    fd: c_int,
    offset: u64,
    len: usize,
    buffer: *mut *mut Buffer,
) -> c_int {
    let Some(opened) = disk.opened() else { return not_opened() };
    if fd < 0 {
        return fail(libc::EBADF, format!("{fd} is no descriptor"));
    }
    // SAFETY: it is duplicated at once, which fails if it is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // SAFETY: the caller's.
    unsafe { hand_out(opened.register(fd, offset, len), buffer) }
}

/// The error for a function of opened disks.
pub(super) fn not_opened() -> c_int {
    fail(libc::EINVAL, "this program drives the disk: ring3_disk_open opens others".into())
}

impl Disk {
    pub(super) fn opened(&self) -> Option<&OpenedDisk> {
        match &self.0 {
            Side::Ring3(opened) => Some(opened),
            Side::Program(_) => None,
        }
    }
}

impl OpenedDisk {
    fn open(uri: &str, options: DiskOptions) -> Result<Self, ring3_host::Error> {
        let failed = |source| ring3_host::Error::Device { device: uri.to_owned(), source };
        let device: Uri = uri.parse().map_err(|error: UriError| failed(error.into()))?;
        let queues = options.queues.max(1);
        let buffers = if options.arena == 0 { ARENA } else { options.arena };
        let arena = usize::try_from(buffers)
            .ok()
            .and_then(|bytes| bytes.checked_add(usize::from(queues.min(8)) * QUEUE + CONTROLLER))
            .ok_or_else(|| failed(Error::Invalid(format!("an arena of {buffers} bytes"))))?;
        let interrupts = if options.polled { Interrupts::Polled } else { Interrupts::Auto };
        let settings = Settings {
            interrupts,
            part: options.choose.then_some(options.part),
            ..Settings::default()
        };
        let claim = Claim { unprotected: options.unprotected, settings, ..Claim::new(device) };
        let needs = Requirements { queues, arena, max_transfer: None, poll: None };
        let attached = claim.open(&needs)?;
        let disk = match &attached.disks[..] {
            [disk] => disk.clone(),
            [] => return Err(failed(Error::Unsupported("it has no disk".into()))),
            several => {
                let names: Vec<_> = several.iter().map(|disk| disk.name()).collect();
                return Err(failed(Error::Invalid(format!(
                    "choose one of its disks by its number: {}",
                    names.join(", ")
                ))));
            }
        };
        let text = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
        let Info { model, serial, firmware, .. } = disk.info();
        let texts = [model, serial, firmware].map(|part| text(part));
        let name = text(&disk.name());
        Ok(Self { disk, device: Arc::new(Mutex::new(attached)), name, texts })
    }

    fn info(&self) -> DiskInfo {
        let info = self.disk.info();
        let [model, serial, firmware] = self.texts.each_ref().map(|text| text.as_ptr());
        let Discard { max_blocks, granularity } =
            info.discard.unwrap_or(Discard { max_blocks: 0, granularity: 0 });
        DiskInfo {
            model,
            serial,
            firmware,
            blocks: info.blocks,
            block_size: info.block_size,
            max_transfer: info.max_transfer,
            optimal_io: info.optimal_io,
            max_write_zeroes_blocks: info.max_write_zeroes_blocks,
            max_discard_blocks: max_blocks,
            discard_granularity: granularity,
            depth: 0,
            volatile_cache: info.volatile_cache,
            fua: info.fua,
            read_only: info.read_only,
            rotates: info.rotates,
        }
    }

    fn register(&self, fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Buffer, Error> {
        let own = fd
            .try_clone_to_owned()
            .map_err(|error| Error::os("duplicating the descriptor of memory", error))?;
        let region = Arc::new(Region::part_of(own, offset, len)?);
        self.disk.register_region(&region)?;
        let iova = self.disk.dma().arena().address(&region).ok_or_else(|| {
            Error::Unsupported(format!("{}: it takes no memory of others", self.disk.name()))
        })?;
        Ok(Buffer::registered(region, iova).with_device(self.device.clone()))
    }
}
