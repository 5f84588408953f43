//! The NVMe driver on simulated controllers that behave well.

mod disks;
mod nvme;

use std::sync::Arc;
use std::time::Duration;

use nvme::{Bench, bench, bench_with, bytes, device, execute, finish, short, succeed};
use ring3_class::block::{IoError, Request};
use ring3_device::dma::Region;
use ring3_device::irq::IrqKind;
use ring3_device::{Error, OpenOptions};
use ring3_driver::Interrupts;
use ring3_driver::nvme::{Controller, Event, Options};
use ring3_model::Timing;
use ring3_spec::nvme::event::AsyncEvent;
use ring3_spec::nvme::{Status, log};

#[test]
fn what_was_written_is_read_back() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    assert_eq!(execute(&mut *queue, Request::write(1, 40, 16, bench.filled(8192, 0x5a))).0, Ok(()));
    let (end, data) = execute(&mut *queue, Request::read(2, 40, 16, bench.buffer(8192)));
    assert_eq!(end, Ok(()));
    assert!(bytes(data).iter().all(|&byte| byte == 0x5a));
}

#[test]
fn the_blocks_land_where_the_request_says() {
    let bench = bench(",block=4096");
    let mut queue = bench.queue(8);
    succeed(&mut *queue, Request::write(1, 3, 1, bench.filled(4096, 0x77)).with_fua());
    let (mut at, mut before) = ([0; 4096], [0; 4096]);
    assert!(bench.handle.peek(1, 3 * 4096, &mut at) && bench.handle.peek(1, 2 * 4096, &mut before));
    assert_eq!((at, before), ([0x77; 4096], [0; 4096]));
}

#[test]
fn every_length_up_to_the_limit_arrives_whole() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    let most = queue.info().max_transfer as usize;
    for len in [512, 4096, 4608, 8192, 8704, 12288, 65536, most - 512, most] {
        let pattern: Vec<u8> = (0..len).map(|i| (i / 512 + i) as u8).collect();
        let buffer = bench.buffer(len);
        buffer.write(0, &pattern).unwrap();
        assert_eq!(
            execute(&mut *queue, Request::write(1, 1000, (len / 512) as u32, buffer)).0,
            Ok(()),
            "{len}"
        );
        let (end, data) =
            execute(&mut *queue, Request::read(2, 1000, (len / 512) as u32, bench.buffer(len)));
        assert_eq!(end, Ok(()), "{len}");
        assert_eq!(bytes(data), pattern, "{len}");
    }
}

#[test]
fn a_buffer_that_begins_within_a_page_is_described_rightly() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    let memory = bench.buffer(64 << 10);
    let pattern: Vec<u8> = (0..32 << 10).map(|i| (i / 7) as u8).collect();
    memory.write(0x204, &pattern).unwrap();
    let segments = |start| memory.list(start, 32 << 10);
    assert_eq!(execute(&mut *queue, Request::write(1, 0, 64, segments(0x204))).0, Ok(()));
    assert_eq!(execute(&mut *queue, Request::read(2, 0, 64, segments(0x7c10))).0, Ok(()));
    let mut seen = vec![0; pattern.len()];
    memory.read(0x7c10, &mut seen).unwrap();
    assert_eq!(seen, pattern);
}

#[test]
fn segments_with_a_hole_are_invalid_and_come_back() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    let memory = bench.buffer(64 << 10);
    let pieces = [0, 8192].map(|skip| memory.span().part(skip, 512).unwrap());
    let list = bench.disk().dma().arena().list(&pieces).unwrap();
    let rejected = queue.submit(Request::read(9, 0, 2, list)).unwrap_err();
    assert_eq!((rejected.error, rejected.request.token), (Some(IoError::Invalid), 9));
    assert_eq!(rejected.request.data.len(), 1024);
}

