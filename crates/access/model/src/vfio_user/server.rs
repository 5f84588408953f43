//! The socket, and who is served on it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ring3_device::Error;
use ring3_spec::vfio_user::ERROR;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::VfioUserDevice;
use super::channel::{Channel, answer};
use super::session::Session;

/// How long a message of a client may take.
const MESSAGE_LIMIT: Duration = Duration::from_secs(5);
/// How long somebody who is refused may take to say that he is there.
const REFUSAL_LIMIT: Duration = Duration::from_millis(200);
/// Clients that may wait to be accepted.
const BACKLOG: i32 = 8;

/// A device on a socket. Dropping it removes the socket.
pub struct VfioUserServer {
    listener: UnixListener,
    path: PathBuf,
    /// Device and number of the socket's file: another one at its path is not ours to remove.
    file: (u64, u64),
    device: Arc<dyn VfioUserDevice>,
    stop: Arc<OwnedFd>,
}

/// Ends [`VfioUserServer::run`]. Cloning makes another handle.
#[derive(Clone)]
pub struct Stop(Arc<OwnedFd>);

impl Stop {
    /// Ends it, now or when it begins.
    pub fn now(&self) {
        // It can only fail when the count is at its maximum, and then it is stopped already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// A [`VfioUserServer`] that runs in a thread of its own, until this is dropped.
pub struct Running {
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.now();
        self.thread.take().map(JoinHandle::join);
    }
}

/// The client that is served.
struct Client {
    stream: UnixStream,
    session: JoinHandle<()>,
}

impl VfioUserServer {
    /// Listens at `path`, for this user alone. A socket there that nobody listens on any more is
    /// replaced; one that somebody listens on is [`Error::Busy`].
    pub fn bind(path: &Path, device: Arc<dyn VfioUserDevice>) -> Result<Self, Error> {
        let listener = listen(path)?;
        let failed =
            |error| Error::os(format!("{}: looking at the new socket", path.display()), error);
        let file =
            std::fs::symlink_metadata(path).map(|file| (file.dev(), file.ino())).map_err(failed)?;
        let stop = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let stop = Arc::new(stop.map_err(|error| Error::os("creating an eventfd", error))?);
        let server = Self { listener, path: path.to_owned(), file, device, stop };
        // All device addresses are the client's.
        let arena = server.device.dma().arena();
        server.device.dma().iommu().unmap(arena.iova(), arena.len())?;
        Ok(server)
    }

    /// What ends [`run`](Self::run).
    pub fn stop(&self) -> Stop {
        Stop(Arc::clone(&self.stop))
    }

    /// Serves one client after another until it is stopped.
    pub fn run(&self) -> Result<(), Error> {
        let mut served: Option<Client> = None;
        let result = loop {
            match self.accept() {
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
                Ok(Some(stream)) => match served.take_if(|client| client.has_left()) {
                    None if served.is_some() => refuse(stream),
                    left => {
                        left.into_iter().for_each(Client::end);
                        served = self.serve(stream);
                    }
                },
            }
        };
        served.into_iter().for_each(Client::end);
        result
    }

    /// Serves from a thread of its own.
    pub fn spawn(self) -> Result<Running, Error> {
        let stop = self.stop();
        let run = move || {
            self.run()
                .unwrap_or_else(|error| tracing::error!("a device is not served any more: {error}"))
        };
        let thread = std::thread::Builder::new().name("ring3-model".into()).spawn(run);
        Ok(Running {
            stop,
            thread: Some(thread.map_err(|error| Error::os("starting a thread", error))?),
        })
    }

    /// The next client; `None` when it was stopped.
    fn accept(&self) -> Result<Option<UnixStream>, Error> {
        loop {
            let mut fds = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&*self.stop, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(Errno::INTR) => continue,
                result => result.map_err(|error| Error::os("waiting for clients", error))?,
            };
            if !fds[1].revents().is_empty() {
                return Ok(None);
            }
            match self.listener.accept() {
                Ok((stream, _)) => return Ok(Some(stream)),
                // Who has left again before he was accepted is nobody.
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock
                            | ErrorKind::ConnectionAborted
                            | ErrorKind::Interrupted
                    ) => {}
                Err(error) => {
                    return Err(Error::os(
                        format!("{}: accepting a client", self.path.display()),
                        error,
                    ));
                }
            }
        }
    }

    /// Serves the client behind `stream` in a thread of its own; `None` if it cannot be.
    fn serve(&self, stream: UnixStream) -> Option<Client> {
        let device = Arc::clone(&self.device);
        let start = |stream: &UnixStream| {
            let channel = Channel::new(stream.try_clone()?, MESSAGE_LIMIT)?;
            std::thread::Builder::new().name("ring3-vfio-user".into()).spawn(move || {
                if let Err(error) = serve_client(device, &channel) {
                    tracing::warn!("a client is cut off: {error}");
                }
            })
        };
        match start(&stream) {
            Ok(session) => Some(Client { stream, session }),
            Err(error) => {
                tracing::error!("a client cannot be served: {error}");
                None
            }
        }
    }
}

