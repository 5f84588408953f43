//! fio beside our own load: it writes blocks with checksums, reads them again, and says which are
//! wrong.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Every run of fio here: the part of the disk behind that of our own load, and all errors counted.
const WORDS: &str = "--name=verify --offset=64M --size=16M --bs=4k --direct=1 --ioengine=io_uring \
                     --iodepth=8 --verify=crc32c --continue_on_error=all \
                     --clocksource=clock_gettime";
/// So that every block has a checksum.
const FILL: &str = "--rw=write --do_verify=0";
/// What the drivers serve while they go wrong. Whoever waits for the processors is not to wait for
/// this.
const LOAD: &str = "--rw=randwrite --norandommap --verify_backlog=64 --rate_iops=100 --time_based \
                    --runtime=100000";
/// What they have left.
const CHECK: &str = "--rw=read";
/// A line says that a block is wrong, or that the kernel has failed a request.
const BAD: [&str; 2] = ["(requested block:", "io_u error"];

/// One that runs.
pub struct Fio {
    disk: PathBuf,
    child: Child,
    bad: Arc<AtomicU64>,
    reader: JoinHandle<String>,
}

impl Fio {
    /// Begins on `disk`, on blocks that it has just written.
    pub fn begin(disk: &Path) -> Result<Self> {
        let filled = command(disk, FILL).output().context("starting fio")?;
        ensure!(
            filled.status.success(),
            "fio could not write: {}",
            String::from_utf8_lossy(&filled.stderr)
        );
        let mut child = command(disk, LOAD)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting fio")?;
        let said = BufReader::new(child.stderr.take().context("fio has no standard error")?);
        let bad = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&bad);
        let reader = std::thread::spawn(move || {
            let mut last = String::new();
            for line in said.lines().map_while(Result::ok) {
                count.fetch_add(u64::from(is_bad(&line)), Ordering::Relaxed);
                last = line;
            }
            last
        });
        Ok(Self { disk: disk.into(), child, bad, reader })
    }

    /// Blocks that were found wrong, and requests that failed, since somebody has asked.
    pub fn bad(&self) -> u64 {
        self.bad.swap(0, Ordering::Relaxed)
    }

    /// Ends it, reads all its blocks, and says the same.
    pub fn end(mut self) -> Result<u64> {
        let ended = self.child.try_wait()?;
        if ended.is_none() {
            kill_process(Pid::from_child(&self.child), Signal::INT).context("ending fio")?;
        }
        self.child.wait()?;
        let last = self.reader.join().map_err(|_| anyhow!("fio's reader has panicked"))?;
        ensure!(ended.is_none(), "fio has ended by itself: {last}");
        let checked = command(&self.disk, CHECK).output().context("starting fio")?;
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        let bad = said.lines().filter(|line| is_bad(line)).count() as u64;
        // An error of which it says nothing else.
        let silent = u64::from(bad == 0 && !checked.status.success());
        Ok(self.bad.load(Ordering::Relaxed) + bad + silent)
    }
}

fn command(disk: &Path, words: &str) -> Command {
    let mut command = Command::new("fio");
    command
        .args(WORDS.split_whitespace().chain(words.split_whitespace()))
        .arg(format!("--filename={}", disk.display()));
    command.stdin(Stdio::null());
    command
}

fn is_bad(line: &str) -> bool {
    BAD.iter().any(|bad| line.contains(bad))
}
