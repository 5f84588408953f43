//! The driver of virtio disks and a disk that misbehaves, with both layouts of virtqueues. Whatever
//! it says is an error value, and nothing panics or hangs.

mod owner;

use std::sync::Arc;
use std::time::{Duration, Instant};

use owner::{Outcome, bytes, execute, finish, reap_all, succeed};
use ring3_class::block::{Disk as _, IoError, Queue, Request};
use ring3_device::dma::DmaBuffer;
use ring3_device::{Error, OpenOptions};
use ring3_driver::virtio::blk::{Disk, Options};
use ring3_model::fault::{Action, Rule};
use ring3_model::virtio::blk::{Lie, VirtioBlkHandle, open};
use ring3_spec::virtio::blk;

/// Requests time out after this.
const TIMEOUT: Duration = Duration::from_millis(80);
/// Both layouts, and requests in the queue itself.
const LAYOUTS: [&str; 3] = ["", ",packed=on", ",indirect=off,packed=on"];
const READ: u8 = blk::IN as u8;

struct Bench {
    disk: Disk,
    handle: VirtioBlkHandle,
}

fn bench(options: &str) -> Bench {
    let device =
        open(&format!("sim:virtio-blk{options}").parse().unwrap(), OpenOptions::default()).unwrap();
    let handle = device.handle();
    let disk =
        Disk::open(Arc::new(device), Options { timeout: TIMEOUT, ..Options::default() }).unwrap();
    Bench { disk, handle }
}

impl Bench {
    fn queue(&self) -> Box<dyn Queue> {
        self.disk.open_queue(16).unwrap()
    }

    fn buffer(&self, byte: u8) -> DmaBuffer {
        let buffer = self.disk.dma().arena().alloc_pages(4096).unwrap();
        buffer.fill(byte);
        buffer
    }

    fn read(&self, token: u64) -> Request {
        Request::read(token, token, 1, self.buffer(0))
    }

    fn fault(&self, action: Action, opcode: u8) {
        self.handle.plan().add(Rule::io(action, opcode));
    }

    /// The disk works, and the driver has broken no rule.
    fn is_well(&self, queue: &mut dyn Queue) {
        self.handle.lie(None);
        succeed(queue, Request::write(1, 7, 8, self.buffer(0x5a)));
        assert_eq!(bytes(succeed(queue, Request::read(2, 7, 8, self.buffer(0)))), [0x5a; 4096]);
        assert_eq!((self.handle.violations(), self.handle.faults()), (vec![], vec![]));
    }
}

/// Four reads under `action`, which hits the second one.
fn four_reads(bench: &Bench, queue: &mut dyn Queue, action: Action) -> Outcome {
    bench.handle.plan().add(Rule::io(action, READ).nth(2));
    (1..5).for_each(|token| queue.submit(bench.read(token)).unwrap());
    finish(queue)
}

#[test]
fn an_end_that_does_not_come_is_found_by_its_time_and_the_request_repeated_with_the_others() {
    for layout in LAYOUTS {
        for action in [Action::Drop, Action::Hang] {
            let bench = bench(layout);
            let mut queue = bench.queue();
            let outcome = four_reads(&bench, &mut *queue, action);
            assert!(
                (1..5).all(|token| outcome.of(token) == Ok(())) && outcome.errors.is_empty(),
                "{layout} {action:?}"
            );
            assert!(outcome.took >= TIMEOUT, "{layout} {:?}", outcome.took);
            assert_eq!(bench.handle.counters().starts, 2, "{layout}");
            bench.is_well(&mut *queue);
        }
    }
}

#[test]
fn ends_of_nothing_in_flight_are_errors_and_the_queue_lives() {
    for (layout, action) in [
        ("", Action::WrongId(0x8000)),
        ("", Action::WrongId(0x40)),
        ("", Action::Invent(0x80)),
        ("", Action::Duplicate),
        (",indirect=off", Action::WrongId(1)),
        (",packed=on", Action::WrongId(0x8000)),
        (",packed=on", Action::WrongId(0x40)),
        (",packed=on,indirect=off", Action::WrongId(0x40)),
    ] {
        let bench = bench(layout);
        let mut queue = bench.queue();
        let outcome = four_reads(&bench, &mut *queue, action);
        assert!((1..5).all(|token| outcome.of(token) == Ok(())), "{layout} {action:?}");
        let strays =
            outcome.errors.iter().filter(|error| matches!(error, Error::Protocol(_))).count();
        assert!(
            strays >= 1 && strays == outcome.errors.len(),
            "{layout} {action:?}: {:?}",
            outcome.errors
        );
        bench.is_well(&mut *queue);
    }
}

