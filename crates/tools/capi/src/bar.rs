//! Registers: the range of one base address register.

use std::ffi::{c_int, c_void};

use crate::device::Device;
use crate::error::{hand_out, take_back};

/// The range of one base address register, memory or ports.
pub struct Bar(ring3_device::Bar);

/// Opens BAR `index` (0 to 5).
///
/// # Safety
/// `bar` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_bar_open(device: &Device, index: u8, bar: *mut *mut Bar) -> c_int {
    // SAFETY: the caller's.
    unsafe { hand_out(device.device.bar(index).map(Bar), bar) }
}

/// Ends the handle; where it was mapped is not mapped any more.
///
/// # Safety
/// `bar` was opened and not closed, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_bar_close(bar: *mut Bar) {
    // SAFETY: the caller's.
    unsafe { take_back(bar) };
}

/// Bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_bar_len(bar: &Bar) -> u64 {
    bar.0.len()
}

/// Reads `width` (1, 2, 4 or 8) bytes at byte `offset`; all ones outside of the range and of a
/// device that is gone.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_bar_read(bar: &Bar, offset: u64, width: u32) -> u64 {
    match width {
        1 => bar.0.read8(offset).into(),
        2 => bar.0.read16(offset).into(),
        4 => bar.0.read32(offset).into(),
        8 => bar.0.read64(offset),
        _ => u64::MAX,
    }
}

/// Writes the low `width` (1, 2, 4 or 8) bytes of `value` at byte `offset`; nothing outside of the
/// range. A write may be posted: a read from the same function pushes it out.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_bar_write(bar: &Bar, offset: u64, width: u32, value: u64) {
    match width {
        1 => bar.0.write8(offset, value as u8),
        2 => bar.0.write16(offset, value as u16),
        4 => bar.0.write32(offset, value as u32),
        8 => bar.0.write64(offset, value),
        _ => {}
    }
}

/// Where its first bytes lie in this process, as many as `len` says then; NULL where the backend
/// maps nothing, so that only ring3_bar_read and ring3_bar_write reach it. Valid until it is
/// closed. Accesses are volatile and aligned.
///
/// # Safety
/// `len` points to a number, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_bar_map(bar: &Bar, len: *mut u64) -> *mut c_void {
    let mapped = bar.0.as_ptr();
    if !len.is_null() {
        // SAFETY: the caller's.
        unsafe { len.write(mapped.map_or(0, |_| bar.0.mapped_len())) };
    }
    mapped.map_or(std::ptr::null_mut(), |base| base.as_ptr().cast())
}
