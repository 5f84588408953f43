//! What the user of a disk sees when its controller misbehaves: the table of docs/faults.md, one
//! test for each line.

mod disks;
mod nvme;

use std::sync::Arc;
use std::time::{Duration, Instant};

use nvme::{
    Bench, Outcome, PATIENCE, TIMEOUT, bench, bench_with, bytes, execute, finish, short, succeed,
};
use ring3_class::block::{Completion, IoError, Queue, Request};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error, Registers};
use ring3_driver::Interrupts;
use ring3_driver::nvme::{Controller, Options};
use ring3_model::fault::{Action, Rule};
use ring3_spec::nvme::Status;
use ring3_spec::nvme::opcode::{admin, nvm};
use ring3_spec::nvme::registers::{AQA, Aqa, CC, Cc};

/// A disk whose first read meets `action`, with block 8 filled with 0x5a. Reads it once with the
/// fault and returns all that the owner of the queue saw, the data checked if there is any; then
/// the queue is used once more and must work.
fn read_with(action: Action) -> Outcome {
    let bench = bench("");
    assert!(bench.handle.poke(1, 8 * 512, &[0x5a; 512]));
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(action, nvm::READ));
    queue.submit(Request::read(1, 8, 1, bench.buffer(512))).unwrap();
    let mut outcome = finish(&mut *queue);
    assert_eq!(bench.handle.plan().fired(), 1);
    let index = outcome.completions.iter().position(|completion| completion.token == 1).unwrap();
    if outcome.of(1).is_ok() {
        let Completion { data, .. } = outcome.completions.swap_remove(index);
        assert!(bytes(data).iter().all(|&byte| byte == 0x5a));
        outcome.completions.push(Completion { token: 1, result: Ok(()), data: Default::default() });
    }
    let data = succeed(&mut *queue, Request::read(2, 8, 1, bench.buffer(512)));
    assert!(bytes(data).iter().all(|&byte| byte == 0x5a), "the queue lives");
    outcome
}

/// The protocol errors among `outcome`'s; nothing else may have gone wrong.
fn protocol_errors(outcome: &Outcome) -> usize {
    assert!(
        outcome.errors.iter().all(|error| matches!(error, Error::Protocol(_))),
        "{:?}",
        outcome.errors
    );
    outcome.errors.len()
}

#[test]
fn a_read_that_takes_longer_than_the_time_out_is_aborted_and_repeated() {
    let outcome = read_with(Action::Delay(Duration::from_secs(50)));
    assert_eq!((outcome.of(1), outcome.errors.len()), (Ok(()), 0));
    assert!(outcome.took >= TIMEOUT && outcome.took < PATIENCE);
}

#[test]
fn a_read_that_hangs_ends_by_its_abort_without_a_reset() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    let admin_commands = bench.handle.counters().admin_commands;
    bench.handle.plan().add(Rule::io(Action::Hang, nvm::READ));
    succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    assert_eq!(
        bench.handle.counters().admin_commands,
        admin_commands + 1,
        "the abort and nothing else"
    );
}

#[test]
fn a_duplicated_completion_is_an_error_and_the_read_ends_once() {
    let outcome = read_with(Action::Duplicate);
    assert_eq!((outcome.of(1), protocol_errors(&outcome)), (Ok(()), 1));
}

#[test]
fn reordered_completions_find_their_own_requests() {
    let bench = bench("");
    for block in 0..4u8 {
        assert!(bench.handle.poke(1, u64::from(block) * 512, &[block + 1; 512]));
    }
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Reorder, nvm::READ).times(2));
    for token in 0..4 {
        queue.submit(Request::read(token, token, 1, bench.buffer(512))).unwrap();
    }
    let outcome = finish(&mut *queue);
    assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
    let order: Vec<_> = outcome.completions.iter().map(|completion| completion.token).collect();
    assert_ne!(order, [0, 1, 2, 3]);
    for Completion { token, result, data } in outcome.completions {
        assert_eq!((result, u64::from(bytes(data)[0])), (Ok(()), token + 1));
    }
}

