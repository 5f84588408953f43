//! `bench kill`: a driver that is killed under load and started again on the device that has outlived it.
//!
//! # Shape
//! [`drive`] is one life: it checks every block against the [`Journal`], then writes and reads until it is killed. Whoever kills it
//! learns from the journal how far it was, and makes an [`Outcome`] of all lives.
//!
//! # What must be so
//! A block holds the last write to it that was acknowledged; or, if the driver was killed before it could acknowledge the next one, that. Once a
//! life has seen which, it stays: a transfer that a dead driver has left behind would show as a wrong block of a later life.

mod journal;

use std::time::Duration;

use ring3_class::block::{Completion, Data, Disk, Operation, Queue, Request, execute, next};
use ring3_device::Deadline;
use ring3_device::dma::DmaBuffer;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::Error;
use crate::load::stamp;
pub use journal::{BLOCKS, Entry, Journal, Word};

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
    /// Milliseconds from a kill to the first request that the next driver has done: half of the kills took no longer.
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
        [self.recovery_ms_p50, self.recovery_ms_p99, self.recovery_ms_max] = percentiles(recoveries, [0.5, 0.99, 1.0]);
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
        let empty = disk.dma().arena().alloc_pages(disk.info().block_size as usize).map_err(failed)?;
        let done = execute(&mut *queue, Request::write(block, block, 1, empty), Deadline::after(PATIENCE)).map_err(failed)?;
        done.result.map_err(|error| Error::Invalid(format!("{}: block {block}: {error}", disk.name())))?;
    }
    Ok(())
}

/// Life number `life`, from 1 on: checks every block, then writes and reads until something fails or it is killed.
pub fn drive(disk: &dyn Disk, journal: &Journal, life: u32) -> Result<(), Error> {
    let failed = |source| Error::Device { name: disk.name(), source };
    let mut queue = disk.open_queue(DEPTH).map_err(failed)?;
    let mut load = Load::new(disk, &*queue, journal, life)?;
    load.check_all(&mut *queue)?;
    journal.set(Word::Underway, life.into())?;
    loop {
        while !load.free.is_empty() {
            let (block, operation) = load.draw();
            load.start(&mut *queue, block, operation)?;
        }
        queue.ring();
        load.finish_one(&mut *queue)?;
        while let Some(done) = queue.reap_one().map_err(failed)? {
            load.finish(done)?;
        }
    }
}

/// One life's work.
struct Load<'a> {
    journal: &'a Journal,
    name: String,
    block_size: u32,
    entries: Vec<Entry>,
    /// What is done to each block now.
    busy: Vec<Option<Operation>>,
    free: Vec<DmaBuffer>,
    bytes: Vec<u8>,
    life: u32,
    /// Requests of this life so far.
    count: u64,
    writes: u64,
    reads: u64,
    started: bool,
}

impl<'a> Load<'a> {
    fn new(disk: &dyn Disk, queue: &dyn Queue, journal: &'a Journal, life: u32) -> Result<Self, Error> {
        let failed = |source| Error::Device { name: disk.name(), source };
        let block_size = disk.info().block_size;
        let blocks = BLOCKS.min(disk.info().blocks);
        let buffer = |_| disk.dma().arena().alloc_pages(block_size as usize).map_err(failed);
        Ok(Self {
            journal,
            name: disk.name(),
            block_size,
            entries: (0..blocks).map(|block| journal.entry(block)).collect::<Result<_, _>>()?,
            busy: vec![None; blocks as usize],
            // Never more than there are blocks: each is used by one request at a time.
            free: (0..u64::from(queue.depth().min(DEPTH)).min(blocks)).map(buffer).collect::<Result<_, _>>()?,
            bytes: vec![0; block_size as usize],
            life,
            count: 0,
            writes: journal.get(Word::Writes)?,
            reads: journal.get(Word::Reads)?,
            started: false,
        })
    }

    /// Reads every block.
    fn check_all(&mut self, queue: &mut dyn Queue) -> Result<(), Error> {
        for block in 0..self.entries.len() as u64 {
            if self.free.is_empty() {
                self.finish_one(queue)?;
            }
            self.start(queue, block, Operation::Read)?;
            queue.ring();
        }
        while queue.in_flight() > 0 {
            self.finish_one(queue)?;
        }
        Ok(())
    }

    /// A block that nothing is done to, and what to do: two writes for each read.
    fn draw(&mut self) -> (u64, Operation) {
        let mut random = stamp::mix(u64::from(self.life) << 40 ^ self.count);
        while self.busy[(random % self.busy.len() as u64) as usize].is_some() {
            random = stamp::mix(random.wrapping_add(1));
        }
        let operation = if (random >> 40).is_multiple_of(3) { Operation::Read } else { Operation::Write };
        (random % self.busy.len() as u64, operation)
    }

    fn start(&mut self, queue: &mut dyn Queue, block: u64, operation: Operation) -> Result<(), Error> {
        let Some(buffer) = self.free.pop() else { return Err(Error::Invalid("more requests than buffers".into())) };
        let index = block as usize;
        self.count += 1;
        let request = if operation == Operation::Write {
            // Never the same twice, in whatever life.
            let number = u64::from(self.life) << 32 | self.count;
            self.entries[index].submitted = number;
            self.journal.note(block, self.entries[index])?;
            stamp::fill(&mut self.bytes, block * u64::from(self.block_size), number);
            buffer.write(0, &self.bytes).map_err(|source| self.failed(source))?;
            Request::write(block, block, 1, buffer)
        } else {
            Request::read(block, block, 1, buffer)
        };
        self.busy[index] = Some(operation);
        queue.submit(request).map_err(|rejected| {
            let why = rejected.error.map_or_else(|| "its queue is full".into(), |error| error.to_string());
            Error::Invalid(format!("{}: block {block} is not taken: {why}", self.name))
        })
    }