#[test]
fn packed_descriptors_that_come_back_twice_cost_a_reset_and_no_request() {
    for action in [Action::Duplicate, Action::Invent(0x40)] {
        let bench = bench(",packed=on");
        let mut queue = bench.queue();
        let outcome = four_reads(&bench, &mut *queue, action);
        assert!((1..5).all(|token| outcome.of(token) == Ok(())), "{action:?}");
        bench.is_well(&mut *queue);
    }
}

#[test]
fn what_the_disk_says_of_a_request_is_the_requests_error() {
    let says = [
        (1, IoError::Medium),
        (2, IoError::Unsupported),
        (3, IoError::Transport),
        (0x80, IoError::Transport),
    ];
    for (layout, (status, error)) in
        LAYOUTS.into_iter().flat_map(|layout| says.map(|end| (layout, end)))
    {
        let bench = bench(layout);
        let mut queue = bench.queue();
        let outcome = four_reads(&bench, &mut *queue, Action::Status(status));
        assert_eq!(
            [1, 2, 3, 4].map(|token| outcome.of(token)),
            [Ok(()), Err(error), Ok(()), Ok(())],
            "{layout} {status}"
        );
        assert!(outcome.errors.is_empty());
        bench.is_well(&mut *queue);
    }
}

#[test]
fn lengths_that_cannot_be_are_the_requests_errors() {
    for (layout, lie) in LAYOUTS
        .into_iter()
        .flat_map(|layout| [(layout, Lie::WritesTooMuch), (layout, Lie::WritesTooLittle)])
    {
        let bench = bench(layout);
        let mut queue = bench.queue();
        bench.handle.lie(Some(lie));
        assert_eq!(
            execute(&mut *queue, bench.read(1)).0,
            Err(IoError::Transport),
            "{layout} {lie:?}"
        );
        bench.is_well(&mut *queue);
    }
}

#[test]
fn a_request_that_is_used_without_a_status_keeps_its_memory_until_a_reset() {
    for layout in LAYOUTS {
        let bench = bench(layout);
        let mut queue = bench.queue();
        bench.handle.lie(Some(Lie::NoStatus));
        queue.submit(bench.read(1)).unwrap();
        let outcome = finish(&mut *queue);
        assert_eq!(
            (outcome.of(1), outcome.errors.len()),
            (Err(IoError::Timeout), 3),
            "{layout} {:?}",
            outcome.errors
        );
        assert!(
            outcome.errors.iter().all(|error| error.to_string().contains("has no status")),
            "{:?}",
            outcome.errors
        );
        bench.is_well(&mut *queue);
    }
}

#[test]
fn an_index_that_leaps_costs_a_reset_and_no_request() {
    let bench = bench("");
    let mut queue = bench.queue();
    bench.handle.lie(Some(Lie::LeapsAhead));
    (1..5).for_each(|token| queue.submit(bench.read(token)).unwrap());
    queue.ring();
    let mut outcome = Outcome::default();
    assert!(matches!(queue.reap_one(), Err(Error::Protocol(why)) if why.contains("were used")));
    bench.handle.lie(None);
    queue.tick(Instant::now()).unwrap();
    reap_all(&mut *queue, &mut outcome);
    assert!((1..5).all(|token| outcome.of(token) == Ok(())), "{:?}", outcome.errors);
    assert_eq!(bench.handle.counters().starts, 2);
    bench.is_well(&mut *queue);
}

#[test]
fn a_disk_that_needs_a_reset_gets_it_and_all_queues_repeat_what_they_have() {
    for layout in LAYOUTS {
        let bench = bench(layout);
        let (mut queue, mut other) = (bench.queue(), bench.queue());
        other.submit(bench.read(9)).unwrap();
        bench.fault(Action::Hang, READ);
        other.ring();
        let outcome = four_reads(&bench, &mut *queue, Action::Fatal);
        assert!((1..5).all(|token| outcome.of(token) == Ok(())), "{layout}: {:?}", outcome.errors);
        assert_eq!(finish(&mut *other).of(9), Ok(()));
        assert_eq!(bench.handle.counters().starts, 2, "{layout}");
        [queue, other].iter_mut().for_each(|queue| bench.is_well(&mut **queue));
    }
}

