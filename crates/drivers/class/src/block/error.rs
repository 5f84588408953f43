//! The reasons why a request failed, and the errno of each for the kernel and applications.

/// The end of a request that did not succeed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum IoError {
    /// The medium could not be read or written there.
    #[error("medium error")]
    Medium,
    /// The blocks lie beyond the end of the disk.
    #[error("beyond the end of the disk")]
    OutOfRange,
    /// The disk has no space left (thin provisioning).
    #[error("no space left on the device")]
    NoSpace,
    /// The disk refuses writes.
    #[error("write protected")]
    ReadOnly,
    /// The device cannot do this operation.
    #[error("operation not supported by the device")]
    Unsupported,
    /// The request makes no sense: no blocks, data shorter than the blocks, an address the device
    /// cannot use.
    #[error("invalid request")]
    Invalid,
    /// The data that came back failed the device's own integrity check.
    #[error("data integrity check failed")]
    Integrity,
    /// The path to the disk failed, or the device ended the request without doing it.
    #[error("transport error")]
    Transport,
    /// No answer in time, also after recovery.
    #[error("timed out")]
    Timeout,
    /// The device is gone.
    #[error("device gone")]
    Gone,
}

impl IoError {
    /// The Linux errno, positive.
    pub fn errno(self) -> i32 {
        use rustix::io::Errno;
        match self {
            Self::Medium | Self::Transport => Errno::IO,
            Self::OutOfRange | Self::Invalid => Errno::INVAL,
            Self::NoSpace => Errno::NOSPC,
            Self::ReadOnly => Errno::ROFS,
            Self::Unsupported => Errno::OPNOTSUPP,
            Self::Integrity => Errno::ILSEQ,
            Self::Timeout => Errno::TIMEDOUT,
            Self::Gone => Errno::NODEV,
        }
        .raw_os_error()
    }
}
