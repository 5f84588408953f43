//! Disks.
//!
//! # Shape
//! A driver provides [`Disk`]s; a disk opens [`Queue`]s, one per thread. A [`Request`] passes its
//! [`Data`] to the device, and the [`Completion`] returns it. The three verbs are the same in every
//! driver: [`submit`](Queue::submit) queues, [`ring`](Queue::ring) publishes a batch with one
//! doorbell, [`reap`](Queue::reap) takes completions, as many as there is room for.
//!
//! An application calls [`open`]: its [`BlockQueue`] takes requests of any length with data
//! anywhere. It splits, maps or copies what the driver does not accept as it is.
//!
//! # Ordering
//! Requests of one queue may complete in any order. Two that overlap and are in flight at the same
//! time have no defined outcome. A flush covers the writes that completed before it was submitted.
//!
//! # Cancellation
//! There is none. A request ends when the device completes it, or when a reset has proved that the
//! device will not execute it.

mod check;
mod data;
mod error;
mod info;
mod lender;
mod null;
mod open;
mod ram;
mod request;
mod saved;
mod splitter;

pub use data::{Data, List, Segments};
pub use error::IoError;
pub use info::{Discard, Info};
pub use lender::Lender;
pub use null::Null;
pub use open::{BlockQueue, execute, next, open, resume};
pub use ram::Ram;
pub use request::{Completion, Operation, Rejected, Request};
pub use saved::{SavedRequest, detach};
pub use splitter::{ForeignAccess, Splitter, SplitterStats};

use std::collections::VecDeque;
use std::sync::Arc;

use ring3_device::Error;
use ring3_device::dma::{Dma, Region, StreamStats};
use ring3_device::wait::Source;

use crate::Saved;

/// A disk: what a namespace of an NVMe controller or a drive at an ATA port is.
pub trait Disk: Send + Sync {
    /// What it is called in messages: `vfio:0000:01:00.0 namespace 1`.
    fn name(&self) -> String;

    /// What tells it from other disks, over resets, drivers and machines: whoever goes on with a
    /// disk compares this with what it was. By default its model and serial number.
    fn identity(&self) -> String {
        let info = self.info();
        format!("{} {}", info.model, info.serial)
    }

    /// Its size, format and limits. They hold for the life of the value.
    fn info(&self) -> &Info;

    /// The memory that its device reaches: who submits requests allocates their buffers here,
    /// before the first request.
    fn dma(&self) -> &Dma;

    /// Registers `region` for requests of all queues: they need neither a copy nor a mapping each,
    /// as long as the value lives. Nothing is allocated from it. Requests name
    /// [pieces](ring3_device::dma::Piece) of it. A second call changes nothing. After an error such
    /// requests are mapped or copied, as those in any other memory.
    fn register_region(&self, region: &Arc<Region>) -> Result<(), Error> {
        self.dma().register_region(region)
    }

    /// How many queues can be open at the same time.
    fn max_queues(&self) -> u16;

    /// Opens a queue that holds up to `depth` requests (fewer if the device can do no more), for
    /// use by one thread.
    fn open_queue(&self, depth: u16) -> Result<Box<dyn Queue>, Error>;

    /// Opens the queue that was [detached](Queue::detach) as `saved`, with the requests that the
    /// device has had since. Nothing is handed to the device twice, and what has ended meanwhile is
    /// found by the first [`reap`](Queue::reap).
    ///
    /// What was saved is input: [`Error::Invalid`] if it cannot be a queue of this disk. Its memory
    /// stays taken then, as it was.
    fn resume_queue(&self, _saved: &Saved) -> Result<Box<dyn Queue>, Error> {
        Err(Error::Unsupported(format!(
            "{}: its driver cannot resume a queue: open one",
            self.name()
        )))
    }
}

/// A way to a disk, owned by one thread; shares nothing with other queues.
///
/// As a [`Source`], it is waited for while requests are in flight. Its [`tick`](Source::tick) finds
/// requests that have taken too long and recovers the device if it must (abort, then reset;
/// requests are repeated after a reset); [`Error::Gone`] and [`Error::Fatal`] mean the same there
/// as in [`reap`](Queue::reap): from one of the two, every queue's owner learns that the device has
/// ended.
pub trait Queue: Source + Send {
    /// The disk's description, as [`Disk::info`].
    fn info(&self) -> &Info;