#[test]
fn a_completion_with_a_wrong_id_is_an_error_and_the_read_is_repeated() {
    for bits in [0x0001, 0x8000, 0xffff] {
        let outcome = read_with(Action::WrongId(bits));
        assert_eq!((outcome.of(1), protocol_errors(&outcome)), (Ok(()), 1), "{bits:#06x}");
    }
}

#[test]
fn an_invented_completion_is_an_error_and_the_read_ends_by_its_own() {
    let outcome = read_with(Action::Invent(0x0003));
    assert_eq!((outcome.of(1), protocol_errors(&outcome)), (Ok(()), 1));
    assert!(outcome.took < TIMEOUT, "{:?}", outcome.took);
}

#[test]
fn a_completion_with_the_wrong_phase_is_not_seen_and_the_read_is_repeated() {
    let outcome = read_with(Action::WrongPhase);
    assert_eq!((outcome.of(1), outcome.errors.len()), (Ok(()), 0));
    assert!(outcome.took >= TIMEOUT);
}

#[test]
fn a_bad_status_ends_the_read_with_the_error_that_it_means() {
    for (status, error) in [
        (Status::UNRECOVERED_READ, IoError::Medium),
        (Status::LBA_OUT_OF_RANGE, IoError::OutOfRange),
        (Status::INVALID_FIELD, IoError::Invalid),
        (Status::INVALID_OPCODE, IoError::Unsupported),
        (Status::GUARD_CHECK, IoError::Integrity),
        (Status::INTERNAL, IoError::Transport),
        (Status::NAMESPACE_WRITE_PROTECTED, IoError::ReadOnly),
        (Status::CAPACITY_EXCEEDED, IoError::NoSpace),
        (Status(7 << 8 | 0x99), IoError::Transport),
    ] {
        let outcome = read_with(Action::Status(status.with_do_not_retry().0));
        assert_eq!((outcome.of(1), outcome.errors.len()), (Err(error), 0), "{status}");
    }
}

#[test]
fn a_read_that_the_device_interrupted_is_repeated_at_once() {
    let outcome = read_with(Action::Status(Status::INTERRUPTED.0));
    assert_eq!((outcome.of(1), outcome.errors.len()), (Ok(()), 0));
    assert!(outcome.took < TIMEOUT, "{:?}", outcome.took);
}

/// Statuses with which a device has tried and failed, and which do not forbid a repetition.
const FAILED: [Status; 3] =
    [Status::INTERNAL, Status::UNRECOVERED_READ, Status::NAMESPACE_NOT_READY];

#[test]
fn an_error_that_does_not_forbid_it_is_repeated_five_times() {
    for status in FAILED {
        let bench = bench("");
        let mut queue = bench.queue(8);
        bench.handle.plan().add(Rule::io(Action::Status(status.0), nvm::READ).times(5));
        succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
        assert_eq!(bench.handle.plan().fired(), 5, "{status}");
    }
}

#[test]
fn an_error_that_stays_is_the_end_of_the_sixth_attempt() {
    for (status, error) in
        FAILED.into_iter().zip([IoError::Transport, IoError::Medium, IoError::Transport])
    {
        let bench = bench("");
        let mut queue = bench.queue(8);
        bench.handle.plan().add(Rule::io(Action::Status(status.0), nvm::READ).always());
        let (end, data) = execute(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
        assert_eq!(
            (end, data.len(), bench.handle.plan().fired()),
            (Err(error), 512, 6),
            "{status}"
        );
        bench.handle.plan().clear();
        succeed(&mut *queue, Request::read(2, 0, 1, bench.buffer(512)));
    }
}

#[test]
fn a_pause_that_the_device_asks_for_is_kept_and_holds_no_other_request_up() {
    const PAUSE: Duration = Duration::from_millis(500);
    let bench = bench_with(",retry-delay=500ms", Options { timeout: PATIENCE, ..short() });
    let mut queue = bench.queue(8);
    bench
        .handle
        .plan()
        .add(Rule::io(Action::Status(Status::INTERNAL.with_retry_delay(1).0), nvm::READ));
    let start = Instant::now();
    queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
    queue.submit(Request::read(2, 1, 1, bench.buffer(512))).unwrap();
    let outcome = finish(&mut *queue);
    let order: Vec<_> = outcome
        .completions
        .iter()
        .map(|completion| (completion.token, completion.result))
        .collect();
    assert_eq!(order, [(2, Ok(())), (1, Ok(()))]);
    assert!(
        start.elapsed() >= PAUSE && outcome.errors.is_empty(),
        "{:?} {:?}",
        start.elapsed(),
        outcome.errors
    );
}

#[test]
fn a_flush_that_the_device_failed_is_not_repeated() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Status(Status::INTERNAL.0), nvm::FLUSH).always());
    assert_eq!(execute(&mut *queue, Request::flush(1)).0, Err(IoError::Transport));
    assert_eq!(bench.handle.plan().fired(), 1);
}

