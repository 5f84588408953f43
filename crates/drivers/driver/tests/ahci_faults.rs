//! What the user of a disk sees when its AHCI controller or its drive misbehaves: the table of
//! docs/faults.md, one test for each line.

mod ahci;
mod cases;
mod disks;

use std::time::{Duration, Instant};

use ahci::{
    Bench, Outcome, READY, TIMEOUT, bench, bench_with, bytes, execute, finish, run, short, succeed,
};
use cases::cases;
use ring3_class::block::{Disk, IoError, Queue, Request};
use ring3_device::dma::PersistentWords;
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::ata::{Level, Options};
use ring3_model::Timing;
use ring3_model::fault::{Action, Rule};
use ring3_spec::ahci::fis;
use ring3_spec::ata::opcode;
use ring3_spec::pci;

const MARK: u8 = 0x5a;
/// What a fault rule calls all reads, and both commands that read a log.
const FAULT_READ: u8 = opcode::READ_DMA;
const FAULT_LOG: u8 = opcode::READ_LOG_EXT;
/// What UNC, IDNF and ICRC with ABRT look like in the error register.
const UNCORRECTABLE: u8 = 0x40;
const NOT_FOUND: u8 = 0x10;
const CRC: u8 = 0x84;

/// A controller whose first 64 blocks are marked.
fn marked(uri: &str, options: Options) -> Bench {
    let bench = bench_with(uri, options);
    assert!(bench.handle.poke(0, 0, &[MARK; 64 * 512]));
    bench
}

/// Reads block 8 once with the fault in the way, at `level`; then once more, which must work. All
/// that the owner of the queue saw.
fn read_at(level: Level, action: Action) -> Outcome {
    let bench = marked("", Options { level, ..short() });
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(action, FAULT_READ));
    queue.submit(bench.read(8)).unwrap();
    let outcome = finish(&mut *queue);
    assert_eq!(bench.handle.plan().fired(), 1);
    assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
    works(&bench, &mut *queue);
    outcome
}

/// The same, queued and not: the end, which is the same.
fn read_with(action: Action) -> Result<(), IoError> {
    let ends = [Level::Queued, Level::Dma].map(|level| {
        let mut outcome = read_at(level, action);
        let end = outcome.of(8);
        let data = outcome.completions.remove(0).data;
        assert!(
            end.is_err() || bytes(data).iter().all(|&byte| byte == MARK),
            "{level:?}: the data are not the disk's"
        );
        end
    });
    assert_eq!(ends[0], ends[1]);
    ends[0]
}

/// Reads block 8 with the fault in the way every time; then without it, which must work.
fn always(action: Action) -> Result<(), IoError> {
    let ends = [Level::Queued, Level::Dma].map(|level| {
        let bench = marked("", Options { level, ..short() });
        let mut queue = bench.queue(8);
        bench.handle.plan().add(Rule::io(action, FAULT_READ).always());
        let (end, data) = execute(&mut *queue, bench.read(8));
        assert_eq!(data.len(), 512, "the buffer comes back");
        bench.handle.plan().clear();
        works(&bench, &mut *queue);
        end
    });
    assert_eq!(ends[0], ends[1]);
    ends[0]
}

/// Several reads at once return what is on the disk.
fn works(bench: &Bench, queue: &mut dyn Queue) {
    bench.submit_reads(queue, 0..4);
    let outcome = finish(queue);
    assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
    for completion in outcome.completions {
        assert_eq!(completion.result, Ok(()));
        assert!(bytes(completion.data).iter().all(|&byte| byte == MARK));
    }
}

/// Block `block` cannot be read.
fn unreadable(block: u64) -> Rule {
    Rule::io(Action::Error(UNCORRECTABLE), FAULT_READ).at_blocks(block..=block).always()
}

/// All reads of these blocks ended well but the one of `bad`.
fn all_but(outcome: &Outcome, blocks: std::ops::Range<u64>, bad: u64) {
    for block in blocks {
        let end = if block == bad { Err(IoError::Medium) } else { Ok(()) };
        assert_eq!(outcome.of(block), end, "block {block}");
    }
}

