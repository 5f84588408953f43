//! A disk and its VDUSE device, from the start to the stop.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring3_class::block::{Disk, Queue};
use ring3_spec::virtio::blk;
use ring3_stats::Segment;
use ring3_vduse::{Control, Device, Inflight, Shape, vdpa};

use super::config::Config;
use super::server::Start;
use super::thread as queue_thread;
use crate::serving::{self, ThreadMonitor};
use crate::ublk::export::count;
use crate::ublk::{Error, Options, Queues, Stats, limits, users};
use crate::vduse::devices::{DYING, MARK};
use crate::vduse::gate::QueueHandover;
use crate::vduse::messages::Messages;
use crate::vduse::name;

/// How long the kernel may take to let go of the memory of a server that was killed.
const DEATH: Duration = Duration::from_secs(5);
/// What a device is called that nobody has named, with the first number that is free.
const ANY: &str = "r3disk";
/// How long a disk may take for what it has in flight at the end.
const ENDED: Duration = Duration::from_secs(30);

/// A running export. Dropping it takes the disk away from whoever uses it.
pub struct VduseExport {
    name: String,
    disk: String,
    /// `vda`.
    node: String,
    // Dropped in this order: who answers the kernel, the queues, the device.
    messages: Option<Messages>,
    threads: Vec<JoinHandle<Option<Box<dyn Queue>>>>,
    device: Option<Arc<Device>>,
    log: Inflight,
    monitor: ThreadMonitor,
    refused: Option<Instant>,
}

impl VduseExport {
    /// Makes `disk` a virtio disk by the device `name`, or goes on with that if its server is dead:
    /// with what that had in flight. When this returns, the block device exists and its partitions
    /// have been looked for.
    pub fn start(disk: &dyn Disk, name: Option<&str>, options: &Options) -> Result<Self, Error> {
        let (started, control, name) = (Instant::now(), Control::open()?, name::choose(name, ANY)?);
        let page = rustix::param::page_size() as u32;
        let info = disk.info();
        let buffer = limits::buffer_bytes(info, options.max_bytes, page);
        let parameters = limits::parameters(info, buffer, page)
            .map_err(|reason| Error::Disk { disk: disk.name(), reason })?;
        let mut queues = Queues::open(disk, count(disk, options), options.depth)?;
        // A ring has a power of two of entries, each of which is a request.
        let depth = 1 << queues.depth().min(options.depth).max(2).ilog2();
        queues.allocate(disk, depth, buffer)?;
        let config = Config::new(&parameters, buffer, queues.count());
        let made = !Device::exists(&name);
        let (device, log) = take(&control, &name, (queues.count(), depth), &config)?;
        let served = Self::serve(disk, queues, (name.clone(), device, log), (options, started));
        let mut export = served.inspect_err(|_| {
            // One that was there before is gone on with by whoever comes next.
            if made && control.destroy(&name).is_ok() {
                let _ = std::fs::remove_file(name::log(&name));
            }
        })?;
        if !vdpa::is_attached(&export.name) {
            vdpa::attach(&export.name)?;
        }
        export.node = vdpa::found_as(&export.name, "block").ok_or_else(|| Error::NoVirtio {
            device: format!("/dev/vduse/{}", export.name),
            what: "disk",
            module: "virtio_blk",
        })?;
        options.scheduler.set(&export.node, info.rotates);
        Ok(export)
    }

