//! The server of a disk by turns, in the loop of whoever drives the disk: no thread of its own, and
//! nobody to be woken between the two.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use ring3_class::Error;
use ring3_class::block::Queue;
use ring3_class::wait::Source;

use super::Broker;

/// See the module. Dropping it removes the sockets; clients whose requests are in flight hear that
/// the server is gone.
pub struct EmbeddedServer(pub(super) Broker);

impl EmbeddedServer {
    /// What the loop sleeps on: readable when a [`turn`](Self::turn) has something to do. Its sleep
    /// may end with EINTR then.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.lobby.reactor.descriptor()
    }

    /// Hears clients, hands the disk what they want, and tells them what has ended there. True if
    /// there is more to do already; otherwise the loop may sleep, until the descriptor is readable
    /// or the disk has ended a request. An error is the disk's end.
    pub fn turn(&mut self) -> Result<bool, Error> {
        let broker = &mut self.0;
        broker.turn(&mut || false)?;
        let full = broker.stopping || broker.queue.in_flight() >= broker.queue.depth();
        let (reactor, _, mut clients) = broker.lobby.split(full);
        let idle = clients.arm()?;
        if reactor.has_unsent() {
            reactor
                .step(Some(Duration::ZERO))
                .map_err(|error| Error::os("waiting for clients", error))?;
        }
        Ok(!idle || reactor.has_events())
    }

    /// Takes no further requests. Those that the disk has end first: [`turn`](Self::turn) goes on
    /// until none is [left](Self::left).
    pub fn stop(&mut self) {
        self.0.stopping = true;
    }

    /// Requests that the disk has.
    pub fn left(&self) -> u16 {
        self.0.queue.in_flight()
    }
}

impl Drop for EmbeddedServer {
    fn drop(&mut self) {
        self.0.part(None);
    }
}
