//! The io_uring of one queue: what is asked of the kernel, what it answers, and one system call for both.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::squeue::{self, Entry};
use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{CompletionQueue, IoUring, SubmissionQueue, Submitter, cqueue, opcode};
use ring3_class::block::Queue;

use super::Error;
use super::uapi::{self, IoCommand};

/// Registered files.
const DEVICE: Fixed = Fixed(0);
const INTERRUPT: Fixed = Fixed(1);
const REFUSE: Fixed = Fixed(2);

/// Names of completions that are not a tag's.
const WATCH: u64 = 1 << 32;
const TIMER: u64 = 2 << 32;
const CANCEL: u64 = 3 << 32;
const REFUSED: u64 = 4 << 32;

/// Entries beyond one per tag: watch, cancel, timer, refuse.
const EXTRA: u32 = 4;

/// What the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A tag's fetch ended: [`uapi::RES_OK`] with a request, or an error.
    Tag(u16, i32),
    /// The interrupt was raised; false if it is watched no longer.
    Interrupt(bool),
    /// The timer ran out.
    Timer,
    /// No request is to be served any more.
    Refuse,
}

/// An io_uring for the queue thread that calls; set up for a single thread that asks for its completions, where the kernel can.
pub fn create(depth: u16) -> Result<IoUring, Error> {
    let entries = u32::from(depth) + EXTRA;
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(entries)
        .or_else(|_| IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(entries))
        .or_else(|_| IoUring::new(entries))
        .map_err(|source| Error::os("creating the io_uring of a ublk queue", source))
}

/// The two halves of a queue's io_uring, with the files registered.
pub struct Ring<'r> {
    submitter: Submitter<'r>,
    submissions: SubmissionQueue<'r>,
    completions: CompletionQueue<'r>,
    /// The ublk queue's number.
    queue: u16,
    fetch: u32,
    commit: u32,
    /// Names the present watch apart from cancelled ones, whose last event may still come.
    watch: u32,
    tick: Box<Timespec>,
}

impl<'r> Ring<'r> {
    /// Takes `ring` for `queue` of the device `file`; `class` has the interrupt, and `refuse` is readable when requests are not to be
    /// served any more. `encoded` is [`super::features::Features::encoded`].
    pub fn new(
        ring: &'r mut IoUring,
        (file, queue): (&File, u16),
        class: &dyn Queue,
        refuse: BorrowedFd<'_>,
        encoded: bool,
    ) -> Result<Self, Error> {
        let (submitter, submissions, completions) = ring.split();
        let interrupt = class.irq().map_or(-1, |irq| irq.as_fd().as_raw_fd());
        submitter
            .register_files(&[file.as_raw_fd(), interrupt, refuse.as_raw_fd()])
            .map_err(|source| Error::os("registering the files of a ublk queue", source))?;
        let mut ring = Self {
            submitter,
            submissions,
            completions,
            queue,
            fetch: uapi::io_opcode(uapi::IO_FETCH, encoded),
            commit: uapi::io_opcode(uapi::IO_COMMIT_AND_FETCH, encoded),
            watch: 0,
            tick: Box::new(Timespec::from(Duration::from_millis(100))),
        };
        // Saves the look-up of the descriptor at each call; a kernel without it is only slower.
        let _ = ring.submitter.register_ring_fd();
        let refused = opcode::PollAdd::new(REFUSE, libc::POLLIN as u32).build().user_data(REFUSED);
        // SAFETY: no memory is involved.
        unsafe { ring.push(refused) }.map_err(|source| Error::os("filling the io_uring of a ublk queue", source))?;
        Ok(ring)
    }

    /// Lends `tag`'s buffer at `addr` to the kernel, for the first request.
    ///
    /// # Safety
    /// `addr` is the start of a buffer as long as the device was told, which stays until the tag's fetch has ended.
    pub unsafe fn fetch(&mut self, tag: u16, addr: u64) -> io::Result<()> {
        let command = IoCommand { q_id: self.queue, tag, result: 0, addr };
        // SAFETY: passed on.
        unsafe { self.push(command_entry(self.fetch, command)) }
    }

