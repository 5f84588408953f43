//! The process that reads a disk's partition table for ring3d, which does not.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};

use ring3_sandbox::{Sandbox, enter};

/// What it does: reading, memory, its answer, its end.
const CALLS: [&str; 23] = [
    "read",
    "pread64",
    "lseek",
    "fstat",
    "statx",
    "newfstatat",
    "write",
    "writev",
    "fcntl",
    "close",
    "mmap",
    "munmap",
    "mremap",
    "mprotect",
    "brk",
    "madvise",
    "futex",
    "clock_gettime",
    "getrandom",
    "sigaltstack",
    "rt_sigprocmask",
    "rt_sigreturn",
    "exit_group",
];

/// Reads the table of the disk that is the standard input, whose logical blocks have `block` bytes,
/// and says on the standard output what it is. It gives up all other rights first.
pub fn run(block: u32) -> io::Result<()> {
    let mut disk = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut sandbox = Sandbox::of(CALLS);
    sandbox.keep.push(disk.as_raw_fd());
    enter(&sandbox).map_err(io::Error::other)?;
    let found = ring3_partitions::read(&mut disk, block);
    let mut answer = io::stdout().lock();
    serde_json::to_writer(&mut answer, &found)?;
    answer.flush()
}
