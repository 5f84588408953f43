//! The server of a disk by turns, in the loop of whoever drives the disk: no thread of its own, and
//! nobody to be woken between the two.

use std::os::fd::BorrowedFd;

use ring3_class::Error;

use super::disk::Broker;
use super::session_loop::SessionServer;

/// See the module. Dropping it removes the sockets; clients whose requests are in flight hear that
/// the server is gone.
pub struct EmbeddedServer(pub(super) Broker);

impl EmbeddedServer {
    /// What the loop sleeps on: readable when a [`run_once`](Self::run_once) has something to do.
    /// Its sleep may end with EINTR then.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }

    /// Handles messages of clients, submits their requests to the disk, and passes completions on.
    /// True if there is more to do already; otherwise the loop may sleep until the descriptor is
    /// readable or the disk has completed a request. An error is final for the disk.
    pub fn run_once(&mut self) -> Result<bool, Error> {
        self.0.run_embedded()
    }

    /// Takes no further requests. Those that the disk has end first: [`run_once`](Self::run_once)
    /// completes them until none is [left](Self::left).
    pub fn stop(&mut self) {
        self.0.stop();
    }

    /// Requests that the disk has.
    pub fn left(&self) -> u16 {
        self.0.in_flight()
    }
}

impl Drop for EmbeddedServer {
    fn drop(&mut self) {
        self.0.end_sessions(None);
    }
}
