//! The life of a queue's thread.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use ring3_class::block::Queue;
use ring3_stats::Phase;

use super::class_queue::QueueServer;
use super::start::Report;
use super::state::Failure;

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
