//! Resets of an NVMe controller that its driver did not ask for, and what every queue is told when
//! there is no controller any more.

mod disks;
mod nvme;

use std::time::{Duration, Instant};

use nvme::{Bench, Outcome, bench, bench_with, execute, finish, reap_all, succeed};
use ring3_class::block::{IoError, Queue, Request};
use ring3_device::{Deadline, Error};
use ring3_driver::nvme::Options;
use ring3_model::Timing;
use ring3_model::fault::{Action, Rule};
use ring3_spec::nvme::Status;
use ring3_spec::nvme::opcode::{admin, nvm};

/// A part of the time-out of these tests' requests that no busy machine needs for a look at a
/// register.
const SOON: Duration = Duration::from_secs(15);

/// A controller whose requests have the usual 30 s.
fn patient(uri: &str) -> Bench {
    bench_with(uri, Options::default())
}

fn write(bench: &Bench, queue: &mut dyn Queue) {
    succeed(queue, Request::write(1, 0, 1, bench.filled(512, 0x11)));
}

fn flush(queue: &mut dyn Queue) -> Result<(), IoError> {
    execute(queue, Request::flush(2)).0
}

#[test]
fn a_reset_behind_the_drivers_back_is_seen_at_the_next_look_and_the_requests_are_repeated() {
    let bench = patient("");
    bench.handle.set_timing(Timing::Held);
    let mut queue = bench.queue(8);
    for token in 0..8 {
        queue.submit(Request::read(token, token, 1, bench.buffer(512))).unwrap();
    }
    queue.ring();
    bench.handle.set_timing(Timing::Inline);
    bench.handle.reset_function();
    let outcome = finish(&mut *queue);
    assert!(
        (0..8).all(|token| outcome.of(token) == Ok(())) && outcome.errors.is_empty(),
        "{:?}",
        outcome.errors
    );
    assert!(outcome.took < SOON, "{:?}", outcome.took);
}

#[test]
fn a_reset_of_an_idle_controller_costs_the_next_request_a_look() {
    let bench = patient("");
    let mut queue = bench.queue(8);
    bench.handle.reset_function();
    let start = Instant::now();
    succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    assert!(start.elapsed() < SOON);
}

#[test]
fn an_admin_command_ends_at_once_when_the_controller_is_reset_and_the_next_one_works() {
    let bench = patient("");
    bench.handle.plan().read("function-reset:log").unwrap();
    let start = Instant::now();
    let error = bench.controller.smart().map(drop).unwrap_err();
    assert!(error.to_string().contains("reset"), "{error}");
    assert!(start.elapsed() < SOON);
    bench.controller.smart().unwrap();
}

#[test]
fn a_reset_of_the_function_without_a_loss_of_power_fails_no_flush() {
    let bench = patient("");
    let mut queue = bench.queue(4);
    write(&bench, &mut *queue);
    bench.handle.reset_function();
    assert_eq!(flush(&mut *queue), Ok(()));
}

#[test]
fn where_the_controller_does_not_count_its_losses_of_power_any_reset_behind_the_drivers_back_is_one()
 {
    for is_refused in [false, true] {
        let device = nvme::device("");
        if is_refused {
            device.handle().plan().read("status/0x109:log:1:all").unwrap();
        } else {
            device.handle().count_no_power();
        }
        let bench = Bench::of(device, Options::default()).unwrap();
        let mut queue = bench.queue(4);
        write(&bench, &mut *queue);
        bench.handle.reset_function();
        assert_eq!((flush(&mut *queue), flush(&mut *queue)), (Err(IoError::Transport), Ok(())));
    }
}

#[test]
fn a_crash_of_the_controller_is_a_loss_whatever_it_counts() {
    let bench = patient("");
    let mut queue = bench.queue(4);
    write(&bench, &mut *queue);
    bench.handle.fail();
    assert_eq!((flush(&mut *queue), flush(&mut *queue)), (Err(IoError::Transport), Ok(())));
}

#[test]
fn a_write_that_had_ended_before_the_power_went_and_is_found_later_fails_the_flush() {
    let bench = patient("");
    let (mut writer, mut other) = (bench.queue(4), bench.queue(4));
    writer.submit(Request::write(1, 0, 1, bench.filled(512, 0x11))).unwrap();
    writer.ring();
    bench.handle.lose_power();
    succeed(&mut *other, Request::read(1, 8, 1, bench.buffer(512)));
    assert_eq!(flush(&mut *other), Ok(()), "nobody has heard of a write yet");
    let mut outcome = Outcome::default();
    reap_all(&mut *writer, &mut outcome);
    assert_eq!(outcome.of(1), Ok(()));
    assert_eq!((flush(&mut *writer), flush(&mut *writer)), (Err(IoError::Transport), Ok(())));
}

