//! The serving half of an exported disk: a thread for each of its queues, over an open
//! `/dev/ublkcN`.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring3_class::Deadline;
use ring3_class::block::{Completion, Queue, Request, execute};
use ring3_reactor::Pool;
use ring3_stats::{Recorder, Segment};
use rustix::event::{PollFd, PollFlags, poll};

use super::features::Commands;
use super::orders::{self, Order, Orders};
use super::stats::Counters;
use super::thread::{self as queue_thread, Failure, Kernel, Report, Start, ThreadEvent};
use super::{Error, Queues, Stats};

/// How long the queue threads may take to lend their buffers to the kernel.
const READY: Duration = Duration::from_secs(10);

/// How long the queue threads may take to end after the device has stopped.
const ENDED: Duration = Duration::from_secs(30);

/// How long the disk may take to empty its cache: drives that turn need minutes at worst, and
/// drivers give up before.
const FLUSH: Duration = Duration::from_secs(180);

/// What becomes of requests if the driver fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// They fail.
    Refuse,
    /// They are kept for another process, to which the kernel gives them again.
    Keep,
}

/// How a disk is served, as whoever holds the kernel's device tells whoever serves it.
#[derive(Clone, Debug)]
pub struct Layout {
    /// N in `/dev/ublkbN`.
    pub id: u32,
    /// The CPUs that submit to each queue; as many as there are queues.
    pub cpus: Vec<Vec<usize>>,
    /// How the kernel is told of requests.
    pub commands: Commands,
}

/// How the queues of a disk are watched, and how they wait.
#[derive(Clone)]
pub struct QueueThreadOptions {
    /// Where the threads show what they do.
    pub segment: Arc<Segment>,
    /// Which of the segment's queues is the disk's first.
    pub first: u16,
    /// How long a queue polls before it sleeps; see [`Budget`](ring3_class::wait::Budget).
    pub poll: Duration,
    /// How long a queue looks for the next request before it sleeps, where a processor is spare for
    /// that; zero does not.
    pub idle_poll: Duration,
    /// What becomes of requests if the driver fails.
    pub on_failure: OnFailure,
    /// When the export began to start.
    pub started: Instant,
    /// Where the threads have their rings from.
    pub rings: Pool,
}

/// A thread, and how it is told the kernel's side.
struct Waiting {
    tell: Option<Sender<Kernel>>,
    thread: JoinHandle<Option<Box<dyn Queue>>>,
}

/// The threads of a disk's queues. They wait for the kernel's side, and [serve](Self::serve) then,
/// until the device stops or they are to [leave](Self::leave). Whoever drops them before has
/// stopped the device, or ends.
pub struct Threads {
    /// For messages.
    name: String,
    disk: String,
    threads: Vec<Waiting>,
    counters: Arc<[Counters]>,
    segment: Arc<Segment>,
    first: u16,
    words: mpsc::Receiver<ThreadEvent>,
    ended: Arc<OwnedFd>,
    orders: Arc<Orders>,
    abandoned: Arc<AtomicBool>,
}

impl Threads {
    /// Starts them, so that they have to be told the kernel's side only.
    pub fn prepare(queues: Queues, manner: &QueueThreadOptions) -> Result<Self, Error> {
        let Queues { disk, class, buffers, regions } = queues;
        let (words, heard) = mpsc::channel();
        let counters: Arc<[Counters]> = class.iter().map(|_| Counters::default()).collect();
        let QueueThreadOptions { segment, first, poll, idle_poll, on_failure, started, rings } =
            manner.clone();
        let mut threads = Self {
            name: disk.clone(),
            disk,
            threads: Vec::new(),
            counters,
            segment,
            first,
            words: heard,
            ended: Arc::new(orders::event()?),
            orders: Orders::new()?,
            abandoned: Arc::default(),
        };
        if let Some(regions) = &regions {
            regions.tell_by(threads.orders.clone());
        }
        for (queue, (class, buffers)) in (0..).zip(class.into_iter().zip(buffers)) {
            let recorder =
                Recorder::new(&threads.segment, first.checked_add(queue)).ok_or_else(|| {
                    let reason = format!(
                        "there are statistics for {} queues, and it has more",
                        threads.segment.queues()
                    );
                    Error::Disk { disk: threads.disk.clone(), reason }
                })?;
            let (ended, abandoned) = (threads.ended.clone(), threads.abandoned.clone());
            let report = Report { queue, words: words.clone(), ended, abandoned };
            let (counters, orders, rings) =
                (threads.counters.clone(), threads.orders.clone(), rings.clone());
            let regions = regions.clone();
            let start = Start {
                queue,
                class,
                buffers,
                regions,
                poll,
                idle_poll,
                on_failure,
                started,
                counters,
                recorder,
                orders,
                rings,
                report,
            };
            let (tell, kernel) = mpsc::channel();
            let thread = thread::Builder::new().spawn(move || queue_thread::run(start, kernel));
            let thread = thread.map_err(|source| Error::os("starting a queue thread", source))?;
            threads.threads.push(Waiting { tell: Some(tell), thread });
        }
        Ok(threads)
    }

