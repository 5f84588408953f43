//! A load on a block device that checks itself and never stops for an outage.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Error;
use crate::kill::now;
use crate::load::{Done, File, FileOptions, Target, stamp};

/// Bytes of a request.
pub const BLOCK: u32 = 4096;

/// A pause between two completions that is remembered: longer than what a busy machine does by
/// itself, shorter than any restart.
const PAUSE: Duration = Duration::from_millis(5);

/// How long nothing at all may end. Longer than the kernel's 30 s for a queue whose every tag was
/// with a dead server.
const STUCK: Duration = Duration::from_secs(120);

/// What a slot of the target is doing.
#[derive(Clone, Copy)]
struct Busy {
    block: u64,
    /// What is being written; `None` for a read.
    number: Option<u64>,
    since: u64,
}

/// A time in which nothing ended, in nanoseconds of the clock that all processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The completion before it.
    pub from: u64,
    /// The completion after it.
    pub until: u64,
}

/// What a load saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Requests that ended.
    pub operations: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Reads whose bytes were not those of the last acknowledged write.
    pub mismatches: u64,
    /// How long it ran, in seconds.
    pub seconds: f64,
    /// Where nothing ended for long.
    pub pauses: Vec<Pause>,
    /// The longest that one request took, in milliseconds.
    pub longest_ms: f64,
}

impl Seen {
    /// Requests per second.
    pub fn iops(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }
}

/// Reads and writes of single blocks at random, as many in flight as the depth says.
pub struct Load {
    target: File,
    busy: Vec<Option<Busy>>,
    /// What the last acknowledged write of each block was; 0: none, and the block is not read.
    held: Vec<u64>,
    /// Blocks in flight.
    taken: Vec<bool>,
    count: u64,
    bytes: Vec<u8>,
}

impl Load {
    /// On the first `bytes` of the block device at `path`, whose content is lost.
    pub fn open(path: &Path, depth: u16, bytes: u64) -> Result<Self, Error> {
        let target = File::open(path, depth, BLOCK, FileOptions { write: true, direct: true })?;
        let blocks = (target.capacity().min(bytes) / u64::from(BLOCK)) as usize;
        if blocks <= usize::from(depth) {
            return Err(Error::Invalid(format!(
                "{} has room for {blocks} blocks: more than the depth are needed",
                path.display()
            )));
        }
        let busy = vec![None; depth.into()];
        Ok(Self {
            target,
            busy,
            held: vec![0; blocks],
            taken: vec![false; blocks],
            count: 0,
            bytes: vec![0; BLOCK as usize],
        })
    }

