//! `bench kill`: a driver that is killed under load and started again on the device that has
//! outlived it.
//!
//! # Shape
//! [`drive`] is one life: it checks every block against the [`Journal`], then writes and reads
//! until it is killed, or leaves what it has in flight to the next. Whoever kills it learns from
//! the journal how far it was, and makes an [`Outcome`] of all lives, or [`HandOvers`].
//!
//! # What must be so
//! A block holds the last write to it that was acknowledged; or, if the driver was killed before it
//! could acknowledge the next one, that. Once a life has seen which, it stays: a transfer that a
//! dead driver has left behind would show as a wrong block of a later life.

mod journal;
mod load;

use std::time::Duration;

use ring3_class::Saved;
use ring3_class::block::{Disk, Operation, Request, execute};
use ring3_device::Deadline;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::Error;
pub use journal::{BLOCKS, Entry, Journal, Word};
use load::Load;

/// Requests in flight.
const DEPTH: u16 = 16;

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What all lives together have shown. docs/bench.md describes the fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// The model.
    pub model: String,
    /// Drivers that were killed.
    pub kills: u32,
    /// Of these, killed while they started.
    pub kills_at_start: u32,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Blocks that were read and right.
    pub reads: u64,
    /// Blocks that were read and wrong.
    pub mismatches: u64,
    /// Milliseconds from a kill to the first request that the next driver has done: half of the
    /// kills took no longer.
    pub recovery_ms_p50: f64,
    /// 99 % took no longer.
    pub recovery_ms_p99: f64,
    /// None took longer.
    pub recovery_ms_max: f64,
    /// Milliseconds of that for the fence: half of the fences took no longer.
    pub fence_ms_p50: f64,
    /// None took longer.
    pub fence_ms_max: f64,
    /// Fences in which the controller did not stop otherwise.
    pub function_resets: u32,
}

impl Outcome {
    /// Fills in how long each of `recoveries` took, and each of `fences`.
    pub fn timed(mut self, recoveries: Vec<Duration>, fences: Vec<Duration>) -> Self {
        [self.recovery_ms_p50, self.recovery_ms_p99, self.recovery_ms_max] =
            percentiles(recoveries, [0.5, 0.99, 1.0]);
        [self.fence_ms_p50, self.fence_ms_max] = percentiles(fences, [0.5, 1.0]);
        self
    }
}

/// The milliseconds that `shares` of all `times` do not exceed.
fn percentiles<const N: usize>(mut times: Vec<Duration>, shares: [f64; N]) -> [f64; N] {
    times.sort();
    shares.map(|share| {
        // The smallest that `share` of all do not exceed; far fewer than 2^53 of them.
        let index = (times.len() as f64 * share).ceil() as usize;
        times.get(index.saturating_sub(1)).map_or(0.0, |took| took.as_secs_f64() * 1e3)
    })
}

/// What drivers that left their disk to the next one have shown together. docs/bench.md describes
/// the fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HandOvers {
    /// The model.
    pub model: String,
    /// Drivers that left.
    pub hand_overs: u32,
    /// Requests that were with the device meanwhile, in all.
    pub in_flight: u64,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Blocks that were read and right.
    pub reads: u64,
    /// Blocks that were read and wrong.
    pub mismatches: u64,
    /// How often the model was reset or enabled, after its first start.
    pub resets: u64,
    /// Milliseconds from the last request that one driver has seen end to the first of the next:
    /// half of the hand-overs took no longer.
    pub stall_ms_p50: f64,
    /// 99 % took no longer.
    pub stall_ms_p99: f64,
    /// None took longer.
    pub stall_ms_max: f64,
}

impl HandOvers {
    /// Fills in how long each of `stalls` was.
    pub fn timed(mut self, stalls: Vec<Duration>) -> Self {
        [self.stall_ms_p50, self.stall_ms_p99, self.stall_ms_max] =
            percentiles(stalls, [0.5, 0.99, 1.0]);
        self
    }
}

/// What a life leaves to the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Its queue.
    pub queue: Saved,
    /// The blocks that the queue has requests for, and what these do.
    pub busy: Vec<(u64, Operation)>,
}

/// Nanoseconds of the clock that all processes share.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Bytes of the arena of one life: its buffers, and what a driver needs for its queues.
pub const ARENA: usize = 16 << 20;

/// Makes the blocks that lives use what they are on a new disk.
pub fn clear(disk: &dyn Disk) -> Result<(), Error> {
    let failed = |source| Error::Device { name: disk.name(), source };
    let mut queue = disk.open_queue(1).map_err(failed)?;
    for block in 0..BLOCKS.min(disk.info().blocks) {
        let empty =
            disk.dma().arena().alloc_pages(disk.info().block_size as usize).map_err(failed)?;
        let done =
            execute(&mut *queue, Request::write(block, block, 1, empty), Deadline::after(PATIENCE))
                .map_err(failed)?;
        done.result
            .map_err(|error| Error::Invalid(format!("{}: block {block}: {error}", disk.name())))?;
    }
    Ok(())
}

/// Life number `life`, from 1 on: goes on with what the one before has `left`, or checks every
/// block; then writes and reads until something fails, it is killed, or the journal
/// [wants](Word::Leave) that it leaves.
pub fn drive(
    disk: &dyn Disk,
    journal: &Journal,
    life: u32,
    left: Option<Left>,
) -> Result<Left, Error> {
    work(disk, journal, life, left, false)
}

/// The same life without a write: what a block was found to hold first, it must hold in each life.
pub fn drive_reading(disk: &dyn Disk, journal: &Journal, life: u32) -> Result<Left, Error> {
    work(disk, journal, life, None, true)
}

