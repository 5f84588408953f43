//! `bench instructions`: how many instructions a read costs in driver and class alone.
//!
//! # Shape
//! [`drive`] puts reads through a queue in batches and calls back between submission and reaping, where the simulated device does
//! its work. It runs under callgrind, which counts only while certain functions are on the stack ([`Scope`]): the model and the set-up are
//! not counted. [`count`] starts that and reads the sum.
//!
//! The count is exact and repeats on any machine of the same instruction set; it says nothing about caches or time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ring3_class::block::{Disk, Queue, Request};
use ring3_device::dma::DmaBuffer;

use crate::Error;

/// Batch sizes that are counted.
pub const BATCHES: [u16; 3] = [1, 8, 32];

/// Bytes of a read.
const READ: u32 = 4096;

/// Instructions per read that the design allows itself.
pub const TARGET: f64 = 250.0;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Driver and class alone: what runs below the methods of the class's [`Queue`].
    Driver,
    /// All that a user pays: the request is built, too, and its buffer taken back.
    User,
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
    fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Driver => &["*as ring3_class::block::Queue>::*"],
            Self::User => &["*ring3_bench::instructions::submit_all*", "*ring3_bench::instructions::reap_all*"],
        }
    }
}

/// Puts `reads` reads through a new queue of `disk`, `batch` at a time. `work` lets the device do what it was told to.
pub fn drive(disk: &dyn Disk, batch: u16, reads: u64, work: &mut dyn FnMut()) -> Result<(), Error> {
    let failed = |source| Error::Device { name: disk.name(), source };
    let mut queue = disk.open_queue(batch.max(2)).map_err(failed)?;
    let blocks = READ / disk.info().block_size;
    let places = disk.info().blocks / u64::from(blocks);
    let buffers = (0..batch).map(|_| disk.dma().arena().alloc_pages(READ as usize));
    let mut buffers = buffers.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    for round in 0..reads.div_ceil(u64::from(batch)) {
        // A prime stride visits all places and is the same in every run.
        let place = |token: u64| (round * u64::from(batch) + token) * 7919 % places.max(1) * u64::from(blocks);
        let starts: Vec<u64> = (0..u64::from(batch)).map(place).collect();
        submit_all(&mut *queue, &starts, blocks, &mut buffers);
        work();
        reap_all(&mut *queue, &mut buffers).map_err(failed)?;
        if buffers.len() != usize::from(batch) {
            let name = disk.name();
            return Err(Error::Invalid(format!("{name}: {} of {batch} reads came back, or some failed", buffers.len())));
        }
    }
    Ok(())
}

/// Submits a read of `blocks` at each of `starts` and rings once. What is refused stays out, and is missed when the batch is reaped.
#[inline(never)]
fn submit_all(queue: &mut dyn Queue, starts: &[u64], blocks: u32, buffers: &mut Vec<DmaBuffer>) {
    for (token, &start) in starts.iter().enumerate() {
        let Some(buffer) = buffers.pop() else { break };
        if queue.submit(Request::read(token as u64, start, blocks, buffer)).is_err() {
            break;
        }
    }
    queue.ring();
}

/// Reaps until there is nothing left, as every user of a queue does, and takes back the buffers of what succeeded.
#[inline(never)]
fn reap_all(queue: &mut dyn Queue, buffers: &mut Vec<DmaBuffer>) -> Result<(), ring3_device::Error> {
    while let Some(completion) = queue.reap()? {
        if completion.result.is_ok() {
            buffers.extend(completion.data.into_buffer());
        }
    }
    Ok(())
}

/// Runs `program` with `arguments`, which call [`drive`] once, under callgrind and returns the instructions counted in `scope`.
pub fn count(program: &Path, arguments: &[String], scope: Scope) -> Result<u64, Error> {
    let out = Output::new();
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .args(scope.functions().iter().map(|functions| format!("--toggle-collect={functions}")))
        .arg(format!("--callgrind-out-file={}", out.0.display()))
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Error::os("starting valgrind (apt-get install valgrind)", error))?;
    if !output.status.success() {
        return Err(Error::format("counting under valgrind", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let text = std::fs::read_to_string(&out.0).map_err(|error| Error::os("reading callgrind's output", error))?;
    match total(&text) {
        Some(0) | None => Err(Error::format("callgrind's output", format!("it counted nothing in {:?}", scope.functions()))),
        Some(instructions) => Ok(instructions),
    }
}

/// The sum that callgrind writes at the end of its file, of the first event (Ir).
fn total(text: &str) -> Option<u64> {
    let line = text.lines().rev().find_map(|line| line.strip_prefix("totals:").or_else(|| line.strip_prefix("summary:")))?;
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
        assert_eq!(total("version: 1\nevents: Ir\nsummary: 100\nfn=(1) x\n1 5\n\ntotals: 1234\n"), Some(1234));
        assert_eq!(total("events: Ir\nsummary: 100\n"), Some(100));
        assert_eq!(total("nothing"), None);
    }
}
