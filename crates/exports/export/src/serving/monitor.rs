//! What the owner of a disk's queue threads has of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use ring3_class::Deadline;
use ring3_class::block::{Completion, Queue, Request, execute};
use ring3_class::dma::DmaBuffer;
use ring3_stats::{Recorder, Segment};

use super::command::{CommandChannel, QueueCommand, event};
use super::start::{QueueFailure, Report, ThreadEvent, ThreadStart};
use super::state::Failure;
use super::stats::{Counters, Stats};
use crate::ublk::Error;

/// How long the disk may take to empty its cache: drives that turn need minutes at worst, and
/// drivers give up before.
const FLUSH: Duration = Duration::from_secs(180);

/// How long a disk that is taken away stays there to fail the requests of those who have it open.
/// Afterwards it has no size any more, and who reads it then is told that it has ended.
const REFUSED: Duration = Duration::from_secs(5);

/// How often it is looked at whether anybody still has it open.
const LOOK: Duration = Duration::from_millis(50);

/// See the module.
pub struct ThreadMonitor {
    counters: Arc<[Counters]>,
    segment: Arc<Segment>,
    /// Which of the segment's queues is the disk's first.
    first: u16,
    sender: Sender<ThreadEvent>,
    pub events: Receiver<ThreadEvent>,
    ended: Arc<OwnedFd>,
    pub commands: Arc<CommandChannel>,
    /// Set when a thread has ended before the device.
    pub abandoned: Arc<AtomicBool>,
}

impl ThreadMonitor {
    /// Of `queues` threads, whose statistics are those of `segment` from the queue `first` on.
    pub fn new(queues: usize, segment: Arc<Segment>, first: u16) -> Result<Self, Error> {
        let (sender, events) = mpsc::channel();
        Ok(Self {
            counters: (0..queues).map(|_| Counters::default()).collect(),
            segment,
            first,
            sender,
            events,
            ended: Arc::new(event()?),
            commands: CommandChannel::new()?,
            abandoned: Arc::default(),
        })
    }

    /// What the thread of `queue` of the disk starts with.
    pub fn start(
        &self,
        disk: &str,
        queue: u16,
        (class, buffers): (Box<dyn Queue>, Vec<DmaBuffer>),
        started: Instant,
    ) -> Result<ThreadStart, Error> {
        let recorder = Recorder::new(&self.segment, self.first.checked_add(queue));
        let recorder = recorder.ok_or_else(|| {
            let queues = self.segment.queues();
            let reason = format!("there are statistics for {queues} queues, and it has more");
            Error::Disk { disk: disk.into(), reason }
        })?;
        let report = Report {
            queue,
            events: self.sender.clone(),
            ended: self.ended.clone(),
            abandoned: self.abandoned.clone(),
        };
        let (counters, commands) = (self.counters.clone(), self.commands.clone());
        Ok(ThreadStart { queue, class, buffers, started, counters, recorder, commands, report })
    }

    /// Queues, and so threads that there were.
    pub fn count(&self) -> usize {
        self.counters.len()
    }

    /// Readable once a queue has failed or a thread has ended.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Why a queue of `device` serves no more, if one has said so.
    pub fn failure(&self, device: &str) -> Option<Error> {
        self.events.try_iter().find_map(|event| match event {
            ThreadEvent::Ready => None,
            ThreadEvent::Failed(failure) => Some(failed(device, failure)),
        })
    }

    /// What the threads have done so far.
    pub fn stats(&self) -> Stats {
        let recorded = (self.first..).map(|queue| self.segment.counters(Some(queue)));
        Stats::sum(self.counters.iter().zip(recorded))
    }

    /// Fails every request from now on, but for those that the driver has.
    pub fn refuse(&self) {
        self.commands.send(QueueCommand::Refuse);
    }

    /// Has the threads begin nothing more, and end when the driver has nothing any more: by
    /// `deadline`.
    pub fn quiesce(&self, deadline: Instant) {
        self.commands.send(QueueCommand::Quiesce(deadline));
    }
}

/// The error of a queue that serves no more.
pub fn failed(device: &str, QueueFailure { queue, reason, failure }: QueueFailure) -> Error {
    Error::Queue { device: device.into(), queue, reason, gone: failure == Failure::Gone }
}

/// Waits until the disk is not `used` any more, or until those who use it have had their time
/// since their requests began to fail.
pub fn await_users(refused: Option<Instant>, used: impl Fn() -> bool) {
    let since = refused.unwrap_or_else(Instant::now);
    while since.elapsed() < REFUSED && used() {
        thread::sleep(LOOK);
    }
}

/// Makes durable what has been written, by one of `queues`: all their requests have ended.
pub fn flush(queues: Vec<Box<dyn Queue>>) -> Result<(), String> {
    let Some(mut queue) = queues.into_iter().find(|queue| queue.info().volatile_cache) else {
        return Ok(());
    };
    match execute(&mut *queue, Request::flush(0), Deadline::after(FLUSH)) {
        Ok(Completion { result, .. }) => result.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// The end of the export `device` of `disk`, whose queues were `flushed`: an error unless it is
/// taken away by `force`.
pub fn end_flushed(
    flushed: Result<(), String>,
    (device, disk): (String, &str),
    force: bool,
) -> Result<(), Error> {
    let Err(reason) = flushed else { return Ok(()) };
    let error = Error::Flush { device, disk: disk.into(), reason };
    if force {
        tracing::warn!(%error);
        return Ok(());
    }
    Err(error)
}
