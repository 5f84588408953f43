//! What is said to a client by its socket, and what every client is, whatever it shares.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ring3_class::Error;
use ring3_lease::{Channel, DeferredCloser};
use ring3_reactor::{Reactor, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::protocol::{Answer, ClientRequest, VERSION};

/// How long a client may take to take an answer, which nobody waits for: its socket has room for
/// many.
const PATIENCE: Duration = Duration::from_millis(5);

/// See the module.
pub struct Session {
    /// For the log.
    who: String,
    /// Where it has connected.
    path: PathBuf,
    channel: Channel,
    /// By which the reactor knows its socket.
    pub token: Token,
    /// Its socket may have a message.
    pub readable: bool,
    /// It is cut off or has left, and is gone when nothing of it is in flight.
    pub closing: bool,
}

/// What came over a socket.
pub enum SessionEvent {
    /// Nothing more.
    Nothing,
    /// A question, and the descriptor that one has.
    Said(ClientRequest, Option<OwnedFd>),
    /// Its end.
    Left,
}

impl Session {
    /// On `socket`, which was accepted at `path`. What it sends and nobody takes is for `closer`.
    pub fn new(
        (socket, who): (OwnedFd, String),
        (path, closer): (&Path, &DeferredCloser),
        reactor: &mut Reactor,
    ) -> Result<Self, Error> {
        let failed = |error| Error::os("serving a client", error);
        let channel = Channel::of_stranger(socket, PATIENCE, closer).map_err(failed)?;
        let token = reactor.add(channel.as_fd()).map_err(failed)?;
        Ok(Self { who, path: path.into(), channel, token, readable: true, closing: false })
    }

    /// Takes a message, if there is one. An error ends the client.
    pub fn next(&self) -> Result<SessionEvent, Error> {
        let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
        if !poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return Ok(SessionEvent::Nothing);
        }
        let garbage = |error: std::io::Error| Error::Protocol(format!("no message: {error}"));
        match self.channel.receive_untrusted::<ClientRequest>().map_err(garbage)? {
            None => Ok(SessionEvent::Left),
            Some((ask @ ClientRequest::Offer { .. }, Some(fd))) => {
                Ok(SessionEvent::Said(ask, Some(fd)))
            }
            Some((ClientRequest::Offer { .. }, None)) => {
                Err(Error::Protocol("it offers memory without a descriptor".into()))
            }
            Some((_, Some(_))) => Err(Error::Protocol("descriptors that nobody asked for".into())),
            Some((ask, None)) => Ok(SessionEvent::Said(ask, None)),
        }
    }

    /// Answers, with descriptors.
    pub fn send(&self, answer: &Answer, fds: &[OwnedFd]) -> Result<(), Error> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.channel
            .send(answer, &fds)
            .map_err(|error| Error::os("it does not take its answers", error))
    }
}

/// A client, whatever it shares.
pub trait ClientSession {
    /// Its socket.
    fn session(&self) -> &Session;
    /// The same, to be changed.
    fn session_mut(&mut self) -> &mut Session;
    /// Whether it has something to do that it may do now.
    fn pending(&self) -> bool;
    /// Whether what it wants next has to wait while what is shared is `full`.
    fn waits(&self, full: bool) -> bool {
        full
    }
    /// Asks it to say when it has, or not to.
    fn want(&mut self, wanted: bool);
    /// Takes nothing more of it.
    fn close(&mut self);

    /// Parts with it, and says why.
    fn disconnect(&mut self, reason: Option<String>, reactor: &mut Reactor) {
        if self.session().closing {
            return;
        }
        let session = self.session_mut();
        session.closing = true;
        if let Some(reason) = reason {
            let _ = session.send(&Answer::Ended { reason }, &[]);
        }
        session.channel.close();
        if let Err(error) = reactor.remove(session.token) {
            tracing::warn!(%error, "a client's socket is still watched");
        }
        self.close();
    }

    /// Ends one that has broken the protocol.
    fn cut(&mut self, error: &Error, reactor: &mut Reactor) {
        let Session { who, path, .. } = self.session();
        tracing::warn!("{who} ({}) is cut off: {error}", path.display());
        self.disconnect(Some(error.to_string()), reactor);
    }
}

/// The answer to a client of another version than ours.
pub fn refuse_version(version: u32) -> Option<Answer> {
    let reason = format!(
        "it speaks version {version}, and this server {VERSION}: both must be of one release of \
        ring3"
    );
    (version != VERSION).then_some(Answer::Refused { reason })
}
