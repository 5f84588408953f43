//! What becomes of data that any disk keeps in its volatile cache when its power fails: one fact a
//! test, each with every driver.

mod models;
mod owner;

use std::time::Duration;

use models::{Asked, Bench, KINDS};
use owner::{finish, succeed};
use ring3_class::block::{IoError, Queue, Request};
use ring3_model::fault::Action;

/// Requests time out after this, where a test waits for it.
const TIMEOUT: Duration = Duration::from_millis(80);
/// Requests time out after this, where a test must not.
const LONG: Duration = Duration::from_secs(30);
/// How two flushes end, one after the other, if written data were lost: it is said once.
const LOST: [Result<(), IoError>; 2] = [Err(IoError::Transport), Ok(())];
const KEPT: [Result<(), IoError>; 2] = [Ok(()); 2];

/// Does `what` with each kind of disk that asks for `asked`.
fn with(asked: Asked, what: impl Fn(&Bench)) {
    for (name, open) in KINDS {
        println!("{name}");
        let bench = open(asked);
        what(&bench);
    }
}

/// With each kind of disk that has a cache, and never times out.
fn with_each(what: impl Fn(&Bench)) {
    with(Asked { timeout: LONG, cache: true }, what);
}

/// How a flush ends, whatever else its owner is told.
fn flush(queue: &mut dyn Queue) -> Result<(), IoError> {
    queue.submit(Request::flush(99)).unwrap();
    finish(queue).of(99)
}

fn two_flushes(queue: &mut dyn Queue) -> [Result<(), IoError>; 2] {
    [flush(queue), flush(queue)]
}

#[test]
fn a_loss_of_power_fails_one_flush_of_each_queue_if_writes_were_not_flushed() {
    with_each(|bench| {
        let mut queues = [bench.queue_of(0, 4), bench.queue_of(1, 4)];
        for queue in &mut queues {
            succeed(&mut **queue, bench.write(8, 1));
        }
        bench.device.lose_power();
        for queue in queues.iter_mut().rev() {
            assert_eq!(two_flushes(&mut **queue), LOST);
            succeed(&mut **queue, bench.write(8, 2));
            assert_eq!(flush(&mut **queue), Ok(()));
        }
    });
}

#[test]
fn a_loss_of_power_that_a_read_meets_fails_the_flush_that_comes_later() {
    with_each(|bench| {
        let mut queue = bench.queue(4);
        succeed(&mut *queue, bench.write(8, 1));
        bench.device.lose_power();
        succeed(&mut *queue, bench.read(1));
        succeed(&mut *queue, bench.write(8, 2));
        assert_eq!(two_flushes(&mut *queue), LOST);
    });
}

#[test]
fn a_loss_of_power_is_remembered_past_a_reset_by_the_driver() {
    with_each(|bench| {
        let mut queue = bench.queue(4);
        succeed(&mut *queue, bench.write(8, 1));
        bench.device.lose_power();
        bench.reset_or_release();
        assert_eq!(two_flushes(&mut *queue), LOST);
    });
}

#[test]
fn a_loss_of_power_is_remembered_past_the_end_of_a_queue() {
    with_each(|bench| {
        succeed(&mut *bench.queue(4), bench.write(8, 1));
        bench.device.lose_power();
        assert_eq!(two_flushes(&mut *bench.queue(4)), LOST);
        assert_eq!(two_flushes(&mut *bench.queue(4)), KEPT);
    });
}

#[test]
fn what_was_flushed_or_written_through_is_not_lost_and_no_flush_fails() {
    with_each(|bench| {
        let mut queue = bench.queue(4);
        succeed(&mut *queue, bench.write(8, 1));
        assert_eq!(flush(&mut *queue), Ok(()));
        if bench.info().fua {
            succeed(&mut *queue, bench.write(9, 2).with_fua());
        }
        bench.device.lose_power();
        assert_eq!(two_flushes(&mut *queue), KEPT);
        let blocks = if bench.info().fua { [1, 2] } else { [1, 0] };
        assert_eq!([8, 9].map(|block| bench.device.first_byte(block)), blocks);
    });
}

#[test]
fn a_reset_by_somebody_else_fails_one_flush_unless_the_disk_says_that_its_power_was_there() {
    with_each(|bench| {
        let mut queue = bench.queue(4);
        for byte in [1, 2] {
            succeed(&mut *queue, bench.write(8, byte));
            bench.device.reset();
            let expected = if bench.counts_power { KEPT } else { LOST };
            assert_eq!(two_flushes(&mut *queue), expected);
            assert_eq!(bench.device.first_byte(8), byte);
        }
    });
}

#[test]
fn a_loss_of_power_between_two_resets_is_no_reset_alone() {
    with_each(|bench| {
        let mut queue = bench.queue(4);
        succeed(&mut *queue, bench.write(8, 1));
        bench.device.reset();
        succeed(&mut *queue, bench.read(1));
        bench.device.lose_power();
        bench.device.reset();
        assert_eq!(two_flushes(&mut *queue), LOST);
    });
}

#[test]
fn without_a_volatile_cache_a_loss_of_power_fails_no_flush() {
    with(Asked { timeout: LONG, cache: false }, |bench| {
        let mut queue = bench.queue(4);
        succeed(&mut *queue, bench.write(8, 1));
        bench.device.lose_power();
        assert_eq!(two_flushes(&mut *queue), KEPT);
        assert_eq!(bench.device.first_byte(8), 1);
    });
}

#[test]
fn zeroes_that_were_not_flushed_are_writes() {
    with_each(|bench| {
        let mut queue = bench.queue(4);
        if bench.info().max_write_zeroes_blocks >= 8 {
            succeed(&mut *queue, Request::write_zeroes(1, 0, 8));
            bench.device.lose_power();
            assert_eq!(two_flushes(&mut *queue), LOST);
        }
    });
}

#[test]
fn resets_by_the_driver_cost_no_written_data_and_fail_no_flush() {
    with(Asked { timeout: TIMEOUT, cache: true }, |bench| {
        let mut queue = bench.queue(4);
        succeed(&mut *queue, bench.write(8, 1));
        for action in [Action::Drop, Action::Hang] {
            bench.fault(bench.on_read(action));
            succeed(&mut *queue, bench.read(1));
        }
        bench.reset_or_release();
        bench.reset_or_release();
        assert_eq!(two_flushes(&mut *queue), KEPT);
        assert_eq!(bench.device.first_byte(8), 1);
    });
}
