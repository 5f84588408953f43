//! A driver that wants more than its device: what it gets. These tests run in a guest, where they
//! are root and have a function behind an IOMMU.
//!
//! On the host, the first of them boots one guest that runs them all; each then looks for its own
//! line in what came out. There, each starts this program again in the sandbox of an NVMe driver,
//! by [`spawn`]; the child is process 1 of its namespace, and is hostile. `RING3_TEST_KERNEL`
//! chooses another kernel than the lab's usual one, such as 7.2.

mod child;
mod control;
mod device;
mod exhaustion;
mod guest;
mod state;
mod system;

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ring3_sandbox::{CPU_WEIGHT, Child, Limits, Program, spawn};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// How a hostile process ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The kernel has ended it for what it called.
    Filtered,
    /// The kernel has ended it otherwise.
    Killed(i32),
    /// By itself: what it has said, and its code.
    Exit(String, i32),
}

/// What this program is in the sandbox, as one of its tests.
pub fn is_child() -> bool {
    std::process::id() == 1
}

/// Small ones.
pub fn limits() -> Limits {
    Limits {
        name: "hostile".into(),
        memory: 64 << 20,
        cpu_percent: 90,
        cpu_weight: CPU_WEIGHT,
        pids: 16,
    }
}

/// This program again, to run the test `name` alone, with `fd` as descriptor 3 and `input` as its
/// input.
pub fn start(name: &str, fd: BorrowedFd<'_>, input: &str) -> io::Result<(Child, OwnedFd)> {
    let (reads, writes) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::write(&writes, input.as_bytes())?;
    drop(writes);
    start_with(name, fd, reads.as_fd(), &limits())
}

/// As [`start`], with an open input, within other limits.
pub fn start_with(
    name: &str,
    fd: BorrowedFd<'_>,
    input: BorrowedFd<'_>,
    limits: &Limits,
) -> io::Result<(Child, OwnedFd)> {
    let program = Program::open(std::env::current_exe()?)?;
    let words = ["hostile", "--exact", name, "--ignored", "--nocapture", "--test-threads=1"];
    let argv: Vec<_> = words.iter().map(|word| CString::new(*word).unwrap()).collect();
    let (said, says) = pipe_with(PipeFlags::CLOEXEC)?;
    let child = spawn(
        &program,
        &argv,
        &[(input, 0), (says.as_fd(), 1), (says.as_fd(), 2), (fd, 3)],
        limits,
    )?;
    Ok((child, said))
}

/// Its end, which comes.
pub fn end(child: &Child, said: OwnedFd) -> End {
    let mut words = String::new();
    File::from(said).read_to_string(&mut words).unwrap();
    let status =
        waitid(WaitId::PidFd(child.pidfd.as_fd()), WaitIdOptions::EXITED).unwrap().unwrap();
    let code = status.exit_status().unwrap_or(-1);
    match code - 128 {
        libc::SIGSYS => End::Filtered,
        signal @ 1..64 => End::Killed(signal),
        _ => End::Exit(words, code),
    }
}

/// The end of the test `name` as a process in the sandbox.
pub fn outcome(name: &str) -> End {
    outcome_within(name, &limits())
}

/// The same, within other limits.
pub fn outcome_within(name: &str, limits: &Limits) -> End {
    let null = File::open("/dev/null").unwrap();
    let (child, said) = start_with(name, null.as_fd(), null.as_fd(), limits).unwrap();
    end(&child, said)
}
