//! A disk that is served: the kernel's device, and a thread for each of its queues.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring3_class::Deadline;
use ring3_class::block::{Completion, Disk, Queue, Request, execute};
use ring3_class::dma::DmaBuffer;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::stats::Counters;
use super::thread::{self as queue_thread, Report, Start, Word};
use super::uapi::{DeviceInfo, Parameters};
use super::{Control, Device, Error, Recovery, Scheduler, Shape, Stats, limits, uapi};

/// How long the queue threads may take to lend their buffers to the kernel.
const READY: Duration = Duration::from_secs(10);

/// How long the queue threads may take to end after the device has stopped.
const ENDED: Duration = Duration::from_secs(30);

/// How long a disk that is taken away stays there to fail the requests of those who have it open. Afterwards it has no size any more,
/// and who reads it then is told that it has ended.
const REFUSED: Duration = Duration::from_secs(5);

/// How often it is looked at whether anybody still has it open.
const LOOK: Duration = Duration::from_millis(50);

/// How long the disk may take to empty its cache: drives that turn need minutes at worst, and drivers give up before.
const FLUSH: Duration = Duration::from_secs(180);

/// How to export a disk.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// N in `/dev/ublkbN`; `None` lets the kernel choose.
    pub id: Option<u32>,
    /// What becomes of the device when this process dies.
    pub recovery: Recovery,
    /// Go on with device `id`, whose server has died. Queues, depth and buffers are those that it has: see [`recovering`](Self::recovering).
    pub recover: bool,
    /// Queues, and so threads; lowered to what the disk has and to the number of CPUs.
    pub queues: u16,
    /// Requests per queue; lowered to what the disk can hold.
    pub depth: u16,
    /// Most bytes per request, and so of each buffer; lowered to what the disk can move at once.
    pub max_bytes: u32,
    /// How long a queue polls before it sleeps; see [`Budget`](ring3_class::wait::Budget).
    pub poll: Duration,
    /// The kernel's I/O scheduler in front of the disk.
    pub scheduler: Scheduler,
}

impl Default for Options {
    fn default() -> Self {
        let (poll, scheduler) = (Duration::from_micros(10), Scheduler::Auto);
        Self { id: None, recovery: Recovery::None, recover: false, queues: 1, depth: 64, max_bytes: 256 << 10, poll, scheduler }
    }
}

impl Options {
    /// The same with what the device has that is to be recovered, if one is.
    pub fn recovering(self) -> Result<Self, Error> {
        let Some(id) = self.id.filter(|_| self.recover) else { return Ok(self) };
        let DeviceInfo { nr_hw_queues, queue_depth, max_io_buf_bytes, .. } = Device::recoverable(&mut Control::open()?, id)?;
        Ok(Self { queues: nr_hw_queues, depth: queue_depth, max_bytes: max_io_buf_bytes, ..self })
    }

    /// Bytes of buffers that an export of these options takes from the arena at most.
    pub fn buffer_bytes(&self) -> usize {
        usize::from(self.queues) * usize::from(self.depth) * self.max_bytes as usize
    }
}

/// A running export. Dropping it takes the device away from whoever uses it.
pub struct Export {
    device: Device,
    disk: String,
    threads: Vec<JoinHandle<Option<Box<dyn Queue>>>>,
    counters: Arc<[Counters]>,
    words: mpsc::Receiver<Word>,
    ended: Arc<OwnedFd>,
    refuse: Arc<OwnedFd>,
    /// When its requests began to fail.
    refused: Option<Instant>,
}

impl Export {
    /// Makes `disk` a block device, with buffers from the arena of the disk's device.
    ///
    /// When this returns, the device exists and its partitions have been looked for.
    pub fn start(disk: &dyn Disk, options: &Options) -> Result<Self, Error> {
        let (started, options) = (Instant::now(), &options.recovering()?);
        let control = Control::open()?;
        let page = rustix::param::page_size() as u32;
        let info = disk.info();
        let buffer = limits::buffer_bytes(info, options.max_bytes, page);
        let parameters = limits::parameters(info, buffer, page).map_err(|reason| Error::Disk { disk: disk.name(), reason })?;
        let mut queues = open_queues(disk, options)?;
        let depth = queues.iter().map(|queue| queue.depth()).min().unwrap_or(1).min(options.depth).min(uapi::MAX_QUEUE_DEPTH);
        let encoded = control.features().encoded;
        let shape = Shape { queues: queues.len() as u16, depth, buffer, recovery: options.recovery };
        let mut device = match options.id.filter(|_| options.recover) {
            Some(id) => recover(control, id, disk, (shape, parameters))?,
            None => create(control, options.id, shape, parameters)?,
        };
        queues.truncate(device.queues().into());
        let buffers = allocate(disk, queues.len(), depth, buffer)?;
        let counters: Arc<[Counters]> = queues.iter().map(|_| Counters::default()).collect();
        let (say, words) = mpsc::channel();
        let (ended, refuse) = (event()?, event()?);
        let mut starts = Vec::new();
        for (queue, (class, buffers)) in (0..).zip(queues.into_iter().zip(buffers)) {
            let Some(file) = device.file() else { break };
            let report = Report { queue, words: say.clone(), ended: ended.clone(), abandoned: device.abandoned() };
            let (cpus, poll) = (device.affinity(queue)?, options.poll);
            let (counters, refuse) = (counters.clone(), refuse.clone());
            starts.push(Start { file, queue, cpus, class, buffers, poll, encoded, started, counters, refuse, report });
        }
        let mut export = Self { device, disk: disk.name(), threads: Vec::new(), counters, words, ended, refuse, refused: None };
        export.serve(starts)?;
        // From here on a recovered device is as one that was created.
        if !export.device.is_owned() {
            export.device.own();
            return Ok(export);
        }
        options.scheduler.set(export.id(), info.rotates);
        Ok(export)
    }

