//! Memory that a client and the server share: files without a name, made and sealed by the server.
//!
//! # Trust
//! F_SEAL_SHRINK and F_SEAL_GROW keep a client from taking away or adding what the server has mapped, and F_SEAL_SEAL from sealing it otherwise. [fcntl(2), File Sealing] A hole that it punches has
//! zeroes instead of its bytes, for itself and for the server; what the device reaches stays where it is until it is unmapped. Small pages only: a hole in huge pages could not be filled again.

use std::os::fd::{BorrowedFd, OwnedFd};

use ring3_class::Error;
use ring3_class::dma::{Arena, DmaBuffer, Region, admit};
use ring3_device::ring::shared_words;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

use crate::wire::{COMPLETION, MAX_SEGMENTS, SUBMISSION};

const PAGE: usize = 4096;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A file of `len` zeroed bytes, whole pages, whose size nobody can change.
pub fn make(len: usize) -> Result<OwnedFd, Error> {
    admit(len)?;
    let failed = |error| Error::os(format!("making {len} bytes of memory to share"), error);
    let fd = memfd_create("ring3-broker", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(failed)?;
    ftruncate(&fd, len as u64).map_err(failed)?;
    fcntl_add_seals(&fd, SEALS).map_err(failed)?;
    Ok(fd)
}

/// Fails unless `fd` is such a file, of `len` bytes.
pub fn check(fd: &OwnedFd, len: usize) -> Result<(), Error> {
    let sealed = fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SEALS));
    let size = fstat(fd).is_ok_and(|stat| stat.st_size as u64 == len as u64);
    if sealed && size { Ok(()) } else { Err(Error::Protocol(format!("the server's memory is no sealed file of {len} bytes"))) }
}

/// Where the parts of a queue's memory are, each of whole pages, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    depth: u16,
}

/// A queue's memory, as one side has it.
pub struct QueueMemory {
    /// The ring of submissions.
    pub submissions: DmaBuffer,
    /// The ring of completions.
    pub completions: DmaBuffer,
    /// For each place of the ring of submissions, the segments of an entry that has several: pairs of words, offset and bytes.
    pub tables: DmaBuffer,
}

impl Layout {
    /// Of a queue of `depth` requests, a power of two.
    pub fn new(depth: u16) -> Self {
        Self { depth }
    }

    fn lengths(self) -> [usize; 3] {
        let words = [
            shared_words::<SUBMISSION>(self.depth),
            shared_words::<COMPLETION>(self.depth),
            usize::from(self.depth) * MAX_SEGMENTS * 2,
        ];
        words.map(|words| (words * 8).next_multiple_of(PAGE))
    }

    /// Bytes of all parts together.
    pub fn bytes(self) -> usize {
        self.lengths().into_iter().sum()
    }

    /// Maps the parts of `fd`.
    pub fn map(self, fd: BorrowedFd<'_>) -> Result<QueueMemory, Error> {
        let [submissions, completions, tables] = self.lengths();
        let part = |offset: usize, len: usize| {
            let fd = fd.try_clone_to_owned().map_err(|error| Error::os("duplicating a queue's memory", error))?;
            // As it is: the other side may have written there.
            Arena::new(Region::lent(fd, offset as u64, len)?, 0).alloc_stale(len)
        };
        Ok(QueueMemory {
            submissions: part(0, submissions)?,
            completions: part(submissions, completions)?,
            tables: part(submissions + completions, tables)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring3_device::ring::Words;
    use rustix::fs::{FallocateFlags, fallocate};
    use std::os::fd::AsFd;

    #[test]
    fn memory_that_is_shared_can_be_neither_shrunk_nor_grown_nor_sealed_anew() {
        let fd = make(2 * PAGE).unwrap();
        assert!(ftruncate(&fd, 0).is_err() && ftruncate(&fd, 3 * PAGE as u64).is_err());
        assert!(fcntl_add_seals(&fd, SealFlags::WRITE).is_err());
        check(&fd, 2 * PAGE).unwrap();
    }

    #[test]
    fn a_file_that_can_be_shrunk_or_has_another_size_is_not_believed() {
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&open, PAGE as u64).unwrap();
        assert!(check(&open, PAGE).is_err() && check(&make(PAGE).unwrap(), 2 * PAGE).is_err());
    }

    #[test]
    fn a_hole_is_zeroes_for_the_other_side_and_no_fault() {
        let layout = Layout::new(64);
        let fd = make(layout.bytes()).unwrap();
        let (ours, theirs) = (layout.map(fd.as_fd()).unwrap(), layout.map(fd.as_fd()).unwrap());
        theirs.tables.store(1, 7);
        assert_eq!(ours.tables.load(1), 7);
        fallocate(&fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, layout.bytes() as u64).unwrap();
        assert_eq!(ours.tables.load(1), 0);
    }
}
