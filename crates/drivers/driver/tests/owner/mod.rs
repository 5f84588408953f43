//! What the owner of a queue does with it, in the tests of every driver.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::time::{Duration, Instant};

use ring3_class::block::{Completion, Data, IoError, Queue, Request};
use ring3_device::{Deadline, Error};

/// Nothing that ends takes longer; generous, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long a wait lasts before the queue is ticked: a small part of every time-out in the tests.
const TICK: Duration = Duration::from_millis(5);

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
        if let Err(error) = queue.wait(Deadline::after(TICK)) {
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
        match queue.reap_one() {
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
