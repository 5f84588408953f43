//! The io_uring: what is asked of the kernel, what it answers, and one system call for both.

mod watch;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{SubmitArgs, TimeoutFlags, Timespec};
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, cqueue, opcode};
use ring3_device::wait::Budget;

use crate::buffers::Buffers;
use crate::timers::{Timer, Timers};
pub use watch::Token;
use watch::Watch;

/// Names of entries from here on are the reactor's, those below its user's. What one is of, then a
/// generation, then an index.
const OWN: u64 = 1 << 63;
const WATCH: u64 = OWN;
const CLOCK: u64 = OWN | 1 << 56;
const CANCEL: u64 = OWN | 2 << 56;
const KIND: u64 = 0xff << 56;

/// Entries of its own that may be pushed in one turn; more only cost a further call.
pub(crate) const EXTRA: u32 = 8;

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// A command that the user has [pushed](Reactor::push) has ended.
    Command {
        /// The name that it was given.
        name: u64,
        /// What the kernel says of it.
        result: i32,
        /// What else it says, for [`Reactor::more`] and [`Reactor::provided`].
        flags: u32,
    },
    /// A descriptor was raised. It is said once each time, whether it was read since or not.
    Ready(Token),
    /// A descriptor cannot be watched any longer, and why.
    Lost(Token, io::Error),
    /// A timer has run out; the time at which that was found.
    Timer(Timer, Instant),
}

/// What a turn has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopStats {
    /// System calls.
    pub calls: u32,
    /// The last of them may have slept.
    pub slept: bool,
    /// Whether polling has found that a source has something; `None` if it was not tried, or
    /// something else came first.
    pub polled: Option<bool>,
}

/// Owns the ring, which the reactor's other fields borrow.
struct Owner(NonNull<IoUring>);

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: it came out of a box, and stands in the reactor after what borrows the ring,
        // which is gone.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// See the crate's documentation. Of use to the thread that made it, and to no other.
pub struct Reactor {
    submitter: Submitter<'static>,
    submissions: SubmissionQueue<'static>,
    completions: CompletionQueue<'static>,
    watches: Vec<Watch>,
    pub(crate) timers: Timers,
    /// When the kernel's timer runs out, and which of those that were given to it that is.
    clock: Option<Instant>,
    clocks: u32,
    /// The earliest timer is earlier than the kernel's.
    early: bool,
    /// The same moment by the process's clock and by the kernel's.
    origin: (Instant, Duration),
    time: Box<Timespec>,
    pub(crate) budget: Budget,
    pub(crate) nap: Duration,
    pub(crate) polled: Duration,
    // After all that borrows it: see `Owner`.
    ring: Owner,
    // After the ring, which is closed before the kernel loses them.
    buffers: Option<Buffers>,
}

impl Reactor {
    /// Has room for `commands` of the user in one turn, and polls sources at most `poll` before
    /// each sleep.
    ///
    /// The ring is set up for a single thread that asks for its completions, where the kernel can
    /// (6.1).
    pub fn new(commands: u32, poll: Duration) -> io::Result<Self> {
        let entries = commands + EXTRA;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(entries)
            .or_else(|_| {
                IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(entries)
            })
            .or_else(|_| IoUring::new(entries));
        ring.map(|ring| Self::over(ring, poll))
    }

    pub(crate) fn over(ring: IoUring, poll: Duration) -> Self {
        let ring = Owner(NonNull::from(Box::leak(Box::new(ring))));
        // SAFETY: the ring stays where it is until `Owner` is dropped, after all that borrows it;
        // nothing else borrows it mutably.
        let (mut submitter, submissions, completions) = unsafe { &mut *ring.0.as_ptr() }.split();
        // Saves the look-up of the descriptor at each call; a kernel without it is only slower.
        let _ = submitter.register_ring_fd();
        Self {
            submitter,
            submissions,
            completions,
            watches: Vec::new(),
            timers: Timers::default(),
            clock: None,
            clocks: 0,
            early: false,
            origin: origin(),
            time: Box::default(),
            budget: Budget::new(poll),
            nap: crate::registration::NAPS.0,
            polled: Duration::ZERO,
            ring,
            buffers: None,
        }
    }