impl Drop for VfioUserServer {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path)
            .is_ok_and(|file| (file.dev(), file.ino()) == self.file)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Client {
    /// Whether it has closed its end, or its session is over.
    fn has_left(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        self.session.is_finished()
            || poll(&mut fds, Some(&now)).is_ok_and(|_| !fds[0].revents().is_empty())
    }

    /// Ends the session; when it returns, the device is as after power-on.
    fn end(self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if self.session.join().is_err() {
            tracing::error!("the session of a client has died of a bug");
        }
    }
}

/// Serves one client, which is connected by `channel`, until it leaves or is cut off, which is the
/// error. The connection is closed then, and the device is as after power-on.
pub fn serve_client(device: Arc<dyn VfioUserDevice>, channel: &Channel) -> io::Result<()> {
    let mut session = Session::new(device);
    let served = session.run(channel);
    // First: whoever sees the end of the connection may rely on the device being quiet.
    drop(session);
    channel.close();
    served
}

/// Tells somebody that the device is taken.
fn refuse(stream: UnixStream) {
    tracing::warn!("a second client is refused: end the first, or serve another model");
    if let Ok(channel) = Channel::new(stream, REFUSAL_LIMIT)
        && let Ok(Some((request, _))) = channel.receive()
    {
        let _ = channel.send(
            answer(&request, ERROR, Errno::BUSY.raw_os_error() as u32),
            [&[], &[]],
            &[],
        );
    }
}

/// A socket at `path` that only this user can connect to.
fn listen(path: &Path) -> Result<UnixListener, Error> {
    let failed = |what: &str, error: Errno| {
        let remedy = match error {
            Errno::NAMETOOLONG => " (a socket's path has at most 107 bytes: choose a shorter one)",
            Errno::ACCESS | Errno::ROFS => {
                " (nothing can be created in that folder: choose another, or mend its rights)"
            }
            Errno::NOENT => " (create its folder first)",
            _ => "",
        };
        Error::os(format!("{}: {what}{remedy}", path.display()), error)
    };
    let address = SocketAddrUnix::new(path).map_err(|error| failed("naming a socket", error))?;
    let folder =
        path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let folder = File::open(folder).map_err(|error| {
        failed("opening its folder", Errno::from_io_error(&error).unwrap_or(Errno::IO))
    })?;
    // Who looks whether a socket is dead, and removes it, does so alone.
    rustix::fs::flock(&folder, FlockOperation::LockExclusive)
        .map_err(|error| failed("locking its folder", error))?;
    let socket = stream_socket().map_err(|error| failed("making a socket", error))?;
    // The file gets the rights that the socket has now.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)
        .map_err(|error| failed("setting its rights", error))?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_dead(path)?;
            rustix::net::bind(&socket, &address)
        }
        result => result,
    }
    .map_err(|error| failed("listening", error))?;
    rustix::net::listen(&socket, BACKLOG).map_err(|error| failed("listening", error))?;
    Ok(socket.into())
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// Removes what a server has left at `path` that was killed.
fn remove_dead(path: &Path) -> Result<(), Error> {
    let failed = |error| Error::os(format!("{}: looking at what is there", path.display()), error);
    if !std::fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket() {
        return Err(Error::Invalid(format!(
            "{} is there already and is no socket: choose another path",
            path.display()
        )));
    }
    match stream_socket()
        .and_then(|probe| rustix::net::connect(&probe, &SocketAddrUnix::new(path)?))
    {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed),
        _ => Err(Error::Busy(format!(
            "{}: somebody listens there: stop it first, or choose another path",
            path.display()
        ))),
    }
}
