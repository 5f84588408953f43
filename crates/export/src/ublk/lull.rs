//! A moment in which nothing of a disk is in flight, for what must not wait for its server.
//!
//! # Why
//! The kernel registers and forgets clients' memory with the device locked, and waits for what is in flight. If the server dies meanwhile, its requests wait for the next one, which waits for that lock: neither ends (Linux 7.2). A write to a
//! file of the queue's in sysfs freezes it, too, and locks nothing that a server needs. So that comes first: until it is over nothing new begins, which takes some ten milliseconds of RCU's, and what was in flight has mostly ended long before.
//! In what is left of these, the command waits for nobody.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// How often it is tried to have such a moment, under a load whose requests take longer than the kernel's pause.
const TRIES: u32 = 20;
/// For how long nothing is seen in flight: the kernel counts what is with the server, and more may have begun.
const CALM: Duration = Duration::from_millis(3);
/// Between two looks whether anything is in flight.
const LOOK: Duration = Duration::from_micros(100);

/// Returns when nothing of `/dev/ublkb{id}` is in flight, and for some milliseconds nothing new begins; or when that cannot be had, or is `in_vain`: its server is dead.
pub fn await_lull(id: u32, in_vain: &dyn Fn() -> bool) {
    for _ in 0..TRIES {
        // It waits for the server, and if that dies for the next one: nobody waits for this thread.
        let Ok(freezer) = thread::Builder::new().spawn(move || freeze(id)) else { return };
        let mut calm = None;
        while !freezer.is_finished() {
            if in_vain() {
                return;
            }
            calm = match in_flight(id) {
                Ok(0) => calm.or_else(|| Some(Instant::now())),
                _ => None,
            };
            if calm.is_some_and(|since: Instant| since.elapsed() >= CALM) {
                return;
            }
            thread::sleep(LOOK);
        }
        match freezer.join() {
            Ok(Err(error)) if error.raw_os_error() != Some(libc::EINVAL) => return,
            _ => {}
        }
    }
}

/// Writes what is there: with the scheduler `none` it is refused (EINVAL), after the freeze.
fn freeze(id: u32) -> io::Result<()> {
    let file = format!("/sys/block/ublkb{id}/queue/async_depth");
    let depth = fs::read_to_string(&file)?;
    fs::write(&file, depth.trim())
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
        await_lull(u32::MAX, &|| false);
        assert!(since.elapsed() < Duration::from_secs(5));
    }
}
