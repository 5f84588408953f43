//! Static probe points: bpftrace, perf, SystemTap and gdb find them by name in a running program,
//! under the provider `ring3`.
//!
//! A point is a `nop` and a note in the ELF file [SystemTap: UserSpaceProbeImplementation]. The
//! notes of those of requests name a counter, which counts who watches them. All that is executed
//! otherwise is its comparison with 0, once for a batch. docs/tracing.md lists the points for
//! users.
//!
//! Here, in the lowest crate, because the macro behind them is unsafe, which drivers may not be.

#![allow(unsafe_code, reason = "the macro of a probe point is inline assembly")]

use std::ffi::CString;
use std::sync::atomic::{AtomicU16, Ordering};

use probe::{probe, sdt};

/// How many watch points of requests. A tool finds the counter by the point's note.
#[unsafe(link_section = ".probes")]
static WATCHERS: AtomicU16 = AtomicU16::new(0);

/// Whether somebody watches [`submit`], [`doorbell`] or [`completion`].
#[inline(always)]
pub fn requests_are_watched() -> bool {
    WATCHERS.load(Ordering::Relaxed) != 0
}

/// A queue of a disk, which `queue` stands for, hands a request to the device. Until its
/// [`completion`] no other one of the queue has its token. `operation` counts from 0: read, write,
/// flush, write zeroes, discard.
#[cold]
#[inline(never)]
pub fn submit(queue: usize, token: u64, operation: u8, lba: u64, blocks: u32) {
    sdt!([sym "{}" WATCHERS], ring3, submit, queue, token, operation, lba, blocks,);
}

/// A queue of a disk rings for so many requests: one write to a register at most.
#[cold]
#[inline(never)]
pub fn doorbell(queue: usize, requests: usize) {
    sdt!([sym "{}" WATCHERS], ring3, doorbell, queue, requests,);
}

/// The request with this token has ended, with an errno, or well with 0.
#[cold]
#[inline(never)]
pub fn completion(queue: usize, token: u64, errno: i32) {
    sdt!([sym "{}" WATCHERS], ring3, completion, queue, token, errno,);
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
