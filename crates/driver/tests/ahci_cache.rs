//! What becomes of written data that a drive behind an AHCI controller keeps in its volatile cache: power that fails for a moment, flushes
//! that fail, and the orderly end.

mod ahci;

use std::time::{Duration, Instant};

use ahci::{Bench, Outcome, PATIENCE, TIMEOUT, bench, bench_with, finish, short, succeed};
use ring3_class::block::{Disk, IoError, Queue, Request};
use ring3_device::Error;
use ring3_driver::ata::{Level, Options};
use ring3_model::fault::{Action, Rule};
use ring3_spec::ata::opcode;

const FAULT_READ: u8 = opcode::READ_DMA;
const FAULT_FLUSH: u8 = opcode::FLUSH;
const ABORTED: Action = Action::Error(0x04);
/// Nothing goes wrong; the rule counts the commands.
const SEEN: Action = Action::Delay(Duration::ZERO);

fn write(bench: &Bench, lba: u64) -> Request {
    Request::write(lba, lba, 1, bench.filled(512, 0x77))
}

/// One request and all that its owner sees.
fn run(queue: &mut dyn Queue, request: Request) -> Outcome {
    queue.submit(request).unwrap();
    finish(queue)
}

/// How a flush ends.
fn flush(queue: &mut dyn Queue) -> Result<(), IoError> {
    run(queue, Request::flush(99)).of(99)
}

/// The power of the first drive fails for a moment.
fn lose_power(bench: &Bench) {
    bench.handle.unplug(0);
    bench.handle.plug(0);
}

/// Queued and not.
fn both_levels(test: impl Fn(Bench, Box<dyn Queue>)) {
    for level in [Level::Queued, Level::Dma] {
        let bench = bench_with("", Options { level, ..short() });
        let queue = bench.queue(8);
        test(bench, queue);
    }
}

/// The disk has ended: requests fail, and each tick says what to do.
fn has_ended(bench: &Bench, queue: &mut dyn Queue, error: IoError) {
    assert_eq!(run(queue, bench.read(1)).of(1), Err(error));
    for _ in 0..2 {
        let error = queue.tick(Instant::now()).unwrap_err();
        assert!(matches!(&error, Error::Fatal(text) if text.contains("open the controller again")), "{error}");
    }
}

#[test]
fn writes_that_an_idle_drive_has_lost_with_its_power_are_not_flushed_well() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        lose_power(&bench);
        assert_eq!(flush(&mut *queue), Err(IoError::Transport));
        has_ended(&bench, &mut *queue, IoError::Transport);
        let mut bytes = [1; 512];
        assert!(bench.handle.peek(0, 8 * 512, &mut bytes) && bytes == [0; 512], "they are lost");
    });
}

#[test]
fn a_power_that_fails_behind_a_flush_costs_nothing() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        succeed(&mut *queue, Request::flush(1));
        lose_power(&bench);
        assert_eq!(flush(&mut *queue), Ok(()));
        succeed(&mut *queue, bench.read(8));
    });
}

#[test]
fn what_is_written_behind_a_power_that_failed_is_not_taken_for_lost() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        succeed(&mut *queue, Request::flush(1));
        lose_power(&bench);
        succeed(&mut *queue, write(&bench, 9));
        assert_eq!(flush(&mut *queue), Ok(()));
    });
}

#[test]
fn what_is_durable_by_itself_is_not_lost() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8).with_fua());
        lose_power(&bench);
        assert_eq!(flush(&mut *queue), Ok(()));
    });
    let bench = bench(",cache=off");
    let mut queue = bench.queue(8);
    succeed(&mut *queue, write(&bench, 8));
    lose_power(&bench);
    assert_eq!(flush(&mut *queue), Ok(()));
}

#[test]
fn a_flush_that_failed_leaves_its_writes_at_risk() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        bench.handle.plan().add(Rule::io(ABORTED, FAULT_FLUSH));
        assert_eq!(flush(&mut *queue), Err(IoError::Transport));
        lose_power(&bench);
        assert_eq!(flush(&mut *queue), Err(IoError::Transport));
        has_ended(&bench, &mut *queue, IoError::Transport);
    });
}

#[test]
fn a_flush_that_the_drive_failed_is_not_repeated() {
    both_levels(|bench, mut queue| {
        for fault in [ABORTED, Action::DriveFault, Action::Error(0x84)] {
            bench.handle.plan().clear();
            let before = bench.handle.plan().fired();
            bench.handle.plan().add(Rule::io(fault, FAULT_FLUSH).always());
            assert!(flush(&mut *queue).is_err());
            assert_eq!(bench.handle.plan().fired() - before, 1, "{fault:?}");
        }
    });
}

