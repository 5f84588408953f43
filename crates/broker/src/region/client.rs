//! A client's memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ring3_class::Error;
use ring3_class::dma::Region;
use ring3_lease::Channel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::protocol::{Answer, Ask, VERSION};

/// How long an answer may take: the kernel waits for what is in flight, and a driver may have to reset its device before.
const PATIENCE: Duration = Duration::from_secs(150);

/// Memory in which requests to a block device of ring3's need no copy. Dropping it takes it back: the server does that when it sees that the connection has ended.
pub struct SharedMemory {
    path: PathBuf,
    channel: Channel,
    file: OwnedFd,
    region: Arc<Region>,
    disks: Vec<String>,
}

impl SharedMemory {
    /// Makes `bytes` zeroed bytes, or some more, and hands them to who exports disks with `--share` `path`: of huge pages if the system has that many free. Requests may lie there when this returns.
    pub fn alloc(path: &Path, bytes: usize) -> Result<Self, Error> {
        let channel = open(path)?;
        let (file, region) = super::make(bytes)?;
        let mut memory = Self { path: path.into(), channel, file, region: Arc::new(region), disks: Vec::new() };
        let offer = Ask::Offer { version: VERSION, bytes: memory.region.len() as u64 };
        match memory.ask(&offer, &[memory.file.as_fd()])? {
            Answer::Shared { disks } => memory.disks = disks,
            _ => return Err(memory.nonsense()),
        }
        Ok(memory)
    }

    /// Its first byte. Never make a reference of it: the server and the device write there.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// Whether it lies in huge pages.
    pub fn is_huge(&self) -> bool {
        self.region.is_huge()
    }

    /// The same bytes, for who keeps them mapped longer.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The block devices of whose requests nobody copies bytes that lie here.
    pub fn disks(&self) -> &[String] {
        &self.disks
    }

    /// Takes it back, and returns when no request lies there any more and no device reaches it. The bytes stay.
    pub fn revoke(&mut self) -> Result<(), Error> {
        match self.ask(&Ask::Revoke, &[])? {
            Answer::Revoked => Ok(()),
            _ => Err(self.nonsense()),
        }
    }

    /// Whether the server has parted: requests still succeed if the disk is still there, but are copied.
    pub fn is_lost(&self) -> bool {
        let mut fds = [PollFd::new(&self.channel, PollFlags::RDHUP)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// The socket, readable when the server parts.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn ask(&self, ask: &Ask, fds: &[BorrowedFd<'_>]) -> Result<Answer, Error> {
        let parted = |why: &str| Error::Fatal(format!("{}: who exports the disk has parted: {why}", self.path.display()));
        // One that has parted has said why before.
        let sent = self.channel.send(ask, fds);
        match self.channel.receive::<Answer>() {
            Ok(Some((Answer::Refused { reason }, _))) => Err(Error::Busy(reason)),
            Ok(Some((Answer::Ended { reason }, _))) => Err(parted(&reason)),
            Ok(Some((answer, _))) => sent.map(|()| answer).map_err(|error| parted(&error.to_string())),
            Ok(None) => Err(parted("it has closed the connection")),
            Err(error) => Err(parted(&error.to_string())),
        }
    }

    fn nonsense(&self) -> Error {
        let path = self.path.display();
        Error::Protocol(format!(
            "{path}: who exports the disk does not answer what was asked: both must be of one release of ring3"
        ))
    }
}

impl AsFd for SharedMemory {
    /// The file, for other processes that map it; `fio --mem=mmaphuge:/proc/PID/fd/N` is one.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open(path: &Path) -> Result<Channel, Error> {
    let failed = |error: Errno| match error {
        Errno::NOENT | Errno::CONNREFUSED => Error::Claim(format!(
            "{}: nobody shares memory there: start the export with it, ring3 run DRIVER --device URI --share {0}",
            path.display()
        )),
        Errno::ACCESS => {
            Error::Claim(format!("{}: this user may not connect: let the export say --share {0},mode=660 or 666", path.display()))
        }
        error => Error::os(format!("{}: connecting to who exports the disk", path.display()), error),
    };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(failed)?;
    connect(&socket, &address).map_err(failed)?;
    Channel::new(socket, PATIENCE, true).map_err(|error| Error::os(format!("{}: connecting", path.display()), error))
}
