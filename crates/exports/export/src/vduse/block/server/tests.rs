//! A queue's thread, step by step, over a disk that does nothing.

use std::time::{Duration, Instant};

use ring3_class::block::{Disk, Null};
use ring3_spec::virtio::blk;
use ring3_stats::{Recorder, Segment};
use ring3_vduse::{Access, Begin, Inflight, Place, Vring, features};

use super::*;
use crate::serving::Report;
use crate::serving::command::{CommandChannel, event};
use crate::serving::stats::Counters;
use crate::vduse::gate::ReadyVirtqueue;

const SIZE: u16 = 4;
const TABLE: u64 = 0x1000;
const DRIVER: u64 = 0x2000;
const DEVICE: u64 = 0x3000;
const DATA: u64 = 0x10_0000;

/// What a thread is started with, of a disk of 64 blocks.
fn start(log: Log, commands: &Arc<CommandChannel>) -> Start {
    let disk = Null::new(512, 64, 1 << 20).unwrap();
    let segment = Arc::new(Segment::create(1).unwrap());
    let (events, _) = std::sync::mpsc::channel();
    let ended = Arc::new(event().unwrap());
    let report = Report { queue: 0, events, ended, abandoned: Arc::default() };
    Start {
        common: ThreadStart {
            queue: 0,
            class: disk.open_queue(SIZE).unwrap(),
            buffers: (0..SIZE).map(|_| disk.dma().arena().alloc(4096, 4096).unwrap()).collect(),
            started: Instant::now(),
            counters: (0..1).map(|_| Counters::default()).collect(),
            recorder: Recorder::new(&segment, Some(0)).unwrap(),
            commands: commands.clone(),
            report,
        },
        device: Arc::new(Device::of_nothing().unwrap()),
        gate: Arc::new(QueueHandover::new().unwrap()),
        log,
        poll: Duration::ZERO,
    }
}

fn write(memory: &mut Memory, iova: u64, bytes: &[u8]) {
    let place = memory.place(iova, bytes.len() as u32, Access::Write).unwrap();
    assert!(memory.write(place, 0, bytes));
}

/// A queue whose driver has offered a read of `sectors` sectors, and where its status is written.
fn queue(log: Log, sectors: u32) -> (Queue, Place) {
    let mut memory =
        Memory::of_zeroes(&[(TABLE, 0x1000), (DRIVER, 0x1000), (DEVICE, 0x1000), (DATA, 0x1_0000)])
            .unwrap();
    let pieces: [(u64, u32, u16, u16); 3] =
        [(DATA, 16, 1, 1), (DATA + 4096, 512 * sectors, 3, 2), (DATA + 0x8000, 1, 2, 0)];
    for (number, (address, len, flags, next)) in (0..).zip(pieces) {
        let word = u128::from(address)
            | u128::from(len) << 64
            | u128::from(flags) << 96
            | u128::from(next) << 112;
        write(&mut memory, TABLE + 16 * number, &word.to_le_bytes());
    }
    write(&mut memory, DRIVER + 2, &1u16.to_le_bytes());
    write(&mut memory, DATA + 0x8000, &[0xff]);
    let status = memory.place(DATA + 0x8000, 1, Access::Read).unwrap();
    let vring = Vring {
        size: SIZE.into(),
        descriptors: TABLE,
        driver: DRIVER,
        device: DEVICE,
        ready: true,
        ..Vring::default()
    };
    (Queue::open(memory, &vring, features::VERSION_1, Some(log), Begin::Fresh).unwrap(), status)
}

/// A thread's server that waits for its first queue, and what it is told by.
struct Bench {
    server: VduseQueueServer<'static>,
    commands: Arc<CommandChannel>,
    gate: Arc<QueueHandover>,
    log: Log,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log =
            Inflight::create(&folder.path().join("log"), (1, SIZE), b"").unwrap().queue(0).unwrap();
        let commands = CommandChannel::new().unwrap();
        // The server borrows it, and both are to be in one value.
        let start = Box::leak(Box::new(start(log.clone(), &commands)));
        let gate = start.gate.clone();
        let server =
            VduseQueueServer::new(Reactor::new(0, Duration::ZERO).unwrap(), start).unwrap();
        Self { server, commands, gate, log, _folder: folder }
    }

    /// The driver has offered a read of `sectors` sectors, which is taken. Where its status goes.
    fn offer(&mut self, sectors: u32) -> Place {
        let (queue, status) = queue(self.log.clone(), sectors);
        self.server.queue = Some(queue);
        self.server.take_chains().unwrap();
        status
    }

    /// The byte that the driver finds at `status`.
    fn said(&self, status: Place) -> u8 {
        let mut said = [0];
        assert!(self.server.queue.as_ref().unwrap().memory().read(status, 0, &mut said));
        said[0]
    }
}

