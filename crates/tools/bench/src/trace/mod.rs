//! What the kernel does meanwhile, by its own trace events. [Linux Documentation/trace/ftrace.rst,
//! events.rst]
//!
//! # Shape
//! [`Tracing`] switches events on and gives back what was recorded; [`event`] reads the lines;
//! [`timeline`] cuts each request into steps and counts. It needs root and x86-64, whose time stamp
//! counter stamps the events and, in this process, [`now`] alike: events and our own marks stand in
//! one order without a system call.
//!
//! # Cost
//! An event takes about a thousand instructions, which is in all times that are told.

pub mod event;
pub mod timeline;

use std::fs;
use std::path::Path;

use crate::Error;
use event::Event;

/// Where the kernel's tracing files are.
pub(crate) const FOLDER: &str = "/sys/kernel/tracing";

/// The events, as paths.
const EVENTS: [&str; 6] = [
    "irq/irq_handler_entry",
    "sched/sched_waking",
    "sched/sched_switch",
    "block/block_rq_issue",
    "raw_syscalls/sys_enter",
    "raw_syscalls/sys_exit",
];

/// KiB of each processor's buffer: some ten thousand events.
const BUFFER: &str = "8192";

/// Switched on from its start until it is dropped or stopped.
pub struct Tracing(());

/// Mounts the tracing files if they are not there.
pub(crate) fn mount() -> Result<(), Error> {
    if Path::new(FOLDER).join("trace").exists() {
        return Ok(());
    }
    let mounted =
        rustix::mount::mount("nodev", FOLDER, "tracefs", rustix::mount::MountFlags::empty(), None);
    mounted.map_err(|error| {
        Error::os(format!("mounting tracefs on {FOLDER} (as root, on a kernel with FTRACE)"), error)
    })
}

impl Tracing {
    /// All events that are known here.
    pub fn start() -> Result<Self, Error> {
        Self::of(&EVENTS)
    }

    /// Mounts the tracing files if they are not there, empties the buffer and switches `events` on,
    /// which are of those that are known here.
    pub fn of(events: &[&str]) -> Result<Self, Error> {
        now()?;
        mount()?;
        let tracing = Self(());
        write("tracing_on", "0")?;
        write("trace_clock", "x86-tsc")?;
        write("buffer_size_kb", BUFFER)?;
        write("trace", "")?;
        events.iter().try_for_each(|event| write(&format!("events/{event}/enable"), "1"))?;
        write("tracing_on", "1")?;
        Ok(tracing)
    }

    /// Switches everything off and gives what was recorded, in the order of time.
    pub fn stop(self) -> Result<Vec<Event>, Error> {
        write("tracing_on", "0")?;
        let path = format!("{FOLDER}/trace");
        let text = fs::read_to_string(&path)
            .map_err(|error| Error::os(format!("reading {path}"), error))?;
        let mut events: Vec<Event> = text.lines().filter_map(Event::parse).collect();
        events.sort_by_key(|event| event.at);
        Ok(events)
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // What cannot be switched off was not switched on.
        let _ = write("tracing_on", "0");
        for event in EVENTS {
            let _ = write(&format!("events/{event}/enable"), "0");
        }
        let _ = write("trace", "");
    }
}

fn write(name: &str, text: &str) -> Result<(), Error> {
    let path = format!("{FOLDER}/{name}");
    fs::write(&path, text).map_err(|error| Error::os(format!("writing {text:?} to {path}"), error))
}

/// The time stamp counter, by which events are stamped.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn now() -> Result<u64, Error> {
    // SAFETY: the instruction reads a counter; it is part of every x86-64 processor.
    Ok(unsafe { std::arch::x86_64::_rdtsc() })
}

/// There is none.
#[cfg(not(target_arch = "x86_64"))]
pub fn now() -> Result<u64, Error> {
    Err(Error::Invalid(
        "timelines are taken by the time stamp counter of x86-64, which this processor does not \
         have"
            .into(),
    ))
}
