//! The life of a queue's thread.

use ring3_class::block::Queue;
use ring3_reactor::Reactor;

use super::server::{Start, VduseQueueServer};
use crate::serving::{self, Failure, QueueServer};

/// Serves until it is told to quiesce. Gives the class queue back, empty, unless it failed.
pub fn run(start: Start) -> Option<Box<dyn Queue>> {
    let report = start.common.report.clone();
    serving::run(&report, || serve(start).map_err(|error| (error.to_string(), Failure::Fatal)))
}

fn serve(mut start: Start) -> std::io::Result<Option<Box<dyn Queue>>> {
    let gate = start.gate.clone();
    let reactor = Reactor::new(0, start.poll)?;
    // Ends before the class queue is dropped, however this ends.
    let _served = gate.serve();
    let mut server = VduseQueueServer::new(reactor, &mut start)?;
    serving::run_to_end(&mut server)?;
    let failed = server.class().state().failure().is_some();
    drop(server);
    Ok((!failed).then_some(start.common.class))
}
