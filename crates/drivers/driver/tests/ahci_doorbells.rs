//! What a request costs in register accesses: each is a trip over the bus.

mod ahci;
mod disks;

use std::time::Duration;

use ahci::{Bench, PATIENCE, bench_with};
use ring3_class::block::Queue;
use ring3_device::Deadline;
use ring3_device::irq::IrqKind;
use ring3_driver::Interrupts;
use ring3_driver::ata::{Level, Options};
use ring3_model::Timing;
use ring3_model::ahci::Counters;

/// Register reads, register writes, and the writes of PxCI among them, since `before`.
fn since(bench: &Bench, before: Counters) -> (u64, u64, u64) {
    let now = bench.handle.counters();
    (now.reads - before.reads, now.writes - before.writes, now.doorbells - before.doorbells)
}

fn submit(bench: &Bench, queue: &mut dyn Queue, tokens: std::ops::Range<u64>) {
    for token in tokens {
        queue.submit(bench.read(token)).unwrap();
    }
}

fn reap(queue: &mut dyn Queue) -> usize {
    std::iter::from_fn(|| queue.reap_one().unwrap())
        .inspect(|completion| assert_eq!(completion.result, Ok(())))
        .count()
}

#[test]
fn a_batch_is_one_write_of_each_doorbell() {
    let bench = bench_with("", Options { interrupts: Interrupts::Polled, ..Options::default() });
    let mut queue = bench.queue(32);
    bench.handle.set_timing(Timing::Held);
    let before = bench.handle.counters();
    submit(&bench, &mut *queue, 0..32);
    assert_eq!(since(&bench, before), (0, 0, 0), "nothing before the ring");
    queue.ring();
    assert_eq!(since(&bench, before), (0, 2, 1), "PxSACT and PxCI");
    bench.handle.release();
    assert_eq!(reap(&mut *queue), 32);
}

#[test]
fn all_that_ended_together_costs_two_reads() {
    let bench = bench_with("", Options { interrupts: Interrupts::Polled, ..Options::default() });
    let mut queue = bench.queue(32);
    bench.handle.set_timing(Timing::Held);
    submit(&bench, &mut *queue, 0..32);
    queue.ring();
    bench.handle.release();
    let before = bench.handle.counters();
    assert_eq!(reap(&mut *queue), 32);
    assert_eq!(
        since(&bench, before),
        (2, 0, 0),
        "PxSACT, and PxCMD because a later frame lies over the earlier ones"
    );
}

#[test]
fn polling_for_an_end_reads_no_register() {
    let bench = bench_with("", Options { interrupts: Interrupts::Polled, ..Options::default() });
    let mut queue = bench.queue(8);
    bench.handle.set_timing(Timing::Held);
    submit(&bench, &mut *queue, 0..4);
    queue.ring();
    let before = bench.handle.counters();
    assert!(!queue.wait(Deadline::after(Duration::from_millis(20))).unwrap());
    assert!((0..100).all(|_| queue.reap_one().unwrap().is_none()));
    assert_eq!(since(&bench, before), (0, 0, 0));
    bench.handle.release();
    assert_eq!(reap(&mut *queue), 4);
}

/// One read after the other, each slept for; accesses of the last `count`.
fn one_by_one(bench: &Bench, count: u64) -> (u64, u64, u64) {
    let mut queue = bench.queue(8);
    let mut before = bench.handle.counters();
    for token in 0..count + 10 {
        if token == 10 {
            before = bench.handle.counters();
        }
        submit(bench, &mut *queue, 0..1);
        queue.ring();
        assert!(queue.wait(Deadline::after(PATIENCE)).unwrap());
        assert_eq!(reap(&mut *queue), 1);
    }
    since(bench, before)
}

#[test]
fn a_read_that_is_slept_for_costs_one_read_and_four_writes() {
    let options = Options {
        poll: Duration::ZERO,
        interrupts: Interrupts::Only(IrqKind::Msi),
        ..Options::default()
    };
    let bench = bench_with(",delay=2ms", options);
    // PxSACT, PxCI; PxIS and IS to acknowledge; PxSACT to see the end.
    assert_eq!(one_by_one(&bench, 50), (50, 200, 50));
}

#[test]
fn a_command_that_is_not_queued_costs_one_doorbell() {
    let options =
        Options { level: Level::Dma, interrupts: Interrupts::Polled, ..Options::default() };
    let bench = bench_with("", options);
    assert_eq!(one_by_one(&bench, 50), (50, 50, 50));
}