#[test]
fn requests_that_make_no_sense_are_rejected_before_the_device_sees_them() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    let blocks = queue.info().blocks;
    let most = queue.info().max_transfer / 512;
    let reject = |queue: &mut dyn ring3_class::block::Queue, request| {
        queue.submit(request).unwrap_err().error
    };
    assert_eq!(
        reject(&mut *queue, Request::read(1, 0, 0, bench.buffer(512))),
        Some(IoError::Invalid)
    );
    assert_eq!(
        reject(&mut *queue, Request::read(1, 0, most + 1, bench.buffer(1 << 20))),
        Some(IoError::Invalid)
    );
    assert_eq!(
        reject(&mut *queue, Request::read(1, 0, 16, bench.buffer(4096))),
        Some(IoError::Invalid)
    );
    assert_eq!(
        reject(&mut *queue, Request::read(1, blocks - 1, 2, bench.buffer(4096))),
        Some(IoError::OutOfRange)
    );
    assert_eq!(
        reject(&mut *queue, Request::write(1, u64::MAX, 1, bench.buffer(4096))),
        Some(IoError::OutOfRange)
    );
    assert_eq!(reject(&mut *queue, Request::discard(1, blocks, 1)), Some(IoError::OutOfRange));
    assert_eq!(bench.handle.counters().commands, 0);
}

#[test]
fn write_zeroes_and_discard_reach_the_medium() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    succeed(&mut *queue, Request::write(1, 0, 128, bench.filled(64 << 10, 0xff)));
    assert_eq!(execute(&mut *queue, Request::write_zeroes(2, 8, 8)).0, Ok(()));
    assert_eq!(execute(&mut *queue, Request::discard(3, 64, 32)).0, Ok(()));
    let read = bytes(execute(&mut *queue, Request::read(4, 0, 24, bench.buffer(12 << 10))).1);
    assert!(read[..4096].iter().chain(&read[8192..]).all(|&byte| byte == 0xff));
    assert!(read[4096..8192].iter().all(|&byte| byte == 0));
}

#[test]
fn a_flush_makes_writes_survive_the_loss_of_power() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    assert!(queue.info().volatile_cache);
    succeed(&mut *queue, Request::write(1, 0, 1, bench.filled(512, 0x11)));
    succeed(&mut *queue, Request::flush(2));
    succeed(&mut *queue, Request::write(3, 1, 1, bench.filled(512, 0x22)));
    succeed(&mut *queue, Request::write(4, 2, 1, bench.filled(512, 0x33)).with_fua());
    bench.handle.lose_power();
    let mut medium = [0; 1536];
    assert!(bench.handle.peek(1, 0, &mut medium));
    assert_eq!([medium[0], medium[512], medium[1024]], [0x11, 0, 0x33]);
}

#[test]
fn a_full_queue_gives_the_request_back() {
    let bench = bench("");
    bench.handle.set_timing(Timing::Held);
    let mut queue = bench.queue(2);
    assert_eq!(queue.depth(), 2);
    for token in 0..2 {
        queue.submit(Request::read(token, 0, 1, bench.buffer(512))).unwrap();
    }
    let rejected = queue.submit(Request::read(2, 0, 1, bench.buffer(512))).unwrap_err();
    assert_eq!((rejected.error, rejected.request.token, queue.in_flight()), (None, 2, 2));
    queue.ring();
    bench.handle.release();
    assert_eq!(finish(&mut *queue).completions.len(), 2);
}

#[test]
fn a_batch_costs_one_doorbell() {
    let bench = bench("");
    let mut queue = bench.queue(32);
    for token in 0..32 {
        queue.submit(Request::read(token, token * 8, 8, bench.buffer(4096))).unwrap();
    }
    queue.ring();
    queue.ring();
    assert_eq!(finish(&mut *queue).completions.len(), 32);
    assert_eq!(bench.handle.counters().submission_doorbells, 1);
}

