//! An error as C has it: a negative errno, with the text kept for who asks.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

use ring3_device::Error;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// What the last function that failed on this thread has to say: what happened, and what to do
/// next. Never NULL; valid until the next failure on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_error() -> *const c_char {
    LAST.with_borrow(|text| text.as_ptr())
}

/// Keeps the text of `error`; its errno, negative.
pub(crate) fn failed(error: &Error) -> c_int {
    fail(errno(error), error.to_string())
}

/// Keeps `text`; `errno`, negative.
pub(crate) fn fail(errno: c_int, text: String) -> c_int {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST.set(text);
    -errno
}

/// The same of a device that was not opened.
pub(crate) fn not_open(error: &ring3_host::Error) -> c_int {
    let errno = match error {
        ring3_host::Error::Device { source, .. } => errno(source),
        _ => libc::EIO,
    };
    fail(errno, error.to_string())
}

/// 0, or what [`failed`] makes of the error.
pub(crate) fn done(result: Result<(), Error>) -> c_int {
    result.map_or_else(|error| failed(&error), |()| 0)
}

/// Puts a new handle where `out` points; 0 or the error.
///
/// # Safety
/// `out` points to a place for a handle.
pub(crate) unsafe fn hand_out<T>(result: Result<T, Error>, out: *mut *mut T) -> c_int {
    match result {
        Ok(value) => {
            // SAFETY: the caller's.
            unsafe { out.write(Box::into_raw(Box::new(value))) };
            0
        }
        Err(error) => failed(&error),
    }
}

/// Ends a handle.
///
/// # Safety
/// `handle` is one that was handed out and not ended, or NULL.
pub(crate) unsafe fn take_back<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: the caller's; `hand_out` has boxed it.
        drop(unsafe { Box::from_raw(handle) });
    }
}

fn errno(error: &Error) -> c_int {
    match error {
        Error::Gone => libc::ENODEV,
        Error::Timeout { .. } => libc::ETIMEDOUT,
        Error::Protocol(_) => libc::EPROTO,
        Error::Fatal(_) => libc::EIO,
        Error::NoMemory { .. } => libc::ENOMEM,
        Error::Unsupported(_) => libc::EOPNOTSUPP,
        Error::Invalid(_) => libc::EINVAL,
        Error::Busy(_) => libc::EBUSY,
        Error::Claim(_) => libc::EACCES,
        Error::Os { source, .. } => {
            source.raw_os_error().filter(|&errno| errno > 0).unwrap_or(libc::EIO)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn an_error_is_a_negative_errno_and_a_text_until_the_next_one() {
        assert_eq!(failed(&Error::Busy("somebody else has it".into())), -libc::EBUSY);
        // SAFETY: it points to the text that this thread keeps.
        let text = unsafe { CStr::from_ptr(ring3_error()) }.to_str().unwrap();
        assert_eq!(text, "busy: somebody else has it");
        assert_eq!(
            failed(&Error::os("reading", std::io::Error::from_raw_os_error(libc::ENOSPC))),
            -libc::ENOSPC
        );
    }

    #[test]
    fn a_text_with_a_zero_byte_is_kept_without_it() {
        fail(libc::EINVAL, "a\0b".into());
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(ring3_error()) }.to_bytes(), b"a b");
    }
}
