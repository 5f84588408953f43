//! The life of a queue thread.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use ring3_class::block::Queue;
use ring3_class::dma::DmaBuffer;
use ring3_reactor::Pool;
use ring3_stats::{Phase, Recorder};

use super::descriptors::Descriptors;
use super::features::Commands;
use super::idle::{self, IdlePoll};
use super::orders::Orders;
use super::ring::Ring;
use super::server::{QueueReporting, UblkQueueServer};
use super::stats::Counters;
use super::{Error, OnFailure, Regions, affinity};

/// What a queue thread says.
pub enum ThreadEvent {
    /// All its buffers are lent to the kernel.
    Ready,
    /// Its requests fail from now on, or wait for the next server, and why.
    Failed(Failure),
}

/// Why a queue serves no more.
pub struct Failure {
    /// Which queue.
    pub queue: u16,
    /// Why.
    pub reason: String,
    /// The device is gone.
    pub gone: bool,
}

/// The disk's side of a queue.
pub struct Start {
    /// The queue's number.
    pub queue: u16,
    /// Who does the requests.
    pub class: Box<dyn Queue>,
    /// One for each tag.
    pub buffers: Vec<DmaBuffer>,
    /// Clients' memory that requests may lie in.
    pub regions: Option<Arc<Regions>>,
    /// How long it polls before it sleeps.
    pub poll: Duration,
    /// How long it looks for the next request before it sleeps.
    pub idle_poll: Duration,
    /// What becomes of requests if the driver fails.
    pub on_failure: OnFailure,
    /// When the export began to start.
    pub started: Instant,
    /// Of all queues.
    pub counters: Arc<[Counters]>,
    /// Of this one.
    pub recorder: Recorder,
    /// What it is told.
    pub orders: Arc<Orders>,
    /// Where it has its ring from.
    pub rings: Pool,
    /// To whom it speaks.
    pub report: Report,
}

/// The kernel's side of a queue.
pub struct Kernel {
    /// `/dev/ublkcN`.
    pub file: Arc<File>,
    /// N.
    pub id: u32,
    /// The CPUs that submit to the queue.
    pub cpus: Vec<usize>,
    /// How the kernel is told of requests.
    pub commands: Commands,
}

/// How a queue thread is heard.
#[derive(Clone)]
pub struct Report {
    /// The queue's number.
    pub queue: u16,
    /// What it has to say.
    pub words: Sender<ThreadEvent>,
    /// Readable when it has failed or ended.
    pub ended: Arc<OwnedFd>,
    /// Set when it has ended before its device.
    pub abandoned: Arc<AtomicBool>,
}

impl Report {
    /// It serves no more.
    pub fn failed(&self, reason: String, gone: bool) {
        let _ = self.words.send(ThreadEvent::Failed(Failure { queue: self.queue, reason, gone }));
        self.wake();
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.ended, &1u64.to_ne_bytes());
    }
}

/// Waits for the kernel's side, and serves the queue until its device stops or it is told to leave.
/// Gives the class queue back, empty, unless it failed.
pub fn run(start: Start, kernel: Receiver<Kernel>) -> Option<Box<dyn Queue>> {
    let report = start.report.clone();
    let served = catch_unwind(AssertUnwindSafe(|| serve(start, &kernel)));
    let served =
        served.unwrap_or_else(|_| Err(("its thread panicked: a defect of ring3".into(), false)));
    let class = served.unwrap_or_else(|(reason, gone)| {
        report.abandoned.store(true, Ordering::Release);
        report.failed(reason, gone);
        None
    });
    report.wake();
    class
}

/// Why it ended, and whether the device is gone.
type Ended = (String, bool);

fn serve(start: Start, kernel: &Receiver<Kernel>) -> Result<Option<Box<dyn Queue>>, Ended> {
    let Start { queue, mut class, buffers, regions, report, recorder, .. } = start;
    let describe = |error: Error| (error.to_string(), false);
    let depth = buffers.len() as u16;
    // Nobody has come: the queue is given back as it is.
    let Ok(Kernel { file, id, cpus, commands }) = kernel.recv() else { return Ok(Some(class)) };
    let reactor = start.rings.reactor(depth.into(), start.poll);
    let reactor = reactor.map_err(|error| (format!("creating its io_uring: {error}"), false))?;
    name(id, queue);
    let idle_poll = idle::allowed(start.idle_poll, (queue, start.counters.len()), &cpus);
    affinity::pin(&cpus);
    let descriptors = Descriptors::map(&*file, queue, depth).map_err(describe)?;
    let ring = Ring::new(reactor, (file, queue), depth, commands);
    let ring = ring.map_err(|error| (format!("lending memory to its io_uring: {error}"), false))?;
    let counters = &start.counters[usize::from(queue)];
    let account =
        QueueReporting { counters, recorder: &recorder, started: start.started, report: &report };
    let server = UblkQueueServer::new(
        ring,
        &mut *class,
        (descriptors, buffers),
        &start.orders,
        start.on_failure,
        account,
    );
    let mut server = server.map_err(|error| (format!("watching its interrupt: {error}"), false))?;
    if let Some(regions) = regions {
        server.share(regions);
    }
    server.poll_when_idle(IdlePoll::of_this_thread(idle_poll));
    server.offer().map_err(|error| (format!("lending its buffers: {error}"), false))?;
    let _ = report.words.send(ThreadEvent::Ready);
    let served = to_the_end(&mut server);
    recorder.phase(Phase::Ended);
    let (failed, gone) = (server.has_failed(), server.has_lost_device());
    if let Err(error) = served {
        if start.on_failure == OnFailure::Keep {
            // The process ends now, and the device is fenced: nothing here tells it anything more.
            drop(server);
            std::mem::forget(class);
        }
        return Err((error.to_string(), gone));
    }
    drop(server);
    Ok((!failed).then_some(class))
}

/// By which an administrator sees whose thread it is. Only for show.
fn name(id: u32, queue: u16) {
    if let Ok(name) = std::ffi::CString::new(format!("ublk{id}q{queue}")) {
        let _ = rustix::thread::set_name(&name);
    }
}

/// Serves until the device stops. If the driver panics, the kernel still gets an end of each
/// request, or the next server gets them.
fn to_the_end(server: &mut UblkQueueServer<'_>) -> io::Result<()> {
    // What the driver was about to do is lost with it: it is not asked again.
    match catch_unwind(AssertUnwindSafe(|| server.run())) {
        Ok(served) => served,
        Err(_) => server
            .abandon("the driver panicked: a defect of ring3".into())
            .and_then(|()| server.run()),
    }
}
