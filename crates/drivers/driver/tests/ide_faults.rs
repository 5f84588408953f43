//! What the user of an IDE disk sees when its controller or its drive misbehaves: the table of
//! docs/faults.md, one test for each line.

mod disks;
mod ide;

use std::time::Duration;

use ide::{
    Bench, Outcome, PATIENCE, READY, TIMEOUT, bench, bench_with, bytes, execute, finish, short,
    succeed,
};
use ring3_class::block::{Disk, IoError, Request};
use ring3_driver::Interrupts;
use ring3_driver::ata::{Level, Options};
use ring3_model::Model;
use ring3_model::fault::{Action, Rule};
use ring3_spec::ata::{ErrorBits, opcode};

/// What the model's rules call all commands that read, and all that write.
const FAULT_READ: u8 = opcode::READ_DMA;
const FAULT_WRITE: u8 = opcode::WRITE_DMA;

const CRC: Action = Action::Error(ErrorBits(0).with_interface_crc(1).with_aborted(1).0);
const UNREADABLE: Action = Action::Error(ErrorBits(0).with_uncorrectable(1).0);

/// A disk whose first read meets `action`, with block 8 filled with 0x5a. Reads it once with the
/// fault; then the disk is used once more and must work. Returns how the first read went, and the
/// bench.
fn read_with_on(uri: &str, options: Options, action: Action) -> (Outcome, Bench) {
    let bench = bench_with(uri, options);
    assert!(bench.handle.poke(0, 8 * 512, &[0x5a; 512]));
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(action, FAULT_READ));
    queue.submit(Request::read(1, 8, 1, bench.buffer(512))).unwrap();
    let mut outcome = finish(&mut *queue);
    assert_eq!(bench.handle.plan().fired(), 1);
    if outcome.of(1).is_ok() {
        let data = std::mem::take(&mut outcome.completions[0].data);
        assert!(bytes(data).iter().all(|&byte| byte == 0x5a));
    }
    let data = succeed(&mut *queue, Request::read(2, 8, 1, bench.buffer(512)));
    assert!(bytes(data).iter().all(|&byte| byte == 0x5a), "the disk is usable");
    drop(queue);
    bench.well_behaved();
    (outcome, bench)
}

/// The same by interrupt and by looking, on a chip in compatibility mode and on one in native mode;
/// the read ends with `end`.
fn read_with(action: Action, end: Result<(), IoError>) -> Vec<(Outcome, Bench)> {
    let polled = || Options { interrupts: Interrupts::Polled, ..short() };
    let runs = [("", short()), ("", polled()), (",chip=cmd646", short())];
    let runs = runs.map(|(uri, options)| read_with_on(uri, options, action));
    for (outcome, _) in &runs {
        assert_eq!(outcome.of(1), end);
        assert!(
            outcome.errors.is_empty() && outcome.took < PATIENCE / 2,
            "{:?} {:?}",
            outcome.errors,
            outcome.took
        );
    }
    runs.into()
}

#[test]
fn a_transfer_that_meets_a_memory_error_costs_a_reset_and_is_repeated() {
    for (_, bench) in read_with(Action::DmaError, Ok(())) {
        assert_eq!(bench.drive(0).stats().resets, 1);
    }
}

#[test]
fn a_transfer_that_meets_memory_errors_for_ever_ends_with_a_transport_error() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::DmaError, FAULT_READ).always());
    let (end, data) = execute(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    assert_eq!((end, data.len()), (Err(IoError::Transport), 512));
    bench.handle.plan().clear();
    succeed(&mut *queue, Request::read(2, 0, 1, bench.buffer(512)));
    bench.well_behaved();
}

#[test]
fn a_wrong_interrupt_ends_nothing_early() {
    for (_, bench) in read_with(Action::WrongInterrupt, Ok(())) {
        assert_eq!(bench.drive(0).stats().resets, 0);
    }
}