#[test]
fn a_flush_may_take_longer_than_other_requests() {
    let bench = bench_with("", Options { flush_timeout: PATIENCE, ..short() });
    let mut queue = bench.queue(8);
    let admin_commands = bench.handle.counters().admin_commands;
    bench.handle.plan().add(Rule::io(Action::Delay(4 * TIMEOUT), nvm::FLUSH));
    assert_eq!(execute(&mut *queue, Request::flush(1)).0, Ok(()));
    assert_eq!(bench.handle.counters().admin_commands, admin_commands, "no abort");
}

#[test]
fn a_controller_that_hangs_at_a_write_zeroes_gets_no_more_and_says_not_supported() {
    for action in [Action::Hang, Action::Drop] {
        let bench = bench("");
        let mut queue = bench.queue(8);
        bench.handle.plan().add(Rule::io(action, nvm::WRITE_ZEROES).always());
        assert_eq!(
            execute(&mut *queue, Request::write_zeroes(1, 0, 8)).0,
            Err(IoError::Unsupported),
            "{action:?}"
        );
        for queue in [&mut queue, &mut bench.queue(8)] {
            assert_eq!(
                queue.submit(Request::write_zeroes(2, 0, 8)).unwrap_err().error,
                Some(IoError::Unsupported)
            );
        }
        assert_eq!(bench.handle.plan().fired(), 1, "{action:?}");
        succeed(&mut *queue, Request::write(4, 0, 1, bench.filled(512, 0)));
    }
}

#[test]
fn a_controller_that_another_driver_left_and_that_does_not_stop_is_reset_as_a_function() {
    let device = Arc::new(nvme::device(""));
    let handle = device.handle();
    std::mem::forget(Controller::open(device.clone(), short()).unwrap());
    handle.plan().add(Rule::enable(Action::StuckReady));
    let controller = Controller::open(device, short()).unwrap();
    assert_eq!((controller.namespaces().len(), handle.plan().fired()), (1, 1));
}

#[test]
fn a_controller_that_is_still_starting_is_stopped_when_it_is_ready() {
    let device = Arc::new(nvme::device(",ready=300ms"));
    let handle = device.handle();
    let registers = Registers::new(device.bar(0).unwrap(), 0x1000).unwrap();
    // A driver that was killed has left it so.
    registers.write(AQA, Aqa(0).with_submission_0based(1).with_completion_0based(1));
    registers.write(CC, Cc(0).with_enable(1));
    let controller = Controller::open(device, short()).unwrap();
    assert_eq!((controller.namespaces().len(), handle.violations()), (1, Vec::new()));
}

#[test]
fn a_start_may_take_as_long_as_crto_says_where_cap_to_is_too_short() {
    let open = |uri| Bench::open(uri, short()).map(drop);
    open(",ready=1500ms,crto=20s").unwrap();
    assert!(matches!(open(",ready=1500ms"), Err(Error::Timeout { .. })));
}

#[test]
fn a_controller_that_does_not_say_how_long_its_queues_may_be_gets_short_ones() {
    let bench = bench(",entries=1");
    let mut queue = bench.queue(200);
    assert!(queue.depth() > 1 && queue.depth() < 64, "{}", queue.depth());
    succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
}

#[test]
fn queues_that_are_open_are_deleted_before_the_shutdown() {
    let bench = bench("");
    let _queues = [bench.queue(8), bench.queue(8)];
    let before = bench.handle.counters().admin_commands;
    bench.controller.shutdown().unwrap();
    assert_eq!(bench.handle.counters().admin_commands, before + 4);
}

