//! The journal of a driver that can be replayed: what it reports and requests while it is recorded.
//!
//! Most drivers are called by threads of this process, and a recording contains what passes between
//! driver and device. Other drivers contain everything that influences them, such as a kernel's
//! driver in a process, with its clock, its timers and its random numbers. Such a driver can be
//! repeated exactly if the recording also has its other inputs: the moments at which it slept, and
//! the requests of its users.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::Error;

/// Whose world it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journaled {
    /// The device's: what happens is written down.
    Recorded,
    /// The recording's: nothing happens but what was written down.
    Replayed,
}

/// What has ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Its time is over.
    Elapsed,
    /// The interrupt of this vector came, and can be taken.
    Interrupt(u16),
    /// Somebody else wants something.
    Other,
}

/// What a recorded or replayed device has for a driver that [begins](Self::begin) with it before it
/// does anything else with the device. One thread uses it.
pub trait Journal {
    /// From now on the driver has what the device wrote, and interrupts, only with the answer of a
    /// register, behind a [barrier](Self::sync) and when it [waits](Self::wait), and shares the
    /// memory that it [says](Self::share), and no other.
    fn begin(&self) -> Journaled;

    /// The device reaches `len` bytes at `iova` from now on. They are zero.
    fn share(&self, iova: u64, len: usize);

    /// It reaches what was shared at `iova` no more.
    fn unshare(&self, iova: u64);

    /// A full barrier: the device has what the driver has written, and the driver what the device
    /// has, as with memory that both have. A driver that says in memory whether it wants to be told
    /// of something, and looks once more behind a barrier, needs it. Errors as of
    /// [`wait`](Self::wait).
    fn sync(&self) -> Result<(), Error>;

    /// Sleeps until an interrupt comes, `other` is readable or `limit` is over. In a replay none of
    /// this takes time.
    ///
    /// [`Error::Gone`] where a driver that is replayed has left its recording, or that has ended.
    fn wait(&self, other: BorrowedFd<'_>, limit: Option<Duration>) -> Result<Wake, Error>;

    /// Records an answer that the driver got from outside the device.
    fn record(&self, answer: &[u8]);

    /// What it has answered when this was recorded. Errors as of [`wait`](Self::wait).
    fn answer(&self) -> Result<Vec<u8>, Error>;
}
