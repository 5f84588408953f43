//! Keeps a disk's request queue frozen while clients' memory is registered or unregistered.
//!
//! # Why
//! The kernel does this with the device locked, and waits for the requests in flight. If the server
//! dies then, these requests wait for the next server, whose recovery waits for that lock: a
//! deadlock (Linux 7.2). A write to a file of the queue's in sysfs freezes the queue, too, and
//! takes no lock that a server needs. Freezes nest. So many threads write again and again, and one
//! of them is always within a freeze. When the first write of each has ended, no request is in
//! flight, and the command does not have to wait for the server.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Threads that freeze. Each is between two freezes for about half of the time, and the queue is
/// frozen unless all of them are. Under a load, 57 requests completed in 2 s of this with four
/// threads, up to 44 with sixteen, and none in 12 s with this many (`examples/frozen_queue.rs`).
const FREEZERS: u32 = 32;
/// Most such threads of a process. Each waits in the kernel as long as requests in flight do: one
/// who asks again and again, of a disk whose driver hangs, gets no more of them.
const BUDGET: u32 = 8 * FREEZERS;
/// How long it is tried to have the queue frozen and empty.
const LIMIT: Duration = Duration::from_secs(10);
/// For how long nothing is seen in flight: the kernel counts a request some instructions after it
/// lets it in.
const CALM: Duration = Duration::from_millis(3);
/// Between two looks whether anything is in flight.
const LOOK: Duration = Duration::from_micros(100);

/// Threads of this process that freeze queues now.
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// A thread's part of [`BUDGET`], until it is dropped.
struct Running;

impl Running {
    /// `None` if the budget is spent.
    fn begin() -> Option<Self> {
        let running = Self;
        (RUNNING.fetch_add(1, Ordering::AcqRel) < BUDGET).then_some(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A queue that is frozen and has no request in flight, until this is dropped.
pub struct FrozenQueue(Arc<FreezeThreads>);

#[derive(Default)]
struct FreezeThreads {
    /// Threads whose first freeze has ended: what was in flight before it has ended, too.
    at_work: AtomicU32,
    /// Nobody wants them any more.
    over: AtomicBool,
}

impl FrozenQueue {
    /// Freezes the queue of `/dev/ublkb{id}` and waits until it is empty. `None` if it is not in
    /// ten seconds, if that is `in_vain` because its server is dead, or if threads or descriptors
    /// are short. Of a kernel that does not have the file nothing is frozen: the caller then has
    /// the whole gap.
    pub fn of(id: u32, in_vain: &dyn Fn() -> bool) -> Option<Self> {
        let frozen = Self(Arc::default());
        let mut threads = Vec::new();
        for _ in 0..FREEZERS {
            match Depth::open(id) {
                Ok(file) => threads.push((file, Running::begin()?)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(frozen),
                Err(_) => return None,
            }
        }
        for (file, running) in threads {
            let freezes = frozen.0.clone();
            let work = move || {
                freezes.repeat(&file);
                drop(running);
            };
            // It waits for the server, and if that dies for the next one: nobody waits for this
            // thread.
            thread::Builder::new().name("freeze".into()).spawn(work).ok()?;
        }
        let (since, mut calm) = (Instant::now(), None);
        while since.elapsed() < LIMIT && !in_vain() {
            let is_frozen = frozen.0.at_work.load(Ordering::Acquire) == FREEZERS;
            calm = match in_flight(id) {
                Ok(0) if is_frozen => calm.or_else(|| Some(Instant::now())),
                _ => None,
            };
            if calm.is_some_and(|since: Instant| since.elapsed() >= CALM) {
                return Some(frozen);
            }
            thread::sleep(LOOK);
        }
        None
    }
}

impl Drop for FrozenQueue {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}

impl FreezeThreads {
    fn repeat(&self, file: &Depth) {
        let mut first = true;
        while !self.over.load(Ordering::Acquire) && file.freeze().is_ok() {
            if std::mem::take(&mut first) {
                self.at_work.fetch_add(1, Ordering::AcqRel);
            }
        }
    }
}

/// A file of the queue's, and what stands in it.
struct Depth(File, String);

impl Depth {
    fn open(id: u32) -> io::Result<Self> {
        let path = format!("/sys/block/ublkb{id}/queue/async_depth");
        let depth = fs::read_to_string(&path)?;
        Ok(Self(OpenOptions::new().write(true).open(path)?, depth.trim().to_owned()))
    }

    /// Writes what is there: with the scheduler `none` it is refused (EINVAL), after the freeze.
    fn freeze(&self) -> io::Result<()> {
        match self.0.write_at(self.1.as_bytes(), 0) {
            Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Reads and writes. [Linux, Documentation/ABI/stable/sysfs-block]
fn in_flight(id: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/sys/block/ublkb{id}/inflight"))?;
    text.split_whitespace().map(|word| word.parse::<u64>().map_err(io::Error::other)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_disk_that_is_not_there_nothing_is_awaited() {
        let since = Instant::now();
        assert!(FrozenQueue::of(u32::MAX, &|| false).is_some());
        assert!(since.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn no_more_threads_freeze_than_the_budget_allows_and_those_that_end_make_room() {
        let all: Vec<_> = std::iter::from_fn(Running::begin).collect();
        assert_eq!(all.len(), BUDGET as usize);
        assert!(Running::begin().is_none());
        drop(all);
        assert!(Running::begin().is_some());
    }
}