    /// Starts the threads. The kernel may ask, and the driver of a device that has outlived its
    /// server is served.
    fn serve(
        disk: &dyn Disk,
        queues: Queues,
        (name, device, log): (String, Arc<Device>, Inflight),
        (options, started): (&Options, Instant),
    ) -> Result<Self, Error> {
        let failed = |what: &'static str| move |error: std::io::Error| Error::os(what, error);
        let segment = Segment::create(queues.count())
            .map(Arc::new)
            .map_err(failed("making room for statistics"))?;
        let mut export = Self {
            name,
            disk: disk.name(),
            node: String::new(),
            messages: None,
            threads: Vec::new(),
            device: Some(device.clone()),
            log,
            monitor: ThreadMonitor::new(queues.count().into(), segment, 0)?,
            refused: None,
        };
        let mut gates = Vec::new();
        for (queue, of_queue) in (0..).zip(queues.class.into_iter().zip(queues.buffers)) {
            let gate = Arc::new(QueueHandover::new().map_err(failed("an eventfd"))?);
            gates.push(gate.clone());
            let common = export.monitor.start(&export.disk, queue, of_queue, started)?;
            let Some(log) = export.log.queue(queue) else { break };
            let start = Start { common, device: device.clone(), gate, log, poll: options.poll };
            let thread = thread::Builder::new().name(format!("{}q{queue}", export.name));
            let thread = thread
                .spawn(move || queue_thread::run(start))
                .map_err(failed("starting a queue thread"))?;
            export.threads.push(thread);
        }
        export.messages = Some(Messages::start(device, gates)?);
        Ok(export)
    }

    /// `/dev/vdX`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/{}", self.node))
    }

    /// By which it is gone on with after a death.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Queues, and so threads.
    pub fn queues(&self) -> usize {
        self.monitor.count()
    }

    /// Whether it was not stopped yet.
    pub fn is_running(&self) -> bool {
        self.device.is_some()
    }

    /// Readable once a queue thread has ended, or [`failure`](Self::failure) says why it serves no
    /// more.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.monitor.ended()
    }

    /// Why a queue serves no more.
    pub fn failure(&mut self) -> Option<Error> {
        self.monitor.failure(&self.path().display().to_string())
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        self.monitor.stats()
    }

    /// Fails every request from now on, but for those that the disk is at.
    pub fn refuse(&mut self) {
        if self.refused.is_none() {
            self.refused = Some(Instant::now());
            self.monitor.refuse();
        }
    }

    /// Takes the disk away, and its device; [`Error::Busy`] if somebody uses it and not `force`.
    /// The disk empties its cache.
    pub fn stop(&mut self, force: bool) -> Result<(), Error> {
        if self.device.is_none() {
            return Ok(());
        }
        if force {
            self.refuse();
            serving::await_users(self.refused, || {
                !self.node.is_empty() && users::check(&self.node).is_err()
            });
        } else {
            users::check(&self.node)?;
        }
        // The driver says goodbye to a device that is served.
        vdpa::detach(&self.name)?;
        self.monitor.quiesce(Instant::now() + ENDED);
        let queues: Vec<_> =
            self.threads.drain(..).filter_map(|thread| thread.join().ok().flatten()).collect();
        (self.messages, self.device) = (None, None);
        Control::open()?.destroy(&self.name)?;
        self.log.remove();
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        let device = self.path().display().to_string();
        serving::end_flushed(serving::flush(queues), (device, &self.disk), force)
    }
}

impl Drop for VduseExport {
    fn drop(&mut self) {
        if let Err(error) = self.stop(true) {
            tracing::warn!(
                %error,
                "a VDUSE device was left behind: whoever is started with its name goes on with it"
            );
        }
    }
}

/// The device, open, and the log of what is in flight: new ones, or those of a server that is dead.
fn take(
    control: &Control,
    name: &str,
    (queues, depth): (u16, u16),
    config: &Config,
) -> Result<(Arc<Device>, Inflight), Error> {
    let (path, shape) = (name::log(name), (queues, depth));
    let identity = [&config.features.to_le_bytes()[..], &config.bytes].concat();
    if Device::exists(name) {
        let device = Device::open(name, DEATH)?;
        return Ok((Arc::new(device), Inflight::open(&path, shape, &identity)?));
    }
    let (features, config) = (config.features, &config.bytes[..]);
    control.create(&Shape {
        name,
        kind: blk::TYPE.into(),
        vendor: MARK,
        features,
        queues: queues.into(),
        config,
    })?;
    let opened = Device::open(name, DYING).and_then(|device| {
        (0..queues).try_for_each(|queue| device.set_up(queue, depth))?;
        // Only who has the device open makes its log: another start of the same name would take it
        // from under this one.
        let log = Inflight::create(&path, shape, &identity)?;
        Ok((Arc::new(device), log))
    });
    Ok(opened.inspect_err(|_| drop(control.destroy(name)))?)
}