#[test]
fn completions_are_acknowledged_many_at_a_time_and_before_every_sleep() {
    let bench = bench("");
    let mut queue = bench.queue(63);
    for token in 0..128 {
        queue.submit(Request::read(token, 0, 1, bench.buffer(512))).unwrap();
        queue.ring();
        assert!(queue.reap_one().unwrap().is_some() && queue.reap_one().unwrap().is_none());
    }
    assert_eq!(bench.handle.counters().completion_doorbells, 2);
    queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
    queue.ring();
    assert!(queue.reap_one().unwrap().is_some() && queue.arm().unwrap());
    assert_eq!(bench.handle.counters().completion_doorbells, 3);
}

#[test]
fn rings_wrap_around_many_times() {
    let bench = bench("");
    let mut queue = bench.queue(5);
    for round in 0..300 {
        for token in 0..5 {
            queue.submit(Request::read(round * 5 + token, token, 1, bench.buffer(512))).unwrap();
        }
        let outcome = finish(&mut *queue);
        assert!(
            outcome.errors.is_empty() && outcome.completions.len() == 5,
            "round {round}: {:?}",
            outcome.errors
        );
    }
}

#[test]
fn four_namespaces_with_different_formats_are_told_apart() {
    let bench = bench(",namespaces=4,block=512+4096+512m8+65536,size=1M");
    let ids: Vec<_> =
        bench.controller.namespaces().iter().map(|namespace| namespace.id()).collect();
    assert_eq!(ids, [1, 2]);
    for (id, block) in [(1, 512), (2, 4096)] {
        let disk = bench.controller.disk(id).unwrap();
        assert_eq!((disk.info().block_size, disk.info().capacity()), (block, 1 << 20));
        let mut queue = disk.open_queue(4).unwrap();
        succeed(
            &mut *queue,
            Request::write(1, 0, 1, bench.filled(block as usize, id as u8)).with_fua(),
        );
        let mut medium = [0; 1];
        assert!(bench.handle.peek(id as usize, 0, &mut medium));
        assert_eq!(u32::from(medium[0]), id);
    }
}

#[test]
fn a_namespace_that_cannot_be_used_is_refused_with_the_reason() {
    let bench = bench(",namespaces=3,block=512+512m8+65536,size=1M");
    let metadata = bench.controller.disk(2).map(drop).unwrap_err().to_string();
    assert!(
        metadata.contains("namespace 2") && metadata.contains("8 bytes of metadata"),
        "{metadata}"
    );
    let block = bench.controller.disk(3).map(drop).unwrap_err().to_string();
    assert!(block.contains("512 and 4096"), "{block}");
    let missing = bench.controller.disk(7).map(drop).unwrap_err().to_string();
    assert!(missing.contains("no namespace 7") && missing.contains("there are: 1"), "{missing}");
}

#[test]
fn more_namespaces_than_one_list_holds_are_all_found() {
    let bench = bench(",namespaces=1024,size=64K");
    assert_eq!(bench.controller.namespaces().len(), 1024);
}

#[test]
fn the_devices_transfer_limit_is_the_disks() {
    let small = bench(",mdts=1");
    assert_eq!(small.disk().info().max_transfer, 8192);
    let mut queue = small.queue(4);
    assert_eq!(execute(&mut *queue, Request::write(1, 0, 16, small.filled(8192, 1))).0, Ok(()));
    assert_eq!(bench(",mdts=0").disk().info().max_transfer, 2 << 20);
}

#[test]
fn the_users_transfer_limit_counts_if_it_is_smaller() {
    let limit = |bytes| {
        bench_with("", Options { max_transfer: Some(bytes), ..short() }).disk().info().max_transfer
    };
    assert_eq!((limit(16384), limit(1 << 30)), (16384, 128 << 10));
}