#[test]
fn flushes_that_meet_the_loss_of_power_themselves_all_fail() {
    let bench = patient("");
    bench.handle.plan().add(Rule::io(Action::LosePower, nvm::FLUSH).nth(3));
    bench.handle.set_timing(Timing::Held);
    let mut queues = [bench.queue(4), bench.queue(4), bench.queue(4)];
    bench.handle.set_timing(Timing::Inline);
    write(&bench, &mut *queues[0]);
    bench.handle.set_timing(Timing::Held);
    for queue in &mut queues {
        queue.submit(Request::flush(2)).unwrap();
        queue.ring();
    }
    bench.handle.set_timing(Timing::Inline);
    for queue in &mut queues {
        assert_eq!(finish(&mut **queue).of(2), Err(IoError::Transport));
    }
    assert_eq!(flush(&mut *queues[0]), Ok(()));
}

#[test]
fn a_status_that_may_be_repeated_found_after_a_reset_rings_no_doorbell_of_a_deleted_queue() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    bench.handle.plan().add(Rule::io(Action::Status(Status::INTERRUPTED.0), nvm::READ));
    queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
    queue.ring();
    bench.controller.reset().unwrap();
    let outcome = finish(&mut *queue);
    assert_eq!((outcome.of(1), outcome.errors.len()), (Ok(()), 0));
    assert_eq!(bench.handle.violations(), Vec::<String>::new());
}

#[test]
fn a_queue_that_outlives_its_controller_rings_no_doorbell() {
    let bench = bench("");
    let mut queues = [bench.queue(4), bench.queue(4)];
    for queue in &mut queues {
        succeed(&mut **queue, Request::read(1, 0, 1, bench.buffer(512)));
    }
    bench.controller.shutdown().unwrap();
    let _ = queues[0].wait(Deadline::after(Duration::from_millis(5)));
    let _ = queues[1].arm();
    assert_eq!(bench.handle.violations(), Vec::<String>::new());
}

#[test]
fn completions_that_polling_finds_cost_no_doorbell_of_their_own() {
    let options = Options { poll: Duration::from_secs(10), ..Options::default() };
    let bench = bench_with(",delay=1ms", options);
    let mut queue = bench.queue(8);
    for token in 0..10 {
        queue.submit(Request::read(token, 0, 1, bench.buffer(512))).unwrap();
        queue.ring();
        assert!(queue.wait(Deadline::after(SOON)).unwrap() && queue.reap_one().unwrap().is_some());
    }
    assert_eq!((queue.wait_stats().slept, bench.handle.counters().completion_doorbells), (0, 0));
}

#[test]
fn a_controller_that_is_given_up_says_so_to_each_queue_once() {
    let bench = bench("");
    bench.handle.set_timing(Timing::Held);
    let mut queues = [bench.queue(4), bench.queue(4), bench.queue(4)];
    for queue in &mut queues[..2] {
        queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
        queue.ring();
    }
    bench.handle.plan().add(Rule::enable(Action::StuckReady).always());
    assert!(bench.controller.reset().is_err());
    for queue in &mut queues {
        let mut outcome = Outcome::default();
        // An owner in an event loop reaps, and ticks only while something is in flight.
        for _ in 0..8 {
            reap_all(&mut **queue, &mut outcome);
        }
        let fatal = outcome
            .errors
            .iter()
            .filter(|error| matches!(error, Error::Fatal(what) if what.contains("open it again")));
        assert_eq!((fatal.count(), outcome.errors.len()), (1, 1), "{:?}", outcome.errors);
        assert!(
            outcome
                .completions
                .iter()
                .all(|completion| completion.result == Err(IoError::Transport))
        );
    }
    let ends: Vec<_> = queues.iter().map(|queue| queue.in_flight()).collect();
    assert_eq!(ends, [0, 0, 0]);
}

#[test]
fn a_tick_tells_that_the_controller_was_given_up_as_long_as_requests_wait() {
    let bench = bench("");
    bench.handle.set_timing(Timing::Held);
    let mut queue = bench.queue(4);
    queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
    queue.ring();
    bench
        .handle
        .plan()
        .add(Rule::admin(Action::Status(Status::INTERNAL.0), admin::CREATE_CQ).always());
    let _ = bench.controller.reset();
    for _ in 0..3 {
        assert!(matches!(queue.tick(Instant::now()), Err(Error::Fatal(_))));
    }
    assert_eq!(finish(&mut *queue).of(1), Err(IoError::Transport));
}

#[test]
fn a_controller_that_was_shut_down_is_not_started_by_a_reset() {
    let bench = patient("");
    bench.controller.shutdown().unwrap();
    assert!(bench.controller.reset().is_err());
    assert_eq!(bench.handle.counters().enables, 1);
}
