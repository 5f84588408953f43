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
/// frozen unless all of them are: under a load, 57 requests passed in 2 s of lulls with four of
/// them, up to 44 with sixteen, and none with this many.
const FREEZERS: u32 = 32;
/// How long it is tried to have such a moment.
const LIMIT: Duration = Duration::from_secs(10);
/// For how long nothing is seen in flight: the kernel counts a request some instructions after it
/// lets it in.
const CALM: Duration = Duration::from_millis(3);
/// Between two looks whether anything is in flight.
const LOOK: Duration = Duration::from_micros(100);

/// Such a moment. It ends when this is dropped.
pub struct FrozenQueue(Arc<FreezeThreads>);

#[derive(Default)]
struct FreezeThreads {
    /// Threads whose first freeze has ended: what was in flight before it has ended, too.
    at_work: AtomicU32,
    /// Nobody wants them any more.
    over: AtomicBool,
}

impl FrozenQueue {
    /// Waits for one of `/dev/ublkb{id}`; `None` if there is none in ten seconds, or if it is
    /// `in_vain`: its server is dead. Where a queue cannot be frozen so, any moment is one.
    pub fn of(id: u32, in_vain: &dyn Fn() -> bool) -> Option<Self> {
        let lull = Self(Arc::default());
        let Ok(files) = (0..FREEZERS).map(|_| Depth::open(id)).collect::<io::Result<Vec<_>>>()
        else {
            return Some(lull);
        };
        for file in files {
            let freezes = lull.0.clone();
            // It waits for the server, and if that dies for the next one: nobody waits for this
            // thread.
            thread::Builder::new().name("lull".into()).spawn(move || freezes.repeat(&file)).ok()?;
        }
        let (since, mut calm) = (Instant::now(), None);
        while since.elapsed() < LIMIT && !in_vain() {
            let frozen = lull.0.at_work.load(Ordering::Acquire) == FREEZERS;
            calm = match in_flight(id) {
                Ok(0) if frozen => calm.or_else(|| Some(Instant::now())),
                _ => None,
            };
            if calm.is_some_and(|since: Instant| since.elapsed() >= CALM) {
                return Some(lull);
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
}