    /// Requests that it can hold at once.
    fn depth(&self) -> u16;

    /// Requests that are in the device's hands or were not yet [rung](Queue::ring).
    fn in_flight(&self) -> u16;

    /// Queues `request` for the device; it starts at the next [`ring`](Queue::ring). What cannot be
    /// queued comes back with the reason.
    fn submit(&mut self, request: Request) -> Result<(), Rejected>;

    /// Publishes everything submitted since the last call: at most one doorbell write. Does not
    /// wait.
    fn ring(&mut self);

    /// Takes finished requests into `done`, from its start, over whatever is there; returns how
    /// many. None means that nothing is there; fewer than there is room for, that there may be
    /// more, which [`wait`](Source::wait) and [`arm`](Source::arm) know.
    ///
    /// An error means that the device misbehaved and nothing was taken; the queue stays usable, and
    /// what was in flight ends by [`tick`](Source::tick). [`Error::Gone`] and [`Error::Fatal`] say
    /// that the driver has given the device up: all requests end with errors from now on.
    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error>;

    /// Takes the next finished request, or `None`; as [`reap`](Queue::reap), for who has few at a
    /// time.
    #[inline]
    fn reap_one(&mut self) -> Result<Option<Completion>, Error> {
        let mut done = [Completion::default()];
        let count = self.reap(&mut done)?;
        Ok(done.into_iter().next().filter(|_| count > 0))
    }

    /// Leaves the queue to whoever [resumes](Disk::resume_queue) it, in this process or in another
    /// one: requests in flight stay with the device, and what was not [rung](Self::ring) is rung by
    /// the next. The queue takes nothing afterwards, and is of no use but to be dropped, which
    /// tells the device nothing.
    ///
    /// Nothing has changed after an error. [`Error::Busy`] says that it will be possible: reap,
    /// tick, and try again, or have [`detach`] do that.
    fn detach(&mut self) -> Result<Saved, Error> {
        Err(Error::Unsupported(
            "the queue cannot be left to another process: let its requests end, and drop it".into(),
        ))
    }

    /// What of foreign memory was mapped and copied so far; nothing where only the arena is taken.
    fn stream_stats(&self) -> StreamStats {
        StreamStats::default()
    }
}

/// Takes the end that `next` may give into `done`, for a queue out of the ordinary: whatever
/// becomes of it becomes of one request at a time.
pub fn reap_single(
    done: &mut [Completion],
    next: impl FnOnce() -> Result<Option<Completion>, Error>,
) -> Result<usize, Error> {
    let Some(place) = done.first_mut() else { return Ok(0) };
    let Some(end) = next()? else { return Ok(0) };
    *place = end;
    Ok(1)
}

/// Takes ends that lie ready into `done`, the oldest first; returns how many.
pub fn reap_ready(done: &mut [Completion], ready: &mut VecDeque<Completion>) -> usize {
    let count = ready.len().min(done.len());
    done.iter_mut().zip(ready.drain(..count)).for_each(|(place, end)| *place = end);
    count
}

impl<Q: Queue + ?Sized> Queue for Box<Q> {
    fn info(&self) -> &Info {
        (**self).info()
    }
    fn depth(&self) -> u16 {
        (**self).depth()
    }
    fn in_flight(&self) -> u16 {
        (**self).in_flight()
    }
    #[inline]
    fn submit(&mut self, request: Request) -> Result<(), Rejected> {
        (**self).submit(request)
    }
    #[inline]
    fn ring(&mut self) {
        (**self).ring();
    }
    #[inline]
    fn reap(&mut self, done: &mut [Completion]) -> Result<usize, Error> {
        (**self).reap(done)
    }
    fn detach(&mut self) -> Result<Saved, Error> {
        (**self).detach()
    }
    fn stream_stats(&self) -> StreamStats {
        (**self).stream_stats()
    }
}
