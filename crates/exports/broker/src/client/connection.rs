//! The socket to the server.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ring3_class::Error;
use ring3_lease::Channel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::protocol::{Answer, ClientRequest, VERSION};

/// How long an answer may take: a queue is closed when its last request has ended, a region is
/// registered when what is in flight has, and a driver may have to reset its device before.
const PATIENCE: Duration = Duration::from_secs(150);

/// Who listens at a socket.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    /// Who serves a disk or a card.
    Server,
    /// Who exports disks as block devices.
    Export,
}

impl Peer {
    /// What to do where nobody listens.
    fn missing(self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::Server => {
                format!(
                    "{path}: nobody serves a disk or a card there: ring3 serve disk, or net, \
                    --device URI --socket {path}"
                )
            }
            Self::Export => format!(
                "{path}: nobody shares memory there: start the export with it, ring3 run DRIVER \
                --device URI --share {path}"
            ),
        }
    }

    /// What to do where this user may not connect.
    fn closed(self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::Server => format!(
                "{path}: this user may not connect: let its owner serve it with mode=660 or \
                mode=666"
            ),
            Self::Export => format!(
                "{path}: this user may not connect: let the export say --share {path},mode=660 or \
                666"
            ),
        }
    }
}

/// See the module.
pub struct Connection {
    path: PathBuf,
    /// The same socket, to look at without the lock.
    socket: OwnedFd,
    channel: Mutex<Channel>,
    /// Why the server has parted, once that is known.
    ended: OnceLock<String>,
}

impl Connection {
    /// To the `peer` at `path`.
    pub fn open(path: &Path, peer: Peer) -> Result<Self, Error> {
        let failed = |error: Errno| match error {
            Errno::NOENT | Errno::CONNREFUSED => Error::Claim(peer.missing(path)),
            Errno::ACCESS => Error::Claim(peer.closed(path)),
            error => Error::os(format!("{}: connecting to who serves it", path.display()), error),
        };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(failed)?;
        connect(&socket, &address).map_err(failed)?;
        let opened =
            |error: std::io::Error| Error::os(format!("{}: connecting", path.display()), error);
        let channel =
            Channel::new(socket.try_clone().map_err(opened)?, PATIENCE, true).map_err(opened)?;
        Ok(Self {
            path: path.to_owned(),
            socket,
            channel: Mutex::new(channel),
            ended: OnceLock::new(),
        })
    }

    /// Asks, and waits for the answer, with the descriptors beside it. A refusal is
    /// [`Error::Busy`]; the end of the connection [`Error::Fatal`].
    pub fn ask(&self, ask: &ClientRequest) -> Result<(Answer, Vec<OwnedFd>), Error> {
        self.ask_with(ask, &[])
    }

    /// Offers `file`, a region of `bytes` bytes; with which disks it is shared.
    pub fn offer(&self, file: BorrowedFd<'_>, bytes: u64) -> Result<Vec<String>, Error> {
        match self.ask_with(&ClientRequest::Offer { version: VERSION, bytes }, &[file])? {
            (Answer::Shared { disks }, _) => Ok(disks),
            _ => Err(self.protocol_error()),
        }
    }

    fn ask_with(
        &self,
        ask: &ClientRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>), Error> {
        let channel = self.lock();
        // A server that has parted has said why before.
        let sent = channel.send(ask, fds);
        match receive(&channel) {
            Ok(Some((Answer::Refused { reason }, _))) => Err(Error::Busy(reason)),
            Ok(Some((Answer::Ended { reason }, _))) => Err(self.over(&reason)),
            Ok(Some(answer)) => {
                sent.map(|()| answer).map_err(|error| self.over(&error.to_string()))
            }
            Ok(None) => Err(self.over("it has closed the connection")),
            Err(error) => {
                // An answer that comes later would be taken for that to another question.
                channel.close();
                Err(self.over(&error.to_string()))
            }
        }
    }

    /// Whether the server has parted.
    pub fn is_lost(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Why it has.
    pub fn disconnect_reason(&self) -> Error {
        if let Some(reason) = self.ended.get() {
            return self.over(reason);
        }
        let channel = self.lock();
        while let Ok(Some((answer, _))) = receive(&channel) {
            if let Answer::Ended { reason } = answer {
                return self.over(&reason);
            }
        }
        self.over("it has closed the connection")
    }

    /// What a server that makes no sense is.
    pub fn protocol_error(&self) -> Error {
        Error::Protocol(format!(
            "who serves {} does not answer what was asked: both must be of one release of ring3",
            self.path.display()
        ))
    }

    /// What the socket can be waited for by.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    fn over(&self, reason: &str) -> Error {
        // What was said first is why.
        let reason = self.ended.get_or_init(|| reason.into());
        Error::Fatal(format!(
            "{} is not served to this client any more: {reason}",
            self.path.display()
        ))
    }

    fn lock(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next message. A server that parts without reading all that it was sent resets the
/// connection, which is heard before what it said last. [unix(7)]
fn receive(channel: &Channel) -> std::io::Result<Option<(Answer, Vec<OwnedFd>)>> {
    match channel.receive() {
        Ok(None) => channel.receive(),
        heard => heard,
    }
}
