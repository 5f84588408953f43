//! A disk that is served: the kernel's device, and a thread for each of its queues.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring3_class::Deadline;
use ring3_class::block::{Disk, Queue};
use ring3_class::dma::DmaBuffer;
use ring3_class::wait::Budget;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::descriptors::Descriptors;
use super::ring::{self, Ring};
use super::server::Server;
use super::stats::Counters;
use super::{Control, Device, Error, Stats, affinity, limits, uapi};

/// How long the queue threads may take to lend their buffers to the kernel.
const READY: Duration = Duration::from_secs(10);

/// How long the queue threads may take to end after the device has stopped.
const ENDED: Duration = Duration::from_secs(30);

/// How to export a disk.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// N in `/dev/ublkbN`; `None` lets the kernel choose.
    pub id: Option<u32>,
    /// Queues, and so threads; lowered to what the disk has and to the number of CPUs.
    pub queues: u16,
    /// Requests per queue; lowered to what the disk can hold.
    pub depth: u16,
    /// Most bytes per request, and so of each buffer; lowered to what the disk can move at once.
    pub max_bytes: u32,
    /// How long a queue polls before it sleeps; see [`Budget`](ring3_class::wait::Budget).
    pub poll: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { id: None, queues: 1, depth: 64, max_bytes: 256 << 10, poll: Duration::from_micros(10) }
    }
}

impl Options {
    /// Bytes of buffers that an export of these options takes from the arena at most.
    pub fn buffer_bytes(&self) -> usize {
        usize::from(self.queues) * usize::from(self.depth) * self.max_bytes as usize
    }
}

/// A running export. Dropping it takes the device away from whoever uses it.
pub struct Export {
    device: Device,
    threads: Vec<JoinHandle<()>>,
    counters: Arc<[Counters]>,
    words: mpsc::Receiver<Word>,
    ended: Arc<OwnedFd>,
}

/// What a queue thread says.
enum Word {
    /// All its buffers are lent to the kernel.
    Ready,
    /// It has ended, and why.
    Failed { queue: u16, reason: String },
}

/// What a queue thread starts with.
struct Start {
    file: Arc<File>,
    queue: u16,
    cpus: Vec<usize>,
    class: Box<dyn Queue>,
    buffers: Vec<DmaBuffer>,
    budget: Budget,
    encoded: bool,
    started: Instant,
    counters: Arc<[Counters]>,
}

impl Export {
    /// Makes `disk` a block device, with buffers from the arena of the disk's device.
    ///
    /// When this returns, the device exists and its partitions have been looked for.
    pub fn start(disk: &dyn Disk, options: &Options) -> Result<Self, Error> {
        let started = Instant::now();
        let control = Control::open()?;
        let page = rustix::param::page_size() as u32;
        let info = disk.info();
        let buffer = limits::buffer_bytes(info, options.max_bytes, page);
        let parameters = limits::parameters(info, buffer, page).map_err(|reason| Error::Disk { disk: disk.name(), reason })?;
        let mut queues = open_queues(disk, options)?;
        let depth = queues.iter().map(|queue| queue.depth()).min().unwrap_or(1).min(options.depth).min(uapi::MAX_QUEUE_DEPTH);
        let encoded = control.features().encoded;
        let mut device = Device::create(control, options.id, queues.len() as u16, depth, buffer)?;
        device.set_parameters(parameters)?;
        queues.truncate(device.queues().into());
        let buffers = allocate(disk, queues.len(), depth, buffer)?;
        let file = Arc::new(device.open()?);
        let counters: Arc<[Counters]> = queues.iter().map(|_| Counters::default()).collect();
        let mut starts = Vec::new();
        for (queue, (class, buffers)) in (0..).zip(queues.into_iter().zip(buffers)) {
            let (file, cpus, counters) = (file.clone(), device.affinity(queue)?, counters.clone());
            let budget = Budget::new(options.poll);
            starts.push(Start { file, queue, cpus, class, buffers, budget, encoded, started, counters });
        }
        Self::serve(device, starts, counters)
    }

