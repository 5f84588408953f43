//! `ring3 partitions BLOCK`: the process that reads a disk's partition table for ring3d, which does not.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;

use anyhow::Context;
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

/// Options of `ring3 partitions`.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes of a logical block of the disk.
    block: u32,
}

/// Reads the table of the disk that is the standard input.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut disk = File::from(std::io::stdin().as_fd().try_clone_to_owned().context("the disk")?);
    let mut sandbox = Sandbox::of(CALLS);
    sandbox.keep.push(disk.as_raw_fd());
    enter(&sandbox)?;
    let found = ring3_partitions::read(&mut disk, args.block);
    let mut answer = std::io::stdout().lock();
    serde_json::to_writer(&mut answer, &found)?;
    answer.flush()?;
    // At once: what else this program does at its end takes a thread, and there is none to be had.
    std::process::exit(0)
}
