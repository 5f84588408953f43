//! `bench instructions`: how many instructions a read costs, without anything around driver and
//! class.
//!
//! # Shape
//! [`drive`] puts reads through a queue in batches, as a program does, and calls back between
//! submission and reaping, where the simulated device does its work. It runs under callgrind, which
//! counts only while certain functions are on the stack ([`Scope`]): the model and the set-up are
//! not counted. [`count`] starts that and reads the sum.
//!
//! The count is exact and repeats on any machine of the same instruction set; it says nothing about
//! caches or time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{mem, slice};

use ring3_class::block::{Completion, Disk, ForeignAccess, Queue, Request, open};
use ring3_device::dma::DmaBuffer;

use crate::Error;

/// Bytes of a read.
const READ: u32 = 4096;

/// Batch sizes that are counted, and how many instructions of a read all that a user of the NVMe
/// driver pays shall be at most.
pub const BATCHES: [(u16, f64); 3] = [(1, 210.0), (8, 150.0), (32, 140.0)];

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Driver and class alone: what runs below the methods of the class's [`Queue`].
    Driver,
    /// All that a user pays: the request is built, too, and its buffer taken back.
    User,
}

/// Whose queue it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The NVMe driver's: `Box<dyn Queue>`, as [`Disk::open_queue`] gives it.
    Nvme,
    /// The same below what [`open`] gives an application, which takes any length and any memory.
    Opened,
    /// The AHCI driver's.
    Ahci,
}

impl Subject {
    /// All.
    pub const ALL: [Self; 3] = [Self::Nvme, Self::Opened, Self::Ahci];

    /// Its name in reports, among placements.
    pub fn placement(self) -> &'static str {
        match self {
            Self::Nvme => "process",
            Self::Opened => "process-opened",
            Self::Ahci => "process-ahci",
        }
    }

    /// The one with this name.
    pub fn named(placement: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subject| subject.placement() == placement)
    }
}

impl Scope {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Driver, Self::User];

    /// Its name in reports.
    pub fn metric(self) -> &'static str {
        match self {
            Self::Driver => "instructions_per_op",
            Self::User => "user_instructions_per_op",
        }
    }

    /// The functions while which callgrind counts.
    pub fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Driver => &["*as ring3_class::block::Queue>::*"],
            Self::User => {
                &["*ring3_bench::instructions::submit_*", "*ring3_bench::instructions::reap_*"]
            }
        }
    }
}

/// Puts `reads` reads through a new queue of `disk`, `batch` at a time. `work` lets the device do
/// what it was told to.
pub fn drive(
    disk: &dyn Disk,
    subject: Subject,
    batch: u16,
    reads: u64,
    work: &mut dyn FnMut(),
) -> Result<(), Error> {
    let failed = |source| Error::Device { name: disk.name(), source };
    let depth = batch.max(2);
    match subject {
        Subject::Opened => {
            let mut queue = open(disk, depth, ForeignAccess::default()).map_err(failed)?;
            batches(disk, &mut queue, batch, reads, work)
        }
        Subject::Nvme | Subject::Ahci => {
            batches(disk, &mut *disk.open_queue(depth).map_err(failed)?, batch, reads, work)
        }
    }
}

fn batches<Q>(
    disk: &dyn Disk,
    queue: &mut Q,
    batch: u16,
    reads: u64,
    work: &mut dyn FnMut(),
) -> Result<(), Error>
where
    Q: Queue + ?Sized,
{
    let failed = |source| Error::Device { name: disk.name(), source };
    let blocks = READ / disk.info().block_size;
    let places = disk.info().blocks / u64::from(blocks);
    let buffers = (0..batch).map(|_| disk.dma().arena().alloc_pages(READ as usize));
    let mut buffers = buffers.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let mut done: Vec<_> = (0..batch).map(|_| Completion::default()).collect();
    for round in 0..reads.div_ceil(u64::from(batch)) {
        // A prime stride visits all places and is the same in every run.
        let place = |token: u64| {
            (round * u64::from(batch) + token) * 7919 % places.max(1) * u64::from(blocks)
        };
        let starts: Vec<u64> = (0..u64::from(batch)).map(place).collect();
        if let ([start], Some(buffer)) = (&starts[..], buffers.pop_if(|_| batch == 1)) {
            submit_single(queue, *start, blocks, buffer);
            work();
            buffers.extend(reap_single(queue, &mut done[0]));
        } else {
            submit_all(queue, &starts, blocks, &mut buffers);
            work();
            reap_all(queue, &mut done, &mut buffers).map_err(failed)?;
        }
        if buffers.len() != usize::from(batch) {
            let name = disk.name();
            return Err(Error::Invalid(format!(
                "{name}: {} of {batch} reads came back, or some failed",
                buffers.len()
            )));
        }
    }
    Ok(())
}

