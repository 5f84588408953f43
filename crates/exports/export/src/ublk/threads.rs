//! The serving half of an exported disk: a thread for each of its queues, over an open
//! `/dev/ublkcN`.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring3_class::Deadline;
use ring3_class::block::Queue;
use ring3_reactor::Pool;
use ring3_stats::Segment;
use rustix::event::{PollFd, PollFlags, poll};

use super::features::Commands;
use super::thread::{self as queue_thread, Kernel, Start};
use super::{Error, OnFailure, Queues, Stats};
use crate::serving::{self, ThreadEvent, ThreadMonitor};

/// How long the queue threads may take to lend their buffers to the kernel.
const READY: Duration = Duration::from_secs(10);

/// How long the queue threads may take to end after the device has stopped.
const ENDED: Duration = Duration::from_secs(30);

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
/// until the device stops or they are to [quiesce](Self::quiesce). Whoever drops them before has
/// stopped the device, or ends.
pub struct Threads {
    /// For messages.
    name: String,
    disk: String,
    threads: Vec<Waiting>,
    monitor: ThreadMonitor,
}

impl Threads {
    /// Starts them, so that they have to be told the kernel's side only.
    pub fn prepare(queues: Queues, manner: &QueueThreadOptions) -> Result<Self, Error> {
        let Queues { disk, class, buffers, regions } = queues;
        let QueueThreadOptions { segment, first, poll, idle_poll, on_failure, started, rings } =
            manner.clone();
        let mut threads = Self {
            name: disk.clone(),
            disk,
            threads: Vec::new(),
            monitor: ThreadMonitor::new(class.len(), segment, first)?,
        };
        if let Some(regions) = &regions {
            regions.wake_by(threads.monitor.commands.clone());
        }
        for (queue, of_queue) in (0..).zip(class.into_iter().zip(buffers)) {
            let common = threads.monitor.start(&threads.disk, queue, of_queue, started)?;
            let (regions, rings) = (regions.clone(), rings.clone());
            let start = Start { common, regions, poll, idle_poll, on_failure, rings };
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
            match self.monitor.events.recv_timeout(deadline.remaining()) {
                Ok(ThreadEvent::Ready) => {}
                Ok(ThreadEvent::Failed(failure)) => {
                    return Err(serving::failed(&self.name, failure));
                }
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
        self.monitor.count()
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
        self.monitor.ended()
    }

    /// Takes notice of threads that have [ended](Self::ended), and why one of them has failed.
    pub fn take_ended(&mut self) -> Option<Error> {
        let _ = rustix::io::read(self.ended(), &mut [0; 8]);
        self.failure()
    }

    /// Set when a thread has ended before the device.
    pub(super) fn abandoned(&self) -> Arc<AtomicBool> {
        self.monitor.abandoned.clone()
    }

    /// Why a thread has ended, if it was not asked to.
    pub fn failure(&mut self) -> Option<Error> {
        self.monitor.failure(&self.name)
    }

    /// What they have done so far.
    pub fn stats(&self) -> Stats {
        self.monitor.stats()
    }

    /// Fails every request from now on, but for those that the disk is at.
    pub fn refuse(&self) {
        self.monitor.refuse();
    }

    /// Begins nothing more, and ends what the disk is at by `deadline`: the device is another
    /// process's to serve, to which the kernel gives what was not ended.
    /// [`take_back`](Self::take_back) waits for it.
    pub fn quiesce(&self, deadline: Deadline) {
        self.monitor.quiesce(Instant::now() + deadline.remaining());
    }

    /// The class queues, empty, of threads that were told to quiesce, once all have. After an error
    /// a queue has failed.
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
            let _ = rustix::io::read(self.ended(), &mut signalled);
            let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let _ =
                poll(&mut [PollFd::from_borrowed_fd(self.ended(), PollFlags::IN)], Some(&timeout));
        }
        Ok(self
            .threads
            .drain(..)
            .filter_map(|waiting| waiting.thread.join().ok().flatten())
            .collect())
    }
}
