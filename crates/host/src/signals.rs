//! Signals as a descriptor, for an event loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// SIGINT, SIGTERM or SIGHUP: stop.
    Stop,
    /// SIGUSR1: write the report.
    Report,
}

/// The signals that mean something, held back from their usual effect while this lives and after.
pub struct Signals(OwnedFd);

impl Signals {
    /// Takes them for the calling thread and all that it starts from now on.
    pub fn take() -> io::Result<Self> {
        // SAFETY: an all-zero set is valid memory for sigemptyset to initialise, and the set outlives the calls.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1] {
                libc::sigaddset(&mut set, signal);
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made and belongs to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal that has come, if any.
    pub fn next(&self) -> Option<Wish> {
        // signalfd_siginfo: 128 bytes, the signal's number in the first four.
        let mut info = [0u8; 128];
        let length = rustix::io::read(&self.0, &mut info).ok()?;
        if length != info.len() {
            return None;
        }
        let number = i32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
        Some(if number == libc::SIGUSR1 { Wish::Report } else { Wish::Stop })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_arrives_as_a_wish_and_only_once() {
        let signals = Signals::take().unwrap();
        // SAFETY: sends a signal that this thread has just blocked to this thread.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
        assert_eq!(signals.next(), Some(Wish::Report));
        assert_eq!(signals.next(), None);
    }
}