/// Submits a read of `blocks` at each of `starts` and rings once. What is refused stays out, and is
/// missed when the batch is reaped.
#[inline(never)]
fn submit_all<Q: Queue + ?Sized>(
    queue: &mut Q,
    starts: &[u64],
    blocks: u32,
    buffers: &mut Vec<DmaBuffer>,
) {
    for (token, &start) in starts.iter().enumerate() {
        let Some(buffer) = buffers.pop() else { break };
        if queue.submit(Request::read(token as u64, start, blocks, buffer)).is_err() {
            break;
        }
    }
    queue.ring();
}

/// The same of who has one request at a time.
#[inline(never)]
fn submit_single<Q: Queue + ?Sized>(queue: &mut Q, start: u64, blocks: u32, buffer: DmaBuffer) {
    if queue.submit(Request::read(0, start, blocks, buffer)).is_ok() {
        queue.ring();
    }
}

/// Reaps until as many are back as `done` has room for, or nothing more comes, and takes back the
/// buffers of what succeeded.
#[inline(never)]
fn reap_all<Q>(
    queue: &mut Q,
    done: &mut [Completion],
    buffers: &mut Vec<DmaBuffer>,
) -> Result<(), ring3_device::Error>
where
    Q: Queue + ?Sized,
{
    let mut missing = done.len();
    while missing > 0 {
        let count = queue.reap(done)?;
        if count == 0 {
            break;
        }
        for end in &mut done[..count] {
            if end.result.is_ok()
                && let Some(buffer) = mem::take(&mut end.data).into_buffer()
            {
                buffers.push(buffer);
            }
        }
        missing -= count.min(missing);
    }
    Ok(())
}

/// The same of who has one request at a time.
#[inline(never)]
fn reap_single<Q: Queue + ?Sized>(queue: &mut Q, done: &mut Completion) -> Option<DmaBuffer> {
    match queue.reap(slice::from_mut(done)) {
        Ok(1) if done.result.is_ok() => mem::take(&mut done.data).into_buffer(),
        _ => None,
    }
}

/// Runs `program` with `arguments`, which call [`drive`] once, under callgrind and returns the
/// instructions counted while one of `functions` (patterns) runs.
pub fn count(program: &Path, arguments: &[String], functions: &[&str]) -> Result<u64, Error> {
    let out = Output::new();
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .args(functions.iter().map(|functions| format!("--toggle-collect={functions}")))
        .arg(format!("--callgrind-out-file={}", out.0.display()))
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::os("starting valgrind (apt-get install valgrind)", error))?;
    if !output.status.success() {
        return Err(Error::format(
            "counting under valgrind",
            String::from_utf8_lossy(&output.stderr).trim(),
        ));
    }
    let text = std::fs::read_to_string(&out.0)
        .map_err(|error| Error::os("reading callgrind's output", error))?;
    match total(&text) {
        Some(0) | None => {
            Err(Error::format("callgrind's output", format!("it counted nothing in {functions:?}")))
        }
        Some(instructions) => Ok(instructions),
    }
}

/// The sum that callgrind writes at the end of its file, of the first event (Ir).
fn total(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("totals:").or_else(|| line.strip_prefix("summary:")))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Callgrind's file, which goes when it was read.
struct Output(PathBuf);

impl Output {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("ring3-callgrind-{}", std::process::id())))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // If it was never written, there is nothing to remove.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_from_callgrinds_last_lines() {
        assert_eq!(
            total("version: 1\nevents: Ir\nsummary: 100\nfn=(1) x\n1 5\n\ntotals: 1234\n"),
            Some(1234)
        );
        assert_eq!(total("events: Ir\nsummary: 100\n"), Some(100));
        assert_eq!(total("nothing"), None);
    }
}
