//! The memory, and how it is read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Entry;

/// Operations that the flight recorder of a queue keeps: the start and the end of a request are one
/// each.
pub const ENTRIES: usize = 256;

/// Words of a part before its flight recorder: two pairs of cache lines, which nobody else writes.
const FIXED: usize = 32;
/// Words of an entry.
pub(crate) const WORDS: usize = 4;
/// Words of a part.
const PART: usize = FIXED + ENTRIES * WORDS;
/// Most queues.
const MAX_QUEUES: u16 = 4096;

/// What a thread of the driver is doing. What is no phase reads as [`Working`](Phase::Working),
/// which is watched most closely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// It has not begun.
    #[default]
    New = 0,
    /// Nothing is in flight: it sleeps until something comes, and does not beat.
    Idle = 1,
    /// It runs.
    Working = 2,
    /// Something is with the device: it sleeps until that ends or a timer fires.
    Waiting = 3,
    /// The driver looks after its device, which may mean a reset: it may be long, and does not beat
    /// meanwhile.
    Recovering = 4,
    /// It takes nothing more and waits for what is with the device.
    Draining = 5,
    /// It has ended.
    Ended = 6,
}

impl Phase {
    fn of(word: u64) -> Self {
        [
            Self::New,
            Self::Idle,
            Self::Working,
            Self::Waiting,
            Self::Recovering,
            Self::Draining,
            Self::Ended,
        ]
        .into_iter()
        .find(|&phase| phase as u64 == word)
        .unwrap_or(Self::Working)
    }
}

/// What a queue has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// What its thread is doing.
    pub phase: Phase,
    /// Goes up with each turn of the thread.
    pub beat: u64,
    /// Requests that came.
    pub submitted: u64,
    /// Requests that ended.
    pub completed: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Interrupts that were waited for.
    pub interrupts: u64,
    /// Requests whose bytes lie in clients' memory, so that nobody copies them.
    pub shared_hits: u64,
    /// Packets that a network card has lost.
    pub lost: Lost,
}

/// Packets that a network card, or its driver, has lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Received, and no buffer was there.
    pub rx_missed: u64,
    /// Received damaged, or in a way that makes no sense.
    pub rx_errors: u64,
    /// Given to the card to be sent, and lost with a reset.
    pub tx_lost: u64,
}

/// Where each word of a part is.
pub(crate) mod word {
    pub const PHASE: usize = 0;
    pub const BEAT: usize = 1;
    pub const SUBMITTED: usize = 2;
    pub const COMPLETED: usize = 3;
    pub const ERRORS: usize = 4;
    pub const BYTES: usize = 5;
    pub const INTERRUPTS: usize = 6;
    /// Entries that were ever written to the flight recorder.
    pub const RECORDED: usize = 7;
    pub const SHARED_HITS: usize = 8;
    pub const RX_MISSED: usize = 9;
    pub const RX_ERRORS: usize = 10;
    pub const TX_LOST: usize = 11;
}

/// The memory.
pub struct Segment {
    file: OwnedFd,
    base: NonNull<AtomicU64>,
    queues: u16,
}

// SAFETY: all access is by atomics, and the mapping lives as long as the value.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// A new one for the process and `queues` queues, all zero. Its file can neither shrink nor
    /// grow.
    pub fn create(queues: u16) -> io::Result<Self> {
        let file = memfd_create("ring3-stats", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes(queues)? as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::map(file, queues)
    }

    /// The one that another process has made.
    pub fn open(file: OwnedFd) -> io::Result<Self> {
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a stats segment that could shrink",
            ));
        }
        let len = usize::try_from(fstat(&file)?.st_size).unwrap_or(0);
        let queues = (len / (PART * size_of::<u64>()))
            .checked_sub(1)
            .and_then(|queues| u16::try_from(queues).ok());
        let queues = queues
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is no stats segment"))?;
        Self::map(file, queues)
    }

    fn map(file: OwnedFd, queues: u16) -> io::Result<Self> {
        // SAFETY: a new mapping, whose file cannot shrink; it is given back in `drop`.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes(queues)?,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let base =
            NonNull::new(base.cast()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        Ok(Self { file, base, queues })
    }

    /// Queues that it has room for.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Part 0 is the process's; queue N's is N + 1.
    pub(crate) fn part(&self, part: u16) -> &[AtomicU64] {
        let part = usize::from(part.min(self.queues));
        // SAFETY: within the mapping, which holds `queues + 1` parts; atomics may be shared with
        // another process.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(part * PART), PART) }
    }

    /// What the thread of `queue` counts, or the process itself if `None`. All zero beyond the last
    /// queue.
    pub fn counters(&self, queue: Option<u16>) -> Counters {
        let Some(part) = self.part_of(queue) else { return Counters::default() };
        let get = |index: usize| part[index].load(Ordering::Relaxed);
        Counters {
            phase: Phase::of(get(word::PHASE)),
            beat: get(word::BEAT),
            submitted: get(word::SUBMITTED),
            completed: get(word::COMPLETED),
            errors: get(word::ERRORS),
            bytes: get(word::BYTES),
            interrupts: get(word::INTERRUPTS),
            shared_hits: get(word::SHARED_HITS),
            lost: Lost {
                rx_missed: get(word::RX_MISSED),
                rx_errors: get(word::RX_ERRORS),
                tx_lost: get(word::TX_LOST),
            },
        }
    }

    /// The last operations of `queue`, the oldest first.
    pub fn recorded(&self, queue: u16) -> Vec<Entry> {
        let Some(part) = self.part_of(Some(queue)) else { return Vec::new() };
        let last = part[word::RECORDED].load(Ordering::Acquire);
        let first = last.saturating_sub(ENTRIES as u64);
        (first..last).filter_map(|number| Entry::read(entry(part, number), number)).collect()
    }

    fn part_of(&self, queue: Option<u16>) -> Option<&[AtomicU64]> {
        match queue {
            None => Some(self.part(0)),
            Some(queue) => (queue < self.queues).then(|| self.part(queue + 1)),
        }
    }
}

/// Where entry `number` of a part is.
pub(crate) fn entry(part: &[AtomicU64], number: u64) -> &[AtomicU64] {
    let at = FIXED + (number % ENTRIES as u64) as usize * WORDS;
    &part[at..at + WORDS]
}

fn bytes(queues: u16) -> io::Result<usize> {
    match queues {
        0..=MAX_QUEUES => Ok((usize::from(queues) + 1) * PART * size_of::<u64>()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{queues} queues; at most {MAX_QUEUES} have statistics"),
        )),
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: what `map` has mapped, which nobody refers to any more.
        let _ = bytes(self.queues).map(|len| unsafe { munmap(self.base.as_ptr().cast(), len) });
    }
}
