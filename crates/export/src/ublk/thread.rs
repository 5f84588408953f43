//! The life of a queue thread.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use ring3_class::block::Queue;
use ring3_class::dma::DmaBuffer;

use super::descriptors::Descriptors;
use super::ring::Ring;
use super::server::{Account, Server};
use super::stats::Counters;
use super::{Error, affinity};

/// What a queue thread says.
pub enum Word {
    /// All its buffers are lent to the kernel.
    Ready,
    /// Its requests fail from now on, and why.
    Failed {
        /// Which queue.
        queue: u16,
        /// Why.
        reason: String,
    },
}

/// What a queue thread starts with.
pub struct Start {
    /// `/dev/ublkcN`.
    pub file: Arc<File>,
    /// The queue's number.
    pub queue: u16,
    /// The CPUs that submit to it.
    pub cpus: Vec<usize>,
    /// Who does the requests.
    pub class: Box<dyn Queue>,
    /// One for each tag.
    pub buffers: Vec<DmaBuffer>,
    /// How long it polls before it sleeps.
    pub poll: Duration,
    /// [`super::features::Features::encoded`].
    pub encoded: bool,
    /// When the export began to start.
    pub started: Instant,
    /// Of all queues.
    pub counters: Arc<[Counters]>,
    /// Readable when every request is to fail from now on.
    pub refuse: Arc<OwnedFd>,
    /// To whom it speaks.
    pub report: Report,
}

/// How a queue thread is heard.
#[derive(Clone)]
pub struct Report {
    /// The queue's number.
    pub queue: u16,
    /// What it has to say.
    pub words: Sender<Word>,
    /// Readable when it has failed or ended.
    pub ended: Arc<OwnedFd>,
    /// Set when it has ended before its device.
    pub abandoned: Arc<AtomicBool>,
}

impl Report {
    /// Requests fail from now on.
    pub fn failed(&self, reason: String) {
        let _ = self.words.send(Word::Failed { queue: self.queue, reason });
        self.wake();
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.ended, &1u64.to_ne_bytes());
    }
}

/// Serves the queue until its device stops. Gives the class queue back, empty, unless it failed.
pub fn run(start: Start) -> Option<Box<dyn Queue>> {
    let report = start.report.clone();
    let served = catch_unwind(AssertUnwindSafe(|| serve(start)));
    let served = served.unwrap_or_else(|_| Err("its thread panicked: a defect of ring3".into()));
    let class = served.unwrap_or_else(|reason| {
        report.abandoned.store(true, Ordering::Release);
        report.failed(reason);
        None
    });
    report.wake();
    class
}

fn serve(mut start: Start) -> Result<Option<Box<dyn Queue>>, String> {
    affinity::pin(&start.cpus);
    let depth = start.buffers.len() as u16;
    let describe = |error: Error| error.to_string();
    let descriptors = Descriptors::map(&*start.file, start.queue, depth).map_err(describe)?;
    let ring = Ring::new((&start.file, start.queue), depth, start.poll, start.encoded).map_err(describe)?;
    let account = Account { counters: &start.counters[usize::from(start.queue)], started: start.started, report: &start.report };
    let server = Server::new(ring, &mut *start.class, descriptors, start.buffers, start.refuse.as_fd(), account);
    let mut server = server.map_err(|error| format!("watching its interrupt: {error}"))?;
    server.offer().map_err(|error| format!("lending its buffers: {error}"))?;
    let _ = start.report.words.send(Word::Ready);
    to_the_end(&mut server).map_err(|error| error.to_string())?;
    let failed = server.has_failed();
    drop(server);
    Ok((!failed).then_some(start.class))
}

/// Serves until the device stops. If the driver panics, the kernel still gets an end of each request.
fn to_the_end(server: &mut Server<'_>) -> io::Result<()> {
    // What the driver was about to do is lost with it: it is not asked again.
    match catch_unwind(AssertUnwindSafe(|| server.run())) {
        Ok(served) => served,
        Err(_) => server.abandon("the driver panicked: a defect of ring3".into()).and_then(|()| server.run()),
    }
}
