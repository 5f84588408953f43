//! Results of C functions, as Python has them; and handles that one thread uses at a time.

use std::ffi::{CStr, c_int};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use ring3::error::ring3_error;

/// The number that a function has returned, or the exception for its negative errno.
pub fn result(number: c_int) -> PyResult<c_int> {
    if number >= 0 { Ok(number) } else { Err(last(number)) }
}

/// The exception for an errno, with what the library says of the last failure on this thread.
#[cold]
fn last(number: c_int) -> PyErr {
    // SAFETY: it points to the text that this thread keeps.
    let text = unsafe { CStr::from_ptr(ring3_error()) }.to_string_lossy().into_owned();
    PyOSError::new_err((-number, text))
}

/// A C text; empty if there is none.
pub fn text(pointer: *const std::ffi::c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: what is no null pointer is a text of a handle that is open.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// A URI as C takes it.
pub fn c_text(text: &str) -> PyResult<std::ffi::CString> {
    std::ffi::CString::new(text).map_err(|_| PyValueError::new_err("a null character in a name"))
}

/// The handle that a function has put into `handle` if it returned 0.
pub fn opened<T>(number: c_int, handle: *mut T) -> PyResult<Exclusive<T>> {
    result(number)?;
    // SAFETY: the library has boxed what it hands out, and nobody else has it.
    Ok(Exclusive(unsafe { Box::from_raw(handle) }))
}

/// Longest wait without a look at signals.
const LOOK_MS: u32 = 100;

/// Waits by `wait`, which gets milliseconds and says how much has come, until something has or
/// `seconds` are over; for ever if there are none. Other threads of Python run meanwhile, and
/// Ctrl-C ends it.
pub fn wait_for<T: Default + PartialEq + Send>(
    py: Python<'_>,
    seconds: Option<f64>,
    mut wait: impl FnMut(u32) -> PyResult<T> + Send,
) -> PyResult<T> {
    let mut left = seconds.map(milliseconds).transpose()?;
    loop {
        let now = left.unwrap_or(LOOK_MS).min(LOOK_MS);
        let found = py.detach(|| wait(now))?;
        if found != T::default() {
            return Ok(found);
        }
        py.check_signals()?;
        left = left.map(|left| left - now);
        if left == Some(0) {
            return Ok(found);
        }
    }
}

/// Seconds as milliseconds.
pub fn milliseconds(seconds: f64) -> PyResult<u32> {
    if !(0.0..=f64::from(u32::MAX) / 1000.0).contains(&seconds) {
        return Err(PyValueError::new_err(format!("a wait of {seconds} seconds")));
    }
    Ok((seconds * 1000.0).ceil() as u32)
}

/// A handle of the library's, which ends when it is dropped.
pub struct Exclusive<T>(Box<T>);

// SAFETY: a handle may be used by one thread at a time, and by different ones (ring3.h): Python's
// objects own theirs, and lend it by `get` alone.
unsafe impl<T> Send for Exclusive<T> {}
// SAFETY: a shared reference gives no access to the handle.
unsafe impl<T> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    /// The handle, for whoever has it alone.
    pub fn get(&mut self) -> &mut T {
        &mut self.0
    }
}
