//! A device: opened by its URI, with its configuration space and its reset.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;

use ring3_backend::{OpenOptions, Uri};
use ring3_device::Error;

use crate::error::{done, fail, failed, hand_out, take_back};
use crate::leased::{self, Leased};
use crate::log;

/// One PCI function, claimed exclusively. What was opened of it keeps it.
pub struct Device {
    pub(crate) device: Arc<dyn ring3_device::Device>,
    name: CString,
    /// Of one that ring3d holds. Behind the device, which is given back first.
    pub(crate) leased: Option<Leased>,
}

/// What a driver asks for when it opens a device. Zeroes are the usual.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Bytes of memory that the device can reach, of which buffers are allocated; 0 for 64 MiB. The
    /// URI's `arena=` counts more.
    pub arena: u64,
    /// All of it lies below this device address: 1 << n for a device that drives n address lines; 0
    /// for no limit.
    pub below: u64,
    /// The user has said that no IOMMU need stand between the device and memory.
    pub unprotected: bool,
}

/// What a base address register says about itself.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BarInfo {
    /// Bytes.
    pub len: u64,
    /// Ports, not memory.
    pub ports: bool,
}

/// Opens the device that `uri` names: `vfio:0000:01:00.0`, `uio:0000:01:00.0`, `qtest:edu`,
/// `vfio-user:PATH`, `sim:edu`, `replay:FILE`. `options` may be NULL.
///
/// `lease:3` is the device for which ring3d has started this program: the call waits until there is
/// one, closes all descriptors but 0 to 3 and confines the process, which has one thread. The
/// device's memory is what ring3d has given it.
///
/// # Safety
/// `uri` is a text, and `device` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_open(
    uri: *const c_char,
    options: *const Options,
    device: *mut *mut Device,
) -> c_int {
    log::start();
    // SAFETY: the caller's.
    let (uri, options) =
        unsafe { (CStr::from_ptr(uri), options.as_ref().copied().unwrap_or_default()) };
    let Ok(uri) = uri.to_str() else {
        return fail(libc::EINVAL, "the device's name is not UTF-8".into());
    };
    // SAFETY: the caller's.
    unsafe { hand_out(open(uri, options), device) }
}

fn open(uri: &str, options: Options) -> Result<Device, Error> {
    if let Some(descriptor) = leased::descriptor(uri) {
        let (leased, device) = Leased::wait(descriptor?)?;
        let name = CString::new(device.name()).unwrap_or_default();
        return Ok(Device { device, name, leased: Some(leased) });
    }
    let uri: Uri = uri.parse()?;
    let usual = OpenOptions::default();
    let arena = match options.arena {
        0 => usual.arena,
        bytes => usize::try_from(bytes)
            .map_err(|_| Error::Invalid(format!("an arena of {bytes} bytes")))?,
    };
    let below = if options.below == 0 { usual.below } else { options.below };
    let device = ring3_backend::open(
        &uri,
        OpenOptions { arena, below, unprotected: options.unprotected, ..usual },
    )?;
    let name = CString::new(device.name()).unwrap_or_default();
    Ok(Device { device, name, leased: None })
}

/// Gives the device up when nothing that was opened of it is open any more: bus mastering off,
/// reset, and the claim.
///
/// # Safety
/// `device` was opened and not closed, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_close(device: *mut Device) {
    // SAFETY: the caller's.
    unsafe { take_back(device) };
}

/// The name by which it was opened, for messages. Valid while the device is open.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_name(device: &Device) -> *const c_char {
    device.name.as_ptr()
}

/// Reads `width` (1, 2 or 4) bytes of configuration space; all ones where there is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_config_read(device: &Device, offset: u64, width: u32) -> u32 {
    if !is_config(width) {
        return u32::MAX;
    }
    device.device.config_read(offset, width as usize)
}

/// Writes `width` (1, 2 or 4) bytes of configuration space. Base address registers, MSI, MSI-X and
/// the bits of COMMAND that decode and master the bus are not the caller's: -EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_config_write(
    device: &Device,
    offset: u64,
    width: u32,
    value: u32,
) -> c_int {
    if !is_config(width) {
        return fail(
            libc::EINVAL,
            format!("{width} bytes of configuration space at once: 1, 2 or 4"),
        );
    }
    done(device.device.config_write(offset, width as usize, value))
}

fn is_config(width: u32) -> bool {
    matches!(width, 1 | 2 | 4)
}

/// What BAR `index` (0 to 5) is, without opening it; -ENOENT if it is absent.
///
/// # Safety
/// `info` points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_bar_describe(
    device: &Device,
    index: u8,
    info: *mut BarInfo,
) -> c_int {
    match device.device.bar_info(index) {
        Some(found) => {
            // SAFETY: the caller's.
            unsafe { info.write(BarInfo { len: found.len, ports: found.ports }) };
            0
        }
        None => fail(libc::ENOENT, format!("{}: it has no BAR {index}", device.device.name())),
    }
}

/// Allows or forbids the function to start transfers: off, no DMA and no MSI leaves it.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_set_bus_master(device: &Device, on: bool) -> c_int {
    done(device.device.set_bus_master(on))
}

/// Resets the function: afterwards nothing that was started before writes to memory, and what was
/// enabled of interrupts and bus mastering is enabled again. -EOPNOTSUPP if it cannot be reset; its
/// transfers are stopped then.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_reset(device: &Device) -> c_int {
    done(device.device.reset())
}

/// A descriptor that is readable when the platform wants the device back; -ENOENT where nobody can
/// know. It is the device's: do not close it.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_removal_fd(device: &Device) -> c_int {
    use std::os::fd::{AsFd, AsRawFd};
    match device.device.removal() {
        Some(irq) => irq.as_fd().as_raw_fd(),
        None => failed(&Error::os(
            "the backend cannot know of a removal",
            std::io::Error::from_raw_os_error(libc::ENOENT),
        )),
    }
}
