//! QEMU's disk controllers, as the tests of their drivers use them.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_backend::OpenOptions;
use ring3_backend::qtest::{self, Qtest};
use ring3_class::block::{Disk, IoError, Queue, Request, execute};
use ring3_device::{Deadline, Device};
use ring3_spec::pci;

/// Nothing that ends takes longer.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The device at `uri`, whose memory lies where every controller reaches it.
pub fn device(uri: &str) -> Arc<Qtest> {
    let options = OpenOptions { arena: 16 << 20, below: 1 << 32, ..OpenOptions::default() };
    Arc::new(qtest::open(&uri.parse().unwrap(), options).unwrap_or_else(|error| panic!("{error}")))
}

/// A read of `blocks` from `lba` on, with that as its token.
pub fn read(disk: &dyn Disk, lba: u64, blocks: u32) -> Request {
    let len = (blocks * disk.info().block_size) as usize;
    Request::read(lba, lba, blocks, disk.dma().arena().alloc_pages(len).unwrap())
}

/// Submits and rings reads of eight blocks, `count` of them.
pub fn submit(disk: &dyn Disk, queue: &mut dyn Queue, count: u64) {
    (0..count).for_each(|number| queue.submit(read(disk, number * 8, 8)).unwrap());
    queue.ring();
}

/// Reaps until nothing is in flight; how each request ended, in the order of their tokens.
pub fn finish(queue: &mut dyn Queue) -> Vec<(u64, Result<(), IoError>)> {
    let start = Instant::now();
    let mut ends = Vec::new();
    while queue.in_flight() > 0 {
        assert!(start.elapsed() < PATIENCE, "{} requests never ended", queue.in_flight());
        let _ = queue.wait(Deadline::after(Duration::from_millis(10)));
        while let Ok(Some(completion)) = queue.reap_one() {
            ends.push((completion.token, completion.result));
        }
        let _ = queue.tick(Instant::now());
    }
    ends.sort_by_key(|&(token, _)| token);
    ends
}

pub fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// Executes one request.
pub fn end(queue: &mut dyn Queue, request: Request) -> Result<(), IoError> {
    execute(queue, request, soon()).unwrap().result
}

/// Writes and reads back, `rounds` times.
pub fn churn(disk: &dyn Disk, rounds: u8) {
    let mut queue = disk.open_queue(8).unwrap();
    for byte in 1..=rounds {
        let lba = u64::from(byte) * 64;
        let buffer = disk.dma().arena().alloc_pages(32 << 10).unwrap();
        buffer.fill(byte);
        let done = execute(&mut *queue, Request::write(1, lba, 64, buffer), soon()).unwrap();
        assert_eq!(done.result, Ok(()));
        let buffer = done.data.into_buffer().unwrap();
        buffer.fill(0);
        let done = execute(&mut *queue, Request::read(2, lba, 64, buffer), soon()).unwrap();
        assert_eq!(done.result, Ok(()));
        let mut bytes = vec![0; 32 << 10];
        done.data.into_buffer().unwrap().read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&found| found == byte), "{} round {byte}", disk.name());
    }
}

/// Whether a function may master the bus.
pub fn masters_the_bus(device: &dyn Device) -> bool {
    device.config_read(pci::COMMAND, 2) as u16 & pci::COMMAND_BUS_MASTER != 0
}

/// Kills the QEMU whose process that is.
pub fn kill(process_id: u32) {
    let process_id = rustix::process::Pid::from_raw(process_id as i32).unwrap();
    rustix::process::kill_process(process_id, rustix::process::Signal::KILL).unwrap();
}