#[test]
fn a_reset_behind_the_drivers_back_is_no_end_of_what_was_under_way() {
    let polled = || Options { interrupts: Interrupts::Polled, ..short() };
    for (uri, options) in [("", short()), ("", polled()), (",chip=cmd646", short())] {
        let bench = bench_with(uri, options);
        assert!(bench.handle.poke(0, 8 * 512, &[0x5a; 512]));
        let mut queue = bench.queue(8);
        // One that has ended well: the bus master's registers hold what the driver wrote.
        succeed(&mut *queue, Request::read(1, 8, 1, bench.buffer(512)));
        bench.handle.plan().add(Rule::io(Action::Hang, FAULT_READ));
        queue.submit(Request::read(2, 8, 1, bench.filled(512, 0))).unwrap();
        queue.ring();
        assert_eq!(bench.handle.plan().fired(), 1);
        bench.handle.with(|model, bus| model.reset(bus));
        let mut outcome = finish(&mut *queue);
        assert_eq!(outcome.of(2), Ok(()), "{uri}");
        let data = std::mem::take(&mut outcome.completions[0].data);
        assert!(bytes(data).iter().all(|&byte| byte == 0x5a), "{uri}: nothing was read");
        // While nothing is under way, either: the drive's registers are other ones than before.
        bench.handle.with(|model, bus| model.reset(bus));
        let data = succeed(&mut *queue, Request::read(3, 8, 1, bench.filled(512, 0)));
        assert!(bytes(data).iter().all(|&byte| byte == 0x5a), "{uri}: nothing was read");
        bench.handle.with(|model, bus| model.reset(bus));
        succeed(&mut *queue, Request::flush(4));
        drop(queue);
        bench.well_behaved();
    }
}

#[test]
fn an_end_that_never_comes_costs_a_reset_after_the_time_out_and_the_read_is_repeated() {
    for (outcome, bench) in read_with(Action::Drop, Ok(())) {
        assert!(outcome.took >= TIMEOUT, "{:?}", outcome.took);
        assert_eq!(bench.drive(0).stats().resets, 1);
    }
}

#[test]
fn a_bus_master_that_stays_active_is_stopped_and_the_read_repeated() {
    for (_, bench) in read_with(Action::Stuck, Ok(())) {
        assert_eq!(bench.drive(0).stats().repeats, 1);
    }
}

#[test]
fn a_drive_that_is_busy_until_its_reset_costs_one() {
    for (_, bench) in read_with(Action::BusyUntilReset, Ok(())) {
        assert_eq!(bench.drive(0).stats().resets, 1);
    }
}

#[test]
fn a_drive_that_never_clears_busy_ends_its_requests_and_the_other_channel_lives() {
    let bench = bench(",disks=3");
    let (mut master, mut slave, mut other) = (
        bench.queue(8),
        bench.drive(1).open_queue(8).unwrap(),
        bench.drive(2).open_queue(8).unwrap(),
    );
    bench.handle.plan().add(Rule::io(Action::Busy, FAULT_READ).on_queue(1));
    for token in 0..4 {
        master.submit(Request::read(token, 0, 1, bench.buffer(512))).unwrap();
    }
    let outcome = finish(&mut *master);
    assert!((0..4).all(|token| outcome.of(token) == Err(IoError::Timeout)));
    assert!(
        outcome.completions.iter().all(|completion| completion.data.len() == 512),
        "the memory comes back"
    );
    // Its slave cannot be reached past it, and says so.
    assert!(execute(&mut *slave, Request::read(1, 0, 1, bench.buffer(512))).0.is_err());
    succeed(&mut *other, Request::read(1, 0, 1, bench.buffer(512)));
    // New requests end at once.
    let (end, _) = execute(&mut *master, Request::read(9, 0, 1, bench.buffer(512)));
    assert_eq!(end, Err(IoError::Timeout));
    let error = master.tick(std::time::Instant::now()).unwrap_err().to_string();
    assert!(
        error.contains("primary master") && error.contains("open the controller again"),
        "{error}"
    );
}

#[test]
fn a_drive_that_does_not_become_ready_at_once_is_reset_once_more() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Drop, FAULT_READ));
    bench.handle.plan().add(Rule::enable(Action::StuckReady));
    succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    assert_eq!(bench.handle.plan().fired(), 2);
}

