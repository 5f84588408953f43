//! What the user of any disk sees when its controller misbehaves: one fact a test, each with every
//! driver. The lines of docs/faults.md for all disks name these tests.

mod models;
mod owner;

use std::time::{Duration, Instant};

use models::{Asked, Bench, KINDS};
use owner::{Outcome, PATIENCE, bytes, execute, finish, reap_all, succeed};
use ring3_class::block::{IoError, Queue};
use ring3_device::{Deadline, Error};
use ring3_model::fault::Action;

/// Requests time out after this, where a test waits for it.
const TIMEOUT: Duration = Duration::from_millis(80);
/// Requests time out after this, where a test must not.
const LONG: Duration = Duration::from_secs(30);
const MARK: u8 = 0x5a;

/// Does `what` with each kind of disk, whose first blocks are marked. Then the disk works, and its
/// driver has broken no rule.
fn with_each(timeout: Duration, what: impl Fn(&Bench)) {
    for (name, open) in KINDS {
        println!("{name}");
        let bench = open(Asked { timeout, cache: true });
        bench.device.fill(MARK);
        what(&bench);
        bench.device.plan().clear();
        works(&bench, &mut *bench.queue(8));
        // The drives are flushed at the end.
        drop(bench.queue_of(1, 8));
        assert_eq!(bench.device.misdeeds(), Vec::<String>::new());
    }
}

/// Several reads at once return what is on the disk.
fn works(bench: &Bench, queue: &mut dyn Queue) {
    bench.submit_reads(queue, 4);
    ended_well(finish(queue), 4);
}

/// So many reads have ended, each well and with the disk's data.
fn ended_well(outcome: Outcome, count: usize) {
    assert_eq!(outcome.completions.len(), count);
    for completion in outcome.completions {
        assert_eq!(completion.result, Ok(()), "read {}", completion.token);
        assert!(bytes(completion.data).iter().all(|&byte| byte == MARK));
    }
}

/// Four reads at once, of which the second meets `action`: all end well. How long that took.
fn four_reads(bench: &Bench, action: Action) -> Duration {
    let mut queue = bench.queue(8);
    bench.fault(bench.on_read(action).nth(2));
    bench.submit_reads(&mut *queue, 4);
    let outcome = finish(&mut *queue);
    assert_eq!(bench.device.plan().fired(), 1);
    assert!(
        outcome.errors.iter().all(|error| matches!(error, Error::Protocol(_))),
        "{:?}",
        outcome.errors
    );
    let took = outcome.took;
    ended_well(outcome, 4);
    works(bench, &mut *queue);
    took
}

#[test]
fn a_read_whose_end_is_lost_is_repeated_after_the_time_out() {
    with_each(TIMEOUT, |bench| assert!(four_reads(bench, Action::Drop) >= TIMEOUT));
}

#[test]
fn a_read_that_hangs_is_repeated_after_the_time_out() {
    with_each(TIMEOUT, |bench| assert!(four_reads(bench, Action::Hang) >= TIMEOUT));
}

#[test]
fn a_read_whose_end_is_always_lost_ends_with_a_time_out_after_three_attempts() {
    with_each(TIMEOUT, |bench| {
        let mut queue = bench.queue(8);
        bench.fault(bench.on_read(Action::Drop).always());
        let (end, data) = execute(&mut *queue, bench.read(1));
        assert_eq!((end, data.len()), (Err(IoError::Timeout), 512));
        assert_eq!(bench.device.plan().fired(), 3);
        bench.device.plan().clear();
        works(bench, &mut *queue);
    });
}

#[test]
fn an_end_that_is_late_but_in_time_is_waited_for() {
    let late = Duration::from_millis(20);
    with_each(LONG, |bench| assert!(four_reads(bench, Action::Delay(late)) >= late));
}

#[test]
fn a_controller_that_says_that_it_has_failed_is_reset_and_what_was_in_flight_repeated() {
    with_each(LONG, |bench| {
        // IDE has no such state.
        if bench.own_faults.contains(&Action::Fatal) {
            assert!(four_reads(bench, Action::Fatal) < LONG);
        }
    });
}

#[test]
fn an_end_that_is_told_twice_ends_its_read_once() {
    // Of a packed virtqueue, the second end takes the place of another's, which is missed.
    with_each(TIMEOUT, |bench| assert!(four_reads(bench, Action::Duplicate) < PATIENCE));
}

#[test]
fn a_lost_interrupt_costs_the_waiters_deadline_and_no_request() {
    with_each(LONG, |bench| assert!(four_reads(bench, Action::LoseInterrupt) < LONG));
}

#[test]
fn a_storm_of_interrupts_ends_no_read_early_and_none_late() {
    with_each(LONG, |bench| assert!(four_reads(bench, Action::Storm(20_000)) < LONG));
}

#[test]
fn data_that_the_device_writes_elsewhere_are_blocked_and_the_read_is_unharmed() {
    for (name, open) in KINDS {
        println!("{name}");
        let bench = open(Asked { timeout: LONG, cache: true });
        bench.device.fill(MARK);
        four_reads(&bench, Action::StrayDma(0xdead_0000));
        assert_eq!(bench.device.misdeeds().len(), 1, "{:?}", bench.device.misdeeds());
    }
}

