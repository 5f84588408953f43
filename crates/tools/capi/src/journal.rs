//! A device that is recorded or replayed, for a driver that can be repeated.
//!
//! Such a driver has a world of its own: one thread, a clock that moves when it sleeps, random
//! numbers that are always the same. `record=FILE` behind a device's name has what passes between
//! them written down, and `replay:FILE` is the device of that file.

use std::ffi::{CString, c_char, c_int};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ring3_device::Error;
use ring3_device::journal::{Journal, Journaled, Wake};

use crate::device::Device;
use crate::error::{done, failed};

/// Of a device: what passes is written down.
pub const RING3_RECORDED: c_int = 1;
/// Of a device: it is one of a recording.
pub const RING3_REPLAYED: c_int = 2;

/// Of a sleep: its time is over.
pub const RING3_ELAPSED: c_int = 0;
/// Of a sleep: an interrupt came.
pub const RING3_INTERRUPT: c_int = 1;
/// Of a sleep: the descriptor is readable.
pub const RING3_WOKEN: c_int = 2;

static VERDICT: Mutex<Option<CString>> = Mutex::new(None);

fn journal(device: &Device) -> Result<&dyn Journal, Error> {
    device
        .device
        .journal()
        .ok_or_else(|| Error::Invalid("the device is neither recorded nor replayed".into()))
}

/// Begins, before anything else is done with the device: 0 if it is neither recorded nor replayed,
/// RING3_RECORDED or RING3_REPLAYED. With one of these, what the device has written to memory, and
/// its interrupts, come with the answer of a register, behind ring3_journal_sync and with
/// ring3_journal_wait, and at no other time, and memory is the device's only where
/// ring3_journal_share has said so.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_journal_begin(device: &Device) -> c_int {
    match device.device.journal().map(Journal::begin) {
        None => 0,
        Some(Journaled::Recorded) => RING3_RECORDED,
        Some(Journaled::Replayed) => RING3_REPLAYED,
    }
}

/// The device reaches `len` bytes from its address `iova` on; they are zero.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_journal_share(device: &Device, iova: u64, len: usize) -> c_int {
    done(journal(device).map(|journal| journal.share(iova, len)))
}

/// The device reaches what was shared from `iova` on no more.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_journal_unshare(device: &Device, iova: u64) -> c_int {
    done(journal(device).map(|journal| journal.unshare(iova)))
}

/// A full barrier between the driver's memory and the device's: each has what the other one has
/// written. -ENODEV as of ring3_journal_wait.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_journal_sync(device: &Device) -> c_int {
    done(journal(device).and_then(Journal::sync))
}

/// Sleeps until an interrupt comes, whose number `vector` gets and which can be taken, or `fd` is
/// readable, `ns` at most (UINT64_MAX: without an end); RING3_ELAPSED, RING3_INTERRUPT or
/// RING3_WOKEN. Of a recording it says the same at once. -ENODEV where the recording ends, or the
/// driver has left it.
///
/// # Safety
/// `vector` points to a number, and `fd` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_journal_wait(
    device: &Device,
    fd: c_int,
    ns: u64,
    vector: *mut u16,
) -> c_int {
    // SAFETY: the caller's.
    let other = unsafe { BorrowedFd::borrow_raw(fd) };
    let limit = (ns != u64::MAX).then(|| Duration::from_nanos(ns));
    match journal(device).and_then(|journal| journal.wait(other, limit)) {
        Ok(Wake::Elapsed) => RING3_ELAPSED,
        Ok(Wake::Other) => RING3_WOKEN,
        Ok(Wake::Interrupt(fired)) => {
            // SAFETY: the caller's.
            unsafe { vector.write(fired) };
            RING3_INTERRUPT
        }
        Err(error) => failed(&error),
    }
}

/// Writes down `len` bytes that the world outside has given the driver.
///
/// # Safety
/// `bytes` points to as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_journal_note(
    device: &Device,
    bytes: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: the caller's.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, len) };
    done(journal(device).map(|journal| journal.record(bytes)))
}

/// Puts what was written down next into `bytes`: as many as it was then, which is `len`. -EPROTO if
/// it was not, -ENODEV as of ring3_journal_wait.
///
/// # Safety
/// `bytes` points to room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_journal_answer(
    device: &Device,
    bytes: *mut u8,
    len: usize,
) -> c_int {
    let answer = journal(device).and_then(Journal::answer).and_then(|answer| match answer.len() {
        found if found == len => Ok(answer),
        found => Err(Error::Protocol(format!(
            "the recording has {found} bytes where the driver takes {len}"
        ))),
    });
    match answer {
        Ok(answer) => {
            // SAFETY: the caller's, and as long.
            unsafe { bytes.copy_from_nonoverlapping(answer.as_ptr(), len) };
            0
        }
        Err(error) => failed(&error),
    }
}

/// What a recording or a replay has found when its device was closed: that it is not whole, or
/// where the driver has left it; NULL if nothing. Valid until the next call.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_journal_verdict() -> *const c_char {
    let mut kept = VERDICT.lock().unwrap_or_else(PoisonError::into_inner);
    *kept = ring3_decorator::take_failure()
        .map(|text| CString::new(text.replace('\0', " ")).unwrap_or_default());
    kept.as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
}