#[test]
fn a_write_protected_namespace_takes_no_writes() {
    let bench = bench(",readonly=on");
    let mut queue = bench.queue(4);
    assert!(queue.info().read_only);
    for request in [
        Request::write(1, 0, 1, bench.buffer(512)),
        Request::discard(1, 0, 1),
        Request::write_zeroes(1, 0, 1),
    ] {
        assert_eq!(queue.submit(request).unwrap_err().error, Some(IoError::ReadOnly));
    }
    assert_eq!(execute(&mut *queue, Request::read(2, 0, 1, bench.buffer(512))).0, Ok(()));
}

#[test]
fn a_cache_that_is_not_there_is_not_promised() {
    assert!(!bench(",cache=off").disk().info().volatile_cache);
}

#[test]
fn as_many_queues_open_as_the_controller_grants_and_no_more() {
    let bench = bench(",queues=2");
    let disk = bench.disk();
    assert_eq!(disk.max_queues(), 2);
    let (one, _two) = (disk.open_queue(4).unwrap(), disk.open_queue(4).unwrap());
    let error = disk.open_queue(4).map(drop).unwrap_err();
    assert!(matches!(&error, Error::Busy(what) if what.contains("all 2 queues")), "{error}");
    drop(one);
    assert!(disk.open_queue(4).is_ok());
}

/// Writes and reads from a thread for each of `queues` queues, while `meanwhile` is done.
fn work_side_by_side(bench: &Bench, (queues, rounds): (u64, u64), meanwhile: impl FnOnce()) {
    std::thread::scope(|scope| {
        for part in 0..queues {
            let disk = bench.disk();
            scope.spawn(move || {
                let mut queue = disk.open_queue(8).unwrap();
                for round in 0..rounds {
                    let (lba, byte) = (part * 1000 + round, (part * rounds + round) as u8);
                    assert_eq!(
                        execute(&mut *queue, Request::write(1, lba, 1, bench.filled(512, byte))).0,
                        Ok(())
                    );
                    let (end, data) =
                        execute(&mut *queue, Request::read(2, lba, 1, bench.buffer(512)));
                    assert_eq!((end, bytes(data)[0]), (Ok(()), byte));
                }
            });
        }
        meanwhile();
    });
}

#[test]
fn queues_work_side_by_side_in_their_threads() {
    work_side_by_side(&bench(",queues=4,delay=50us"), (4, 40), || ());
}

#[test]
fn sixty_four_queues_with_a_vector_each_work_side_by_side_and_outlive_resets() {
    let options = Options { max_queues: 64, poll: Duration::ZERO, ..Options::default() };
    let bench = bench_with(",queues=64,vectors=65,delay=200us", options);
    assert_eq!(bench.disk().max_queues(), 64);
    work_side_by_side(&bench, (64, 20), || {
        // A third one would end what all three have met.
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(5));
            bench.controller.reset().unwrap();
        }
    });
    assert_eq!(bench.handle.counters().enables, 3);
}

#[test]
fn a_device_with_short_queues_holds_fewer_requests() {
    let bench = bench(",entries=8");
    let queue = bench.queue(64);
    assert_eq!(queue.depth(), 7);
}

#[test]
fn doorbells_far_apart_are_found() {
    let bench = bench(",stride=4,queues=2");
    let (mut one, mut two) = (bench.queue(4), bench.queue(4));
    for queue in [&mut one, &mut two] {
        assert_eq!(execute(&mut **queue, Request::read(1, 0, 1, bench.buffer(512))).0, Ok(()));
    }
}

#[test]
fn dropping_a_queue_gives_all_its_memory_back() {
    let bench = bench("");
    let before = bench.free();
    let mut queue = bench.queue(64);
    succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    drop(queue);
    assert_eq!(bench.free(), before);
}

#[test]
fn dropping_a_queue_with_requests_in_flight_gives_all_its_memory_back() {
    let bench = bench("");
    let before = bench.free();
    bench.handle.set_timing(Timing::Held);
    let mut queue = bench.queue(8);
    for token in 0..8 {
        queue.submit(Request::read(token, 0, 8, bench.buffer(4096))).unwrap();
    }
    queue.ring();
    drop(queue);
    assert_eq!(bench.free(), before);
    bench.handle.release();
    assert_eq!(bench.handle.fault_count(), 0);
}

