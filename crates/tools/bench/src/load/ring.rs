//! An io_uring with a registered file and a registered buffer for each slot.
//!
//! The kernel's side is given what makes it fast: registered file and buffers, completions run in
//! the submitter's own system call, one system call per turn. What the comparison shows is then the
//! driver's place, not a lazy generator.
//!
//! # Waiting
//! A timeout operation of one second is always in flight, so that no wait is unbounded and none
//! pays for a timer of its own. A ring that polls takes none: the kernel looks for the device's
//! completions itself (IORING_SETUP_IOPOLL), on a queue without interrupts, and its driver's own
//! time-out bounds that.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::buffers::Buffers;
use crate::Error;

/// The timeout operation's name among the slots.
const TIMER: u64 = u64::MAX;

/// The ring, for entries of a size.
pub(super) struct Ring<S: squeue::EntryMarker, C: cqueue::EntryMarker> {
    // Field order is drop order: the ring goes before the memory that it refers to.
    ring: IoUring<S, C>,
    _file: File,
    pub(super) memory: Buffers,
    /// Where the kernel reads the timeout's length while it is submitted.
    second: Box<types::Timespec>,
    timer_armed: bool,
    /// Polls the device: there is no timeout operation.
    polls: bool,
    name: String,
    depth: u16,
    /// Calls of io_uring_enter.
    enters: u64,
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Drop for Ring<S, C> {
    /// Closes the file now. A ring that is closed with a registered file keeps it open until a
    /// worker of the kernel has run, and until then nobody else can open the device exclusively.
    fn drop(&mut self) {
        // An error changes nothing: closing the ring lets go of the file too, only later.
        let _ = self.ring.submitter().unregister_files();
    }
}

impl<S: squeue::EntryMarker + From<squeue::Entry>, C: cqueue::EntryMarker> Ring<S, C> {
    /// A ring for `depth` requests of up to `bytes` bytes on `file`, which is called `name`.
    pub(super) fn new(file: File, name: String, depth: u16, bytes: u32) -> Result<Self, Error> {
        Self::over(file, name, (depth, Buffers::new(usize::from(depth), bytes as usize)?), false)
    }

    /// The same with these buffers, as many as requests; if it `polls`, the kernel polls the device
    /// for completions.
    pub(super) fn over(
        file: File,
        name: String,
        (depth, memory): (u16, Buffers),
        polls: bool,
    ) -> Result<Self, Error> {
        let failed = |what: &str, error: io::Error| Error::os(format!("{what} {name}"), error);
        let mut builder = IoUring::<S, C>::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        if polls {
            builder.setup_iopoll();
        }
        let ring = builder
            .build(u32::from(depth) + 1)
            .map_err(|error| failed("making an io_uring (Linux 6.1 or later) for", error))?;
        let iovecs: Vec<_> = (0..usize::from(depth)).map(|slot| memory.iovec(slot)).collect();
        // SAFETY: the buffers are a mapping that `Ring` keeps until after the ring is gone.
        unsafe { ring.submitter().register_buffers(&iovecs) }.map_err(|error| {
            failed("registering buffers (enough locked memory? ulimit -l) for", error)
        })?;
        ring.submitter()
            .register_files(&[file.as_raw_fd()])
            .map_err(|error| failed("registering", error))?;
        let second = Box::new(types::Timespec::new().sec(1));
        Ok(Self {
            ring,
            _file: file,
            memory,
            second,
            timer_armed: false,
            polls,
            name,
            depth,
            enters: 0,
        })
    }

    pub(super) fn depth(&self) -> u16 {
        self.depth
    }

    pub(super) fn enters(&self) -> u64 {
        self.enters
    }

    /// Queues an entry that refers to nothing but the slots' memory.
    #[inline]
    pub(super) fn push(&mut self, entry: &S) -> Result<(), Error> {
        // SAFETY: what the entries refer to, the slots' buffers and the timeout's length, lives as
        // long as the ring.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| {
            Error::Invalid(format!("{}: more requests than the ring has slots", self.name))
        })
    }

    fn arm_timer(&mut self) -> Result<(), Error> {
        let entry = opcode::Timeout::new(&raw const *self.second).build().user_data(TIMER);
        self.timer_armed = true;
        self.push(&entry.into())
    }

    /// Submits what is queued and waits for one completion.
    #[inline]
    pub(super) fn proceed(&mut self) -> Result<(), Error> {
        if !self.timer_armed && !self.polls {
            self.arm_timer()?;
        }
        self.enters += 1;
        match self.ring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(()),
            Err(error) => Err(Error::os(format!("submitting to {}", self.name), error)),
        }
    }

    /// The next completion of a request: its slot and result.
    #[inline]
    pub(super) fn finished(&mut self) -> Option<(u16, i32)> {
        while let Some(entry) = self.ring.completion().next() {
            let entry: cqueue::Entry = entry.into();
            if entry.user_data() == TIMER {
                self.timer_armed = false;
                continue;
            }
            return Some((entry.user_data() as u16, entry.result()));
        }
        None
    }
}