    /// Runs until `stop`, then waits for what is in flight.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<Seen, Error> {
        let (mut seen, began) = (Seen::default(), Instant::now());
        let mut last = now();
        for slot in 0..self.busy.len() {
            self.start(slot as u16)?;
        }
        while self.busy.iter().any(Option::is_some) {
            self.target.proceed()?;
            let mut ended = false;
            while let Some(done) = self.target.finished()? {
                self.finish(done, &mut seen)?;
                ended = true;
                if !stop.load(Ordering::Acquire) {
                    self.start(done.slot)?;
                }
            }
            let time = now();
            let pause = Duration::from_nanos(time.saturating_sub(last));
            if ended {
                if pause > PAUSE {
                    seen.pauses.push(Pause { from: last, until: time });
                }
                last = time;
            } else if pause > STUCK {
                return Err(Error::Invalid(format!(
                    "no request has ended for {} s",
                    STUCK.as_secs()
                )));
            }
        }
        seen.seconds = began.elapsed().as_secs_f64();
        Ok(seen)
    }

    /// Runs while another thread does `work`.
    pub fn beside<T: Send, E: From<Error> + Send>(
        &mut self,
        work: impl FnOnce() -> Result<T, E> + Send,
    ) -> Result<(Seen, T), E> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let done = work();
                stop.store(true, Ordering::Release);
                done
            });
            let seen = self.run(&stop);
            let done = worker.join().map_err(|_| {
                Error::Invalid("the thread that disturbs the load has panicked".into())
            })?;
            // What the worker says comes first: a load that is stuck is stuck because of that.
            let done = done?;
            Ok((seen?, done))
        })
    }

    /// Reads all that was written, and counts what is wrong.
    pub fn check(&mut self) -> Result<Seen, Error> {
        let mut seen = Seen::default();
        for block in 0..self.held.len() as u64 {
            if self.held[block as usize] == 0 {
                continue;
            }
            self.queue(0, Busy { block, number: None, since: now() })?;
            while self.busy[0].is_some() {
                self.target.proceed()?;
                while let Some(done) = self.target.finished()? {
                    self.finish(done, &mut seen)?;
                }
            }
        }
        Ok(seen)
    }

    /// Two writes for each read.
    fn start(&mut self, slot: u16) -> Result<(), Error> {
        self.count += 1;
        let mut random = stamp::mix(self.count);
        while self.taken[(random % self.taken.len() as u64) as usize] {
            random = stamp::mix(random.wrapping_add(1));
        }
        let block = random % self.taken.len() as u64;
        let reads = (random >> 40).is_multiple_of(3) && self.held[block as usize] != 0;
        self.queue(slot, Busy { block, number: (!reads).then_some(self.count), since: now() })
    }

    fn queue(&mut self, slot: u16, busy: Busy) -> Result<(), Error> {
        let offset = busy.block * u64::from(BLOCK);
        if let Some(number) = busy.number {
            stamp::fill(&mut self.bytes, offset, number);
            self.target.fill(slot, &self.bytes)?;
        }
        self.target.queue(slot, busy.number.is_some(), offset, BLOCK)?;
        self.taken[busy.block as usize] = true;
        self.busy[usize::from(slot)] = Some(busy);
        Ok(())
    }

    fn finish(&mut self, Done { slot, ok }: Done, seen: &mut Seen) -> Result<(), Error> {
        let Some(Busy { block, number, since }) = self.busy[usize::from(slot)].take() else {
            return Ok(());
        };
        let index = block as usize;
        self.taken[index] = false;
        seen.operations += 1;
        seen.longest_ms = seen.longest_ms.max(now().saturating_sub(since) as f64 / 1e6);
        match (ok, number) {
            // Nobody knows what the block holds now.
            (false, number) => {
                seen.errors += 1;
                if number.is_some() {
                    self.held[index] = 0;
                }
            }
            (true, Some(number)) => self.held[index] = number,
            (true, None) => {
                self.target.copy_out(slot, &mut self.bytes)?;
                if !stamp::check(&self.bytes, block * u64::from(BLOCK), self.held[index]) {
                    // It counts once.
                    seen.mismatches += 1;
                    self.held[index] = 0;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;

    fn file() -> tempfile::NamedTempFile {
        // Not in memory: O_DIRECT.
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        file
    }

    fn run_for(load: &mut Load, millis: u64) -> Seen {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(millis));
                stop.store(true, Ordering::Release);
            });
            load.run(&stop).unwrap()
        })
    }

    #[test]
    fn a_block_that_somebody_else_has_changed_is_one_mismatch() {
        let mut file = file();
        let mut load = Load::open(file.path(), 8, 1 << 20).unwrap();
        let seen = run_for(&mut load, 100);
        assert!(seen.operations > 0 && seen.errors == 0 && seen.mismatches == 0, "{seen:?}");
        assert_eq!(load.check().unwrap().mismatches, 0);
        let block = load.held.iter().position(|&number| number != 0).unwrap() as u64;
        file.seek(SeekFrom::Start(block * u64::from(BLOCK) + 100)).unwrap();
        file.write_all(&[0x55; 8]).unwrap();
        file.as_file().sync_all().unwrap();
        assert_eq!(load.check().unwrap().mismatches, 1);
        assert_eq!(load.check().unwrap().mismatches, 0, "it counts once");
    }

    #[test]
    fn a_disk_with_fewer_blocks_than_requests_is_refused() {
        let file = file();
        assert!(Load::open(file.path(), 8, 8 * u64::from(BLOCK)).is_err());
    }
}
