//! What becomes of written data that a drive on an IDE channel keeps in its volatile cache, what a slow-down leaves of what was promised,
//! and what one bus master at a time means.

mod ide;

use std::time::{Duration, Instant};

use ide::{Bench, Outcome, PATIENCE, TIMEOUT, bench, bench_with, finish, short, succeed};
use ring3_class::block::{Disk, IoError, Queue, Request};
use ring3_device::Error;
use ring3_driver::Interrupts;
use ring3_driver::ata::Options;
use ring3_model::Timing;
use ring3_model::fault::{Action, Rule};
use ring3_spec::ata::{ErrorBits, opcode};

const FAULT_READ: u8 = opcode::READ_DMA;
const FAULT_FLUSH: u8 = opcode::FLUSH;
const CRC: Action = Action::Error(ErrorBits(0).with_interface_crc(1).with_aborted(1).0);
/// Nothing goes wrong; the rule counts the commands.
const SEEN: Action = Action::Delay(Duration::ZERO);

fn write(bench: &Bench, lba: u64) -> Request {
    Request::write(lba, lba, 1, bench.filled(512, 0x77))
}

fn read(bench: &Bench, lba: u64) -> Request {
    Request::read(lba, lba, 1, bench.buffer(512))
}

fn run(queue: &mut dyn Queue, request: Request) -> Outcome {
    queue.submit(request).unwrap();
    finish(queue)
}

fn flush(queue: &mut dyn Queue) -> Result<(), IoError> {
    run(queue, Request::flush(99)).of(99)
}

/// The power of the first drive fails for a moment.
fn lose_power(bench: &Bench) {
    bench.handle.unplug(0);
    bench.handle.plug(0);
}

/// By interrupt, by looking, and on both kinds of chips.
fn each_way(test: impl Fn(Bench, Box<dyn Queue>)) {
    let polled = || Options { interrupts: Interrupts::Polled, ..short() };
    for (uri, options) in [("", short()), ("", polled()), (",chip=cmd646", short())] {
        let bench = bench_with(uri, options);
        let queue = bench.queue(8);
        test(bench, queue);
    }
}

fn has_ended(bench: &Bench, queue: &mut dyn Queue) {
    assert_eq!(run(queue, read(bench, 1)).of(1), Err(IoError::Transport));
    for _ in 0..2 {
        let error = queue.tick(Instant::now()).unwrap_err();
        assert!(matches!(&error, Error::Fatal(text) if text.contains("open the controller again")), "{error}");
    }
}

#[test]
fn writes_that_an_idle_drive_has_lost_with_its_power_are_not_flushed_well() {
    each_way(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        lose_power(&bench);
        assert_eq!(flush(&mut *queue), Err(IoError::Transport));
        has_ended(&bench, &mut *queue);
    });
}

#[test]
fn a_loss_of_power_is_seen_when_the_drives_are_reset() {
    each_way(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        lose_power(&bench);
        // A drive that has lost its transfer mode does no transfer.
        bench.handle.plan().add(Rule::io(Action::Drop, FAULT_READ));
        assert_eq!(run(&mut *queue, read(&bench, 1)).of(1), Err(IoError::Transport));
        has_ended(&bench, &mut *queue);
    });
}

#[test]
fn a_power_that_fails_behind_a_flush_costs_nothing() {
    each_way(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        succeed(&mut *queue, Request::flush(1));
        lose_power(&bench);
        assert_eq!(flush(&mut *queue), Ok(()));
    });
}

#[test]
fn resets_by_the_driver_cost_no_written_data() {
    each_way(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        bench.handle.plan().add(Rule::io(Action::Drop, FAULT_READ));
        succeed(&mut *queue, read(&bench, 1));
        assert_eq!(flush(&mut *queue), Ok(()));
        bench.well_behaved();
    });
}

#[test]
fn a_slower_mode_is_no_loss_of_power() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    succeed(&mut *queue, write(&bench, 8));
    bench.handle.plan().add(Rule::io(CRC, FAULT_READ).times(6));
    succeed(&mut *queue, read(&bench, 1));
    assert_eq!(bench.drive(0).mode(), "PIO");
    assert_eq!(flush(&mut *queue), Ok(()));
}

#[test]
fn a_flush_that_failed_leaves_its_writes_at_risk_and_is_not_repeated() {
    each_way(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        for fault in [Action::Error(0x04), Action::DriveFault] {
            bench.handle.plan().clear();
            let before = bench.handle.plan().fired();
            bench.handle.plan().add(Rule::io(fault, FAULT_FLUSH).always());
            assert_eq!(flush(&mut *queue), Err(IoError::Transport));
            assert_eq!(bench.handle.plan().fired() - before, 1, "{fault:?}");
        }
        bench.handle.plan().clear();
        lose_power(&bench);
        assert_eq!(flush(&mut *queue), Err(IoError::Transport));
        has_ended(&bench, &mut *queue);
    });
}