#[test]
fn a_disk_that_does_not_reset_is_reset_as_a_function() {
    let bench = bench("");
    let mut queue = bench.queue();
    bench.handle.plan().add(Rule::enable(Action::StuckReady));
    let outcome = four_reads(&bench, &mut *queue, Action::Drop);
    assert!((1..5).all(|token| outcome.of(token) == Ok(())), "{:?}", outcome.errors);
    bench.is_well(&mut *queue);
}

#[test]
fn a_dropped_disk_is_left_reset() {
    let Bench { disk, handle } = bench("");
    assert_ne!(handle.status(), 0);
    drop(disk);
    assert_eq!(handle.status(), 0);
}

#[test]
fn a_batch_is_one_doorbell() {
    for layout in LAYOUTS {
        let bench = bench(layout);
        let mut queue = bench.queue();
        let before = bench.handle.counters();
        (1..9).for_each(|token| queue.submit(bench.read(token)).unwrap());
        assert_eq!(bench.handle.counters().doorbells, before.doorbells, "{layout}");
        let outcome = finish(&mut *queue);
        assert!((1..9).all(|token| outcome.of(token) == Ok(())));
        let after = bench.handle.counters();
        assert_eq!(
            (after.doorbells - before.doorbells, after.requests - before.requests),
            (1, 8),
            "{layout}"
        );
    }
}

#[test]
fn writes_are_in_the_cache_until_a_flush_and_cannot_be_durable_one_by_one() {
    let bench = bench("");
    let mut queue = bench.queue();
    let info = bench.disk.info();
    assert_eq!((info.volatile_cache, info.fua, info.serial.as_str()), (true, false, "RING3"));
    let refused = queue.submit(Request::write(1, 0, 8, bench.buffer(1)).with_fua()).unwrap_err();
    assert_eq!(refused.error, Some(IoError::Unsupported));
    succeed(&mut *queue, Request::write(2, 0, 8, bench.buffer(1)));
    succeed(&mut *queue, Request::flush(3));
    succeed(&mut *queue, Request::write(4, 8, 8, bench.buffer(1)));
    bench.handle.lose_power();
    let mut medium = [0; 8192];
    assert!(bench.handle.peek(1, 0, &mut medium));
    assert_eq!((medium[0], medium[4096]), (1, 0));
}

#[test]
fn a_disk_that_says_nonsense_of_itself_or_nothing_in_time_is_opened_or_refused() {
    let open_with = |options: &str, action: Action| {
        let device =
            open(&format!("sim:virtio-blk{options}").parse().unwrap(), OpenOptions::default())
                .unwrap();
        device.handle().plan().add(Rule::io(action, blk::GET_ID as u8));
        Disk::open(Arc::new(device), Options::default())
    };
    for action in [Action::Status(1), Action::Hang, Action::WrongId(0x55)] {
        assert_eq!(
            open_with("", action).unwrap().info().serial,
            if action == Action::WrongId(0x55) { "RING3" } else { "" }
        );
    }
    let device = open(&"sim:virtio-blk".parse().unwrap(), OpenOptions::default()).unwrap();
    device.handle().lie(Some(Lie::ShortQueue));
    let short = Disk::open(Arc::new(device), Options::default()).err().unwrap();
    assert!(
        matches!(&short, Error::Protocol(why) if why.contains("queue 3 has 2 entries")),
        "{short}"
    );
    let gone = open_with("", Action::Remove).err().unwrap();
    assert!(matches!(gone, Error::Gone), "{gone}");
}

#[test]
fn garbage_anywhere_in_what_it_shares_with_the_disk_ends_each_request_once_and_the_queue_lives() {
    for layout in LAYOUTS {
        let bench = bench(layout);
        let mut queue = bench.queue();
        let arena = bench.disk.dma().arena();
        for round in 0..24 {
            let places: Vec<u64> = arena
                .taken()
                .into_iter()
                .flat_map(|(_, offset, len)| (offset..offset + len.min(8192)).step_by(64))
                .collect();
            let place = arena.iova() + places[round * 37 % places.len()];
            bench.handle.plan().clear();
            bench.handle.plan().add(Rule::io(Action::StrayDma(place), READ).nth(2));
            (1..5).for_each(|token| queue.submit(bench.read(token)).unwrap());
            let outcome = finish(&mut *queue);
            let ends: Vec<_> = (1..5).map(|token| outcome.of(token)).collect();
            assert_eq!(ends.len(), outcome.completions.len(), "{layout} {place:#x}");
        }
        assert!(bench.handle.counters().starts > 1, "{layout}: none of it was found");
        bench.handle.plan().clear();
        // What was overwritten last may be found by the next request.
        queue.submit(bench.read(1)).unwrap();
        finish(&mut *queue);
        succeed(&mut *queue, Request::write(1, 7, 8, bench.buffer(0x5a)));
        assert_eq!(
            bytes(succeed(&mut *queue, Request::read(2, 7, 8, bench.buffer(0)))),
            [0x5a; 4096],
            "{layout}"
        );
    }
}

