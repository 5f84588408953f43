//! What the tests of the AHCI driver on simulated controllers share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::time::{Duration, Instant};

use ring3_backend::sim::ahci::{AhciHandle, SimAhci};
use ring3_backend::{OpenOptions, Uri, sim};
use ring3_class::block::{Completion, Data, Disk, IoError, Queue, Request};
use ring3_device::dma::DmaBuffer;
use ring3_device::{Deadline, Error};
use ring3_driver::ata::Options;
use ring3_driver::ata::ahci::{Controller, Drive};

/// Requests time out after this in the tests that wait for it.
pub const TIMEOUT: Duration = Duration::from_millis(80);
/// A drive that was reset is waited for this long.
pub const READY: Duration = Duration::from_millis(100);
/// Nothing that ends takes longer; generous, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A controller with the other side of its device. Whatever a test does, the driver may break no rule of the specification.
pub struct Bench {
    pub controller: Controller<SimAhci>,
    pub handle: AhciHandle,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let complaints = self.handle.complaints();
        assert!(complaints.is_empty() || std::thread::panicking(), "{complaints:#?}");
    }
}

/// Opens `uri` (what follows `sim:ahci`) with the default options but short time-outs.
pub fn bench(uri: &str) -> Bench {
    bench_with(uri, short())
}

/// Options with short time-outs.
pub fn short() -> Options {
    Options { timeout: TIMEOUT, ready_timeout: READY, ..Options::default() }
}

pub fn bench_with(uri: &str, options: Options) -> Bench {
    try_bench(uri, options).unwrap()
}

pub fn try_bench(uri: &str, options: Options) -> Result<Bench, Error> {
    let uri: Uri = format!("sim:ahci{uri}").parse().unwrap();
    let device = sim::ahci::open(&uri, OpenOptions::default()).unwrap();
    let handle = device.handle();
    Controller::open(device, options).map(|controller| Bench { controller, handle })
}

impl Bench {
    pub fn disk(&self) -> &Drive<SimAhci> {
        &self.controller.drives()[0]
    }

    pub fn queue(&self, depth: u16) -> Box<dyn Queue> {
        self.disk().open_queue(depth).unwrap()
    }

    pub fn buffer(&self, len: usize) -> DmaBuffer {
        self.disk().dma().arena().alloc_pages(len).unwrap()
    }

    pub fn filled(&self, len: usize, byte: u8) -> DmaBuffer {
        let buffer = self.buffer(len);
        buffer.fill(byte);
        buffer
    }

    /// A read of block `token`.
    pub fn read(&self, token: u64) -> Request {
        Request::read(token, token, 1, self.buffer(512))
    }

    /// Bytes of DMA memory that are free.
    pub fn free(&self) -> usize {
        self.disk().dma().arena().free_bytes()
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
        if let Err(error) = queue.tick(Instant::now()) {
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
    assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
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