/// How a request ends, whatever else its owner is told.
fn end(queue: &mut dyn Queue, request: Request) -> Result<(), IoError> {
    let token = request.token;
    run(queue, request).of(token)
}

fn read_ends(action: Action, end: Result<(), IoError>) {
    assert_eq!(read_with(action), end);
}

cases! { read_ends;
    a_block_that_cannot_be_read_is_a_medium_error:
        (Action::Error(UNCORRECTABLE), Err(IoError::Medium));
    a_block_that_is_not_found_is_out_of_range: (Action::Error(NOT_FOUND), Err(IoError::OutOfRange));
    what_a_broken_drive_could_not_do_is_repeated: (Action::DriveFault, Ok(()));
    data_damaged_on_the_cable_are_asked_for_again: (Action::Error(CRC), Ok(()));
    an_access_to_memory_that_fails_is_repeated: (Action::DmaError, Ok(()));
    a_command_that_ends_and_stays_issued_is_repeated_after_the_time_out: (Action::Stuck, Ok(()));
    an_interrupt_without_a_reason_costs_nothing: (Action::WrongInterrupt, Ok(()));
    a_drive_that_never_clears_busy_is_reset_and_the_read_repeated: (Action::BusyUntilReset, Ok(()));
}

fn always_ends(action: Action, end: Result<(), IoError>) {
    assert_eq!(always(action), end);
}

cases! { always_ends;
    a_drive_that_stays_broken_is_a_transport_error: (Action::DriveFault, Err(IoError::Transport));
    data_damaged_on_the_cable_every_time_are_a_transport_error:
        (Action::Error(CRC), Err(IoError::Transport));
    accesses_to_memory_that_always_fail_are_a_transport_error:
        (Action::DmaError, Err(IoError::Transport));
    a_command_that_always_stays_issued_ends_with_a_time_out: (Action::Stuck, Err(IoError::Timeout));
}

#[test]
fn a_medium_error_ends_one_of_many_queued_commands_and_the_others_are_repeated() {
    let bench = marked("", short());
    let mut queue = bench.queue(32);
    bench.handle.plan().add(unreadable(5));
    bench.handle.set_timing(Timing::Held);
    bench.submit_reads(&mut *queue, 0..12);
    queue.ring();
    bench.handle.set_timing(Timing::Inline);
    let outcome = finish(&mut *queue);
    all_but(&outcome, 0..12, 5);
    assert!(outcome.took < TIMEOUT * 4, "{:?}", outcome.took);
}

#[test]
fn a_log_that_lies_costs_time_and_the_right_request_fails() {
    let bench = marked("", short());
    let mut queue = bench.queue(32);
    bench.handle.plan().add(unreadable(2));
    bench.handle.plan().add(Rule::admin(Action::LyingLog, FAULT_LOG).always());
    bench.handle.set_timing(Timing::Held);
    bench.submit_reads(&mut *queue, (0..2).chain(3..6));
    queue.ring();
    bench.handle.set_timing(Timing::Inline);
    queue.submit(bench.read(2)).unwrap();
    let outcome = finish(&mut *queue);
    all_but(&outcome, 0..6, 2);
    bench.handle.plan().clear();
    works(&bench, &mut *queue);
}

#[test]
fn an_error_that_ended_a_request_alone_ends_no_later_one_in_its_slot() {
    let bench = marked("", short());
    let mut queue = bench.queue(1);
    bench.handle.plan().add(Rule::io(Action::Error(UNCORRECTABLE), FAULT_READ));
    bench.handle.plan().add(Rule::admin(Action::LyingLog, FAULT_LOG));
    assert_eq!(end(&mut *queue, bench.read(1)), Err(IoError::Medium));
    // A drop costs a reset of the port, after which the request is repeated.
    bench.handle.plan().add(Rule::io(Action::Drop, FAULT_READ));
    assert_eq!(end(&mut *queue, bench.read(2)), Ok(()));
}

#[test]
fn a_log_that_does_not_come_resets_the_drive_and_the_right_request_fails() {
    let bench = marked("", short());
    let mut queue = bench.queue(32);
    bench.handle.plan().add(unreadable(2));
    bench.handle.plan().add(Rule::admin(Action::Error(4), FAULT_LOG).always());
    bench.submit_reads(&mut *queue, 0..6);
    let outcome = finish(&mut *queue);
    all_but(&outcome, 0..6, 2);
}

