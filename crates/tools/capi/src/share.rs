//! Memory that a program shares with who exports a disk as a block device, so that nobody copies
//! the bytes of its requests that lie there.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ring3_broker::region::{Loan, SharedMemory};
use ring3_class::Error;

use crate::error::{done, hand_out, take_back};
use crate::log;

/// Memory in which O_DIRECT requests to the block devices of an export need no copy
/// (`ring3 run --share SOCKET`).
pub struct Share {
    memory: SharedMemory,
    /// `None` once it is revoked.
    loan: Option<Loan>,
}

impl Share {
    fn new(socket: &Path, len: usize) -> Result<Self, Error> {
        let (memory, loan) = SharedMemory::taken(len, |memory| memory.register(socket))?;
        Ok(Self { memory, loan: Some(loan) })
    }
}

/// Makes `len` zeroed bytes, or some more, of huge pages if the system has that many free, and
/// shares them with the export that listens at `socket`. From then on, plain reads and writes, or
/// io_uring, with O_DIRECT on its block devices and on files there move no byte twice if they lie
/// in that memory in one piece. The process of the export, and its device, can see and change the
/// bytes at any time.
///
/// # Safety
/// `socket` is a text, and `share` points to a place for the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_share_alloc(
    socket: *const c_char,
    len: usize,
    share: *mut *mut Share,
) -> c_int {
    log::start();
    // SAFETY: the caller's.
    let socket = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(socket) }.to_bytes()));
    // SAFETY: the caller's.
    unsafe { hand_out(Share::new(socket, len), share) }
}

/// Its first byte, on a page.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_share_address(share: &Share) -> *mut c_void {
    share.memory.as_ptr().cast()
}

/// Bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_share_len(share: &Share) -> usize {
    share.memory.len()
}

/// The file, for other processes that map it. It is the handle's: do not close it.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_share_fd(share: &Share) -> c_int {
    share.memory.as_fd().as_raw_fd()
}

/// Whether the export has ended, or parted, or the memory was revoked. Requests that still succeed
/// are copied then.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_share_is_lost(share: &Share) -> bool {
    share.loan.as_ref().is_none_or(Loan::is_lost)
}

/// Takes the memory back: when this returns well, no request lies there any more and no device
/// reaches it. The bytes stay until the handle is closed.
#[unsafe(no_mangle)]
pub extern "C" fn ring3_share_revoke(share: &mut Share) -> c_int {
    let nothing = || Error::Busy("there is nothing to revoke".into());
    done(share.loan.take().ok_or_else(nothing).and_then(Loan::revoke))
}

/// Ends the handle: the bytes are gone, and the export takes them from its device.
///
/// # Safety
/// `share` was allocated and not closed, or is NULL, and no request that lies there is in flight.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ring3_share_close(share: *mut Share) {
    // SAFETY: the caller's.
    unsafe { take_back(share) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ring3_error;

    #[test]
    fn where_nobody_listens_the_error_says_what_to_start() {
        let mut share = std::ptr::null_mut();
        // SAFETY: a text, and a place.
        let result =
            unsafe { ring3_share_alloc(c"/no/such/socket".as_ptr(), 4096, &raw mut share) };
        assert_eq!((result, share.is_null()), (-libc::EACCES, true));
        // SAFETY: it points to the text that this thread keeps.
        let text = unsafe { CStr::from_ptr(ring3_error()) }.to_str().unwrap();
        assert!(text.contains("--share /no/such/socket"), "{text}");
    }
}
