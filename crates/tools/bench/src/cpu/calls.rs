//! Counts what another process has the kernel do, by the kernel's own trace points: nobody has to
//! say what he has called. [perf_event_open(2)]

use std::fs;
use std::os::fd::{FromRawFd, OwnedFd};

use crate::Error;
use crate::trace;

/// A system call is entered. [Linux include/trace/events/syscalls.h]
const CALLS: &[&str] = &["raw_syscalls/sys_enter"];
/// Memory is mapped for a device, or is not mapped any more. [Linux include/trace/events/iommu.h]
const MAPS: &[&str] = &["iommu/map", "iommu/unmap"];
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
    /// Counts the system calls of all threads that `process` has now.
    pub fn start(process: u32) -> Result<Self, Error> {
        Self::of(CALLS, process)
    }

    /// Counts how often they have the IOMMU map or unmap something.
    pub fn maps(process: u32) -> Result<Self, Error> {
        Self::of(MAPS, process)
    }

    fn of(events: &[&str], process: u32) -> Result<Self, Error> {
        trace::mount()?;
        let tasks = fs::read_dir(format!("/proc/{process}/task"))
            .map_err(|error| Error::os("listing threads", error))?;
        let threads =
            tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse::<libc::pid_t>().ok());
        let threads: Vec<_> = threads.collect();
        let mut counters = Vec::new();
        for event in events {
            let attributes = attributes(event)?;
            for &thread in &threads {
                counters.push(open(&attributes, thread).map_err(|error| {
                    Error::os(format!("opening a counter of {event} (as root)"), error)
                })?);
            }
        }
        Ok(Self(counters))
    }

    /// Events since the start.
    pub fn count(&self) -> u64 {
        let read = |fd: &OwnedFd| {
            let mut count = [0; 8];
            rustix::io::read(fd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
        };
        self.0.iter().map(read).sum()
    }
}

fn attributes(event: &str) -> Result<Attributes, Error> {
    let path = format!("{}/events/{event}/id", trace::FOLDER);
    let number = fs::read_to_string(&path)
        .map_err(|error| Error::os(format!("reading {path}, to count that"), error))?;
    let config = number
        .trim()
        .parse()
        .map_err(|error| Error::format("the number of a trace point", error))?;
    Ok(Attributes {
        kind: TRACEPOINT,
        size: size_of::<Attributes>() as u32,
        config,
        ..Attributes::default()
    })
}

fn open(attributes: &Attributes, thread: libc::pid_t) -> std::io::Result<OwnedFd> {
    // SAFETY: the kernel reads a structure of the size that it says; no group (-1), any processor
    // (-1), closed on exec (8).
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attributes),
            thread,
            -1,
            -1,
            8u64,
        )
    };
    if fd < 0 {
        Err(std::io::Error::last_os_error())
    } else {
        // SAFETY: it was opened just now and is nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_a_process_are_counted() {
        // Mounted for nobody else's sake.
        let is_there = std::path::Path::new(trace::FOLDER).join("events").join(CALLS[0]).exists();
        let Some(Ok(calls)) = is_there.then(|| Calls::start(std::process::id())) else {
            eprintln!(
                "skipped: system calls can be counted by root alone, where there are trace points"
            );
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
