//! What the tests of the IDE driver on simulated controllers share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::time::{Duration, Instant};

use ring3_backend::sim::ide::{IdeHandle, SimIde};
use ring3_backend::{OpenOptions, Uri, sim};
use ring3_class::block::{Completion, Data, Disk, IoError, Queue, Request};
use ring3_device::dma::DmaBuffer;
use ring3_device::{Deadline, Error};
use ring3_driver::ata::Options;
use ring3_driver::ata::ide::{Controller, Drive};

/// Commands time out after this in the tests that wait for it.
pub const TIMEOUT: Duration = Duration::from_millis(160);
/// Resets time out after this.
pub const READY: Duration = Duration::from_millis(100);
/// Nothing that ends takes longer; generous, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A controller with the other side of its device.
pub struct Bench {
    pub controller: Controller<SimIde>,
    pub handle: IdeHandle,
}

/// Opens `uri` (what follows `sim:ide`) with the default options but short time-outs.
pub fn bench(uri: &str) -> Bench {
    bench_with(uri, short())
}

/// Options with the short time-outs.
pub fn short() -> Options {
    Options { timeout: TIMEOUT, ready_timeout: READY, ..Options::default() }
}

pub fn bench_with(uri: &str, options: Options) -> Bench {
    try_bench(uri, options).unwrap()
}

pub fn try_bench(uri: &str, options: Options) -> Result<Bench, Error> {
    let device = device(uri);
    let handle = device.handle();
    Controller::open(device, options).map(|controller| Bench { controller, handle })
}

pub fn device(uri: &str) -> SimIde {
    let uri: Uri = format!("sim:ide{uri}").parse().unwrap();
    let options = OpenOptions { arena: 16 << 20, below: 1 << 32, ..OpenOptions::default() };
    sim::ide::open(&uri, options).unwrap()
}

impl Bench {
    /// Drive `index` of those that were found.
    pub fn drive(&self, index: usize) -> &Drive<SimIde> {
        &self.controller.drives()[index]
    }

    /// A queue of the first drive.
    pub fn queue(&self, depth: u16) -> Box<dyn Queue> {
        self.drive(0).open_queue(depth).unwrap()
    }

    pub fn buffer(&self, len: usize) -> DmaBuffer {
        self.drive(0).dma().arena().alloc_pages(len).unwrap()
    }

    pub fn filled(&self, len: usize, byte: u8) -> DmaBuffer {
        let buffer = self.buffer(len);
        buffer.fill(byte);
        buffer
    }

    /// Bytes of DMA memory that are free.
    pub fn free(&self) -> usize {
        self.drive(0).dma().arena().free_bytes()
    }

    /// The driver has broken no rule.
    pub fn well_behaved(&self) {
        assert_eq!(self.handle.complaints(), Vec::<String>::new());
    }
}

/// What a queue did until all of its requests had ended.
#[derive(Default)]
pub struct Outcome {
    pub completions: Vec<Completion>,
    /// Errors of `reap` and `tick`.
    pub errors: Vec<Error>,
    pub took: Duration,
}

impl Outcome {
    /// How the request `token` ended; it must have ended exactly once.
    pub fn of(&self, token: u64) -> Result<(), IoError> {
        let mut ends = self.completions.iter().filter(|completion| completion.token == token);
        let end = ends.next().expect("the request ended").result;
        assert!(ends.next().is_none(), "request {token} ended twice");
        end
    }
}

/// Rings, waits, reaps and ticks, as an owner of a queue does, until nothing is in flight.
pub fn finish(queue: &mut dyn Queue) -> Outcome {
    let start = Instant::now();
    let mut outcome = Outcome::default();
    queue.ring();
    while queue.in_flight() > 0 {
        assert!(start.elapsed() < PATIENCE, "{} requests never ended", queue.in_flight());
        if let Err(error) = queue.wait(Deadline::after(TIMEOUT / 16)) {
            outcome.errors.push(error);
        }
        reap_all(queue, &mut outcome);
        if queue.in_flight() > 0
            && let Err(error) = queue.tick(Instant::now())
        {
            outcome.errors.push(error);
        }
    }
    outcome.took = start.elapsed();
    outcome
}

/// Reaps what there is.
pub fn reap_all(queue: &mut dyn Queue, outcome: &mut Outcome) {
    loop {
        match queue.reap() {
            Ok(Some(completion)) => outcome.completions.push(completion),
            Ok(None) => return,
            Err(error) => outcome.errors.push(error),
        }
    }
}

/// Submits one request and sees it to its end.
pub fn execute(queue: &mut dyn Queue, request: Request) -> (Result<(), IoError>, Data) {
    let token = request.token;
    queue.submit(request).unwrap();
    let mut outcome = finish(queue);
    let end = outcome.of(token);
    (end, outcome.completions.remove(0).data)
}

/// Submits one request, which must succeed; returns its data.
pub fn succeed(queue: &mut dyn Queue, request: Request) -> Data {
    let (end, data) = execute(queue, request);
    assert_eq!(end, Ok(()));
    data
}

/// The bytes of a request's buffer.
pub fn bytes(data: Data) -> Vec<u8> {
    let buffer = data.into_buffer().expect("the buffer comes back");
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes).unwrap();
    bytes
}
