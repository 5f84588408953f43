//! Static probe points: bpftrace, perf, SystemTap and gdb find them by name in a running program,
//! under the provider `ring3`.
//!
//! A point is one `nop` and a note in the ELF file [SystemTap: UserSpaceProbeImplementation].
//! Nothing else is executed while nobody watches it: what the points of a request's way take as
//! arguments is in registers there anyway. docs/tracing.md lists them for users.
//!
//! Here, in the lowest crate, because the macro behind them is unsafe, which drivers may not be.

#![allow(unsafe_code, reason = "the macro of a probe point is inline assembly")]

use std::ffi::CString;

use probe::probe;

/// A queue of a disk has a request for the device, in the slot at this address, until the
/// [`completion`] with the same address. `operation` counts from 0: read, write, flush, write
/// zeroes, discard.
#[inline(always)]
pub fn submit<S>(slot: *const S, operation: u8, lba: u64, blocks: u32) {
    probe!(ring3, submit, slot, operation, lba, blocks);
}

/// The request in the slot at this address has ended.
#[inline(always)]
pub fn completion<S>(slot: *const S) {
    probe!(ring3, completion, slot);
}

/// A driver tells its device about what lies in memory by writing `value` to the register at
/// offset `at` of its BAR.
#[inline(always)]
pub fn doorbell(at: u64, value: u32) {
    probe!(ring3, doorbell, at, value);
}

/// A driver resets its controller.
pub fn reset(device: &str, why: &str) {
    let (device, why) = (text(device), text(why));
    probe!(ring3, reset, device.as_ptr(), why.as_ptr());
}

/// Users of a supervised device begin to wait.
pub fn outage(device: &str, cause: &str) {
    let (device, cause) = (text(device), text(cause));
    probe!(ring3, outage, device.as_ptr(), cause.as_ptr());
}

/// Nothing that the last driver has started goes on; the device was reset for it if `reset`.
pub fn fence(device: &str, reset: bool) {
    let device = text(device);
    probe!(ring3, fence, device.as_ptr(), reset);
}

/// A driver drives the device: one that it has `adopted` as it ran, or one that it has started.
pub fn adopt(device: &str, adopted: bool) {
    let device = text(device);
    probe!(ring3, adopt, device.as_ptr(), adopted);
}

/// The process `pid` is started, as the device's next driver.
pub fn restart(device: &str, pid: u32) {
    let device = text(device);
    probe!(ring3, restart, device.as_ptr(), pid);
}

/// Users wait no longer: they are `served`, or get errors.
pub fn settled(device: &str, served: bool) {
    let device = text(device);
    probe!(ring3, settled, device.as_ptr(), served);
}

/// As tools read it: terminated, and up to the first NUL.
fn text(text: &str) -> CString {
    let end = text.find('\0').unwrap_or(text.len());
    CString::new(&text[..end]).unwrap_or_default()
}
