//! The server of a card by turns, in the loop of whoever drives the card: no thread of its own, and
//! nobody to be woken between the two.
//!
//! A card whose driver sets filters in that same loop says of one that is not set yet that it is
//! busy ([`Error::Busy`]): it is asked again in the next turn, and clients are answered when it is.

use std::os::fd::BorrowedFd;

use ring3_class::Error;

use super::super::session_loop::SessionServer;
use super::CardBroker;

/// See the module. Dropping it removes the sockets; clients are disconnected.
pub struct EmbeddedCardServer(pub(super) CardBroker);

impl EmbeddedCardServer {
    /// What the loop sleeps on: readable when a [`run_once`](Self::run_once) has something to do
    /// for a client. Its sleep may end with EINTR then.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.inside.lobby.reactor.descriptor()
    }

    /// Handles messages of clients, and moves packets between them and the card's queue. True if
    /// there is more to do already; otherwise the loop may sleep until the descriptor is readable
    /// or the card has packets. An error is final for the card.
    pub fn run_once(&mut self) -> Result<bool, Error> {
        self.0.run_embedded()
    }
}

impl Drop for EmbeddedCardServer {
    fn drop(&mut self) {
        self.0.end_sessions(None);
    }
}