    /// Gives the result of `tag`'s request, and lends its buffer for the next.
    ///
    /// # Safety
    /// As [`fetch`](Ring::fetch).
    #[inline]
    pub unsafe fn commit(&mut self, tag: u16, result: i32, addr: u64) -> io::Result<()> {
        let command = IoCommand { q_id: self.queue, tag, result, addr };
        // SAFETY: passed on.
        unsafe { self.push(command_entry(self.commit, command)) }
    }

    /// Watches the interrupt: one [`Event::Interrupt`] each time it is raised, without its count being read.
    pub fn watch(&mut self) -> io::Result<()> {
        let entry =
            opcode::PollAdd::new(INTERRUPT, libc::POLLIN as u32).multi(true).build().user_data(WATCH | u64::from(self.watch));
        // SAFETY: no memory is involved.
        unsafe { self.push(entry) }
    }

    /// Watches it no longer: no event of this watch comes any more.
    pub fn unwatch(&mut self) -> io::Result<()> {
        let entry = opcode::PollRemove::new(WATCH | u64::from(self.watch)).build().user_data(CANCEL);
        self.watch = self.watch.wrapping_add(1);
        // SAFETY: no memory is involved.
        unsafe { self.push(entry) }
    }

    /// One [`Event::Timer`] in 100 ms.
    pub fn timer(&mut self) -> io::Result<()> {
        let entry = opcode::Timeout::new(&raw const *self.tick).build().user_data(TIMER);
        // SAFETY: the time is read before the submitting call returns, and lives as long as this value.
        unsafe { self.push(entry) }
    }

    /// Sends what was pushed and takes what is there, without waiting.
    #[inline]
    pub fn flush(&mut self) -> io::Result<()> {
        self.enter(0)
    }

    /// Sends what was pushed and sleeps until the kernel has an event.
    #[inline]
    pub fn sleep(&mut self) -> io::Result<()> {
        self.enter(1)
    }

    /// As [`sleep`](Ring::sleep), for at most `limit`.
    pub fn nap(&mut self, limit: Duration) -> io::Result<()> {
        self.publish();
        let limit = Timespec::from(limit);
        let done = self.submitter.submit_with_args(1, &SubmitArgs::new().timespec(&limit));
        self.entered(done)
    }

    /// Whether a call would bring events; costs none itself.
    #[inline]
    pub fn has_events(&mut self) -> bool {
        self.completions.sync();
        !self.completions.is_empty() || self.submissions.taskrun()
    }

    /// Whether something was pushed that the kernel has not seen.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        !self.submissions.is_empty()
    }

    /// The next event that is there.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            let entry = self.completions.next()?;
            let name = entry.user_data();
            if name <= u16::MAX.into() {
                return Some(Event::Tag(name as u16, entry.result()));
            }
            if name == WATCH | u64::from(self.watch) {
                return Some(Event::Interrupt(cqueue::more(entry.flags())));
            }
            match name {
                TIMER => return Some(Event::Timer),
                REFUSED => return Some(Event::Refuse),
                _ => {}
            }
        }
    }

    #[inline]
    fn enter(&mut self, wanted: usize) -> io::Result<()> {
        self.publish();
        let done = self.submitter.submit_and_wait(wanted);
        self.entered(done)
    }

    /// Shows the kernel what was pushed, and what was taken: it does not sleep while it believes that completions wait to be taken.
    #[inline]
    fn publish(&mut self) {
        self.submissions.sync();
        self.completions.sync();
    }

    #[inline]
    fn entered(&mut self, done: io::Result<usize>) -> io::Result<()> {
        self.publish();
        match done {
            // EBUSY and EAGAIN: completions must be taken, or memory is short; what was not sent stays and goes with the next call.
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN)) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// # Safety
    /// As [`SubmissionQueue::push`].
    #[inline]
    unsafe fn push(&mut self, entry: Entry) -> io::Result<()> {
        // SAFETY: passed on.
        if unsafe { self.submissions.push(&entry) }.is_ok() {
            return Ok(());
        }
        self.enter(0)?;
        // SAFETY: passed on.
        unsafe { self.submissions.push(&entry) }.map_err(|squeue::PushError { .. }| io::Error::other("io_uring stays full"))
    }
}

#[inline]
fn command_entry(operation: u32, command: IoCommand) -> Entry {
    opcode::UringCmd16::new(DEVICE, operation).cmd(command.to_bytes()).build().user_data(command.tag.into())
}
