//! The life of a queue's thread.

use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use ring3_class::block::Queue;
use ring3_class::dma::DmaBuffer;
use ring3_reactor::Reactor;
use ring3_stats::{Phase, Recorder};
use ring3_vduse::{Device, Log};

use super::server::VduseQueueServer;
use crate::ublk::orders::Orders;
use crate::ublk::stats::Counters;
use crate::vduse::gate::QueueHandover;

/// What a thread serves.
pub struct Start {
    pub queue: u16,
    pub class: Box<dyn Queue>,
    pub buffers: Vec<DmaBuffer>,
    pub device: Arc<Device>,
    pub gate: Arc<QueueHandover>,
    pub log: Log,
    pub poll: Duration,
    pub started: Instant,
    pub counters: Arc<[Counters]>,
    pub recorder: Recorder,
    pub orders: Arc<Orders>,
    pub report: Report,
}

/// How a thread is heard.
pub struct Report {
    pub queue: u16,
    /// Why it serves no more, and whether the device is gone.
    pub failures: Sender<(u16, String, bool)>,
    /// Raised then, and at its end.
    pub ended: Arc<OwnedFd>,
}

impl Report {
    pub fn failed(&self, reason: String, gone: bool) {
        let _ = self.failures.send((self.queue, reason, gone));
        self.wake();
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.ended, &1u64.to_ne_bytes());
    }
}

/// Serves until it is told to leave. Gives the class queue back, empty, unless it failed.
pub fn run(mut start: Start) -> Option<Box<dyn Queue>> {
    let gate = start.gate.clone();
    let served = catch_unwind(AssertUnwindSafe(|| serve(&mut start)));
    gate.end();
    start.recorder.phase(Phase::Ended);
    let well = match served {
        Ok(Ok(well)) => well,
        Ok(Err(error)) => {
            start.report.failed(error.to_string(), false);
            false
        }
        Err(_) => {
            start.report.failed("its thread panicked: a defect of ring3".into(), false);
            false
        }
    };
    start.report.wake();
    well.then_some(start.class)
}

fn serve(start: &mut Start) -> io::Result<bool> {
    let reactor = Reactor::new(0, start.poll)?;
    start.gate.serve();
    let mut server = VduseQueueServer::new(reactor, start)?;
    // What the driver was about to do is lost with it: it is not asked again, and its users get
    // errors.
    match catch_unwind(AssertUnwindSafe(|| server.run())) {
        Ok(served) => served?,
        Err(_) => {
            server.abandon("the driver panicked: a defect of ring3".into());
            server.run()?;
        }
    }
    Ok(!server.has_failed())
}
