//! Memory that the device reaches.

use std::ffi::{c_int, c_void};

use ring3_device::dma::DmaBuffer;

use crate::device::Device;
use crate::error::{hand_out, take_back};

/// Bytes of the device's arena, which it reaches: mapped when the device was opened, so that no call maps anything later.
pub struct Buffer(DmaBuffer);

/// Takes `len` bytes of the arena, in one piece for the device, zeroed, at a multiple of `align` (a power of two). -ENOMEM says how large the arena is.
///
/// # Safety
/// `buffer` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_dma_alloc(device: &Device, len: usize, align: usize, buffer: *mut *mut Buffer) -> c_int {
    // SAFETY: the caller's.
    unsafe { hand_out(device.device.dma().arena().alloc(len, align).map(Buffer), buffer) }
}

/// The largest `len` that ring3_dma_alloc can give now if the arena is not in pieces.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_dma_free_bytes(device: &Device) -> usize {
    device.device.dma().arena().free_bytes()
}

/// Gives the bytes back. The device must be done with them.
///
/// # Safety
/// `buffer` was allocated and not given back, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_dma_release(buffer: *mut Buffer) {
    // SAFETY: the caller's.
    unsafe { take_back(buffer) };
}

/// Ends the handle without giving the bytes back, ever: for a device that nobody could stop, and that may still write there.
///
/// # Safety
/// `buffer` was allocated and not given back, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_dma_abandon(buffer: *mut Buffer) {
    // SAFETY: the caller's.
    if let Some(buffer) = unsafe { buffer.as_mut() } {
        buffer.0.abandon();
    }
    // SAFETY: the caller's.
    unsafe { take_back(buffer) };
}

/// Where the bytes are in this process. The device may write them at any time.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_dma_address(buffer: &Buffer) -> *mut c_void {
    buffer.0.as_ptr().cast()
}

/// Where the device finds them.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_dma_iova(buffer: &Buffer) -> u64 {
    buffer.0.iova()
}

/// Bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_dma_len(buffer: &Buffer) -> usize {
    buffer.0.len()
}