#[test]
fn a_drive_that_is_pulled_out_ends_its_requests_as_gone_and_its_slave_lives() {
    for (uri, index, queue_id) in [(",disks=2", 1, 2), ("", 0, 1)] {
        let bench = bench(uri);
        let mut queue = bench.drive(index).open_queue(8).unwrap();
        bench.handle.plan().add(Rule::io(Action::Unplug, FAULT_READ).on_queue(queue_id));
        for token in 0..3 {
            queue.submit(Request::read(token, 0, 1, bench.buffer(512))).unwrap();
        }
        let outcome = finish(&mut *queue);
        assert!(
            (0..3).all(|token| outcome.of(token) == Err(IoError::Gone)),
            "{:?}",
            outcome.completions
        );
        if index == 1 {
            succeed(&mut *bench.queue(8), Request::read(9, 0, 1, bench.buffer(512)));
        }
    }
}

#[test]
fn a_drive_that_is_not_there_after_a_reset_is_gone() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Drop, FAULT_READ));
    bench.handle.plan().add(Rule::enable(Action::NoDrive));
    queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
    // What the reset found is told, too: an error of the tick.
    let outcome = finish(&mut *queue);
    assert_eq!((outcome.of(1), outcome.completions[0].data.len()), (Err(IoError::Gone), 512));
}

#[test]
fn a_missing_drive_is_nothing_and_no_ghost_of_its_master() {
    for disks in 0..=4 {
        let bench = bench(&format!(",disks={disks}"));
        assert_eq!((bench.controller.drives().len(), bench.controller.refused().len()), (disks, 0));
        bench.well_behaved();
    }
}

#[test]
fn a_drive_that_is_busy_from_the_start_is_refused_and_the_other_channel_works() {
    let uri = ",disks=3,fault=stuck-ready:reset";
    let bench = Bench::open(uri, short()).unwrap();
    let refused: Vec<_> =
        bench.controller.refused().iter().map(|(name, error)| format!("{name}: {error}")).collect();
    assert!(
        refused[0]
            .contains("primary master: a drive to be ready after a reset (BSY) took longer than"),
        "{refused:?}"
    );
    let disk = bench.controller.drives().last().expect("the secondary master");
    assert!(disk.name().ends_with("secondary master"));
    succeed(
        &mut *disk.open_queue(4).unwrap(),
        Request::read(1, 0, 1, disk.dma().arena().alloc_pages(512).unwrap()),
    );
}

#[test]
fn a_drive_that_does_not_say_who_it_is_is_refused() {
    for fault in ["hang", "drop", "error/0x04"] {
        let bench = bench(&format!(",disks=2,fault={fault}:identify"));
        let [(name, error)] = bench.controller.refused() else {
            panic!("{:?}", bench.controller.refused())
        };
        assert!(name.ends_with("primary master"), "{name}: {error}");
        assert_eq!(bench.controller.drives().len(), 1);
        let slave = bench.drive(0);
        assert!(slave.name().ends_with("primary slave"));
        succeed(&mut *bench.queue(4), Request::read(1, 0, 1, bench.buffer(512)));
    }
}

#[test]
fn a_packet_drive_is_refused_as_what_it_is() {
    let bench = bench(",disks=1,cdrom=on");
    let [(name, error)] = bench.controller.refused() else {
        panic!("{:?}", bench.controller.refused())
    };
    assert!(
        name.ends_with("primary slave") && error.to_string().contains("ATAPI"),
        "{name}: {error}"
    );
}

#[test]
fn an_unreadable_block_is_a_medium_error_and_is_not_repeated() {
    for (_, bench) in read_with(UNREADABLE, Err(IoError::Medium)) {
        assert_eq!((bench.drive(0).stats().resets, bench.drive(0).stats().repeats), (0, 0));
    }
}

#[test]
fn what_a_broken_drive_could_not_do_is_repeated() {
    for (_, bench) in read_with(Action::DriveFault, Ok(())) {
        let stats = bench.drive(0).stats();
        assert_eq!((stats.resets, stats.repeats, stats.slowdowns), (0, 1, 0));
    }
}

