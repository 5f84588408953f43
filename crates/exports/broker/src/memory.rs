//! Memory that a client and the server share: files without a name, made and sealed by the server.
//!
//! # Trust
//! F_SEAL_SHRINK and F_SEAL_GROW keep a client from taking away or adding what the server has
//! mapped, and F_SEAL_SEAL from sealing it otherwise. [fcntl(2), File Sealing] A hole that it
//! punches has zeroes instead of its bytes, for itself and for the server; what the device reaches
//! stays where it is until it is unmapped. Small pages only: a hole in huge pages could not be
//! filled again.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use ring3_class::Error;
use ring3_class::dma::{Arena, Dma, DmaBuffer, Region, admit};
use ring3_class::net::{Counters, Link};
use ring3_device::ring::{Words, shared_words};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};

use crate::frame;
use crate::wire::{COMPLETION, MAX_SEGMENTS, SUBMISSION};

const PAGE: usize = 4096;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A file of `len` zeroed bytes, whole pages, whose size nobody can change.
pub fn make(len: usize) -> Result<OwnedFd, Error> {
    admit(len)?;
    let failed = |error| Error::os(format!("making {len} bytes of memory to share"), error);
    let fd = memfd_create("ring3-broker", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(failed)?;
    ftruncate(&fd, len as u64).map_err(failed)?;
    fcntl_add_seals(&fd, SEALS).map_err(failed)?;
    Ok(fd)
}

/// Whether such memory can be mapped for the device of `dma` now. A page of another kind says
/// nothing: where huge pages are set aside, a region is of these, and a device may reach only small
/// ones.
pub fn is_mappable(dma: &Dma) -> bool {
    let mapped = || dma.map(Arc::new(Region::from_fd(make(PAGE)?)?).pages()?);
    mapped().is_ok()
}

/// Fails unless `fd` is such a file, of `len` bytes.
pub fn check(fd: &OwnedFd, len: usize) -> Result<(), Error> {
    let sealed = fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SEALS));
    let size = fstat(fd).is_ok_and(|stat| stat.st_size as u64 == len as u64);
    if sealed && size {
        Ok(())
    } else {
        Err(Error::Protocol(format!("the server's memory is no sealed file of {len} bytes")))
    }
}

/// Where the parts of a queue's memory are, each of whole pages, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<const N: usize>([usize; N]);

impl<const N: usize> Parts<N> {
    /// Of so many words each.
    pub fn new(words: [usize; N]) -> Self {
        Self(words.map(|words| (words * 8).next_multiple_of(PAGE)))
    }

    /// Bytes of all parts together.
    pub fn bytes(self) -> usize {
        self.0.into_iter().sum()
    }

    /// Maps the parts of `fd`.
    pub fn map(self, fd: BorrowedFd<'_>) -> Result<[DmaBuffer; N], Error> {
        let mut offset = 0;
        let mut parts = Vec::new();
        for len in self.0 {
            let fd = fd
                .try_clone_to_owned()
                .map_err(|error| Error::os("duplicating a queue's memory", error))?;
            // As it is: the other side may have written there.
            parts.push(
                Arena::new(Region::registered(fd, offset, len)?, 0).alloc_uninitialised(len)?,
            );
            offset += len as u64;
        }
        <[DmaBuffer; N]>::try_from(parts)
            .map_err(|_| Error::Invalid("parts of a queue's memory are missing".into()))
    }
}

/// The memory of a disk's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout(Parts<3>);

/// The same, as one side has it.
pub struct QueueMemory {
    /// The ring of submissions.
    pub submissions: DmaBuffer,
    /// The ring of completions.
    pub completions: DmaBuffer,
    /// For each place of the ring of submissions, the segments of an entry that has several: pairs
    /// of words, offset and bytes.
    pub tables: DmaBuffer,
}

impl Layout {
    /// Of a queue of `depth` requests, a power of two.
    pub fn new(depth: u16) -> Self {
        let tables = usize::from(depth) * MAX_SEGMENTS * 2;
        Self(Parts::new([
            shared_words::<SUBMISSION>(depth),
            shared_words::<COMPLETION>(depth),
            tables,
        ]))
    }

    /// Bytes of all parts together.
    pub fn bytes(self) -> usize {
        self.0.bytes()
    }

