//! Memory that the device reaches.

use std::ffi::{c_int, c_void};

use ring3_device::Error;
use ring3_device::dma::{Arena, DmaBuffer};

use crate::device::Device;
use crate::error::{hand_out, take_back};

/// Bytes of the device's arena, which it reaches: mapped when the device was opened, so that no
/// call maps anything later.
pub struct Buffer {
    bytes: DmaBuffer,
    arena: Arena,
}

impl Buffer {
    /// Its bytes from `offset` on as an arena of their own: from now on they are whoever's who has
    /// that.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Result<Arena, Error> {
        let wrong =
            || Error::Invalid(format!("bytes {offset}+{len} of a buffer of {}", self.bytes.len()));
        let end = offset
            .checked_add(len)
            .filter(|&end| len > 0 && end <= self.bytes.len())
            .ok_or_else(wrong)?;
        let span = self.bytes.span();
        let placed = self.arena.regions().nth(span.region as usize).ok_or_else(wrong)?;
        // The arena has it, so that it fits.
        let first = span.offset as usize;
        Ok(Arena::with_range(placed.region.clone(), placed.iova, first + offset, first + end))
    }
}

/// Takes `len` bytes of the arena, in one piece for the device, zeroed, at a multiple of `align` (a
/// power of two). -ENOMEM says how large the arena is.
///
/// # Safety
/// `buffer` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_dma_alloc(
    device: &Device,
    len: usize,
    align: usize,
    buffer: *mut *mut Buffer,
) -> c_int {
    // SAFETY: the caller's.
    unsafe { hand_out(alloc(device.device.dma().arena(), len, align), buffer) }
}

pub(crate) fn alloc(arena: &Arena, len: usize, align: usize) -> Result<Buffer, Error> {
    Ok(Buffer { bytes: arena.alloc(len, align)?, arena: arena.clone() })
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

/// Ends the handle without giving the bytes back, ever: for a device that nobody could stop, and
/// that may still write there.
///
/// # Safety
/// `buffer` was allocated and not given back, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_dma_abandon(buffer: *mut Buffer) {
    // SAFETY: the caller's.
    if let Some(buffer) = unsafe { buffer.as_mut() } {
        buffer.bytes.abandon();
    }
    // SAFETY: the caller's.
    unsafe { take_back(buffer) };
}

/// Where the bytes are in this process. The device may write them at any time.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_dma_address(buffer: &Buffer) -> *mut c_void {
    buffer.bytes.as_ptr().cast()
}

/// Where the device finds them.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_dma_iova(buffer: &Buffer) -> u64 {
    buffer.bytes.iova()
}

/// Bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_dma_len(buffer: &Buffer) -> usize {
    buffer.bytes.len()
}