    /// Serves the device `file`, `/dev/ublkcN`. When this returns, every queue waits for requests,
    /// and the device can be started.
    pub fn serve(&mut self, file: Arc<File>, layout: Layout) -> Result<(), Error> {
        let Layout { id, cpus, commands } = layout;
        self.name = format!("/dev/ublkb{id}");
        if cpus.len() != self.threads.len() {
            let reason = format!(
                "{} has {} queues, and {} are prepared",
                self.name,
                cpus.len(),
                self.threads.len()
            );
            return Err(Error::Disk { disk: self.disk.clone(), reason });
        }
        for (tell, cpus) in self
            .threads
            .iter_mut()
            .zip(cpus)
            .filter_map(|(waiting, cpus)| Some((waiting.tell.take()?, cpus)))
        {
            let _ = tell.send(Kernel { file: file.clone(), id, cpus, commands });
        }
        drop(file);
        let deadline = Deadline::after(READY);
        for _ in 0..self.threads.len() {
            match self.words.recv_timeout(deadline.remaining()) {
                Ok(ThreadEvent::Ready) => {}
                Ok(ThreadEvent::Failed(failure)) => return Err(self.failed(failure)),
                Err(_) => {
                    return Err(Error::Hung {
                        command: "FETCH_REQ",
                        device: self.name.clone(),
                        waited: READY,
                    });
                }
            }
        }
        Ok(())
    }

    /// Queues, and so threads that there were.
    pub fn count(&self) -> usize {
        self.counters.len()
    }

    /// Whether they were not taken back yet.
    pub fn is_running(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Whether any of them has not ended yet.
    pub fn is_serving(&self) -> bool {
        self.threads.iter().any(|waiting| !waiting.thread.is_finished())
    }

    /// Readable once a thread has ended: somebody has stopped the device, or
    /// [`failure`](Self::failure) says why not.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Takes notice of threads that have [ended](Self::ended), and why one of them has failed.
    pub fn take_ended(&mut self) -> Option<Error> {
        let _ = rustix::io::read(&*self.ended, &mut [0; 8]);
        self.failure()
    }

    /// Set when a thread has ended before the device.
    pub(super) fn abandoned(&self) -> Arc<AtomicBool> {
        self.abandoned.clone()
    }

    /// Why a thread has ended, if it was not asked to.
    pub fn failure(&mut self) -> Option<Error> {
        let failure = self.words.try_iter().find_map(|word| match word {
            ThreadEvent::Ready => None,
            ThreadEvent::Failed(failure) => Some(failure),
        });
        failure.map(|failure| self.failed(failure))
    }

    fn failed(&self, Failure { queue, reason, gone }: Failure) -> Error {
        Error::Queue { device: self.name.clone(), queue, reason, gone }
    }

    /// What they have done so far.
    pub fn stats(&self) -> Stats {
        let recorded = (self.first..).map(|queue| self.segment.counters(Some(queue)));
        Stats::sum(self.counters.iter().zip(recorded))
    }

    /// Fails every request from now on, but for those that the disk is at.
    pub fn refuse(&self) {
        self.orders.give(Order::Refuse);
    }

    /// Begins nothing more, and ends what the disk is at by `deadline`: the device is another
    /// process's to serve, to which the kernel gives what was not ended.
    /// [`take_back`](Self::take_back) waits for it.
    pub fn leave(&self, deadline: Deadline) {
        self.orders.give(Order::Leave(Instant::now() + deadline.remaining()));
    }

    /// The class queues, empty, of threads that were told to leave, once all have. After an error a
    /// queue has failed.
    pub fn take_back(&mut self) -> Result<Vec<Box<dyn Queue>>, Error> {
        let queues = self.join()?;
        self.failure().map_or(Ok(queues), Err)
    }

    /// The class queues of the threads that have not failed, once all have ended.
    pub fn join(&mut self) -> Result<Vec<Box<dyn Queue>>, Error> {
        let deadline = Deadline::after(ENDED);
        // Those that were told of no device do not wait for one any longer.
        self.threads.iter_mut().for_each(|waiting| waiting.tell = None);
        while !self.threads.iter().all(|waiting| waiting.thread.is_finished()) {
            if deadline.expired() {
                return Err(Error::Hung {
                    command: "the queue threads",
                    device: self.name.clone(),
                    waited: ENDED,
                });
            }
            let mut signalled = [0; 8];
            let _ = rustix::io::read(&*self.ended, &mut signalled);
            let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let _ = poll(&mut [PollFd::new(&*self.ended, PollFlags::IN)], Some(&timeout));
        }
        Ok(self
            .threads
            .drain(..)
            .filter_map(|waiting| waiting.thread.join().ok().flatten())
            .collect())
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
