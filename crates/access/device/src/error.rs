//! Errors between a driver and its device, and who must act on each.

use std::io;
use std::time::Duration;

/// An error of the device layer. The caller that knows the device's name adds it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A register that cannot be all ones was: the function was removed, powered off or has its
    /// memory space disabled.
    #[error(
        "the device is gone: it answers all ones; check that it is still present (ring3 devices) \
        and bind it again"
    )]
    Gone,
    /// The device did not do in time what its specification or the caller asked.
    #[error("{what} took longer than {waited:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
    },
    /// The device broke the contract of its specification; what it said was not believed.
    #[error("the device broke its protocol: {0}")]
    Protocol(String),
    /// The device reports that it cannot go on without a reset.
    #[error("the device reports a fatal error: {0}")]
    Fatal(String),
    /// The arena has no free range of that size.
    #[error(
        "no room for {wanted} bytes of DMA memory ({free} of {total} are free): open the device \
        with a larger arena"
    )]
    NoMemory {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes free in all.
        free: usize,
        /// Bytes of the arena.
        total: usize,
    },
    /// This device or backend does not have what was asked for.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The caller asked for something that makes no sense; nothing was done.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// Someone else has it.
    #[error("busy: {0}")]
    Busy(String),
    /// Something on this machine stands in the way to the device; the text says what, and how to
    /// mend it.
    #[error("{0}")]
    Claim(String),
    /// The operating system refused.
    #[error("{what}: {source}{}", remedy(source))]
    Os {
        /// What was tried, and what to do about it where that is known.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

/// What to do about a refusal of the operating system, where that is the same whatever was tried.
fn remedy(source: &io::Error) -> &'static str {
    let out_of_files = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE];
    match rustix::io::Errno::from_io_error(source) {
        Some(errno) if out_of_files.contains(&errno) => "; to mend it: ulimit -n 4096",
        _ => "",
    }
}

impl Error {
    /// An [`Error::Os`] for the operating system's last word.
    pub fn os(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Os { what: what.into(), source: source.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_may_open_no_more_files_is_told_the_limit_to_raise() {
        let text = Error::os("creating an eventfd", rustix::io::Errno::MFILE).to_string();
        assert!(
            text.starts_with("creating an eventfd: ")
                && text.ends_with("; to mend it: ulimit -n 4096"),
            "{text}"
        );
    }
}
