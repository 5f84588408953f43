//! Telling whoever started this process that its disks are there.

use std::fs::File;
use std::io::Write;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::Error;

/// A descriptor that the process was started with, to be written once and closed.
#[derive(Debug)]
pub struct Ready(OwnedFd);

impl Ready {
    /// Takes descriptor `fd`, by whose number this process was started; refused if it is not open, or one of the standard three.
    ///
    /// # Safety
    /// Nothing in this process owns descriptor `fd`, as is so of one that was inherited: call it before the process opens files of
    /// its own, which could have got that number if nothing was inherited, and once for each number.
    pub unsafe fn inherit(fd: RawFd) -> Result<Self, Error> {
        let refused = |source: std::io::Error| Error::os(format!("--ready-fd {fd}: it must be open, and above 2"), source);
        if fd <= 2 {
            return Err(refused(std::io::ErrorKind::InvalidInput.into()));
        }
        // SAFETY: open or not, it is used for one query, which fails if it is not.
        rustix::fs::fcntl_getfl(unsafe { BorrowedFd::borrow_raw(fd) }).map_err(|error| refused(error.into()))?;
        // SAFETY: it is open, and the caller promises that nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Writes `text` and closes.
    pub fn tell(self, text: &str) -> Result<(), Error> {
        File::from(self.0).write_all(text.as_bytes()).map_err(|source| Error::os("telling --ready-fd", source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::IntoRawFd;

    #[test]
    fn who_waits_reads_the_text_and_then_the_end() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        // SAFETY: just given up by its owner.
        let ready = unsafe { Ready::inherit(OwnedFd::from(writer).into_raw_fd()) }.unwrap();
        ready.tell("there\n").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "there\n");
    }

    #[test]
    fn a_descriptor_that_is_not_open_is_refused_with_its_number() {
        // SAFETY: no descriptor has that number.
        let refused = unsafe { Ready::inherit(1_000_000) };
        assert!(refused.unwrap_err().to_string().contains("1000000"));
    }
}
