//! A disk that is served: the kernel's device, and a thread for each of its queues.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ring3_class::block::Disk;
use ring3_reactor::Pool;
use ring3_stats::Segment;

use super::threads::{Layout, QueueThreadOptions, Threads};
use super::{Control, Device, Error, OnFailure, Queues, Recovery, Scheduler, Shape, Stats, limits};
use crate::serving;

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
    /// How long a queue looks for the next request before it sleeps, where a processor is spare for
    /// that; zero does not.
    pub idle_poll: Duration,
    /// The kernel's I/O scheduler in front of the disk.
    pub scheduler: Scheduler,
    /// Commands are for many requests at once, where the kernel can; see [`Device::commands`].
    pub batches: bool,
}

impl Default for Options {
    fn default() -> Self {
        let (poll, scheduler) = (Duration::from_micros(10), Scheduler::Auto);
        Self {
            id: None,
            queues: 1,
            depth: 64,
            max_bytes: 256 << 10,
            poll,
            idle_poll: Duration::ZERO,
            scheduler,
            batches: false,
        }
    }
}

impl Options {
    /// Bytes of buffers that an export of these options takes from the arena at most.
    pub fn buffer_bytes(&self) -> usize {
        usize::from(self.queues) * usize::from(self.depth) * self.max_bytes as usize
    }

    /// Bytes of the arena for exports of so many `disks` with these options: buffers, and for each
    /// queue its rings (at most 160 bytes a request) and a page of addresses a request; then what
    /// the administration needs, generously. A driver that needs more maps it itself.
    pub fn arena_bytes(&self, disks: usize) -> usize {
        let of_a_queue = usize::from(self.depth) * (4096 + 160) + (64 << 10);
        disks * (self.buffer_bytes() + usize::from(self.queues) * of_a_queue) + (1 << 20)
    }
}

/// A running export: both halves in one process. Dropping it takes the device away from whoever
/// uses it.
pub struct UblkExport {
    device: Device,
    disk: String,
    threads: Threads,
    /// When its requests began to fail.
    refused: Option<Instant>,
}

impl UblkExport {
    /// Makes `disk` a block device, with buffers from the arena of the disk's device.
    ///
    /// When this returns, the device exists and its partitions have been looked for.
    pub fn start(disk: &dyn Disk, options: &Options) -> Result<Self, Error> {
        let started = Instant::now();
        let control = Control::open()?;
        let page = rustix::param::page_size() as u32;
        let info = disk.info();
        let buffer = limits::buffer_bytes(info, options.max_bytes, page);
        let parameters = limits::parameters(info, buffer, page)
            .map_err(|reason| Error::Disk { disk: disk.name(), reason })?;
        let mut queues = Queues::open(disk, count(disk, options), options.depth)?;
        let depth = queues.depth().min(options.depth);
        // The kernel refuses batches of one, and there is nothing to gather.
        let batches = options.batches && depth > 1;
        let shape = Shape {
            queues: queues.count(),
            depth,
            buffer,
            recovery: Recovery::None,
            shared_memory: false,
            batches,
        };
        let mut device = Device::create(control, options.id, shape)?;
        device.own();
        device.set_parameters(parameters)?;
        queues.truncate(device.queues());
        queues.allocate(disk, depth, buffer)?;
        let segment = Segment::create(queues.count())
            .map_err(|source| Error::os("making room for statistics", source))?;
        let segment = Arc::new(segment);
        let manner = QueueThreadOptions {
            segment,
            first: 0,
            poll: options.poll,
            idle_poll: options.idle_poll,
            on_failure: OnFailure::Refuse,
            started,
            rings: Pool::default(),
        };
        let threads = Threads::prepare(queues, &manner)?;
        let mut export = Self { device, disk: disk.name(), threads, refused: None };
        export.serve()?;
        options.scheduler.set(&format!("ublkb{}", export.id()), info.rotates);
        Ok(export)
    }

    /// Tells the threads the kernel's side, then starts the device.
    fn serve(&mut self) -> Result<(), Error> {
        let Self { device, threads, .. } = self;
        device.served_by(threads.abandoned());
        let cpus =
            (0..device.queues()).map(|queue| device.affinity(queue)).collect::<Result<_, _>>()?;
        let layout = Layout { id: device.id(), cpus, commands: device.commands() };
        if let Some(file) = device.file() {
            threads.serve(file, layout)?;
        }
        // Who waits in vain for a queue is told why by that queue.
        device.start(std::process::id()).map_err(|error| threads.failure().unwrap_or(error))
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
        self.threads.count()
    }

    /// Whether it was not stopped yet.
    pub fn is_running(&self) -> bool {
        self.threads.is_running()
    }

    /// Readable once a queue thread has ended: somebody has stopped the device, or
    /// [`failure`](UblkExport::failure) says why not.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.threads.ended()
    }

    /// Why a queue thread has ended, if it was not asked to.
    pub fn failure(&mut self) -> Option<Error> {
        self.threads.failure()
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        self.threads.stats()
    }

    /// Fails every request from now on, but for those that the disk is at;
    /// [`stop`](UblkExport::stop) by force begins with it.
    pub fn refuse(&mut self) {
        if self.refused.is_none() {
            self.refused = Some(Instant::now());
            self.threads.refuse();
        }
    }

    /// Takes the device away: what is in flight ends first, and then the disk empties its cache.
    /// [`Error::Busy`] if somebody uses it and not `force`; then all is as before and it can be
    /// tried again. After any other error it is not there any more, or not served.
    ///
    /// By force, those who have it open see their requests fail before it goes, because what
    /// follows reads as the end of the disk.
    pub fn stop(&mut self, force: bool) -> Result<(), Error> {
        if force {
            self.refuse();
            serving::await_users(self.refused, || {
                self.device.is_started() && self.device.is_used()
            });
        }
        self.device.stop(force)?;
        let flushed = serving::flush(self.threads.join()?);
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        serving::end_flushed(flushed, (self.device.name(), &self.disk), force)
    }
}

impl Drop for UblkExport {
    fn drop(&mut self) {
        if !self.threads.is_running() {
            return;
        }
        if let Err(error) = self.stop(true) {
            tracing::warn!(%error, "an export was left behind");
        }
    }
}

/// Queues that are worth their thread.
pub(crate) fn count(disk: &dyn Disk, options: &Options) -> u16 {
    let cpus =
        thread::available_parallelism().map_or(1, |cpus| cpus.get()).min(u16::MAX.into()) as u16;
    options.queues.min(disk.max_queues()).min(cpus).max(1)
}