    /// Gives the kernel `count` (a power of two) buffers of `bytes` to choose from, as group 0, for
    /// commands that say so. An error the second time, where the kernel has no such buffers (5.19
    /// and later have), and where the ring's [restrictions](crate::Pool) forbid it.
    pub fn provide(&mut self, count: u16, bytes: u32) -> io::Result<()> {
        // The kernel has those, and would write where they were.
        if self.buffers.is_some() {
            return Err(io::Error::other("the reactor has given the kernel buffers already"));
        }
        let buffers = self.buffers.insert(Buffers::new(count, bytes)?);
        let (ring, entries) = buffers.ring();
        // SAFETY: the memory is this value's until the io_uring is closed.
        unsafe { self.submitter.register_buf_ring_with_flags(ring, entries, 0, 0) }
    }

    /// Whether a command goes on that has said something, by its [flags](Event::Command).
    pub fn more(flags: u32) -> bool {
        cqueue::more(flags)
    }

    /// Has `read` look at the first `len` bytes of the [provided](Self::provide) buffer that a
    /// command has filled, by its [flags](Event::Command); the buffer is the kernel's again then.
    pub fn provided(&mut self, flags: u32, len: u32, read: impl FnOnce(&[u8])) {
        if let (Some(buffers), Some(id)) = (&mut self.buffers, cqueue::buffer_select(flags)) {
            read(buffers.filled(id, len));
            buffers.give(id);
        }
    }

    /// The same for a thread that sleeps in another loop, on the [`descriptor`](Self::descriptor).
    pub fn nested(commands: u32, poll: Duration) -> io::Result<Self> {
        IoUring::new(commands + EXTRA).map(|ring| Self::over(ring, poll))
    }