#[test]
fn each_kind_of_interrupt_wakes_its_owner() {
    for (uri, kind) in [
        ("", IrqKind::MsiX),
        (",vectors=0", IrqKind::Msi),
        (",vectors=0", IrqKind::Intx),
        ("", IrqKind::Intx),
    ] {
        let options = Options {
            interrupts: Interrupts::Only(kind),
            poll: Duration::ZERO,
            ..Options::default()
        };
        let bench = bench_with(&format!("{uri},delay=2ms"), options);
        assert_eq!(bench.controller.identity().interrupts, Some(kind));
        let mut queues: Vec<_> =
            (0..bench.disk().max_queues().min(4)).map(|_| bench.queue(4)).collect();
        for _ in 0..3 {
            for queue in &mut queues {
                let (end, _) = execute(&mut **queue, Request::read(1, 0, 1, bench.buffer(512)));
                assert_eq!(
                    (end, queue.irq().map(|irq| irq.kind())),
                    (Ok(()), Some(kind)),
                    "{uri} {kind:?}"
                );
            }
        }
        for irq in queues.iter().filter_map(|queue| queue.irq()) {
            // A message's count may lie unread: a sleep does not need it.
            irq.take().unwrap();
            assert!(irq.stats().count > 0, "{uri} {kind:?}");
        }
    }
}

#[test]
fn the_best_interrupts_are_chosen_and_a_missing_kind_is_refused() {
    assert_eq!(bench("").controller.identity().interrupts, Some(IrqKind::MsiX));
    let polled = bench_with("", Options { interrupts: Interrupts::Polled, ..short() });
    assert_eq!(polled.controller.identity().interrupts, None);
    assert_eq!(
        execute(&mut *polled.queue(4), Request::read(1, 0, 1, polled.buffer(512))).0,
        Ok(())
    );
    let options = Options { interrupts: Interrupts::Only(IrqKind::MsiX), ..short() };
    let error = Bench::open(",vectors=0", options).map(drop).unwrap_err();
    assert!(error.to_string().contains("no MsiX interrupts"), "{error}");
}

#[test]
fn queues_that_share_the_pin_all_wake_up() {
    let options = Options {
        interrupts: Interrupts::Only(IrqKind::Intx),
        poll: Duration::ZERO,
        ..Options::default()
    };
    let bench = bench_with(",delay=1ms", options);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (bench, disk) = (&bench, bench.disk());
            scope.spawn(move || {
                let mut queue = disk.open_queue(4).unwrap();
                for token in 0..30 {
                    assert_eq!(
                        execute(&mut *queue, Request::read(token, 0, 1, bench.buffer(512))).0,
                        Ok(())
                    );
                }
            });
        }
    });
}

#[test]
fn the_controller_says_who_it_is() {
    let bench = bench("");
    let identity = bench.controller.identity();
    assert!(!identity.model.is_empty() && !identity.serial.is_empty(), "{identity:?}");
    assert_eq!((identity.queues, identity.max_transfer), (4, 128 << 10));
    assert_eq!(bench.disk().info().model, identity.model);
}

#[test]
fn the_smart_log_counts_what_was_done() {
    let bench = bench("");
    let before = bench.controller.smart().unwrap();
    succeed(&mut *bench.queue(4), Request::read(1, 0, 1, bench.buffer(512)));
    assert_eq!(bench.controller.smart().unwrap().host_reads(), before.host_reads() + 1);
}

