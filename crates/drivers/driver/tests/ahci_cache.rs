//! What becomes of written data that a drive behind an AHCI controller keeps in its volatile cache,
//! beyond what `ata_cache.rs` shows: what a link says that was lost, how long that is remembered,
//! and an orderly end that is none.

mod ahci;
mod disks;

use std::time::Instant;

use ahci::{Bench, PATIENCE, bench, bench_with, flush, run, short, succeed};
use ring3_class::block::{IoError, Queue, Request};
use ring3_device::Error;
use ring3_driver::ata::{Level, Options};
use ring3_model::fault::{Action, Rule};
use ring3_spec::ata::opcode;

const FAULT_READ: u8 = opcode::READ_DMA;
const FAULT_FLUSH: u8 = opcode::FLUSH;

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

#[test]
fn what_is_written_behind_a_power_that_failed_is_not_taken_for_lost() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, bench.write(8, 0x77));
        succeed(&mut *queue, Request::flush(1));
        lose_power(&bench);
        succeed(&mut *queue, bench.write(9, 0x77));
        assert_eq!(flush(&mut *queue), Ok(()));
    });
}

#[test]
fn a_loss_is_remembered_past_a_command_that_failed() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, bench.write(8, 0x77));
        lose_power(&bench);
        bench.handle.plan().add(Rule::io(Action::Error(0x40), FAULT_READ));
        assert!(run(&mut *queue, bench.read(1)).of(1).is_err());
        assert_eq!(flush(&mut *queue), Err(IoError::Transport));
    });
}

#[test]
fn a_drive_that_comes_back_without_what_it_was_given_says_so_by_its_next_flush() {
    both_levels(|bench, mut queue| {
        succeed(&mut *queue, bench.write(8, 0x77));
        bench.handle.unplug(0);
        let outcome = run(&mut *queue, bench.read(1));
        assert_eq!(outcome.of(1), Err(IoError::Gone));
        assert!(
            outcome.errors.iter().any(|error| matches!(error, Error::Gone)),
            "{:?}",
            outcome.errors
        );
        bench.handle.plug(0);
        assert_eq!((flush(&mut *queue), flush(&mut *queue)), (Err(IoError::Transport), Ok(())));
    });
}

#[test]
fn what_was_lost_before_the_orderly_end_is_an_error_of_the_shutdown() {
    for lose in [lose_power, |bench: &Bench| bench.handle.lose_power()] {
        both_levels(|bench, mut queue| {
            succeed(&mut *queue, bench.write(8, 0x77));
            drop(queue);
            lose(&bench);
            let error = bench.controller.shutdown().unwrap_err().to_string();
            assert!(error.contains("writes that were not flushed"), "{error}");
        });
    }
}

#[test]
fn a_flush_that_hangs_at_the_end_is_an_error_of_the_shutdown() {
    let bench = bench("");
    drop(bench.queue(8));
    bench.handle.plan().add(Rule::io(Action::Hang, FAULT_FLUSH));
    let start = Instant::now();
    let error = bench.controller.shutdown().unwrap_err().to_string();
    assert!(error.contains("FLUSH CACHE") && start.elapsed() < PATIENCE, "{error}");
}