fn work(
    disk: &dyn Disk,
    journal: &Journal,
    life: u32,
    left: Option<Left>,
    reading: bool,
) -> Result<Left, Error> {
    let failed = |source| Error::Device { name: disk.name(), source };
    let mut queue = match &left {
        Some(left) => disk.resume_queue(&left.queue).map_err(failed)?,
        None => disk.open_queue(DEPTH).map_err(failed)?,
    };
    let busy = left.as_ref().map_or(&[][..], |left| &left.busy);
    let mut load = Load::new(disk, &*queue, journal, life, busy)?;
    if reading {
        load = load.reading();
    }
    if left.is_none() {
        load.check_all(&mut *queue)?;
    }
    journal.set(Word::Underway, life.into())?;
    loop {
        while !load.free.is_empty() {
            let (block, operation) = load.draw();
            load.start(&mut *queue, block, operation)?;
        }
        queue.ring();
        // With as much in flight as there can be.
        if journal.get(Word::Leave)? == u64::from(life) {
            return load.detach(&mut *queue);
        }
        load.finish_one(&mut *queue)?;
        while let Some(done) = queue.reap_one().map_err(failed)? {
            load.finish(done)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use ring3_class::block::Ram;

    use super::*;
    use crate::load::stamp;

    fn journal() -> (tempfile::TempDir, Journal) {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::create(&folder.path().join("journal")).unwrap();
        (folder, journal)
    }

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let times = (1..=100).rev().map(Duration::from_millis).collect();
        let outcome = Outcome::default().timed(times, vec![Duration::from_millis(3)]);
        assert_eq!([outcome.fence_ms_p50, outcome.fence_ms_max], [3.0, 3.0]);
        assert_eq!(
            [outcome.recovery_ms_p50, outcome.recovery_ms_p99, outcome.recovery_ms_max],
            [50.0, 99.0, 100.0]
        );
        assert_eq!(Outcome::default().timed(Vec::new(), Vec::new()), Outcome::default());
    }

    #[test]
    fn what_the_journal_holds_is_there_for_the_next_process() {
        let (folder, journal) = journal();
        journal.set(Word::Writes, 7).unwrap();
        journal.note(BLOCKS - 1, Entry { submitted: 2, acknowledged: 1 }).unwrap();
        let other = Journal::open(&folder.path().join("journal")).unwrap();
        assert_eq!(
            (other.get(Word::Writes).unwrap(), other.get(Word::Mismatches).unwrap()),
            (7, 0)
        );
        assert_eq!(other.entry(BLOCKS - 1).unwrap(), Entry { submitted: 2, acknowledged: 1 });
    }

    /// What a life over an empty disk finds if the journal says `entry` of block 3, of which the
    /// disk holds write `written`.
    fn found(entry: Entry, written: u64) -> (u64, u64, Entry) {
        let (_folder, journal) = journal();
        let disk = Ram::new(512, BLOCKS, 1 << 20).unwrap();
        let mut queue = disk.open_queue(DEPTH).unwrap();
        if written > 0 {
            let (mut bytes, buffer) = ([0; 512], disk.dma().arena().alloc_pages(512).unwrap());
            stamp::fill(&mut bytes, 3 * 512, written);
            buffer.write(0, &bytes).unwrap();
            execute(&mut *queue, Request::write(0, 3, 1, buffer), Deadline::after(PATIENCE))
                .unwrap()
                .result
                .unwrap();
        }
        journal.note(3, entry).unwrap();
        let mut load = Load::new(&disk, &*queue, &journal, 9, &[]).unwrap();
        load.check_all(&mut *queue).unwrap();
        assert_eq!(journal.get(Word::Alive).unwrap(), 9);
        (
            journal.get(Word::Reads).unwrap(),
            journal.get(Word::Mismatches).unwrap(),
            journal.entry(3).unwrap(),
        )
    }

    #[test]
    fn an_acknowledged_write_that_is_lost_is_a_mismatch() {
        let entry = Entry { submitted: 5, acknowledged: 5 };
        assert_eq!(found(entry, 0), (BLOCKS - 1, 1, entry));
        assert_eq!(found(entry, 4), (BLOCKS - 1, 1, entry));
        assert_eq!(found(entry, 5), (BLOCKS, 0, entry));
    }

    #[test]
    fn without_writes_a_block_must_hold_what_was_read_of_it_first() {
        let (_folder, journal) = journal();
        let disk = Ram::new(512, BLOCKS, 1 << 20).unwrap();
        let mut queue = disk.open_queue(DEPTH).unwrap();
        let mut check = |life| {
            let load = Load::new(&disk, &*queue, &journal, life, &[]).unwrap();
            load.reading().check_all(&mut *queue).unwrap();
            [Word::Reads, Word::Mismatches].map(|word| journal.get(word).unwrap())
        };
        assert_eq!((check(1), check(2)), ([BLOCKS, 0], [2 * BLOCKS, 0]));
        let buffer = disk.dma().arena().alloc_pages(512).unwrap();
        buffer.fill(7);
        let mut other = disk.open_queue(1).unwrap();
        let write = Request::write(0, 3, 1, buffer);
        execute(&mut *other, write, Deadline::after(PATIENCE)).unwrap().result.unwrap();
        assert_eq!(check(3), [3 * BLOCKS - 1, 1]);
    }

    #[test]
    fn a_write_that_was_not_acknowledged_is_there_or_not_but_once_seen_it_stays() {
        let entry = Entry { submitted: 5, acknowledged: 4 };
        assert_eq!(found(entry, 4), (BLOCKS, 0, Entry { submitted: 4, acknowledged: 4 }));
        assert_eq!(found(entry, 5), (BLOCKS, 0, Entry { submitted: 5, acknowledged: 5 }));
        assert_eq!(found(entry, 0).1, 1);
    }
}
