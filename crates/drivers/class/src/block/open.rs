//! The interface for an application that uses a disk in its own process.

use std::time::Instant;

use ring3_device::{Deadline, Error};

use super::{Completion, Disk, ForeignAccess, Queue, Request, Splitter};
use crate::Saved;

/// A queue for an application: requests of any length, data in the arena or anywhere.
pub type BlockQueue = Splitter<Box<dyn Queue>>;

/// Opens a queue of `disk` for this thread.
///
/// ```
/// use std::time::Duration;
/// use ring3_class::block::{Completion, ForeignAccess, Queue, Ram, Request, open};
/// use ring3_class::wait::Source;
/// use ring3_device::Deadline;
/// use ring3_device::dma::Foreign;
///
/// let disk = Ram::new(512, 1 << 16, 16 << 20)?;
/// let mut queue = open(&disk, 32, ForeignAccess::default())?;
///
/// // Any memory can be written; an owned vector becomes memory that the device may see.
/// let bytes = Foreign::from(vec![0x5a; 4096]);
/// let deadline = Deadline::after(Duration::from_secs(5));
/// let done = queue.execute(Request::write(1, 0, 8, bytes), deadline)?;
/// assert_eq!(done.result, Ok(()));
///
/// // Many at once: queue, publish with one doorbell, take what is done.
/// // Buffers from the arena are never copied.
/// # use ring3_class::block::Disk;
/// for token in 0..8 {
///     let buffer = disk.dma().arena().alloc_pages(512)?;
///     let request = Request::read(token, token, 1, buffer);
///     queue.submit(request).map_err(|rejected| format!("{:?}", rejected.error))?;
/// }
/// queue.ring();
/// let mut left = 8;
/// let mut done: [Completion; 32] = Default::default();
/// while left > 0 && queue.wait(Deadline::after(Duration::from_secs(5)))? {
///     let count = queue.reap(&mut done)?;
///     for completion in done.iter_mut().take(count).map(std::mem::take) {
///         let mut byte = [0];
///         completion.data.into_buffer().expect("lent above").read(0, &mut byte)?;
///         assert_eq!(byte, [0x5a]);
///         left -= 1;
///     }
/// }
/// assert_eq!(left, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn open(disk: &dyn Disk, depth: u16, foreign: ForeignAccess) -> Result<BlockQueue, Error> {
    Splitter::new(disk.open_queue(depth)?).with_foreign(disk.dma(), foreign)
}

/// The same with a queue that was [detached](Queue::detach), and what it has in flight.
pub fn resume(disk: &dyn Disk, saved: &Saved, foreign: ForeignAccess) -> Result<BlockQueue, Error> {
    Splitter::new(disk.resume_queue(saved)?).with_foreign(disk.dma(), foreign)
}

/// Does one request and waits for its end. Nothing else may be in flight. What is refused at once
/// ends with its error.
///
/// At the deadline the request stays in flight, with its data, and the queue is of no further use
/// but to be dropped.
pub fn execute(
    queue: &mut dyn Queue,
    request: Request,
    deadline: Deadline,
) -> Result<Completion, Error> {
    if queue.in_flight() > 0 {
        return Err(Error::Busy("a single request on a queue that has others in flight".into()));
    }
    if let Err(rejected) = queue.submit(request) {
        let Some(error) = rejected.error else {
            return Err(Error::Busy("an empty queue says that it is full".into()));
        };
        let request = rejected.request;
        return Ok(Completion { token: request.token, result: Err(error), data: request.data });
    }
    queue.ring();
    next(queue, deadline)
}

/// Waits for the next end of a request, ticking meanwhile.
pub fn next(queue: &mut dyn Queue, deadline: Deadline) -> Result<Completion, Error> {
    let mut due = None;
    loop {
        if let Some(completion) = queue.reap_one()? {
            return Ok(completion);
        }
        let now = Instant::now();
        if deadline.remaining_at(now).is_zero() {
            return Err(deadline.timeout("a request"));
        }
        if due.is_none_or(|due| due <= now) {
            due = queue.tick(now)?;
        }
        queue.wait(deadline.sooner(due))?;
    }
}

impl<Q: Queue> Splitter<Q> {
    /// Does one request and waits for its end, as [`execute`].
    pub fn execute(&mut self, request: Request, deadline: Deadline) -> Result<Completion, Error> {
        execute(self, request, deadline)
    }
}
