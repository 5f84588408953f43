//! A client's memory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use ring3_class::Error;
use ring3_class::dma::{Foreign, Piece, Region};

use crate::client::{Connection, Peer};
use crate::protocol::{Answer, ClientRequest};

/// Memory of this process's own, in which requests to disks of ring3's need no copy once it is lent
/// to who drives them.
pub struct SharedMemory {
    file: OwnedFd,
    memory: Foreign,
}

impl SharedMemory {
    /// `bytes` zeroed bytes, or some more: of huge pages if the system has that many free.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let (file, region) = super::make(bytes)?;
        Ok(Self { file, memory: region.into() })
    }

    /// Memory as [`new`](Self::new) makes it, and what `take` made of it. Whoever takes no huge
    /// pages gets small ones.
    pub fn taken<T, E: From<Error>>(
        bytes: usize,
        take: impl Fn(&Self) -> Result<T, E>,
    ) -> Result<(Self, T), E> {
        let memory = Self::new(bytes)?;
        match take(&memory) {
            Err(_) if memory.is_huge() => {
                let (file, region) = super::make_small(bytes)?;
                let memory = Self { file, memory: region.into() };
                take(&memory).map(|taken| (memory, taken))
            }
            taken => taken.map(|taken| (memory, taken)),
        }
    }

    /// Its first byte. Never make a reference of it: the driver's process and the device write
    /// there.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Whether it lies in huge pages.
    pub fn is_huge(&self) -> bool {
        self.region().is_huge()
    }

    /// The same bytes, for who keeps them mapped longer.
    pub fn region(&self) -> &Arc<Region> {
        self.memory.region()
    }

    /// `len` bytes at `offset`, as data of a request to a disk of the class, be that in this
    /// process or a remote one.
    pub fn piece(&self, offset: usize, len: usize) -> Piece {
        Piece { memory: self.memory.clone(), offset, len }
    }

    /// Registers it with the process that exports disks with `--share` `path`. Requests to their
    /// block devices may lie in it when this returns.
    pub fn register(&self, path: &Path) -> Result<Loan, Error> {
        let connection = Connection::open(path, Peer::Export)?;
        let disks = connection.offer(self.as_fd(), self.len() as u64)?;
        Ok(Loan { connection, disks })
    }
}

impl AsFd for SharedMemory {
    /// The file, for other processes that map it; `fio --mem=mmaphuge:/proc/PID/fd/N` is one.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Memory that an export has. Dropping it takes the memory back: the export does that when it sees
/// that the connection has ended.
pub struct Loan {
    connection: Connection,
    disks: Vec<String>,
}

impl Loan {
    /// The block devices of whose requests nobody copies bytes that lie there.
    pub fn disks(&self) -> &[String] {
        &self.disks
    }

    /// Takes the memory back, and returns when no request lies there any more and no device of the
    /// export's reaches it. The bytes stay.
    pub fn revoke(self) -> Result<(), Error> {
        match self.connection.ask(&ClientRequest::Revoke)? {
            (Answer::Revoked, _) => Ok(()),
            _ => Err(self.connection.protocol_error()),
        }
    }

    /// Whether the export has parted: requests still succeed if the disk is still there, but are
    /// copied.
    pub fn is_lost(&self) -> bool {
        self.connection.is_lost()
    }

    /// The socket, readable when the export parts.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.connection.socket().as_fd()
    }
}
