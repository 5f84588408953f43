//! The life of a queue's thread, and what it tells its owner.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

use ring3_class::block::Queue;
use ring3_class::dma::DmaBuffer;
use ring3_stats::{Phase, Recorder};

use super::class_queue::QueueServer;
use super::command::CommandChannel;
use super::state::Failure;
use super::stats::Counters;

/// The driver's side of a queue, for its thread.
pub struct ThreadStart {
    /// The queue's number.
    pub queue: u16,
    /// Passes requests to the driver.
    pub class: Box<dyn Queue>,
    /// One for each request that can be in flight.
    pub buffers: Vec<DmaBuffer>,
    /// When the export began to start, for the time to the first request.
    pub started: Instant,
    /// Of all queues.
    pub counters: Arc<[Counters]>,
    /// Of this one, for those who watch the process.
    pub recorder: Recorder,
    pub commands: Arc<CommandChannel>,
    pub report: Report,
}

/// What a queue's thread says.
pub enum ThreadEvent {
    /// All its buffers are lent to the kernel.
    Ready,
    /// Its requests fail from now on, or wait for the next server, and why.
    Failed(QueueFailure),
}

/// Why a queue serves no more.
pub struct QueueFailure {
    /// Which queue.
    pub queue: u16,
    /// Why.
    pub reason: String,
    /// What became of its driver.
    pub failure: Failure,
}

/// How a queue's thread tells its owner.
#[derive(Clone)]
pub struct Report {
    /// The queue's number.
    pub queue: u16,
    pub events: Sender<ThreadEvent>,
    /// Readable when the queue has failed or the thread has ended.
    pub ended: Arc<OwnedFd>,
    /// Set when the thread has ended before its device.
    pub abandoned: Arc<AtomicBool>,
}

impl Report {
    /// All its buffers are lent to the kernel.
    pub fn ready(&self) {
        let _ = self.events.send(ThreadEvent::Ready);
    }

    /// It serves no more.
    pub fn failed(&self, reason: String, failure: Failure) {
        let event = QueueFailure { queue: self.queue, reason, failure };
        let _ = self.events.send(ThreadEvent::Failed(event));
        self.wake();
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.ended, &1u64.to_ne_bytes());
    }
}

/// A queue's thread, which `serve`s. Gives the class queue back, empty, unless that has failed.
pub fn run(
    report: &Report,
    serve: impl FnOnce() -> Result<Option<Box<dyn Queue>>, (String, Failure)>,
) -> Option<Box<dyn Queue>> {
    let served = catch_unwind(AssertUnwindSafe(serve));
    let served = served
        .unwrap_or_else(|_| Err(("its thread panicked: a defect of ring3".into(), Failure::Fatal)));
    let class = served.unwrap_or_else(|(reason, failure)| {
        report.abandoned.store(true, Ordering::Release);
        report.failed(reason, failure);
        None
    });
    report.wake();
    class
}

/// Runs `server`. If the driver panics, what it was about to do is lost with it: it is not called
/// again, and the kernel still gets an end of each request, or the next server gets them.
pub fn run_to_end<'a>(server: &mut impl QueueServer<'a>) -> io::Result<()> {
    let served = match catch_unwind(AssertUnwindSafe(|| server.run())) {
        Ok(served) => served,
        Err(_) => server
            .abandon("the driver panicked: a defect of ring3".into())
            .and_then(|()| server.run()),
    };
    server.class().recorder.phase(Phase::Ended);
    served
}
