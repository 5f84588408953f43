//! Why a measurement failed.

use std::io;

/// An error of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The driver or its device failed.
    #[error("{name}: {source}")]
    Device {
        /// The disk.
        name: String,
        /// What it said.
        source: ring3_device::Error,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// Why not.
        source: io::Error,
    },
    /// The workload does not fit the disk.
    #[error("{0}")]
    Invalid(String),
    /// Requests did not come back.
    #[error(
        "{requests} requests did not come back within {seconds} s; the disk or its driver hangs \
        (dmesg, or RING3_LOG=debug, says more)"
    )]
    Stuck {
        /// How many.
        requests: u32,
        /// How long was waited.
        seconds: u64,
    },
    /// A file of results, or the output of another program, is not what it should be.
    #[error("{what}: {why}")]
    Format {
        /// Which.
        what: String,
        /// What is wrong.
        why: String,
    },
}

impl Error {
    /// An [`Error::Os`].
    pub fn os(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Os { what: what.into(), source: source.into() }
    }

    /// An [`Error::Format`].
    pub fn format(what: impl Into<String>, why: impl ToString) -> Self {
        Self::Format { what: what.into(), why: why.to_string() }
    }
}