#[test]
fn a_device_that_is_pulled_out_ends_all_requests_as_gone_and_gives_their_memory_back() {
    for (name, open) in KINDS {
        println!("{name}");
        let bench = open(Asked { timeout: LONG, cache: true });
        let free = bench.free();
        bench.device.hold(true);
        let mut queues = [bench.queue_of(0, 8), bench.queue_of(1, 8)];
        for queue in &mut queues {
            bench.submit_reads(&mut **queue, 8);
            queue.ring();
        }
        bench.device.remove();
        for queue in &mut queues {
            let outcome = finish(&mut **queue);
            assert!((0..8).all(|token| outcome.of(token) == Err(IoError::Gone)));
            assert!(outcome.completions.iter().all(|completion| completion.data.len() == 512));
            assert!(
                outcome.errors.iter().all(|error| matches!(error, Error::Gone)),
                "{:?}",
                outcome.errors
            );
        }
        // And those that come later, one by one, for ever.
        for token in 0..20 {
            queues[0].submit(bench.read(token)).unwrap();
            assert_eq!(finish(&mut *queues[0]).of(token), Err(IoError::Gone));
        }
        // Nothing is in flight: a wait is a sleep.
        assert!(!queues[0].wait(Deadline::after(Duration::from_millis(20))).unwrap());
        drop(queues);
        // What a driver keeps for requests of its own may come back, too.
        assert!(bench.free() >= free);
    }
}

#[test]
fn a_queue_that_is_dropped_with_reads_that_never_end_gives_their_memory_back() {
    with_each(TIMEOUT, |bench| {
        let free = bench.free();
        let mut queue = bench.queue(8);
        bench.fault(bench.on_read(Action::Hang).always());
        bench.submit_reads(&mut *queue, 4);
        queue.ring();
        drop(queue);
        assert_eq!((bench.device.held(), bench.free()), (0, free));
    });
}

#[test]
fn a_reset_repeats_every_request_in_flight_on_every_queue() {
    with_each(LONG, |bench| {
        bench.device.hold(true);
        let mut queues = [bench.queue_of(0, 8), bench.queue_of(1, 8)];
        for queue in &mut queues {
            bench.submit_reads(&mut **queue, 8);
            queue.ring();
        }
        assert_ne!(bench.device.held(), 0);
        bench.device.hold(false);
        bench.reset_or_release();
        queues.iter_mut().for_each(|queue| ended_well(finish(&mut **queue), 8));
    });
}

#[test]
fn what_was_not_rung_before_a_reset_is_not_lost() {
    with_each(LONG, |bench| {
        let mut queue = bench.queue(8);
        bench.submit_reads(&mut *queue, 4);
        bench.reset_or_release();
        ended_well(finish(&mut *queue), 4);
    });
}

#[test]
fn a_sleeping_owner_is_told_of_a_reset_by_its_tick() {
    with_each(LONG, |bench| {
        bench.device.hold(true);
        let mut queue = bench.queue(8);
        queue.submit(bench.read(1)).unwrap();
        queue.ring();
        let is_asleep = queue.irq().is_some() && queue.arm().unwrap();
        bench.device.hold(false);
        let mut outcome = Outcome::default();
        if bench.reset_or_release() {
            assert!(is_asleep);
            queue.tick(Instant::now()).unwrap();
            reap_all(&mut *queue, &mut outcome);
        } else {
            outcome = finish(&mut *queue);
        }
        ended_well(outcome, 1);
    });
}

#[test]
fn queues_whose_reads_are_lost_together_all_recover() {
    with_each(TIMEOUT, |bench| {
        bench.fault(bench.on_read(Action::Drop).times(2));
        let (mut one, mut other) = (bench.queue_of(0, 4), bench.queue_of(1, 4));
        std::thread::scope(|scope| {
            for queue in [&mut one, &mut other] {
                let reads: Vec<_> = (0..20).map(|token| bench.read(token)).collect();
                scope.spawn(move || {
                    for read in reads {
                        succeed(&mut **queue, read);
                    }
                });
            }
        });
    });
}

#[test]
fn one_fault_after_the_other_ends_every_request_exactly_once() {
    let actions = [
        Action::Drop,
        Action::Delay(TIMEOUT / 8),
        Action::Hang,
        Action::Duplicate,
        Action::LoseInterrupt,
        Action::Storm(5000),
    ];
    with_each(TIMEOUT, |bench| {
        let free = bench.free();
        let mut queue = bench.queue(12);
        let own = bench.own_faults;
        let all = actions.iter().chain(own);
        for (round, action) in all.cycle().take(24).enumerate() {
            bench.device.plan().clear();
            bench.fault(bench.on_read(*action).nth(1 + round as u64 * 7 % 12));
            bench.submit_reads(&mut *queue, 12);
            let outcome = finish(&mut *queue);
            assert!((0..12).all(|token| outcome.of(token) == Ok(())), "{action:?}");
            // An end that is told twice may still lie in the ring.
            reap_all(&mut *queue, &mut Outcome::default());
        }
        drop(queue);
        assert_eq!(bench.free(), free);
    });
}