/// How many of four reads are in the drive's hands at once.
fn at_once(bench: &Bench, queue: &mut dyn Queue) -> usize {
    bench.handle.set_timing(Timing::Held);
    bench.submit_reads(queue, 0..4);
    queue.ring();
    let held = bench.handle.held();
    bench.handle.set_timing(Timing::Inline);
    while queue.in_flight() > 0 {
        bench.handle.release();
        while let Some(completion) = queue.reap_one().unwrap() {
            assert_eq!(completion.result, Ok(()));
        }
    }
    held
}

#[test]
fn after_repeated_trouble_on_the_cable_commands_are_not_queued_any_more() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    assert_eq!(at_once(&bench, &mut *queue), 4);
    bench.handle.plan().add(Rule::io(Action::Error(CRC), FAULT_READ).times(3));
    for token in 0..3 {
        let _ = execute(&mut *queue, bench.read(token));
    }
    assert_eq!(at_once(&bench, &mut *queue), 1);
}

#[test]
fn an_end_that_is_invented_ends_nothing() {
    let bench = marked("", short());
    let mut queue = bench.queue(8);
    bench.handle.set_timing(Timing::Held);
    bench.submit_reads(&mut *queue, 0..4);
    queue.ring();
    // A set-device-bits frame for all tags, among the received frames of the first port, whose
    // memory is the first of the arena.
    let received = bench.disk().dma().arena().iova() + 1024 + fis::RECEIVED_DEVICE_BITS as u64;
    let frame = [fis::SET_DEVICE_BITS, fis::FLAG_INTERRUPT, 0x50, 0, 0xff, 0xff, 0xff, 0xff];
    bench.handle.with(|_, bus| bus.write(received, &frame).unwrap());
    let reads = bench.handle.counters().reads;
    assert!((0..1000).all(|_| queue.reap_one().unwrap().is_none()));
    assert!(
        bench.handle.counters().reads - reads < 20,
        "it is looked for a few times and not for ever"
    );
    assert_eq!(queue.in_flight(), 4);
    bench.handle.release();
    assert!(finish(&mut *queue).completions.iter().all(|completion| completion.result.is_ok()));
}

#[test]
fn a_lost_interrupt_costs_the_waiters_deadline_and_no_request() {
    for kind in [IrqKind::Msi, IrqKind::Intx] {
        let options =
            Options { interrupts: Interrupts::Only(kind), poll: Duration::ZERO, ..short() };
        let bench = marked(",delay=5ms", options);
        let mut queue = bench.queue(8);
        bench.handle.plan().add(Rule::io(Action::LoseInterrupt, FAULT_READ));
        succeed(&mut *queue, bench.read(1));
        works(&bench, &mut *queue);
    }
}

#[test]
fn a_drive_that_no_reset_wakes_up_ends_requests_with_a_time_out_within_its_limits() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Busy, FAULT_READ));
    queue.submit(bench.read(1)).unwrap();
    let outcome = finish(&mut *queue);
    assert_eq!(outcome.of(1), Err(IoError::Timeout));
    assert!(outcome.took < TIMEOUT * 2 + READY * 2 + Duration::from_secs(1), "{:?}", outcome.took);
    assert_eq!(end(&mut *queue, bench.read(2)), Err(IoError::Timeout), "and so do all that come");
    let error = queue.tick(Instant::now()).unwrap_err();
    assert!(
        matches!(&error, Error::Fatal(text) if text.contains("open the controller again")),
        "{error}"
    );
}

#[test]
fn requests_that_are_late_together_have_their_attempts_together() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Hang, FAULT_READ).always());
    bench.submit_reads(&mut *queue, 0..8);
    let outcome = finish(&mut *queue);
    assert!((0..8).all(|token| outcome.of(token) == Err(IoError::Timeout)));
    // Three attempts, each of the time-out and a quarter of it at most, and a reset.
    assert!(outcome.took < TIMEOUT * 4 + READY * 3 + Duration::from_secs(1), "{:?}", outcome.took);
}

