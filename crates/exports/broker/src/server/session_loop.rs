//! The loop of a server of sessions: in a thread of its own, or embedded in the loop of whoever
//! drives what is shared.

use std::time::Duration;

use ring3_class::Error;
use ring3_class::wait::Source;

use super::lobby::SessionTable;
use super::session::ClientSession;

/// A server of sessions while it runs.
pub trait SessionServer: Sized {
    type Client: ClientSession;

    /// What is shared, for messages.
    const SHARED: &'static str;

    fn sessions(&mut self) -> &mut SessionTable<Self::Client>;

    /// Whether what is shared has no room for more.
    fn is_full(&self) -> bool;

    /// Handles what has come from clients and from what is shared. True when it is to end, which
    /// `asked` says whenever one of its descriptors is readable.
    fn run_once(&mut self, asked: &mut dyn FnMut() -> bool) -> Result<bool, Error>;

    /// Sleeps, or polls while that pays, until there may be something to do.
    fn wait(&mut self) -> Result<(), Error>;

    /// The life of its own thread.
    fn serve(mut self, asked: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let result = loop {
            match self.run_once(asked) {
                Ok(true) => break Ok(()),
                Ok(false) => {}
                Err(error) => break Err(error),
            }
            if let Err(error) = self.wait() {
                break Err(error);
            }
        };
        self.end_sessions(result.as_ref().err());
        result
    }

    /// Tells clients that there is no server any more, and why.
    fn end_sessions(&mut self, error: Option<&Error>) {
        let reason = error.map_or_else(
            || "the server was stopped".into(),
            |error| format!("the {} is not served any more: {error}", Self::SHARED),
        );
        self.sessions().disconnect(&reason);
    }

    /// A turn in another loop. True if there is more to do already; otherwise that loop may sleep
    /// until the reactor's descriptor is readable.
    fn run_embedded(&mut self) -> Result<bool, Error> {
        self.run_once(&mut || false)?;
        let full = self.is_full();
        let (reactor, _, mut clients) = self.sessions().split(full);
        let idle = clients.arm()?;
        if reactor.has_unsent() {
            reactor
                .step(Some(Duration::ZERO))
                .map_err(|error| Error::os("waiting for clients", error))?;
        }
        Ok(!idle || reactor.has_events())
    }
}

/// Passes an error on that ends what is shared, and logs any other.
pub fn pass_final(error: Error) -> Result<(), Error> {
    match error {
        Error::Gone | Error::Fatal(_) => Err(error),
        error => {
            tracing::warn!(%error, "what is shared misbehaves");
            Ok(())
        }
    }
}
