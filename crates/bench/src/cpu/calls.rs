//! Counts the system calls of another process, by the kernel's trace point at their entry. [perf_event_open(2)]

use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::Error;
use crate::trace;

/// Where the trace point's number is.
const NUMBER: &str = "events/raw_syscalls/sys_enter/id";
/// Events that are trace points. [perf_event_open(2), PERF_TYPE_TRACEPOINT]
const TRACEPOINT: u32 = 2;

/// The first version of the structure, which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    period: u64,
    sampled: u64,
    format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    address: u64,
}

/// The counters of a process's threads, from their start on.
pub struct Calls(Vec<OwnedFd>);

impl Calls {
    /// Counts those of all threads that `process` has now.
    pub fn start(process: u32) -> Result<Self, Error> {
        trace::mount()?;
        let failed = |what: &'static str| move |error| Error::os(format!("{what}, to count system calls"), error);
        let path = format!("{}/{NUMBER}", trace::FOLDER);
        let number = fs::read_to_string(path).map_err(failed("reading the trace point's number"))?;
        let config = number.trim().parse().map_err(|error| Error::format("the number of a trace point", error))?;
        let attributes = Attributes { kind: TRACEPOINT, size: size_of::<Attributes>() as u32, config, ..Attributes::default() };
        let tasks = fs::read_dir(format!("/proc/{process}/task")).map_err(failed("listing threads"))?;
        let threads = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse::<libc::pid_t>().ok());
        let open = |thread: libc::pid_t| {
            // SAFETY: the kernel reads a structure of the size that it says; no group (-1), any processor (-1), closed on exec (8).
            let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, thread, -1, -1, 8u64) };
            // SAFETY: it was opened just now and is nobody else's.
            if fd < 0 { Err(std::io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }) }
        };
        threads.map(open).collect::<Result<_, _>>().map(Self).map_err(failed("opening a counter (as root)"))
    }

    /// Calls since the start.
    pub fn count(&self) -> u64 {
        let read = |fd: &OwnedFd| {
            let mut count = [0; 8];
            rustix::io::read(fd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
        };
        self.0.iter().map(read).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_a_process_are_counted() {
        // Mounted for nobody else's sake.
        let is_there = std::path::Path::new(trace::FOLDER).join(NUMBER).exists();
        let Some(Ok(calls)) = is_there.then(|| Calls::start(std::process::id())) else {
            eprintln!("skipped: system calls can be counted by root alone, where there are trace points");
            return;
        };
        let before = calls.count();
        for _ in 0..100 {
            let _ = rustix::process::getppid();
        }
        // Other tests' threads make calls, too.
        assert!(calls.count() >= before + 100, "{before} {}", calls.count());
    }
}