#[test]
fn a_ready_bit_that_is_stuck_at_the_start_is_an_error_within_the_controllers_own_limit() {
    let start = Instant::now();
    let error = Bench::open(",fault=stuck-ready:enable:1:all", short()).map(drop).unwrap_err();
    assert!(
        matches!(error, Error::Timeout { .. }) && error.to_string().contains("CSTS.RDY"),
        "{error}"
    );
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn a_ready_bit_that_is_stuck_at_a_reset_costs_a_function_reset_and_no_request() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Drop, nvm::READ));
    bench.handle.plan().add(Rule::enable(Action::StuckReady));
    succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    assert_eq!(bench.handle.plan().fired(), 2);
}

#[test]
fn a_controller_that_never_comes_back_from_a_reset_ends_requests_with_a_transport_error() {
    let bench = bench("");
    let before = bench.free();
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Drop, nvm::READ));
    bench.handle.plan().add(Rule::enable(Action::StuckReady).always());
    queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
    let outcome = finish(&mut *queue);
    assert_eq!(outcome.of(1), Err(IoError::Transport));
    assert!(
        outcome.errors.iter().any(|error| error.to_string().contains("open it again")),
        "{:?}",
        outcome.errors
    );
    // The function was reset, so that the memory may go back.
    drop((queue, outcome));
    assert_eq!(bench.free(), before);
}

#[test]
fn an_interrupt_storm_is_held_back_and_the_read_ends() {
    let options = Options {
        interrupts: Interrupts::Only(IrqKind::MsiX),
        poll: Duration::ZERO,
        ..Options::default()
    };
    let bench = bench_with("", options);
    let mut queue = bench.queue(8);
    bench.handle.plan().add(Rule::io(Action::Storm(50_000), nvm::READ).always());
    let start = Instant::now();
    // A storm that nobody looks at until it is over is none, so on a busy machine it takes several.
    while queue.irq().unwrap().stats().storms == 0 {
        assert!(start.elapsed() < PATIENCE, "no storm was held back");
        succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
        // The owner sleeps through the storm; what reaches it is bounded.
        assert!(!queue.wait(Deadline::after(Duration::from_millis(10))).unwrap());
    }
    bench.handle.plan().clear();
    succeed(&mut *queue, Request::read(2, 0, 1, bench.buffer(512)));
}

#[test]
fn a_controller_that_does_not_answer_identify_is_not_opened() {
    let error = Bench::open(",fault=drop:identify:1:all", short()).map(drop).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}

#[test]
fn a_refused_queue_is_an_error_that_names_the_status_and_costs_no_reset() {
    let bench = bench("");
    let before = bench.free();
    for opcode in [admin::CREATE_CQ, admin::CREATE_SQ] {
        bench.handle.plan().add(Rule::admin(Action::Status(Status::INVALID_QUEUE_SIZE.0), opcode));
        let error = bench.disk().open_queue(4).map(drop).unwrap_err();
        assert!(error.to_string().contains("invalid queue size"), "{error}");
        assert_eq!(bench.free(), before);
    }
    succeed(&mut *bench.queue(4), Request::read(1, 0, 1, bench.buffer(512)));
}

#[test]
fn admin_completions_for_nothing_are_counted_and_the_controller_lives() {
    let bench = bench("");
    for (n, action) in [Action::Duplicate, Action::Invent(0x0100)].into_iter().enumerate() {
        bench.handle.plan().add(Rule::admin(action, admin::GET_LOG_PAGE));
        bench.controller.smart().unwrap();
        bench.controller.events().unwrap();
        bench.handle.plan().clear();
        assert_eq!(bench.controller.stray_completions(), n as u64 + 1);
    }
}

#[test]
fn a_log_page_that_does_not_come_resets_the_controller_and_the_disk_lives() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    bench.handle.plan().add(Rule::admin(Action::Drop, admin::GET_LOG_PAGE));
    assert!(matches!(bench.controller.smart(), Err(Error::Timeout { .. })));
    succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    assert!(bench.controller.smart().is_ok());
}

