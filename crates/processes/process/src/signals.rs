//! Signals as a descriptor, for an event loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

/// The signals that mean something. SIGHUP is what a terminal sends that is closed, and a session
/// that ends.
const MEANT: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1];

/// What has come since the last look. Several of a kind count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingSignals {
    /// SIGINT or SIGTERM: stop. Of a user who has read that this is refused: stop nevertheless.
    pub stop: bool,
    /// SIGHUP: stop. No user is left to force it.
    pub hang_up: bool,
    /// SIGUSR1: write the report.
    pub report: bool,
}

/// The signals that mean something, held back from their usual effect while this lives and after.
pub struct Signals(OwnedFd);

impl Signals {
    /// Takes them for the calling thread and all that it starts from now on. Those that the process
    /// was started to ignore, as by nohup, stay ignored: held back, they would come all the same.
    pub fn take() -> io::Result<Self> {
        let meant: Vec<_> = MEANT.into_iter().filter(|&signal| !is_ignored(signal)).collect();
        let set = set(&meant);
        mask(libc::SIG_BLOCK, &set)?;
        // SAFETY: the set outlives the call.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made and belongs to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// All that has come.
    pub fn take_pending(&self) -> PendingSignals {
        let mut pending = PendingSignals::default();
        while let Some(number) = self.next() {
            match number {
                libc::SIGUSR1 => pending.report = true,
                libc::SIGHUP => pending.hang_up = true,
                _ => pending.stop = true,
            }
        }
        pending
    }

    /// The number of the next signal that has come, if any.
    fn next(&self) -> Option<libc::c_int> {
        // signalfd_siginfo: 128 bytes, the signal's number in the first four.
        let mut info = [0u8; 128];
        let length = rustix::io::read(&self.0, &mut info).ok()?;
        (length == info.len()).then(|| i32::from_ne_bytes([info[0], info[1], info[2], info[3]]))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Does `start` with all signals held back, so that a thread which it starts never takes one: the
/// kernel gives a signal to any thread that has not held it back, and what ends a process ends it
/// by that, whoever else waits for it.
pub fn held_back<T>(start: impl FnOnce() -> T) -> T {
    let before = mask(libc::SIG_SETMASK, &set(&(1..libc::SIGRTMAX()).collect::<Vec<_>>()));
    let started = start();
    let _ = before.and_then(|before| mask(libc::SIG_SETMASK, &before));
    started
}

/// Holds back no signal any more, in this thread. It makes system calls only, as a process must
/// between fork and exec.
pub(crate) fn release() -> io::Result<()> {
    mask(libc::SIG_SETMASK, &set(&[])).map(drop)
}

/// Whether `signal` has no effect on this process.
fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: an all-zero action is valid memory for the call, which changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

fn set(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: an all-zero set is valid memory for sigemptyset to initialise; numbers that are no
    // signals are refused by sigaddset.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Changes the signals that the calling thread holds back; gives those of before.
fn mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = self::set(&[]);
    // SAFETY: both sets are initialised and outlive the call.
    match unsafe { libc::pthread_sigmask(how, set, &mut before) } {
        0 => Ok(before),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `signal`, which this thread holds back, to this thread.
    fn raise(signal: libc::c_int) {
        // SAFETY: no memory is involved.
        unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
    }

    #[test]
    fn a_signal_arrives_as_a_wish_and_only_once() {
        let signals = Signals::take().unwrap();
        raise(libc::SIGUSR1);
        assert_eq!(
            signals.take_pending(),
            PendingSignals { report: true, ..PendingSignals::default() }
        );
        assert_eq!(signals.take_pending(), PendingSignals::default());
    }

    #[test]
    fn signals_that_came_together_are_one_look() {
        let signals = Signals::take().unwrap();
        [libc::SIGTERM, libc::SIGHUP, libc::SIGINT].into_iter().for_each(raise);
        assert_eq!(
            signals.take_pending(),
            PendingSignals { stop: true, hang_up: true, report: false }
        );
        assert_eq!(signals.take_pending(), PendingSignals::default());
    }

    /// The action of SIGUSR2 belongs to the process, and no other test uses it.
    #[test]
    fn a_signal_that_is_ignored_is_known_to_be() {
        assert!(!is_ignored(libc::SIGUSR2));
        // SAFETY: to ignore a signal runs no code.
        unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
        assert!(is_ignored(libc::SIGUSR2));
    }
}
