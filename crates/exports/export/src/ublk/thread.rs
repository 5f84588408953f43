//! The thread of a queue: the kernel's side of it, and its server.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use ring3_class::block::Queue;
use ring3_reactor::Pool;

use super::descriptors::Descriptors;
use super::features::Commands;
use super::idle::{self, IdlePoll};
use super::ring::Ring;
use super::server::UblkQueueServer;
use super::{Error, OnFailure, Regions, affinity};
use crate::serving::{self, ClassQueue, Failure, QueueServer, Report, ThreadStart};

/// The disk's side of a queue.
pub struct Start {
    /// What it shares with queues of other exports.
    pub common: ThreadStart,
    /// Clients' memory that requests may lie in.
    pub regions: Option<Arc<Regions>>,
    /// How long it polls before it sleeps.
    pub poll: Duration,
    /// How long it looks for the next request before it sleeps.
    pub idle_poll: Duration,
    /// What becomes of requests if the driver fails.
    pub on_failure: OnFailure,
    /// Where it has its ring from.
    pub rings: Pool,
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

/// Waits for the kernel's side, and serves the queue until its device stops or it is quiesced.
/// Gives the class queue back, empty, unless it failed.
pub fn run(start: Start, kernel: Receiver<Kernel>) -> Option<Box<dyn Queue>> {
    let report = start.common.report.clone();
    serving::run(&report, || serve(start, &kernel, &report))
}

fn serve(
    start: Start,
    kernel: &Receiver<Kernel>,
    report: &Report,
) -> Result<Option<Box<dyn Queue>>, (String, Failure)> {
    let Start { mut common, regions, poll, idle_poll, on_failure, rings } = start;
    let failed = |what| move |error: io::Error| (format!("{what}: {error}"), Failure::Fatal);
    let describe = |error: Error| (error.to_string(), Failure::Fatal);
    let (queue, buffers) = (common.queue, std::mem::take(&mut common.buffers));
    let depth = buffers.len() as u16;
    // Nobody has come: the queue is given back as it is.
    let Ok(Kernel { file, id, cpus, commands }) = kernel.recv() else {
        return Ok(Some(common.class));
    };
    let reactor = rings.reactor(depth.into(), poll).map_err(failed("creating its io_uring"))?;
    name(id, queue);
    let idle_poll = idle::allowed(idle_poll, (queue, common.counters.len()), &cpus);
    affinity::pin(&cpus);
    let descriptors = Descriptors::map(&*file, queue, depth).map_err(describe)?;
    let mut ring = Ring::new(reactor, (file, queue), depth, commands)
        .map_err(failed("lending memory to its io_uring"))?;
    let class = ClassQueue::new(&mut ring.reactor, &mut common, depth, on_failure)
        .map_err(failed("watching its interrupt"))?;
    let idle = IdlePoll::of_this_thread(idle_poll);
    let mut server = UblkQueueServer::new(ring, class, (descriptors, buffers), idle);
    if let Some(regions) = regions {
        server.share(regions);
    }
    server.offer().map_err(failed("lending its buffers"))?;
    report.ready();
    let served = serving::run_to_end(&mut server);
    let failure = server.class().state().failure();
    if let Err(error) = served {
        if on_failure == OnFailure::Keep {
            // The process ends now, and the device is fenced: nothing here tells it anything more.
            drop(server);
            std::mem::forget(common.class);
        }
        return Err((error.to_string(), failure.unwrap_or(Failure::Fatal)));
    }
    drop(server);
    Ok(failure.is_none().then_some(common.class))
}

/// By which an administrator sees whose thread it is. Only for show.
fn name(id: u32, queue: u16) {
    if let Ok(name) = std::ffi::CString::new(format!("ublk{id}q{queue}")) {
        let _ = rustix::thread::set_name(&name);
    }
}