    /// Starts the threads, then the device.
    fn serve(device: Device, starts: Vec<Start>, counters: Arc<[Counters]>) -> Result<Self, Error> {
        let ended = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|source| Error::os("creating an eventfd for the queue threads", source))?;
        let (say, words) = mpsc::channel();
        let mut export = Self { device, threads: Vec::new(), counters, words, ended: Arc::new(ended) };
        for start in starts {
            let (say, ended) = (say.clone(), End(export.ended.clone()));
            let queue = start.queue;
            let thread = thread::Builder::new()
                .name(format!("ublk{}q{queue}", export.device.id()))
                .spawn(move || {
                    let _ended = ended;
                    if let Err(reason) = run(start, &say) {
                        let _ = say.send(Word::Failed { queue, reason });
                    }
                })
                .map_err(|source| Error::os("starting a queue thread", source))?;
            export.threads.push(thread);
        }
        export.await_ready()?;
        export.device.start()?;
        Ok(export)
    }

    fn await_ready(&mut self) -> Result<(), Error> {
        let deadline = Deadline::after(READY);
        for _ in 0..self.threads.len() {
            match self.words.recv_timeout(deadline.remaining()) {
                Ok(Word::Ready) => {}
                Ok(Word::Failed { queue, reason }) => return Err(self.failed(queue, reason)),
                Err(_) => return Err(Error::Hung { command: "FETCH_REQ", device: self.device.name(), waited: READY }),
            }
        }
        Ok(())
    }

    fn failed(&self, queue: u16, reason: String) -> Error {
        Error::Queue { device: self.device.name(), queue, reason }
    }

    /// `/dev/ublkbN`.
    pub fn path(&self) -> PathBuf {
        self.device.path()
    }

    /// N in `/dev/ublkbN`.
    pub fn id(&self) -> u32 {
        self.device.id()
    }

    /// Queues, and so threads.
    pub fn queues(&self) -> usize {
        self.counters.len()
    }

    /// Whether it was not stopped yet.
    pub fn is_running(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Readable once a queue thread has ended: somebody has stopped the device, or [`failure`](Export::failure) says why not.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Why a queue thread has ended, if it was not asked to.
    pub fn failure(&mut self) -> Option<Error> {
        self.words
            .try_iter()
            .find_map(|word| match word {
                Word::Ready => None,
                Word::Failed { queue, reason } => Some((queue, reason)),
            })
            .map(|(queue, reason)| self.failed(queue, reason))
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        Stats::sum(self.counters.iter())
    }

    /// Takes the device away: what is in flight ends first. [`Error::Busy`] if somebody uses it and not `force`; then all is as
    /// before and it can be tried again.
    pub fn stop(&mut self, force: bool) -> Result<(), Error> {
        self.device.stop(force)?;
        self.join()
    }

    fn join(&mut self) -> Result<(), Error> {
        let deadline = Deadline::after(ENDED);
        while !self.threads.iter().all(JoinHandle::is_finished) {
            if deadline.expired() {
                return Err(Error::Hung { command: "the queue threads", device: self.device.name(), waited: ENDED });
            }
            let mut signalled = [0; 8];
            let _ = rustix::io::read(&*self.ended, &mut signalled);
            let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            let _ = poll(&mut [PollFd::new(&*self.ended, PollFlags::IN)], Some(&timeout));
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!(device = self.device.name(), "a queue thread panicked");
            }
        }
        Ok(())
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        if let Err(error) = self.stop(true) {
            tracing::warn!(%error, "an export was left behind");
        }
    }
}

/// Says that a thread has ended, also when it panics.
struct End(Arc<OwnedFd>);

impl Drop for End {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// The life of a queue thread.
fn run(mut start: Start, say: &mpsc::Sender<Word>) -> Result<(), String> {
    affinity::pin(&start.cpus);
    let depth = start.buffers.len() as u16;
    let describe = |error: Error| error.to_string();
    let descriptors = Descriptors::map(&*start.file, start.queue, depth).map_err(describe)?;
    let mut ring = ring::create(depth).map_err(describe)?;
    let ring = Ring::new(&mut ring, &start.file, start.queue, &*start.class, start.encoded).map_err(describe)?;
    let counters = (&start.counters[usize::from(start.queue)], start.started);
    let mut server = Server::new(ring, &mut *start.class, descriptors, start.buffers, start.budget, counters);
    server.offer().map_err(|error| format!("lending its buffers: {error}"))?;
    let _ = say.send(Word::Ready);
    server.run().map_err(|error| error.to_string())
}

fn open_queues(disk: &dyn Disk, options: &Options) -> Result<Vec<Box<dyn Queue>>, Error> {
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get()).min(u16::MAX.into()) as u16;
    let count = options.queues.min(disk.max_queues()).min(cpus).max(1);
    let open = |_| disk.open_queue(options.depth).map_err(|cause| Error::Driver { disk: disk.name(), cause });
    (0..count).map(open).collect()
}

/// Buffers for each queue, one per tag.
fn allocate(disk: &dyn Disk, queues: usize, depth: u16, bytes: u32) -> Result<Vec<Vec<DmaBuffer>>, Error> {
    let one = || disk.dma().arena().alloc_pages(bytes as usize).map_err(|cause| Error::Driver { disk: disk.name(), cause });
    (0..queues).map(|_| (0..depth).map(|_| one()).collect()).collect()
}