#[test]
fn the_error_log_says_what_failed() {
    // With "do not retry", or it would be read once more, and well.
    let bench = bench(",fault=status/0x4281:read");
    let (end, _) = execute(&mut *bench.queue(4), Request::read(1, 77, 1, bench.buffer(512)));
    assert_eq!(end, Err(IoError::Medium));
    let errors = bench.controller.errors().unwrap();
    assert_eq!(errors.first().map(|entry| entry.status().plain()), Some(Status::UNRECOVERED_READ));
}

#[test]
fn events_are_decoded_and_can_come_again() {
    let bench = bench("");
    for _ in 0..10 {
        bench.handle.set_critical_warning(log::Smart::WARNING_TEMPERATURE);
        bench.handle.event(AsyncEvent::new(
            AsyncEvent::HEALTH,
            AsyncEvent::TEMPERATURE,
            log::SMART,
        ));
        let events = bench.controller.events().unwrap();
        let warnings = Some(log::Smart::WARNING_TEMPERATURE);
        assert_eq!(events, [Event::Health { info: AsyncEvent::TEMPERATURE, warnings }]);
    }
    assert_eq!(bench.controller.stray_completions(), 0);
}

#[test]
fn requests_that_wait_for_the_activation_of_firmware_are_not_late() {
    let bench = bench(",mtfa=5s");
    let mut queue = bench.queue(8);
    bench.handle.pause(true);
    queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
    let handle = bench.handle.clone();
    let end = std::thread::spawn(move || {
        std::thread::sleep(5 * nvme::TIMEOUT);
        handle.pause(false);
    });
    let outcome = finish(&mut *queue);
    end.join().unwrap();
    assert!(outcome.took >= 4 * nvme::TIMEOUT, "{:?}", outcome.took);
    assert_eq!((outcome.of(1), bench.handle.counters().enables), (Ok(()), 1), "without a reset");
    assert_eq!(bench.controller.events().unwrap(), [Event::FirmwareActivation]);
}

#[test]
fn the_log_of_an_activation_of_firmware_is_waited_for_as_long_as_it_lasts() {
    let bench = bench(",mtfa=5s");
    bench.handle.pause(true);
    let handle = bench.handle.clone();
    let end = std::thread::spawn(move || {
        std::thread::sleep(5 * nvme::TIMEOUT);
        handle.pause(false);
    });
    assert_eq!(bench.controller.events().unwrap(), [Event::FirmwareActivation]);
    end.join().unwrap();
    assert_eq!(bench.handle.counters().enables, 1, "without a reset");
}

#[test]
fn an_admin_command_waits_no_longer_for_firmware_than_the_controller_has_said() {
    let bench = bench(",mtfa=100ms");
    bench.handle.pause(true);
    assert!(matches!(bench.controller.smart(), Err(Error::Timeout { .. })));
}

#[test]
fn an_activation_of_firmware_that_does_not_end_in_its_time_is_ended_by_a_reset() {
    let bench = bench(",mtfa=100ms");
    let mut queue = bench.queue(8);
    bench.handle.pause(true);
    queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
    assert_eq!((finish(&mut *queue).of(1), bench.handle.counters().enables), (Ok(()), 2));
}

#[test]
fn an_event_raises_the_controllers_interrupt() {
    let bench = bench("");
    let irq = bench.controller.irq().unwrap();
    irq.take().unwrap();
    bench.handle.event(AsyncEvent::new(
        AsyncEvent::NOTICE,
        AsyncEvent::NAMESPACE_CHANGED,
        log::CHANGED_NAMESPACES,
    ));
    assert_eq!(irq.take().unwrap(), 1);
    assert_eq!(bench.controller.events().unwrap(), [Event::NamespacesChanged]);
}

#[test]
fn dropping_everything_shuts_the_controller_down_in_good_order() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    succeed(&mut *queue, Request::write(1, 0, 1, bench.filled(512, 0x42)));
    let handle = bench.handle.clone();
    drop((queue, bench));
    // The cache was written back, though nobody flushed.
    handle.lose_power();
    let mut medium = [0; 1];
    assert!(handle.peek(1, 0, &mut medium));
    assert_eq!((medium[0], handle.fault_count()), (0x42, 0));
}