    /// Starts the threads, then the device.
    fn serve(&mut self, starts: Vec<Start>) -> Result<(), Error> {
        for start in starts {
            let name = format!("ublk{}q{}", self.device.id(), start.queue);
            let thread = thread::Builder::new().name(name).spawn(move || queue_thread::run(start));
            self.threads.push(thread.map_err(|source| Error::os("starting a queue thread", source))?);
        }
        self.await_ready()?;
        // Who waits in vain for a queue is told why by that queue.
        self.device.start(std::process::id()).map_err(|error| self.failure().unwrap_or(error))
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

    /// Fails every request from now on, but for those that the disk is at; [`stop`](Export::stop) by force begins with it.
    pub fn refuse(&mut self) {
        if self.refused.is_none() {
            self.refused = Some(Instant::now());
            let _ = rustix::io::write(&*self.refuse, &1u64.to_ne_bytes());
        }
    }

    /// Takes the device away: what is in flight ends first, and then the disk empties its cache. [`Error::Busy`] if somebody uses it
    /// and not `force`; then all is as before and it can be tried again. After any other error it is not there any more, or not
    /// served.
    ///
    /// By force, those who have it open see their requests fail before it goes, because what follows reads as the end of the disk.
    pub fn stop(&mut self, force: bool) -> Result<(), Error> {
        if force {
            self.refuse();
            self.await_users();
        }
        self.device.stop(force)?;
        let flushed = flush(self.join()?);
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        flushed.or_else(|reason| {
            let error = Error::Flush { device: self.device.name(), disk: self.disk.clone(), reason };
            if force {
                tracing::warn!(%error);
                return Ok(());
            }
            Err(error)
        })
    }

    /// Waits until nobody is seen to have the device open, or until those who have it open had their time.
    fn await_users(&self) {
        let since = self.refused.unwrap_or_else(Instant::now);
        while self.device.is_started() && since.elapsed() < REFUSED && self.device.is_used() {
            thread::sleep(LOOK);
        }
    }

    /// The class queues of the threads that have not failed.
    fn join(&mut self) -> Result<Vec<Box<dyn Queue>>, Error> {
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
        Ok(self.threads.drain(..).filter_map(|thread| thread.join().ok().flatten()).collect())
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // A device that could not be recovered is not this process's to stop: it waits for the next.
        if self.threads.is_empty() || !self.device.is_owned() {
            return;
        }
        if let Err(error) = self.stop(true) {
            tracing::warn!(%error, "an export was left behind");
        }
    }
}

/// A new device, whose end is this process's.
fn create(control: Control, id: Option<u32>, shape: Shape, parameters: Parameters) -> Result<Device, Error> {
    let mut device = Device::create(control, id, shape)?;
    device.own();
    device.set_parameters(parameters)?;
    Ok(device)
}

/// Device `id`, if `disk` is what its users take it for.
fn recover(mut control: Control, id: u32, disk: &dyn Disk, (shape, parameters): (Shape, Parameters)) -> Result<Device, Error> {
    let info = Device::recoverable(&mut control, id)?;
    let fits = (shape.queues, shape.depth, shape.buffer) == (info.nr_hw_queues, info.queue_depth, info.max_io_buf_bytes);
    if !fits || !control.parameters(id)?.describe_the_same(parameters) {
        let reason = format!(
            "/dev/ublkb{id} was started with a disk of another size, with other limits or more queues: recover it with that disk"
        );
        return Err(Error::Disk { disk: disk.name(), reason });
    }
    Device::recover(control, id)
}

fn event() -> Result<Arc<OwnedFd>, Error> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    event.map(Arc::new).map_err(|source| Error::os("creating an eventfd for the queue threads", source))
}

/// Makes durable what has been written, by one of `queues`: all their requests have ended.
fn flush(queues: Vec<Box<dyn Queue>>) -> Result<(), String> {
    let Some(mut queue) = queues.into_iter().find(|queue| queue.info().volatile_cache) else { return Ok(()) };
    match execute(&mut *queue, Request::flush(0), Deadline::after(FLUSH)) {
        Ok(Completion { result, .. }) => result.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
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