#[test]
fn a_drive_that_no_reset_wakes_up_leaves_the_other_drive_alone() {
    let bench = bench(",disks=2");
    let (mut dead, mut well) =
        (bench.queue(8), bench.controller.drives()[1].open_queue(8).unwrap());
    bench.handle.plan().add(Rule::io(Action::Busy, FAULT_READ).on_queue(1));
    assert_eq!(end(&mut *dead, bench.read(1)), Err(IoError::Timeout));
    let resets = |bench: &Bench| bench.handle.counters().admin_commands;
    succeed(&mut *well, bench.read(1));
    let before = resets(&bench);
    assert_eq!(end(&mut *dead, bench.read(1)), Err(IoError::Timeout));
    succeed(&mut *well, bench.read(1));
    assert_eq!(resets(&bench), before, "the second time, the controller is not reset");
}

#[test]
fn a_drive_that_is_pulled_out_ends_its_requests_as_gone_and_the_other_lives() {
    let bench = bench(",disks=2");
    let (mut gone, mut well) =
        (bench.queue(8), bench.controller.drives()[1].open_queue(8).unwrap());
    bench.handle.set_timing(Timing::Held);
    bench.submit_reads(&mut *gone, 0..8);
    gone.ring();
    bench.handle.unplug(0);
    bench.handle.set_timing(Timing::Inline);
    let outcome = finish(&mut *gone);
    assert!((0..8).all(|token| outcome.of(token) == Err(IoError::Gone)));
    assert!(
        outcome.completions.iter().all(|completion| completion.data.len() == 512),
        "all buffers come back"
    );
    succeed(&mut *well, bench.read(1));
    assert_eq!(end(&mut *gone, bench.read(1)), Err(IoError::Gone));
    assert!(matches!(gone.tick(Instant::now()), Err(Error::Gone)), "its owner is told, too");
    well.tick(Instant::now()).unwrap();
}

#[test]
fn a_drive_that_is_pulled_out_of_an_idle_queue_signals_that_once() {
    for kind in [IrqKind::Msi, IrqKind::Intx] {
        let bench = bench_with("", Options { interrupts: Interrupts::Only(kind), ..short() });
        let mut queue = bench.queue(8);
        succeed(&mut *queue, bench.read(1));
        bench.handle.unplug(0);
        assert!(!queue.wait(Deadline::after(TIMEOUT)).unwrap());
        let count = queue.irq().unwrap().stats().count;
        assert!(count <= 2, "{kind:?}: {count} interrupts");
    }
}

#[test]
fn a_drive_that_is_plugged_in_again_works_again() {
    let bench = marked("", short());
    let mut queue = bench.queue(8);
    bench.handle.unplug(0);
    assert_eq!(end(&mut *queue, bench.read(1)), Err(IoError::Gone));
    bench.handle.plug(0);
    works(&bench, &mut *queue);
    queue.tick(Instant::now()).unwrap();
}

#[test]
fn a_drive_that_is_not_found_after_a_reset_ends_its_requests_as_gone() {
    let bench = marked("", short());
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Hang, FAULT_READ));
    bench.handle.plan().add(Rule::enable(Action::NoDrive).always());
    assert_eq!(end(&mut *queue, bench.read(1)), Err(IoError::Gone));
    bench.handle.plan().clear();
    works(&bench, &mut *queue);
}

#[test]
fn a_drive_that_is_noticed_after_another_reset_only_loses_no_request() {
    let bench = marked("", short());
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Hang, FAULT_READ));
    bench.handle.plan().add(Rule::enable(Action::NoDrive).times(2));
    assert_eq!(end(&mut *queue, bench.read(1)), Ok(()));
    works(&bench, &mut *queue);
}

#[test]
fn a_drive_whose_link_takes_most_of_a_second_to_come_back_loses_no_request() {
    let bench = marked("", Options { link_timeout: Duration::from_secs(10), ..short() });
    let mut queue = bench.queue(8);
    bench.handle.unplug(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(600));
            bench.handle.plug(0);
        });
        assert_eq!(end(&mut *queue, bench.read(1)), Ok(()));
    });
    works(&bench, &mut *queue);
}