#[test]
fn a_reset_is_over_when_the_disk_has_ended_what_it_had() {
    let mut bench = Bench::new();
    let gate = bench.gate.clone();
    let _served = gate.serve();
    bench.offer(1);
    assert_eq!(bench.server.class.in_flight(), 1);
    assert!(!bench.gate.announce(None, Duration::ZERO), "nobody has acknowledged it yet");
    bench.server.apply_queue_change().unwrap();
    assert!(
        bench.server.queue.is_none() && bench.server.change.is_some(),
        "the memory is let go of at once, and the disk still has its request"
    );
    bench.server.drive().unwrap();
    assert_eq!(bench.server.class.in_flight(), 0);
    bench.server.open_when_idle();
    assert!(
        bench.server.change.is_none() && bench.gate.change().0 == 1 && bench.gate.available() == 1
    );
    assert!(bench.server.again.is_empty() && bench.server.free.len() == usize::from(SIZE));
}

#[test]
fn the_log_is_empty_when_a_reset_is_over_and_keeps_what_is_in_flight_while_memory_is_mapped_anew() {
    for (opening, kept) in [
        (None, 0),
        (Some(ReadyVirtqueue { vring: Vring::default(), features: 0, begin: Begin::Resume }), 1),
    ] {
        let mut bench = Bench::new();
        let gate = bench.gate.clone();
        let _served = gate.serve();
        bench.offer(1);
        bench.gate.announce(opening, Duration::ZERO);
        bench.server.apply_queue_change().unwrap();
        bench.server.drive().unwrap();
        assert_eq!(bench.log.heads().count(), 1, "the disk still had the request");
        bench.server.open_when_idle();
        assert_eq!(bench.log.heads().count(), kept);
    }
}

#[test]
fn a_change_that_was_applied_is_not_applied_again() {
    let mut bench = Bench::new();
    bench.gate.announce(None, Duration::ZERO);
    bench.server.apply_queue_change().unwrap();
    bench.offer(1);
    bench.server.apply_queue_change().unwrap();
    assert!(
        bench.server.queue.as_ref().is_some_and(|queue| queue.available() == 1),
        "the queue is where it was"
    );
    bench.gate.announce(None, Duration::ZERO);
    bench.server.apply_queue_change().unwrap();
    assert!(bench.server.queue.is_none());
}

#[test]
fn a_disk_that_does_not_end_its_requests_does_not_keep_the_thread_for_ever() {
    let mut bench = Bench::new();
    bench.offer(1);
    bench.commands.send(QueueCommand::Quiesce(Instant::now()));
    bench.server.handle_command().unwrap();
    let limit = Instant::now() + Duration::from_secs(10);
    let ended = loop {
        bench.server.reactor.step(Some(Duration::from_millis(5))).unwrap();
        match bench.server.take_events() {
            Err(error) => break error,
            Ok(()) => assert!(Instant::now() < limit, "it waits on"),
        }
    };
    assert!(ended.to_string().contains("1 requests did not end"), "{ended}");
}

#[test]
fn a_request_for_more_than_the_buffer_holds_fails_and_says_so_to_the_driver() {
    let mut bench = Bench::new();
    let status = bench.offer(16);
    assert_eq!((bench.server.class.in_flight(), bench.server.free.len()), (0, usize::from(SIZE)));
    assert_eq!(bench.said(status), blk::IO_ERROR);
}

#[test]
fn a_disk_that_is_taken_from_its_users_fails_new_requests_and_does_not_see_them() {
    let mut bench = Bench::new();
    bench.commands.send(QueueCommand::Refuse);
    bench.server.handle_command().unwrap();
    let status = bench.offer(1);
    assert_eq!((bench.server.class.in_flight(), bench.server.free.len()), (0, usize::from(SIZE)));
    assert_eq!(bench.said(status), blk::IO_ERROR);
}

#[test]
fn a_thread_whose_driver_is_abandoned_serves_errors_until_it_is_told_to_quiesce() {
    let mut bench = Bench::new();
    let status = bench.offer(1);
    assert_eq!(bench.server.class.in_flight(), 1);
    bench.server.abandon("the driver panicked".into()).unwrap();
    assert_eq!((bench.said(status), bench.server.class.in_flight()), (blk::IO_ERROR, 0));
    assert!(!bench.server.is_over());
    bench.commands.send(QueueCommand::Quiesce(Instant::now()));
    assert!(bench.server.is_over(), "there is nothing that it could wait for");
}
