//! What becomes of written data that a drive on an IDE channel keeps in its volatile cache, beyond
//! what `ata_cache.rs` shows: how a loss of power is seen, what a slow-down leaves of what was
//! promised, and what one bus master at a time means.

mod disks;
mod ide;

use ide::{Bench, bench, bench_with, finish, flush, short, succeed};
use ring3_class::block::{Disk, IoError, Queue};
use ring3_driver::Interrupts;
use ring3_driver::ata::Options;
use ring3_model::Timing;
use ring3_model::fault::{Action, Rule};
use ring3_spec::ata::{ErrorBits, opcode};

const FAULT_READ: u8 = opcode::READ_DMA;
const CRC: Action = Action::Error(ErrorBits(0).with_interface_crc(1).with_aborted(1).0);

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

#[test]
fn a_loss_of_power_is_seen_when_the_drives_are_reset() {
    each_way(|bench, mut queue| {
        succeed(&mut *queue, bench.write(8, 0x77));
        lose_power(&bench);
        // A drive that has lost its transfer mode does no transfer.
        bench.handle.plan().add(Rule::io(Action::Drop, FAULT_READ));
        succeed(&mut *queue, bench.read(1));
        assert_eq!((flush(&mut *queue), flush(&mut *queue)), (Err(IoError::Transport), Ok(())));
    });
}

#[test]
fn a_slower_mode_is_no_loss_of_power() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    succeed(&mut *queue, bench.write(8, 0x77));
    bench.handle.plan().add(Rule::io(CRC, FAULT_READ).times(6));
    succeed(&mut *queue, bench.read(1));
    assert_eq!(bench.drive(0).mode(), "PIO");
    assert_eq!(flush(&mut *queue), Ok(()));
}

#[test]
fn writing_through_that_was_promised_is_done_after_a_slow_down_to_pio() {
    for (uri, promised) in [(",multiple=0", false), ("", true)] {
        let bench = bench(uri);
        let mut queue = bench.queue(8);
        assert_eq!(bench.drive(0).info().fua, promised, "{uri}");
        bench.handle.plan().add(Rule::io(CRC, FAULT_READ).times(6));
        succeed(&mut *queue, bench.read(1));
        assert_eq!(bench.drive(0).mode(), "PIO");
        if promised {
            succeed(&mut *queue, bench.write(8, 0x77).with_fua());
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
            queue.submit(bench.write(8, 0x77)).unwrap();
            queue.ring();
        }
        bench.handle.set_timing(Timing::Inline);
        bench.handle.release();
        for queue in &mut queues {
            assert_eq!(finish(&mut **queue).of(8), Ok(()));
            succeed(&mut **queue, bench.read(8));
        }
        drop(queues);
        bench.well_behaved();
    }
}
