//! The users' commands: a socket on which each packet is a command, and each command is answered by
//! one packet, with a memory file beside it where the answer is longer than a packet.
//!
//! # Trust
//! The socket's mode says who may connect: its owner, or a group as well (`SocketGroup=` of
//! `ring3d.socket`). Only root, and the user that this process runs as, may command; others may ask
//! for the state and the counters. What comes is checked all the same: what is no message, or does
//! not agree on a version first, ends its connection. A reader who does not read is dropped rather
//! than waited for, and no more than [`CONNECTIONS`] are kept.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use ring3_control::admin::{Command, Reply, VERSION};
use ring3_lease::Channel;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::process::geteuid;

use crate::socket::{Made, make_room};

/// Most connections at a time.
pub const CONNECTIONS: usize = 64;
/// How long a reader may take to take an answer: its socket has room for several.
const TAKE: Duration = Duration::from_millis(20);
/// How long nobody is let in after one could not be, for want of descriptors or memory: who waits
/// stays readable, and would be looked at without end.
const FULL: Duration = Duration::from_secs(1);

/// A socket that could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another supervisor has it.
    #[error("another ring3d listens at {path}: stop that one first (ring3 status), or give this \
             one another --socket", path = path.display())]
    Taken {
        /// Where.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("listening at {path}: {source}; give --socket another path", path = path.display())]
    Os {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A command of somebody who waits for the answer.
pub struct Request {
    /// What is wanted.
    pub command: Command,
    /// Who wants it.
    pub from: u64,
}

struct Connection {
    channel: Channel,
    agreed: bool,
    /// May ask for everything, and not only questions.
    commands: bool,
    /// An answer is owed.
    waits: bool,
}

/// The supervisor's end.
pub struct AdminServer {
    listener: OwnedFd,
    /// Its file, if it has made that.
    _made: Option<Made>,
    /// Held as long as this lives: who finds the socket without it has found what a dead supervisor
    /// has left.
    _lock: Option<OwnedFd>,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    answers: Receiver<(u64, Reply)>,
    tell: Sender<(u64, Reply)>,
    raised: Arc<OwnedFd>,
    /// Until when nobody is let in.
    full: Option<Instant>,
}

impl AdminServer {
    /// Listens at `path`, for its owner alone.
    pub fn listen(path: &Path) -> Result<Self, Error> {
        let failed = |source: io::Error| Error::Os { path: path.to_owned(), source };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let lock = path.with_extension("lock");
        let lock = rustix::fs::open(
            &lock,
            OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )
        .map_err(|error| failed(error.into()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Error::Taken { path: path.to_owned() })?;
        make_room(path, SocketType::SEQPACKET).map_err(failed)?;
        let listener = listen_at(path).map_err(failed)?;
        let made = Made::at(path).map_err(failed)?;
        Self::new(listener, Some(made), Some(lock)).map_err(failed)
    }

    /// Listens on a socket that whoever started this process has made.
    pub fn inherited(listener: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        Self::new(listener, None, None)
    }

    fn new(listener: OwnedFd, made: Option<Made>, lock: Option<OwnedFd>) -> io::Result<Self> {
        let (tell, answers) = channel();
        let raised = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(Self {
            listener,
            _made: made,
            _lock: lock,
            connections: BTreeMap::new(),
            next: 0,
            answers,
            tell,
            raised,
            full: None,
        })
    }

    /// Readable when something happens here, until [`due`](Self::due).
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let listener = self.due().is_none().then(|| self.listener.as_fd());
        let own = listener.into_iter().chain([self.raised.as_fd()]);
        // Who waits for an answer has nothing to say before.
        own.chain(self.connections.values().map(|connection| connection.channel.as_fd())).collect()
    }

    /// After which time [`fds`](Self::fds) are others.
    pub fn due(&self) -> Option<Duration> {
        self.full
            .map(|until| until.saturating_duration_since(Instant::now()))
            .filter(|left| !left.is_zero())
    }

    /// Takes what has come: commands to be answered by [`answer`](Self::answer), or by what
    /// [`later`](Self::later) gives.
    pub fn take(&mut self) -> Vec<Request> {
        let _ = rustix::io::read(&*self.raised, &mut [0; 8]);
        while let Ok((to, reply)) = self.answers.try_recv() {
            self.answer(to, &reply);
        }
        self.accept();
        let ids: Vec<_> = self.connections.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.receive(id)).collect()
    }

    fn accept(&mut self) {
        if self.due().is_some() {
            return;
        }
        loop {
            let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                // Whoever wanted to come is gone.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    tracing::warn!("nobody is let in for {FULL:?}: {error}");
                    self.full = Some(Instant::now() + FULL);
                    return;
                }
            };
            // Too many: the oldest that waits for nothing goes.
            if self.connections.len() >= CONNECTIONS {
                let idle = self
                    .connections
                    .iter()
                    .find(|(_, connection)| !connection.waits)
                    .map(|(&id, _)| id);
                let Some(idle) = idle else { continue };
                self.connections.remove(&idle);
            }
            let commands = socket_peercred(&socket)
                .is_ok_and(|peer| peer.uid.is_root() || peer.uid == geteuid());
            if let Ok(channel) = Channel::new(socket, TAKE, true) {
                self.connections.insert(
                    self.next,
                    Connection { channel, agreed: false, commands, waits: false },
                );
                self.next += 1;
            }
        }
    }

    /// Receives a command from connection `id`, if there is one.
    fn receive(&mut self, id: u64) -> Option<Request> {
        let connection = self.connections.get_mut(&id)?;
        if !is_readable(&connection.channel) {
            return None;
        }
        match connection.channel.receive::<Command>() {
            // One after the other: who asks before he is answered is not one of ours.
            Ok(Some((command, _))) if !connection.waits => {
                if !connection.agreed {
                    return self.greet(id, &command);
                }
                if !connection.commands && !is_question(&command) {
                    let refused = "only root may do that; members of the socket's group may ask \
                                   for the status and the metrics";
                    self.answer(id, &Reply::Refused(refused.into()));
                    return None;
                }
                connection.waits = true;
                Some(Request { command, from: id })
            }
            _ => {
                self.connections.remove(&id);
                None
            }
        }
    }

    fn greet(&mut self, id: u64, command: &Command) -> Option<Request> {
        let reply = match command {
            Command::Hello { version: VERSION } => {
                Reply::Hello { version: VERSION, pid: std::process::id() }
            }
            Command::Hello { version } => Reply::Refused(format!(
                "this ring3d speaks version {VERSION}, and not {version}: use the commands of its \
                release"
            )),
            _ => {
                self.connections.remove(&id);
                return None;
            }
        };
        self.answer(id, &reply);
        match self.connections.get_mut(&id) {
            Some(connection) if matches!(reply, Reply::Hello { .. }) => connection.agreed = true,
            _ => drop(self.connections.remove(&id)),
        }
        None
    }

    /// Answers a command.
    pub fn answer(&mut self, to: u64, reply: &Reply) {
        let Some(connection) = self.connections.get_mut(&to) else { return };
        connection.waits = false;
        let sent = connection.channel.send(reply, &[]).or_else(|error| match error.kind() {
            io::ErrorKind::InvalidInput => crate::store::write(reply)
                .and_then(|file| connection.channel.send(&Reply::Long, &[file.as_fd()])),
            _ => Err(error),
        });
        if sent.is_err() {
            self.connections.remove(&to);
        }
    }

    /// Answers a command from another thread, once.
    pub fn later(&self, to: u64) -> impl FnOnce(Reply) + Send + use<> {
        let (tell, raised) = (self.tell.clone(), self.raised.clone());
        move |reply| {
            let _ = tell.send((to, reply));
            let _ = rustix::io::write(&*raised, &1u64.to_ne_bytes());
        }
    }
}

/// Whether `command` changes nothing and shows nothing but the state and the counters of devices:
/// who may connect may ask for it.
fn is_question(command: &Command) -> bool {
    matches!(command, Command::Hello { .. } | Command::Status | Command::Metrics)
}

fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    let listener = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    // Nobody else gets a moment: the file is there with its mode.
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let bound = bind(&listener, &SocketAddrUnix::new(path)?);
    rustix::process::umask(before);
    bound?;
    listen(&listener, CONNECTIONS as i32)?;
    Ok(listener)
}

fn is_readable(channel: &Channel) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(channel, PollFlags::IN)];
    poll(&mut fds, Some(&now)).is_ok_and(|_| !fds[0].revents().is_empty())
}

#[cfg(test)]
mod tests;