#[test]
fn a_controller_that_never_gives_its_smart_log_is_opened_and_comes_back_from_a_reset() {
    let bench = bench(",fault=drop:log:1:all");
    let mut queue = bench.queue(4);
    succeed(&mut *queue, Request::write(1, 0, 1, bench.buffer(512)));
    bench.controller.reset().unwrap();
    succeed(&mut *queue, Request::read(2, 0, 1, bench.buffer(512)));
    succeed(&mut *queue, Request::flush(3));
}

#[test]
fn a_queue_that_cannot_be_deleted_still_gives_its_memory_back() {
    let bench = bench("");
    let before = bench.free();
    for opcode in [admin::DELETE_SQ, admin::DELETE_CQ] {
        let queue = bench.queue(8);
        bench.handle.plan().add(Rule::admin(Action::Drop, opcode));
        drop(queue);
        assert_eq!(bench.free(), before);
    }
    succeed(&mut *bench.queue(4), Request::read(1, 0, 1, bench.buffer(512)));
}

#[test]
fn a_reset_that_finds_no_queues_to_create_gives_up_in_the_end() {
    let bench = bench("");
    let mut queue = bench.queue(4);
    bench
        .handle
        .plan()
        .add(Rule::admin(Action::Status(Status::INTERNAL.0), admin::CREATE_CQ).always());
    queue.submit(Request::read(1, 0, 1, bench.buffer(512))).unwrap();
    bench.controller.reset().unwrap();
    assert_eq!(finish(&mut *queue).of(1), Err(IoError::Transport));
}

#[test]
fn every_test_that_the_table_of_faults_names_exists() {
    let table = include_str!("../../../../docs/faults.md");
    let tests = [
        include_str!("disk_faults.rs"),
        include_str!("disk_caches.rs"),
        include_str!("nvme_disk.rs"),
        include_str!("nvme_faults.rs"),
        include_str!("nvme_host_memory.rs"),
        include_str!("nvme_resets.rs"),
        include_str!("nvme_revalidate.rs"),
        include_str!("nvme_adopt.rs"),
        include_str!("nvme_namespaces.rs"),
        include_str!("nvme_resume.rs"),
        include_str!("ide_faults.rs"),
        include_str!("ide_unstoppable.rs"),
        include_str!("ahci_faults.rs"),
        include_str!("../../../tools/cli/tests/export.rs"),
        include_str!("ahci_adopt.rs"),
        include_str!("ahci_cache.rs"),
        include_str!("ahci_resets.rs"),
        include_str!("ata_cache.rs"),
        include_str!("ahci_qtest.rs"),
        include_str!("ata_qtest.rs"),
        include_str!("ide_cache.rs"),
        include_str!("virtio_blk_faults.rs"),
        include_str!("../../../tools/cli/tests/poweroff.rs"),
        include_str!("../../../tools/cli/tests/sleep_guest.rs"),
        include_str!("../../../processes/supervisor/src/policy/tests/asleep.rs"),
    ]
    .concat();
    let last_cell =
        |line: &'static str| line.strip_suffix("` |")?.rsplit_once("| ").map(|(_, cell)| cell);
    // Names of tests are sentences; the table of fault hooks ends its lines with single words.
    let names = table.lines().filter_map(last_cell).flat_map(|cell| cell.split('`'));
    let named: Vec<_> = names.filter(|name| name.contains('_') && !name.contains(' ')).collect();
    assert!(named.len() >= 90);
    // As a function, or as a line of a table of cases.
    let exists = |name| [format!("\nfn {name}()"), format!("\n    {name}:")];
    for name in named {
        assert!(exists(name).iter().any(|text| tests.contains(text)), "{name}");
    }
}

#[test]
fn the_log_of_a_controller_that_is_gone_is_an_error() {
    let bench = bench("");
    bench.handle.remove();
    assert!(matches!(bench.controller.smart(), Err(Error::Gone)));
}

#[test]
fn what_completed_before_a_reset_is_not_repeated() {
    let bench = bench("");
    let mut queue = bench.queue(8);
    queue.submit(Request::write(1, 0, 1, bench.filled(512, 1))).unwrap();
    queue.ring();
    let commands = bench.handle.counters().commands;
    bench.controller.reset().unwrap();
    assert_eq!(finish(&mut *queue).of(1), Ok(()));
    assert_eq!(bench.handle.counters().commands, commands);
}