/// Changes the disk and has it reset while a write is in flight; how that ends.
fn write_over(
    bench: &Bench,
    queue: &mut dyn Queue,
    change: impl FnOnce(&VirtioBlkHandle),
) -> Result<(), IoError> {
    bench.handle.set_timing(ring3_model::Timing::Held);
    queue.submit(Request::write(1, 0, 1, bench.buffer(0x11))).unwrap();
    queue.ring();
    bench.handle.set_timing(ring3_model::Timing::Inline);
    change(&bench.handle);
    bench.handle.reset_function();
    finish(queue).of(1)
}

#[test]
fn nothing_is_repeated_on_another_disk_that_has_come_back() {
    let changes: [fn(&VirtioBlkHandle); 3] = [
        |handle| handle.replace("ANOTHER"),
        |handle| handle.reshape(32 << 20, 9),
        |handle| handle.reshape(64 << 20, 12),
    ];
    for change in changes {
        let bench = bench("");
        let mut queue = bench.queue();
        assert_eq!(write_over(&bench, &mut *queue, change), Err(IoError::Transport));
        let mut block = [1; 512];
        assert!(bench.handle.peek(1, 0, &mut block) && block == [0; 512]);
    }
}

#[test]
fn a_disk_that_does_not_say_its_name_after_a_reset_is_asked_once_more_and_ends_then() {
    let refusal = Rule::io(Action::Status(1), blk::GET_ID as u8);
    for (refusal, end) in [(refusal.clone(), Ok(())), (refusal.always(), Err(IoError::Transport))] {
        let bench = bench("");
        let mut queue = bench.queue();
        bench.handle.plan().add(refusal);
        assert_eq!(write_over(&bench, &mut *queue, |_| {}), end);
    }
}

#[test]
fn a_disk_that_has_grown_is_written_on_and_one_that_has_shrunk_ends() {
    let bench = bench("");
    let mut queue = bench.queue();
    assert!(bench.disk.poll_changes().unwrap().is_empty());
    bench.handle.reshape(128 << 20, 9);
    let said = bench.disk.poll_changes().unwrap();
    assert!(said.len() == 1 && said[0].contains("grown to 262144 blocks"), "{said:?}");
    assert!(bench.disk.poll_changes().unwrap().is_empty(), "it is said once");
    assert_eq!(write_over(&bench, &mut *queue, |_| {}), Ok(()));
    bench.handle.reshape(32 << 20, 9);
    let error = bench.disk.poll_changes().unwrap_err().to_string();
    assert!(error.contains("another disk"), "{error}");
    assert_eq!(queue.submit(bench.read(1)).map_err(|rejected| rejected.error), Ok(()));
    assert_eq!(finish(&mut *queue).of(1), Err(IoError::Transport));
}

#[test]
fn what_a_killed_driver_had_written_is_lost_unless_the_fence_has_found_the_disk_running() {
    use ring3_device::Device;
    use ring3_device::found::Found;
    for (found, first) in [(Found::Running, Ok(())), (Found::Disturbed, Err(IoError::Transport))] {
        let device = open(&"sim:virtio-blk".parse().unwrap(), OpenOptions::default()).unwrap();
        let device: Arc<dyn Device> = Arc::new(device);
        let disk = Disk::open(device.clone(), Options::default()).unwrap();
        let mut queue = disk.open_queue(4).unwrap();
        succeed(&mut *queue, Request::write(1, 7, 1, disk.dma().arena().alloc_pages(512).unwrap()));
        std::mem::forget((queue, disk));
        found.record(&device.dma().arena().persistent_words().unwrap());
        let disk = Disk::open(device, Options::default()).unwrap();
        let mut queue = disk.open_queue(4).unwrap();
        assert_eq!(execute(&mut *queue, Request::flush(3)).0, first, "{found:?}");
        assert_eq!(execute(&mut *queue, Request::flush(4)).0, Ok(()));
    }
}