    fn finish_one(&mut self, queue: &mut dyn Queue) -> Result<(), Error> {
        let done = next(queue, Deadline::after(PATIENCE)).map_err(|source| self.failed(source))?;
        self.finish(done)
    }

    fn finish(&mut self, done: Completion) -> Result<(), Error> {
        let Completion { token: block, result, data: Data::Buffer(buffer) } = done else {
            return Err(Error::Invalid(format!("{}: a request came back without its buffer", self.name)));
        };
        let operation = self.busy.get_mut(block as usize).and_then(Option::take);
        result.map_err(|error| Error::Invalid(format!("{}: block {block}: {error}", self.name)))?;
        if !std::mem::replace(&mut self.started, true) {
            self.journal.set(Word::FirstEnd, now())?;
            self.journal.set(Word::Alive, self.life.into())?;
        }
        if operation == Some(Operation::Write) {
            let entry = &mut self.entries[block as usize];
            entry.acknowledged = entry.submitted;
            self.journal.note(block, *entry)?;
            self.writes += 1;
            self.journal.set(Word::Writes, self.writes)?;
        } else {
            buffer.read(0, &mut self.bytes).map_err(|source| self.failed(source))?;
            self.check(block)?;
        }
        self.free.push(buffer);
        Ok(())
    }

    /// Compares what was read of `block` with what it may hold.
    fn check(&mut self, block: u64) -> Result<(), Error> {
        let Entry { submitted, acknowledged } = self.entries[block as usize];
        let holds = |number: &u64| match number {
            0 => self.bytes.iter().all(|&byte| byte == 0),
            &number => stamp::check(&self.bytes, block * u64::from(self.block_size), number),
        };
        let Some(found) = [acknowledged, submitted].into_iter().find(holds) else {
            return self.journal.set(Word::Mismatches, self.journal.get(Word::Mismatches)? + 1);
        };
        self.reads += 1;
        self.journal.set(Word::Reads, self.reads)?;
        if submitted != acknowledged {
            self.entries[block as usize] = Entry { submitted: found, acknowledged: found };
            self.journal.note(block, self.entries[block as usize])?;
        }
        Ok(())
    }

    fn failed(&self, source: ring3_device::Error) -> Error {
        Error::Device { name: self.name.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use ring3_class::block::Ram;

    use super::*;

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
        assert_eq!([outcome.recovery_ms_p50, outcome.recovery_ms_p99, outcome.recovery_ms_max], [50.0, 99.0, 100.0]);
        assert_eq!(Outcome::default().timed(Vec::new(), Vec::new()), Outcome::default());
    }

    #[test]
    fn what_the_journal_holds_is_there_for_the_next_process() {
        let (folder, journal) = journal();
        journal.set(Word::Writes, 7).unwrap();
        journal.note(BLOCKS - 1, Entry { submitted: 2, acknowledged: 1 }).unwrap();
        let other = Journal::open(&folder.path().join("journal")).unwrap();
        assert_eq!((other.get(Word::Writes).unwrap(), other.get(Word::Mismatches).unwrap()), (7, 0));
        assert_eq!(other.entry(BLOCKS - 1).unwrap(), Entry { submitted: 2, acknowledged: 1 });
    }

    /// What a life over an empty disk finds if the journal says `entry` of block 3, of which the disk holds write `written`.
    fn found(entry: Entry, written: u64) -> (u64, u64, Entry) {
        let (_folder, journal) = journal();
        let disk = Ram::new(512, BLOCKS, 1 << 20).unwrap();
        let mut queue = disk.open_queue(DEPTH).unwrap();
        if written > 0 {
            let (mut bytes, buffer) = ([0; 512], disk.dma().arena().alloc_pages(512).unwrap());
            stamp::fill(&mut bytes, 3 * 512, written);
            buffer.write(0, &bytes).unwrap();
            execute(&mut *queue, Request::write(0, 3, 1, buffer), Deadline::after(PATIENCE)).unwrap().result.unwrap();
        }
        journal.note(3, entry).unwrap();
        let mut load = Load::new(&disk, &*queue, &journal, 9).unwrap();
        load.check_all(&mut *queue).unwrap();
        assert_eq!(journal.get(Word::Alive).unwrap(), 9);
        (journal.get(Word::Reads).unwrap(), journal.get(Word::Mismatches).unwrap(), journal.entry(3).unwrap())
    }

    #[test]
    fn an_acknowledged_write_that_is_lost_is_a_mismatch() {
        let entry = Entry { submitted: 5, acknowledged: 5 };
        assert_eq!(found(entry, 0), (BLOCKS - 1, 1, entry));
        assert_eq!(found(entry, 4), (BLOCKS - 1, 1, entry));
        assert_eq!(found(entry, 5), (BLOCKS, 0, entry));
    }

    #[test]
    fn a_write_that_was_not_acknowledged_is_there_or_not_but_once_seen_it_stays() {
        let entry = Entry { submitted: 5, acknowledged: 4 };
        assert_eq!(found(entry, 4), (BLOCKS, 0, Entry { submitted: 4, acknowledged: 4 }));
        assert_eq!(found(entry, 5), (BLOCKS, 0, Entry { submitted: 5, acknowledged: 5 }));
        assert_eq!(found(entry, 0).1, 1);
    }
}
