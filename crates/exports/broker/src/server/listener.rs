//! The sockets.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ring3_class::Error;
use ring3_lease::{Channel, DeferredCloser};
use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 16;
/// How long nobody is accepted at a socket after that has failed: no descriptor is left, as a rule.
pub const PAUSE: Duration = Duration::from_secs(1);

/// For a client that hears nothing more.
const PARTING: Duration = Duration::from_millis(1);

/// A socket on which clients are awaited. Dropping it removes its file, if it has made that.
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and number of the socket's file: another one at its path is not ours to remove.
    /// `None` if another process has made it.
    file: Option<(u64, u64)>,
    /// Closes what its clients have sent and nobody takes.
    closer: DeferredCloser,
}

impl Listener {
    /// Listens at `path`, for who has the rights `mode`. A socket there that nobody listens on any
    /// more is replaced; one that somebody listens on is [`Error::Busy`].
    pub fn bind(path: &Path, mode: u32) -> Result<Self, Error> {
        let failed = |error: Errno| {
            Error::os(format!("{}: listening{}", path.display(), remedy(error)), error)
        };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let folder =
            path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = fs::File::open(folder)
            .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        // Who looks whether a socket is dead, and removes it, does so alone.
        rustix::fs::flock(&folder, FlockOperation::LockExclusive).map_err(failed)?;
        let socket = packets().map_err(failed)?;
        // The file gets the rights that the socket has now.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode)).map_err(failed)?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_dead(path)?;
                rustix::net::bind(&socket, &address)
            }
            result => result,
        }
        .map_err(failed)?;
        let file = fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()));
        let file = file.map_err(|error| {
            Error::os(format!("{}: looking at the new socket", path.display()), error)
        })?;
        let listener = Self {
            socket,
            path: path.to_owned(),
            file: Some(file),
            closer: DeferredCloser::default(),
        };
        // From here on, a failure removes the file.
        rustix::fs::chmod(path, Mode::from_raw_mode(mode)).map_err(failed)?;
        rustix::net::listen(&listener.socket, BACKLOG).map_err(failed)?;
        Ok(listener)
    }

    /// Goes on with a socket that another process listens on at `path`, and removes.
    pub fn inherited(socket: OwnedFd, path: &Path) -> Self {
        Self { socket, path: path.to_owned(), file: None, closer: DeferredCloser::default() }
    }

    /// Its socket, for another process that [goes on](Self::inherited) with it.
    pub fn try_clone(&self) -> Result<OwnedFd, Error> {
        self.socket.try_clone().map_err(|error| Error::os("duplicating a socket", error))
    }

    /// The next client, and who it is; `None` if nobody waits.
    pub fn accept(&self) -> Result<Option<(OwnedFd, String)>, Error> {
        loop {
            match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    // Processes outside of one's namespace have no number there.
                    let peer = self.file.and_then(|_| socket_peercred(&socket).ok());
                    let who = peer.map_or("a client".into(), |peer| {
                        format!(
                            "process {} of user {}",
                            peer.pid.as_raw_nonzero(),
                            peer.uid.as_raw()
                        )
                    });
                    return Ok(Some((socket, who)));
                }
                Err(Errno::AGAIN) => return Ok(None),
                // Who has left again before he was accepted is nobody.
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    return Err(Error::os(
                        format!("{}: accepting a client", self.path.display()),
                        error,
                    ));
                }
            }
        }
    }

    /// Who closes what its clients have sent and nobody takes. While that is full, no client is to
    /// be accepted.
    pub fn closer(&self) -> &DeferredCloser {
        &self.closer
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A confined process, which has no files, has made none.
        if let Some(made) = self.file
            && fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == made)
        {
            let _ = fs::remove_file(&self.path);
        }
        if self.file.is_some() {
            // Those who wait are parted with as others are: to close what they have sent may wait.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
            while let Ok(Some((client, _))) = self.accept() {
                drop(Channel::of_stranger(client, PARTING, &self.closer));
            }
        }
    }
}

fn packets() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

fn remedy(error: Errno) -> &'static str {
    match error {
        Errno::NAMETOOLONG => " (a socket's path has at most 107 bytes: choose a shorter one)",
        Errno::ACCESS | Errno::ROFS => {
            " (nothing can be created in that folder: choose another, or mend its rights)"
        }
        Errno::NOENT => " (create its folder first)",
        _ => "",
    }
}

/// Removes what a server has left at `path` that was killed.
fn remove_dead(path: &Path) -> Result<(), Error> {
    let failed = |error| Error::os(format!("{}: looking at what is there", path.display()), error);
    if !fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket() {
        return Err(Error::Invalid(format!(
            "{} is there already and is no socket: choose another path",
            path.display()
        )));
    }
    match packets().and_then(|probe| rustix::net::connect(&probe, &SocketAddrUnix::new(path)?)) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        _ => Err(Error::Busy(format!(
            "{}: somebody listens there: stop it first, or choose another path",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_the_rights_that_were_wanted_and_goes_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let listener = Listener::bind(&path, 0o620).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o620);
        assert!(matches!(Listener::bind(&path, 0o600), Err(Error::Busy(_))));
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_of_another_process_is_heard_on_and_its_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let holder = Listener::bind(&path, 0o600).unwrap();
        let driver = Listener::inherited(holder.try_clone().unwrap(), &path);
        let client = packets().unwrap();
        rustix::net::connect(&client, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert!(driver.accept().unwrap().is_some() && holder.accept().unwrap().is_none());
        drop(driver);
        assert!(path.exists());
        drop(holder);
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_servers_socket_is_replaced_and_a_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let dead = packets().unwrap();
        rustix::net::bind(&dead, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(dead);
        drop(Listener::bind(&path, 0o600).unwrap());
        fs::write(&path, "text").unwrap();
        assert!(Listener::bind(&path, 0o600).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }
}
