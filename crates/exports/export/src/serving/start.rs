//! What a queue's thread starts with, and how it tells its owner what has become of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use std::time::Instant;

use ring3_class::block::Queue;
use ring3_class::dma::DmaBuffer;
use ring3_stats::Recorder;

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

    /// The thread has failed or ended.
    pub fn wake(&self) {
        let _ = rustix::io::write(&*self.ended, &1u64.to_ne_bytes());
    }
}