#[test]
fn a_loss_is_remembered_past_a_command_that_failed() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        lose_power(&bench);
        bench.handle.plan().add(Rule::io(Action::Error(0x40), FAULT_READ));
        assert!(run(&mut *queue, bench.read(1)).of(1).is_err());
        assert_eq!(flush(&mut *queue), Err(IoError::Transport));
    });
}

#[test]
fn a_loss_is_remembered_past_a_reset_of_the_controller() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        lose_power(&bench);
        bench.controller.reset().unwrap();
        assert_eq!(flush(&mut *queue), Err(IoError::Transport));
    });
}

#[test]
fn a_loss_is_remembered_past_the_end_of_a_queue() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        drop(queue);
        lose_power(&bench);
        let mut queue = bench.queue(8);
        assert_eq!(flush(&mut *queue), Err(IoError::Transport));
        drop(queue);
        let error = bench.disk().open_queue(8).err().unwrap().to_string();
        assert!(error.contains("open the controller again"), "{error}");
    });
}

#[test]
fn a_drive_that_comes_back_without_what_it_was_given_is_not_used() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        bench.handle.unplug(0);
        let outcome = run(&mut *queue, bench.read(1));
        assert_eq!(outcome.of(1), Err(IoError::Gone));
        assert!(outcome.errors.iter().any(|error| matches!(error, Error::Gone)), "{:?}", outcome.errors);
        bench.handle.plug(0);
        has_ended(&bench, &mut *queue, IoError::Transport);
    });
}

#[test]
fn resets_by_the_driver_cost_no_written_data() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        bench.handle.plan().add(Rule::io(Action::Hang, FAULT_READ));
        succeed(&mut *queue, bench.read(1));
        bench.controller.reset().unwrap();
        succeed(&mut *queue, bench.read(1));
        bench.handle.plan().add(Rule::io(Action::BusyUntilReset, FAULT_READ));
        succeed(&mut *queue, bench.read(1));
        assert_eq!(flush(&mut *queue), Ok(()));
    });
}

#[test]
fn resets_that_follow_each_other_cost_no_written_data() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, write(&bench, 8));
        bench.controller.reset().unwrap();
        bench.controller.reset().unwrap();
        assert_eq!(flush(&mut *queue), Ok(()));
    });
}

#[test]
fn a_flush_may_take_longer_than_other_commands() {
    let bench = bench_with("", Options { flush_timeout: PATIENCE, ..short() });
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Delay(TIMEOUT * 4), FAULT_FLUSH));
    let commands = bench.handle.counters().admin_commands;
    assert_eq!(flush(&mut *queue), Ok(()));
    assert_eq!(bench.handle.counters().admin_commands, commands, "the drive was not reset");
}

/// Counts flushes and commands that park.
fn count_the_end(bench: &Bench) {
    bench.handle.plan().add(Rule::io(SEEN, FAULT_FLUSH).always());
    bench.handle.plan().add(Rule::admin(SEEN, opcode::STANDBY_IMMEDIATE).always());
}

#[test]
fn an_orderly_end_flushes_and_parks_every_drive_that_was_used() {
    let bench = bench(",disks=3");
    let mut queues: Vec<_> = bench.controller.drives()[..2].iter().map(|drive| drive.open_queue(8).unwrap()).collect();
    queues.iter_mut().for_each(|queue| drop(succeed(&mut **queue, write(&bench, 8))));
    drop(queues);
    count_the_end(&bench);
    let handle = bench.handle.clone();
    drop(bench);
    assert_eq!(handle.plan().fired(), 4);
    handle.lose_power();
    let mut bytes = [0; 512];
    assert!((0..2).all(|port| handle.peek(port, 8 * 512, &mut bytes) && bytes == [0x77; 512]));
}

#[test]
fn a_drive_that_is_gone_is_not_flushed_at_the_end() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    succeed(&mut *queue, write(&bench, 8));
    bench.handle.unplug(0);
    assert_eq!(run(&mut *queue, bench.read(1)).of(1), Err(IoError::Gone));
    drop(queue);
    count_the_end(&bench);
    let handle = bench.handle.clone();
    drop(bench);
    assert_eq!(handle.plan().fired(), 0);
}

#[test]
fn a_flush_that_hangs_at_the_end_costs_its_time_out_and_is_told() {
    let bench = bench("");
    drop(bench.queue(8));
    bench.handle.plan().add(Rule::io(Action::Hang, FAULT_FLUSH));
    let start = Instant::now();
    let error = bench.controller.shutdown().unwrap_err().to_string();
    assert!(error.contains("FLUSH CACHE") && start.elapsed() < PATIENCE, "{error}");
}