#[test]
fn a_drive_that_stays_broken_is_a_transport_error() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::DriveFault, FAULT_READ).always());
    assert_eq!(
        execute(&mut *queue, Request::read(1, 0, 1, bench.buffer(512))).0,
        Err(IoError::Transport)
    );
    assert_eq!(bench.handle.plan().fired(), 3);
}

#[test]
fn damage_on_the_cable_is_repeated_at_once() {
    for (_, bench) in read_with(CRC, Ok(())) {
        let stats = bench.drive(0).stats();
        assert_eq!((stats.resets, stats.repeats, stats.slowdowns), (0, 1, 0));
    }
}

#[test]
fn damage_again_and_again_costs_the_transfer_mode() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    assert_eq!(
        (bench.drive(0).mode().as_str(), bench.handle.transfer_mode(0)),
        ("Ultra DMA mode 2", 0x42)
    );
    bench.handle.plan().add(Rule::io(CRC, FAULT_WRITE).times(2));
    succeed(&mut *queue, Request::write(1, 0, 8, bench.filled(4096, 7)));
    assert_eq!(
        (bench.drive(0).mode().as_str(), bench.handle.transfer_mode(0)),
        ("Ultra DMA mode 0", 0x40)
    );
    bench.well_behaved();
}

#[test]
fn damage_for_ever_ends_in_pio_with_the_request_done() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    // Two for each of Ultra DMA 2 and 0 and multiword DMA.
    bench.handle.plan().add(Rule::io(CRC, FAULT_READ).times(6));
    assert!(bench.handle.poke(0, 0, &[0x5a; 512]));
    let data = succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    assert_eq!(bytes(data), [0x5a; 512]);
    assert_eq!((bench.drive(0).mode().as_str(), bench.drive(0).stats().slowdowns), ("PIO", 3));
    // A TRIM has no form without DMA.
    assert_eq!(execute(&mut *queue, Request::discard(2, 0, 8)).0, Err(IoError::Unsupported));
    bench.well_behaved();
}

#[test]
fn damage_that_no_mode_mends_is_a_transport_error() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(CRC, FAULT_READ).always());
    assert_eq!(
        execute(&mut *queue, Request::read(1, 0, 1, bench.buffer(512))).0,
        Err(IoError::Transport)
    );
    bench.handle.plan().clear();
    succeed(&mut *queue, Request::read(2, 0, 1, bench.buffer(512)));
}

#[test]
fn pio_meets_the_same_faults() {
    let pio = || Options { level: Level::Pio, ..short() };
    for (action, end) in [
        (Action::LoseInterrupt, Ok(())),
        (Action::WrongInterrupt, Ok(())),
        (Action::Drop, Ok(())),
        (Action::BusyUntilReset, Ok(())),
        (UNREADABLE, Err(IoError::Medium)),
        (Action::DriveFault, Ok(())),
    ] {
        let (outcome, _) = read_with_on("", pio(), action);
        assert_eq!(outcome.of(1), end, "{action:?}");
    }
    let bench = bench_with("", pio());
    let mut queue = bench.queue(4);
    bench.handle.plan().add(Rule::io(UNREADABLE, FAULT_WRITE));
    assert_eq!(
        execute(&mut *queue, Request::write(1, 0, 8, bench.filled(4096, 1))).0,
        Err(IoError::Medium)
    );
    succeed(&mut *queue, Request::write(2, 0, 8, bench.filled(4096, 2)));
    bench.well_behaved();
}

#[test]
fn a_flush_that_does_not_end_is_repeated() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Drop, opcode::FLUSH));
    assert_eq!(execute(&mut *queue, Request::flush(1)).0, Ok(()));
    bench.well_behaved();
}

#[test]
fn a_slow_reset_is_waited_for() {
    let bench =
        bench_with(",ready=30ms", Options { ready_timeout: Duration::from_secs(10), ..short() });
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Drop, FAULT_READ));
    succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    assert!(READY > Duration::ZERO);
    bench.well_behaved();
}