#[test]
fn a_flush_may_take_longer_than_other_commands() {
    let bench = bench_with("", Options { flush_timeout: PATIENCE, ..short() });
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Delay(TIMEOUT * 3), FAULT_FLUSH));
    assert_eq!(flush(&mut *queue), Ok(()));
    assert_eq!(bench.drive(0).stats().resets, 0);
}

/// Counts flushes and commands that park.
fn count_the_end(bench: &Bench) {
    bench.handle.plan().add(Rule::io(SEEN, FAULT_FLUSH).always());
    bench.handle.plan().add(Rule::admin(SEEN, opcode::STANDBY_IMMEDIATE).always());
}

#[test]
fn an_orderly_end_flushes_and_parks_every_drive_that_was_used() {
    for uri in [",disks=4", ",chip=cmd646,disks=4"] {
        let bench = bench(uri);
        for index in [0, 1, 3] {
            succeed(&mut *bench.drive(index).open_queue(8).unwrap(), write(&bench, 8));
        }
        count_the_end(&bench);
        let handle = bench.handle.clone();
        drop(bench);
        assert_eq!(handle.plan().fired(), 6, "{uri}");
        handle.lose_power();
        let mut bytes = [0; 512];
        assert!([0, 1, 3].iter().all(|&drive| handle.peek(drive, 8 * 512, &mut bytes) && bytes == [0x77; 512]));
        assert_eq!(handle.complaints(), Vec::<String>::new());
    }
}

#[test]
fn a_drive_that_is_gone_is_not_flushed_at_the_end() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Unplug, FAULT_READ));
    assert_eq!(run(&mut *queue, read(&bench, 1)).of(1), Err(IoError::Gone));
    drop(queue);
    bench.handle.plan().clear();
    let before = bench.handle.plan().fired();
    count_the_end(&bench);
    let handle = bench.handle.clone();
    drop(bench);
    assert_eq!(handle.plan().fired() - before, 0);
}

#[test]
fn a_flush_that_hangs_at_the_end_costs_its_time_out() {
    let bench = bench("");
    drop(bench.queue(8));
    bench.handle.plan().add(Rule::io(Action::Hang, FAULT_FLUSH));
    let (handle, start) = (bench.handle.clone(), Instant::now());
    drop(bench);
    assert_eq!(handle.plan().fired(), 1);
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

#[test]
fn writing_through_that_was_promised_is_done_after_a_slow_down_to_pio() {
    for (uri, promised) in [(",multiple=0", false), ("", true)] {
        let bench = bench(uri);
        let mut queue = bench.queue(8);
        assert_eq!(bench.drive(0).info().fua, promised, "{uri}");
        bench.handle.plan().add(Rule::io(CRC, FAULT_READ).times(6));
        succeed(&mut *queue, read(&bench, 1));
        assert_eq!(bench.drive(0).mode(), "PIO");
        if promised {
            succeed(&mut *queue, write(&bench, 8).with_fua());
            lose_power(&bench);
            let mut bytes = [0; 512];
            assert!(bench.handle.peek(0, 8 * 512, &mut bytes) && bytes == [0x77; 512]);
        }
    }
}

#[test]
fn one_channel_of_a_simplex_function_has_the_bus_master_and_the_other_pio() {
    for (uri, modes) in [
        (",disks=4,simplex=on", ["Ultra DMA mode 2", "Ultra DMA mode 2", "PIO", "PIO"]),
        (",disks=4,simplex=on,chip=cmd646", ["Ultra DMA mode 2", "Ultra DMA mode 2", "PIO", "PIO"]),
    ] {
        let bench = bench(uri);
        assert_eq!([0, 1, 2, 3].map(|index| bench.drive(index).mode()), modes);
        bench.handle.set_timing(Timing::Held);
        let mut queues = [0, 2].map(|index| bench.drive(index).open_queue(8).unwrap());
        for queue in &mut queues {
            queue.submit(write(&bench, 8)).unwrap();
            queue.ring();
        }
        bench.handle.set_timing(Timing::Inline);
        bench.handle.release();
        for queue in &mut queues {
            assert_eq!(finish(&mut **queue).of(8), Ok(()));
            succeed(&mut **queue, read(&bench, 8));
        }
        drop(queues);
        bench.well_behaved();
    }
}