    /// Maps the parts of `fd`.
    pub fn map(self, fd: BorrowedFd<'_>) -> Result<QueueMemory, Error> {
        let [submissions, completions, tables] = self.0.map(fd)?;
        Ok(QueueMemory { submissions, completions, tables })
    }
}

/// The memory of a card's queue: rings of buffers to receive into, of what was received, of what is
/// to be sent, of what was.
pub fn port(rx_depth: u16, tx_depth: u16) -> Parts<4> {
    let received = shared_words::<{ frame::RECEIVED }>(rx_depth);
    let sent = shared_words::<{ frame::SENT }>(tx_depth);
    Parts::new([
        shared_words::<{ frame::BUFFER }>(rx_depth),
        received,
        shared_words::<{ frame::PIECE }>(tx_depth),
        sent,
    ])
}

/// The page that the server writes for a client of a card, who only reads it.
pub struct StatusPage(DmaBuffer);

/// Its words: how often the link has changed, the link, and from `COUNTERS` on what was counted.
const CHANGES: usize = 0;
const LINK: usize = 1;
const COUNTERS: usize = 8;

impl StatusPage {
    /// Bytes of it.
    pub const BYTES: usize = PAGE;

    /// That of `fd`.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, Error> {
        let [words] = Parts::new([PAGE / 8]).map(fd)?;
        Ok(Self(words))
    }

    /// Shows the link.
    pub fn set_link(&self, link: Link) {
        let known = |value: Option<u64>| value.map_or(0, |value| 1 | value << 1);
        let word = u64::from(link.up)
            | known(link.full_duplex.map(u64::from)) << 8
            | known(link.speed.map(u64::from)) << 16;
        self.0.store(LINK, word);
        fence(Ordering::Release);
        self.0.store(CHANGES, self.changes() + 1);
    }

    /// The link.
    pub fn link(&self) -> Link {
        let word = self.0.load(LINK);
        let known = |value: u64| (value & 1 == 1).then_some(value >> 1);
        let full_duplex = known(word >> 8 & 3).map(|value| value == 1);
        Link { up: word & 1 == 1, speed: known(word >> 16).map(|value| value as u32), full_duplex }
    }

    /// How often it has changed.
    pub fn changes(&self) -> u64 {
        let changes = self.0.load(CHANGES);
        fence(Ordering::Acquire);
        changes
    }

    /// Shows what was counted.
    pub fn set_counters(&self, counters: &Counters) {
        let Counters { rx_packets, rx_bytes, rx_missed, rx_errors, tx_packets, tx_bytes, tx_lost } =
            *counters;
        self.0.store_entry(
            COUNTERS,
            &[rx_packets, rx_bytes, rx_missed, rx_errors, tx_packets, tx_bytes, tx_lost],
        );
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        let [rx_packets, rx_bytes, rx_missed, rx_errors, tx_packets, tx_bytes, tx_lost] =
            std::array::from_fn(|at| self.0.load(COUNTERS + at));
        Counters { rx_packets, rx_bytes, rx_missed, rx_errors, tx_packets, tx_bytes, tx_lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        fallocate(
            &fd,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            0,
            layout.bytes() as u64,
        )
        .unwrap();
        assert_eq!(ours.tables.load(1), 0);
    }

    #[test]
    fn a_board_says_what_was_written_to_it() {
        let fd = make(StatusPage::BYTES).unwrap();
        let (ours, theirs) =
            (StatusPage::map(fd.as_fd()).unwrap(), StatusPage::map(fd.as_fd()).unwrap());
        for (speed, full_duplex) in
            [(None, None), (Some(0), Some(false)), (Some(u32::MAX), Some(true))]
        {
            let (link, before) =
                (Link { up: speed.is_some(), speed, full_duplex }, theirs.changes());
            ours.set_link(link);
            assert_eq!((theirs.link(), theirs.changes()), (link, before + 1));
        }
        let counters = Counters {
            rx_packets: 1,
            rx_bytes: 2,
            rx_missed: 3,
            rx_errors: 4,
            tx_packets: 5,
            tx_bytes: 6,
            tx_lost: 7,
        };
        ours.set_counters(&counters);
        assert_eq!(theirs.counters(), counters);
    }
}