#[test]
fn a_drive_that_stays_away_is_waited_for_once() {
    let bench = bench_with("", Options { link_timeout: Duration::from_secs(1), ..short() });
    let mut queue = bench.queue(8);
    bench.handle.unplug(0);
    let took = [1, 2].map(|block| {
        let since = Instant::now();
        assert_eq!(end(&mut *queue, bench.read(block)), Err(IoError::Gone));
        since.elapsed()
    });
    assert!(took[0] >= Duration::from_secs(2) && took[1] < Duration::from_secs(1), "{took:?}");
}

#[test]
fn commands_that_somebody_elses_reset_took_away_have_not_ended() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    bench.handle.set_timing(Timing::Held);
    bench.submit_reads(&mut *queue, 0..4);
    queue.ring();
    // The frame of one is in memory, and then the register says of none that it is under way.
    assert!(bench.handle.release_one());
    bench.handle.lose_power();
    let ended_well = std::iter::from_fn(|| queue.reap_one().ok().flatten())
        .filter(|completion| completion.result.is_ok())
        .count();
    assert!(ended_well <= 1, "{ended_well} of four reads ended well, and one was done");
}

#[test]
fn a_controller_whose_reset_hangs_at_first_costs_a_function_reset() {
    bench(",fault=stuck-ready:enable");
}

#[test]
fn a_controller_whose_reset_hangs_is_not_opened() {
    let error = Bench::open(",fault=stuck-ready:enable:1:all", short()).err().unwrap();
    assert!(error.to_string().contains("GHC.HR"), "{error}");
}

#[test]
fn a_flush_among_reads_waits_for_those_before_it_and_goes_before_those_after() {
    let bench = bench("");
    let mut queue = bench.queue(32);
    bench.handle.set_timing(Timing::Held);
    bench.submit_reads(&mut *queue, 0..4);
    queue.submit(Request::flush(100)).unwrap();
    bench.submit_reads(&mut *queue, 4..8);
    queue.ring();
    let (mut ends, mut held) = (Vec::new(), Vec::new());
    while queue.in_flight() > 0 {
        held.push(bench.handle.release());
        assert!(queue.wait(Deadline::after(TIMEOUT)).unwrap());
        while let Some(completion) = queue.reap_one().unwrap() {
            ends.push(completion.token);
        }
    }
    assert_eq!(held, [4, 1, 4]);
    assert_eq!(ends, [0, 1, 2, 3, 100, 4, 5, 6, 7]);
}

#[test]
fn a_second_queue_of_a_drive_is_refused_with_its_place() {
    let bench = bench("");
    let _first = bench.queue(4);
    let error = bench.disk().open_queue(4).err().unwrap();
    assert!(matches!(&error, Error::Busy(text) if text.contains("sim:ahci port 0")), "{error}");
}

#[test]
fn what_is_no_disk_is_refused_with_its_place_and_kind() {
    let bench = bench(",cdrom=on,multiplier=on");
    let refused: Vec<_> = bench
        .controller
        .refused()
        .iter()
        .map(|(place, error)| format!("{place}: {error}"))
        .collect();
    assert_eq!((bench.controller.drives().len(), refused.len()), (1, 2), "{refused:?}");
    assert!(refused[0].starts_with("port 1:") && refused[0].contains("ATAPI"), "{refused:?}");
    assert!(
        refused[1].starts_with("port 5:") && refused[1].contains("port multiplier"),
        "{refused:?}"
    );
}

#[test]
fn an_identify_that_does_not_come_refuses_the_drive() {
    let bench = bench(",disks=2,fault=hang:identify");
    assert_eq!(bench.controller.drives().len(), 1);
    assert!(
        bench.controller.refused()[0].1.to_string().contains("IDENTIFY"),
        "{:?}",
        bench.controller.refused()
    );
}

#[test]
fn dropping_everything_stops_the_ports_and_gives_all_memory_back() {
    let bench = bench(",disks=2");
    let arena = bench.disk().dma().arena().clone();
    let queue = bench.queue(8);
    let handle = bench.handle.clone();
    drop((queue, bench));
    assert_eq!(arena.free_bytes(), arena.len() - PersistentWords::BYTES);
    let device = handle.claim().unwrap();
    assert_eq!(device.config_read(pci::COMMAND, 2) & u32::from(pci::COMMAND_BUS_MASTER), 0);
}
