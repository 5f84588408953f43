//! Telling whoever started this process that its disks are there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use crate::Error;

/// A descriptor that the process was started with, to be written once and closed.
#[derive(Debug)]
pub struct Ready(OwnedFd);

impl Ready {
    /// Takes descriptor `fd`, by whose number this process was started; refused if it is not open,
    /// or one of the standard three.
    ///
    /// # Safety
    /// Nothing in this process owns descriptor `fd`, as is so of one that was inherited: call it
    /// before the process opens files of its own, which could have got that number if nothing was
    /// inherited, and once for each number.
    pub unsafe fn inherit(fd: RawFd) -> Result<Self, Error> {
        let refused = |source: std::io::Error| {
            Error::os(format!("--ready-fd {fd}: it must be open, and above 2"), source)
        };
        if fd <= 2 {
            return Err(refused(std::io::ErrorKind::InvalidInput.into()));
        }
        // SAFETY: open or not, it is used for one query, which fails if it is not.
        rustix::fs::fcntl_getfl(unsafe { BorrowedFd::borrow_raw(fd) })
            .map_err(|error| refused(error.into()))?;
        // SAFETY: it is open, and the caller promises that nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Writes `text` and closes. If that has not happened within `limit`, it is an error, and goes
    /// on: a reader that is slow still gets the text.
    pub fn tell(self, text: &str, limit: Duration) -> Result<(), Error> {
        write_within(self.0, text.into(), limit)
            .map_err(|source| Error::os("telling --ready-fd", source))
    }
}

/// Writes all of `text` to `to` and drops it; an error if that takes longer than `limit`.
///
/// A thread does it, because a pipe that nobody reads takes it for ever, and this process must not
/// wait for that.
pub(crate) fn write_within(
    to: impl AsFd + Send + 'static,
    text: String,
    limit: Duration,
) -> io::Result<()> {
    let (done, written) = sync_channel(1);
    let write = move || {
        let mut rest = text.as_bytes();
        let mut result = Ok(());
        while !rest.is_empty() && result.is_ok() {
            match rustix::io::retry_on_intr(|| rustix::io::write(&to, rest)) {
                Ok(count) => rest = &rest[count..],
                Err(error) => result = Err(io::Error::from(error)),
            }
        }
        drop(to);
        let _ = done.send(result);
    };
    thread::Builder::new().name("ring3-announce".into()).spawn(write)?;
    written.recv_timeout(limit).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::IntoRawFd;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn who_waits_reads_the_text_and_then_the_end() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        // SAFETY: just given up by its owner.
        let ready = unsafe { Ready::inherit(OwnedFd::from(writer).into_raw_fd()) }.unwrap();
        ready.tell("there\n", LONG).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "there\n");
    }

    #[test]
    fn a_full_pipe_holds_nobody_and_who_empties_it_later_is_told() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let room = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
        (&writer).write_all(&vec![b'x'; room]).unwrap();
        // SAFETY: just given up by its owner.
        let ready = unsafe { Ready::inherit(OwnedFd::from(writer).into_raw_fd()) }.unwrap();
        let (done, told) = sync_channel(1);
        thread::spawn(move || done.send(ready.tell("there\n", Duration::from_millis(50))));
        let error = told.recv_timeout(LONG).expect("telling returns").unwrap_err();
        assert!(error.to_string().contains("--ready-fd"), "{error}");
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text.trim_start_matches('x'), "there\n");
    }

    #[test]
    fn a_descriptor_that_is_not_open_is_refused_with_its_number() {
        // SAFETY: no descriptor has that number.
        let refused = unsafe { Ready::inherit(1_000_000) };
        assert!(refused.unwrap_err().to_string().contains("1000000"));
    }
}