#[test]
fn after_a_shutdown_requests_end_with_an_error_and_waiting_costs_nothing() {
    let bench = bench("");
    bench.handle.set_timing(Timing::Held);
    let mut queue = bench.queue(4);
    queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
    queue.ring();
    bench.controller.shutdown().unwrap();
    assert_eq!(finish(&mut *queue).of(1), Err(IoError::Gone));
    assert!(!queue.wait(ring3_device::Deadline::after(Duration::from_millis(20))).unwrap());
    assert!(bench.controller.smart().is_err());
}

#[test]
fn a_controller_that_was_left_running_is_stopped_and_taken_over() {
    let device = Arc::new(device(""));
    let handle = device.handle();
    let first = Controller::open(device.clone(), short()).unwrap();
    let queue = first.disk(1).unwrap().open_queue(4).unwrap();
    // As a killed process leaves it: enabled, with queues, and nobody shuts it down.
    std::mem::forget((first, queue));
    let second = Controller::open(device, short()).unwrap();
    let buffer = second.disk(1).unwrap().dma().arena().alloc_pages(512).unwrap();
    let mut queue = second.disk(1).unwrap().open_queue(4).unwrap();
    assert_eq!(execute(&mut *queue, Request::read(1, 0, 1, buffer)).0, Ok(()));
    assert_eq!(handle.fault_count(), 0);
}

#[test]
fn an_arena_that_grows_under_a_running_controller_serves_all_its_disks_without_a_restart() {
    let bench = bench(",namespaces=4,size=1M");
    let dma = bench.disk().dma().clone();
    let mut full = Vec::new();
    for len in [1 << 20, 4096, 64] {
        full.extend(std::iter::from_fn(|| dma.arena().alloc(len, 1).ok()));
    }
    dma.grow(1 << 20).unwrap();
    for id in 1..=4 {
        let mut queue = bench.controller.disk(id).unwrap().open_queue(4).unwrap();
        let buffer = dma.arena().alloc_pages(4096).unwrap();
        assert_eq!(buffer.span().region, 1);
        buffer.fill(0x5a);
        succeed(&mut *queue, Request::write(1, 8, 8, buffer));
        let read =
            succeed(&mut *queue, Request::read(2, 8, 8, dma.arena().alloc_pages(4096).unwrap()));
        assert_eq!(bytes(read), [0x5a; 4096]);
    }
    assert_eq!((bench.handle.counters().enables, bench.handle.fault_count()), (1, 0));
}

#[test]
fn a_controller_works_in_memory_that_somebody_gave() {
    let theirs = Region::new(4 << 20).unwrap();
    let fd = theirs.fd().unwrap().try_clone_to_owned().unwrap();
    let given = Arc::new(Region::part_of(fd, 2 << 20, 2 << 20).unwrap());
    let asked = OpenOptions { memory: Some(given), ..OpenOptions::default() };
    let device = Arc::new(ring3_model::nvme::open(&"sim:nvme".parse().unwrap(), asked).unwrap());
    let disk = Controller::open(device, short()).unwrap().disk(1).unwrap();
    let (mut queue, buffer) =
        (disk.open_queue(4).unwrap(), disk.dma().arena().alloc_pages(4096).unwrap());
    buffer.fill(0x5a);
    let offset = buffer.span().offset as usize;
    succeed(&mut *queue, Request::write(1, 0, 8, buffer));
    let read =
        succeed(&mut *queue, Request::read(2, 0, 8, disk.dma().arena().alloc_pages(4096).unwrap()));
    assert_eq!(bytes(read), [0x5a; 4096]);
    let mut seen = [0; 4096];
    theirs.read((2 << 20) + offset, &mut seen).unwrap();
    assert_eq!(seen, [0x5a; 4096]);
}
