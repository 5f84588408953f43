//! Resets of an AHCI controller that its driver did not ask for.

mod ahci;
mod disks;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ahci::{Bench, bench_with, device, execute, finish, succeed};
use ring3_class::block::{Disk, IoError, Queue, Request};
use ring3_driver::Interrupts;
use ring3_driver::ata::ahci::Controller;
use ring3_driver::ata::{Level, Options};
use ring3_model::Timing;
use ring3_model::fault::{Action, Rule};
use ring3_spec::ata::opcode;

/// A part of the time-out of these tests' requests that no busy machine needs for a look at a
/// register.
const SOON: Duration = Duration::from_secs(15);

/// Controllers with two drives whose requests have the usual 30 s: with and without queued commands
/// and interrupts.
fn patient(test: impl Fn(Bench)) {
    for level in [Level::Queued, Level::Dma] {
        for interrupts in [Interrupts::Auto, Interrupts::Polled] {
            test(bench_with(",disks=2", Options { level, interrupts, ..Options::default() }));
        }
    }
}

fn write(bench: &Bench, queue: &mut dyn Queue) {
    succeed(queue, Request::write(1, 0, 1, bench.filled(512, 0x11)));
}

#[test]
fn a_reset_behind_the_drivers_back_is_seen_at_the_next_look_and_the_requests_are_repeated() {
    patient(|bench| {
        bench.handle.set_timing(Timing::Held);
        let mut queues: Vec<_> =
            bench.controller.drives().iter().map(|drive| drive.open_queue(8).unwrap()).collect();
        for queue in &mut queues {
            (0..8).for_each(|token| queue.submit(bench.read(token)).unwrap());
            queue.ring();
        }
        bench.handle.set_timing(Timing::Inline);
        bench.handle.reset_function();
        for queue in &mut queues {
            let outcome = finish(&mut **queue);
            assert!(
                (0..8).all(|token| outcome.of(token) == Ok(())) && outcome.errors.is_empty(),
                "{:?}",
                outcome.errors
            );
            assert!(outcome.took < SOON, "{:?}", outcome.took);
        }
    });
}

#[test]
fn a_reset_of_an_idle_controller_costs_the_next_request_a_look() {
    patient(|bench| {
        let mut queue = bench.queue(8);
        bench.handle.reset_function();
        let start = Instant::now();
        succeed(&mut *queue, bench.read(1));
        assert!(start.elapsed() < SOON);
    });
}

#[test]
fn a_queue_that_is_dropped_behind_a_reset_gives_its_memory_back() {
    patient(|bench| {
        let free = bench.free();
        bench.handle.set_timing(Timing::Held);
        let mut queue = bench.queue(8);
        (0..8).for_each(|token| queue.submit(bench.read(token)).unwrap());
        queue.ring();
        bench.handle.reset_function();
        drop(queue);
        bench.handle.set_timing(Timing::Inline);
        assert_eq!(bench.free(), free);
        succeed(&mut *bench.queue(8), bench.read(1));
    });
}

#[test]
fn writes_that_a_reset_behind_the_drivers_back_may_have_lost_are_not_flushed_well() {
    patient(|bench| {
        let (mut queue, mut other) =
            (bench.queue(8), bench.controller.drives()[1].open_queue(8).unwrap());
        write(&bench, &mut *queue);
        bench.handle.lose_power();
        // Whoever finds the reset, and whoever has written.
        succeed(&mut *other, bench.read(1));
        let mut flush = || execute(&mut *queue, Request::flush(2)).0;
        assert_eq!((flush(), flush()), (Err(IoError::Transport), Ok(())));
    });
}

#[test]
fn a_reset_behind_a_flush_costs_nothing() {
    patient(|bench| {
        let mut queue = bench.queue(8);
        write(&bench, &mut *queue);
        succeed(&mut *queue, Request::flush(2));
        bench.handle.lose_power();
        assert_eq!(execute(&mut *queue, Request::flush(2)).0, Ok(()));
        write(&bench, &mut *queue);
        assert_eq!(execute(&mut *queue, Request::flush(2)).0, Ok(()));
    });
}

#[test]
fn a_failure_that_is_found_behind_a_reset_ends_its_request_once() {
    patient(|bench| {
        bench.handle.set_timing(Timing::Held);
        bench.handle.plan().add(Rule::io(Action::Error(0x40), opcode::READ_DMA));
        let mut queue = bench.queue(8);
        (0..2).for_each(|token| queue.submit(bench.read(token)).unwrap());
        queue.ring();
        // The failure's frame is in memory.
        bench.handle.set_timing(Timing::Inline);
        bench.handle.reset_function();
        let outcome = finish(&mut *queue);
        assert!(outcome.completions.len() == 2 && outcome.took < SOON, "{:?}", outcome.took);
        assert_eq!(outcome.of(1), Ok(()));
    });
}

#[test]
fn a_controller_that_was_shut_down_is_not_started_by_a_reset() {
    patient(|bench| {
        bench.controller.shutdown().unwrap();
        assert!(bench.controller.reset().is_err());
    });
}

#[test]
fn ports_that_were_empty_before_the_controllers_reset_are_not_waited_for_as_if_a_drive_had_to_come()
{
    // A controller that another driver has had; its end leaves the ports as they are. The shortest
    // of several, since a busy machine only adds to it.
    let took = (0..5).map(|_| {
        let device = Arc::new(device(",disks=1,ports=6"));
        drop(Controller::open(device.clone(), Options::default()).unwrap());
        let start = Instant::now();
        assert_eq!(Controller::open(device, Options::default()).unwrap().drives().len(), 1);
        start.elapsed()
    });
    let shortest = took.min().unwrap();
    assert!(shortest < Duration::from_millis(90), "{shortest:?}");
}
