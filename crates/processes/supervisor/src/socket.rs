//! The place of a socket in the file system.

use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Makes room at `path` for a socket of this `kind`: one that a dead process has left there goes.
/// What is anything else stays, and is an error.
pub fn make_room(path: &Path, kind: SocketType) -> io::Result<()> {
    let there = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        there => there?,
    };
    if !there.file_type().is_socket() {
        return Err(io::Error::new(
            ErrorKind::AlreadyExists,
            "a file is there that is no socket, and it stays",
        ));
    }
    let probe =
        socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    match connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        _ => Err(io::Error::new(ErrorKind::AddrInUse, "somebody listens there")),
    }
}

/// The file of a socket that this process has made, which goes with this value unless another one
/// is at its path by then.
pub struct Made {
    path: PathBuf,
    file: (u64, u64),
}

impl Made {
    /// The one that is at `path` now.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: number(&fs::symlink_metadata(path)?) })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|there| number(&there) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn number(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn room_is_made_where_a_dead_process_has_left_its_socket_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let room = || make_room(&path, SocketType::STREAM);
        room().unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(room().unwrap_err().to_string().contains("no socket"));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        assert!(room().unwrap_err().to_string().contains("somebody listens"));
        drop(listener);
        room().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_goes_with_its_maker_and_what_has_taken_its_place_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _first = UnixListener::bind(&path).unwrap();
        drop(Made::at(&path).unwrap());
        assert!(!path.exists());
        let _second = UnixListener::bind(&path).unwrap();
        let made = Made::at(&path).unwrap();
        fs::rename(&path, folder.path().join("moved")).unwrap();
        fs::write(&path, "another").unwrap();
        drop(made);
        assert!(path.exists());
    }
}