    /// What another loop sleeps on: readable when there are events. Before it does,
    /// [`step`](Self::step) with a limit of zero, and take all events. The loop's sleep may end
    /// with EINTR when something happens.
    ///
    /// Only of a [`nested`](Self::nested) reactor: of another one the kernel leaves work to the
    /// thread that asks for it, and wakes nobody who polls the ring.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns its descriptor and lives as long as this value.
        unsafe { BorrowedFd::borrow_raw((*self.ring.0.as_ptr()).as_raw_fd()) }
    }

    /// Hands `entry` to the kernel in the next turn; its end is an [`Event::Command`]. Its name
    /// (`user_data`) must be below 2^63.
    ///
    /// # Safety
    /// What the kernel does by `entry` must be sound until its end, or until the reactor is
    /// dropped: see [`SubmissionQueue::push`].
    #[inline]
    pub unsafe fn push(&mut self, entry: &Entry) -> io::Result<()> {
        // SAFETY: passed on.
        if unsafe { self.submissions.push(entry) }.is_ok() {
            return Ok(());
        }
        // SAFETY: passed on.
        unsafe { self.push_slowly(entry) }
    }

    /// # Safety
    /// As [`push`](Self::push).
    #[cold]
    unsafe fn push_slowly(&mut self, entry: &Entry) -> io::Result<()> {
        self.enter(0)?;
        // SAFETY: passed on.
        unsafe { self.submissions.push(entry) }.map_err(|_| io::Error::other("io_uring stays full"))
    }

    /// An [`Event::Timer`] at `due`, never before.
    pub fn set_timer(&mut self, due: Instant) -> Timer {
        self.early |= self.clock.is_none_or(|clock| due < clock);
        self.timers.set(due)
    }

    /// Takes a timer back, if it has not run out.
    pub fn cancel(&mut self, timer: Timer) {
        self.timers.cancel(timer);
    }

    /// Sends what was pushed and sleeps until there are events, or for `limit`; not at all if that
    /// is zero.
    #[inline]
    pub fn step(&mut self, limit: Option<Duration>) -> io::Result<LoopStats> {
        if self.early {
            self.set_clock()?;
        }
        // Events that were not taken wait already.
        let waits = limit != Some(Duration::ZERO) && !self.timers.is_firing();
        match limit.filter(|_| waits) {
            None => self.enter(waits.into())?,
            Some(limit) => {
                self.publish();
                let limit = Timespec::from(limit);
                let done = self.submitter.submit_with_args(1, &SubmitArgs::new().timespec(&limit));
                self.entered(done)?;
            }
        }
        Ok(LoopStats { calls: 1, slept: waits, polled: None })
    }

    /// Whether there are events, or a turn without waiting would bring some; costs no system call.
    #[inline]
    pub fn has_events(&mut self) -> bool {
        self.completions.sync();
        !self.completions.is_empty() || self.submissions.taskrun() || self.timers.is_firing()
    }

    /// How long it has polled so far, whether something was found or not.
    pub fn polled(&self) -> Duration {
        self.polled
    }

    /// Whether something was pushed that the kernel has not seen.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.early || !self.submissions.is_empty()
    }

    /// The next event of this turn.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        while let Some(entry) = self.completions.next() {
            let (name, result) = (entry.user_data(), entry.result());
            if name & OWN == 0 {
                return Some(Event::Command { name, result, flags: entry.flags() });
            }
            if let Some(event) = self.own_event(name, result, cqueue::more(entry.flags())) {
                return Some(event);
            }
        }
        // The descriptor is readable for as long as the kernel believes that completions wait to be
        // taken.
        self.completions.sync();
        if !self.timers.is_firing() {
            return None;
        }
        self.timers.next().map(|(timer, now)| Event::Timer(timer, now))
    }

    fn own_event(&mut self, name: u64, result: i32, more: bool) -> Option<Event> {
        if name & KIND == CLOCK {
            if name as u32 == self.clocks {
                (self.clock, self.early) = (None, true);
                self.timers.fire(Instant::now());
            }
            return None;
        }
        self.watch_event(name, result, more)
    }

    /// Lets the kernel's timer run out when the earliest of all is due.
    #[cold]
    fn set_clock(&mut self) -> io::Result<()> {
        self.early = false;
        let Some(first) = self.timers.first() else { return Ok(()) };
        if self.clock.is_some_and(|clock| clock <= first) {
            return Ok(());
        }
        if self.clock.take().is_some() {
            let old = opcode::TimeoutRemove::new(CLOCK | u64::from(self.clocks));
            // SAFETY: no memory is involved.
            unsafe { self.push(&old.build().flags(Flags::SKIP_SUCCESS).user_data(CANCEL))? };
        }
        self.clocks = self.clocks.wrapping_add(1);
        *self.time = Timespec::from(self.origin.1 + first.saturating_duration_since(self.origin.0));
        let entry = opcode::Timeout::new(&raw const *self.time).flags(TimeoutFlags::ABS).build();
        // SAFETY: the time is read before the submitting call returns, and lives as long as this
        // value.
        unsafe { self.push(&entry.user_data(CLOCK | u64::from(self.clocks)))? };
        self.clock = Some(first);
        Ok(())
    }

    #[inline]
    pub(crate) fn enter(&mut self, wanted: usize) -> io::Result<()> {
        self.publish();
        let done = self.submitter.submit_and_wait(wanted);
        self.entered(done)
    }

    /// Shows the kernel what was pushed, and what was taken: it does not sleep while it believes
    /// that completions wait to be taken.
    #[inline]
    fn publish(&mut self) {
        self.submissions.sync();
        self.completions.sync();
    }

    #[inline]
    fn entered(&mut self, done: io::Result<usize>) -> io::Result<()> {
        self.publish();
        match done {
            Ok(_) => Ok(()),
            Err(error) => ignore_transient(error),
        }
    }
}

/// A signal or the end of the time limit ends a sleep. EBUSY and EAGAIN: completions must be taken,
/// or memory is short; what was not sent stays and goes with the next call.
#[cold]
fn ignore_transient(error: io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN) => Ok(()),
        _ => Err(error),
    }
}

/// A moment by both clocks. The kernel's is read last: a timer is late by what lies between, and
/// never early.
fn origin() -> (Instant, Duration) {
    let now = Instant::now();
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now, Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(test)]
mod tests;
