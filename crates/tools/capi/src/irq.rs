//! Interrupts, as descriptors that a program polls.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use ring3_device::Deadline;
use ring3_device::irq::IrqKind;

use crate::device::Device;
use crate::error::{done, fail, failed, take_back};

/// One interrupt vector.
pub struct Irq(ring3_device::irq::Irq);

/// How a function signals: the pin, which comes masked and is masked each time it has fired.
pub const RING3_INTX: u32 = 0;
/// How a function signals: messages to one address.
pub const RING3_MSI: u32 = 1;
/// How a function signals: messages, by a table of vectors.
pub const RING3_MSIX: u32 = 2;

fn kind(kind: u32) -> Option<IrqKind> {
    match kind {
        RING3_INTX => Some(IrqKind::Intx),
        RING3_MSI => Some(IrqKind::Msi),
        RING3_MSIX => Some(IrqKind::MsiX),
        _ => None,
    }
}

/// How many vectors of `how` (RING3_INTX, RING3_MSI, RING3_MSIX) the function has.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_irq_count(device: &Device, how: u32) -> u16 {
    kind(how).map_or(0, |kind| device.device.irq_limits().of(kind))
}

/// Enables vectors 0 to `count - 1` of `how` and disables what was enabled before; puts their
/// handles into `irqs`. A count of 0 only disables.
///
/// # Safety
/// `irqs` points to `count` places for handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_irq_open(
    device: &Device,
    how: u32,
    count: u16,
    irqs: *mut *mut Irq,
) -> c_int {
    let Some(kind) = kind(how) else {
        return fail(
            libc::EINVAL,
            format!("interrupts of kind {how}: RING3_INTX, RING3_MSI or RING3_MSIX"),
        );
    };
    let opened = match device.device.irqs(kind, count) {
        Ok(opened) => opened,
        Err(error) => return failed(&error),
    };
    for (index, irq) in opened.into_iter().take(count.into()).enumerate() {
        // SAFETY: the caller's.
        unsafe { irqs.add(index).write(Box::into_raw(Box::new(Irq(irq)))) };
    }
    0
}

/// Ends the handle.
///
/// # Safety
/// `irq` was opened and not closed, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_irq_close(irq: *mut Irq) {
    // SAFETY: the caller's.
    unsafe { take_back(irq) };
}

/// What is readable, for poll and epoll, when it has been raised and not taken. It is the
/// interrupt's: do not close or read it.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_irq_fd(irq: &Irq) -> c_int {
    irq.0.as_fd().as_raw_fd()
}

/// Takes what has come: puts into `count` how often it was raised since it was last taken. Never
/// blocks.
///
/// # Safety
/// `count` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_irq_take(irq: &Irq, count: *mut u64) -> c_int {
    // SAFETY: the caller's.
    done(irq.0.take().map(|taken| unsafe { count.write(taken) }))
}

/// Waits until it is raised, `timeout_ms` at most, and takes it: a `count` of 0 says that it was
/// not.
///
/// # Safety
/// `count` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_irq_wait(irq: &Irq, timeout_ms: u32, count: *mut u64) -> c_int {
    let deadline = Deadline::after(Duration::from_millis(timeout_ms.into()));
    // SAFETY: the caller's.
    done(irq.0.wait(deadline).map(|taken| unsafe { count.write(taken) }))
}

/// Holds it back; one that comes meanwhile comes when it is unmasked.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_irq_mask(irq: &Irq) -> c_int {
    done(irq.0.mask())
}

/// Lets it through: the pin must be unmasked after each time it was served. Look at the device once
/// more before sleeping.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_irq_unmask(irq: &Irq) -> c_int {
    done(irq.0.unmask())
}

/// Milliseconds for which it is still held back because it came too often; -1 if it is not. A
/// program that sleeps on the descriptor calls ring3_irq_rearm when they are over.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_irq_held_ms(irq: &Irq) -> i64 {
    irq.0
        .storm_pause()
        .map_or(-1, |left| i64::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i64::MAX))
}

/// Ends the pause of an interrupt that came too often, if it is over.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_irq_rearm(irq: &Irq) -> c_int {
    done(irq.0.rearm().map(drop))
}
