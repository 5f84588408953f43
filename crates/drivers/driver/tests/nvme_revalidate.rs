//! Who comes back from a reset: another controller, or another medium.

mod disks;
mod nvme;

use nvme::{Bench, Outcome, bench_with, execute, finish, succeed};
use ring3_class::block::{IoError, Queue, Request};
use ring3_driver::nvme::{Event, Options};
use ring3_model::Timing;
use ring3_model::fault::{Action, Rule};
use ring3_model::nvme::{Change, NamespaceShape, NvmeHandle};
use ring3_spec::nvme::Status;
use ring3_spec::nvme::opcode::admin;

fn shape(bytes: u64, block_shift: u32) -> NamespaceShape {
    NamespaceShape { bytes, block_shift, ..ring3_model::nvme::Shape::default().namespaces[0] }
}

fn patient(uri: &str) -> Bench {
    bench_with(uri, Options::default())
}

/// Changes the drive and resets it while a write is in flight; how that ends.
fn write_over(bench: &Bench, queue: &mut dyn Queue, change: impl FnOnce(&NvmeHandle)) -> Outcome {
    bench.handle.set_timing(Timing::Held);
    queue.submit(Request::write(1, 0, 1, bench.filled(512, 0x11))).unwrap();
    queue.ring();
    bench.handle.set_timing(Timing::Inline);
    change(&bench.handle);
    bench.handle.reset_function();
    finish(queue)
}

fn is_untouched(bench: &Bench) -> bool {
    let mut block = [1; 512];
    bench.handle.peek(1, 0, &mut block) && block == [0; 512]
}

#[test]
fn nothing_is_repeated_on_another_controller_that_has_come_back() {
    let bench = patient("");
    let mut queue = bench.queue(4);
    assert_eq!(
        write_over(&bench, &mut *queue, |handle| handle.replace("ANOTHER")).of(1),
        Err(IoError::Transport)
    );
    assert!(is_untouched(&bench));
    let error = bench.controller.smart().map(drop).unwrap_err().to_string();
    assert!(error.contains("ANOTHER") && error.contains("another controller"), "{error}");
}

#[test]
fn nothing_is_repeated_on_a_namespace_that_is_another_one() {
    let changes = [
        Change::Attached(shape(64 << 20, 12)),
        Change::Attached(shape(32 << 20, 9)),
        Change::Attached(NamespaceShape { metadata: 8, ..shape(64 << 20, 9) }),
        Change::Attached(NamespaceShape { metadata: 8, protection: 1, ..shape(64 << 20, 9) }),
        Change::Attached(NamespaceShape { read_only: true, ..shape(64 << 20, 9) }),
        Change::Unique([2; 24]),
    ];
    for change in changes {
        let device = nvme::device("");
        device.handle().change(1, Change::Unique([1; 24]));
        let bench = Bench::of(device, Options::default()).unwrap();
        let mut queue = bench.queue(4);
        assert_eq!(
            write_over(&bench, &mut *queue, |handle| handle.change(1, change)).of(1),
            Err(IoError::Gone),
            "{change:?}"
        );
        assert!(is_untouched(&bench), "{change:?}");
        for request in [Request::read(2, 0, 1, bench.buffer(512)), Request::flush(2)] {
            let rejected = queue.submit(request).unwrap_err();
            assert_eq!(rejected.error, Some(IoError::Gone), "{change:?}");
        }
        assert!(bench.controller.disk(1).unwrap().open_queue(4).is_err());
    }
}

#[test]
fn a_namespace_that_is_gone_ends_and_leaves_the_others_alone() {
    let bench = patient(",namespaces=2");
    let mut other = bench.controller.disk(2).unwrap().open_queue(4).unwrap();
    let mut queue = bench.queue(4);
    let outcome = write_over(&bench, &mut *queue, |handle| handle.change(1, Change::Detached));
    assert_eq!(outcome.of(1), Err(IoError::Gone));
    succeed(&mut *other, Request::write(1, 0, 1, bench.filled(512, 0x22)));
    // Whoever sees the request to its end may have heard of it, or hears of it by the next tick.
    let ticks = [(); 2].map(|()| queue.tick(std::time::Instant::now()).map(drop));
    let told: Vec<_> =
        outcome.errors.into_iter().chain(ticks.into_iter().filter_map(Result::err)).collect();
    assert_eq!(told.len(), 1, "it is told once: {told:?}");
    let error = told[0].to_string();
    assert!(error.contains("namespace 1") && error.contains("gone"), "{error}");
}

#[test]
fn a_namespace_that_has_grown_is_written_on() {
    let bench = patient("");
    let mut queue = bench.queue(4);
    assert_eq!(
        write_over(&bench, &mut *queue, |handle| handle.change(1, Change::Resized(128 << 20)))
            .of(1),
        Ok(())
    );
    assert_eq!(execute(&mut *queue, Request::flush(2)).0, Ok(()));
}

#[test]
fn a_queue_of_a_namespace_that_has_ended_is_dropped_without_a_reset() {
    let bench = patient("");
    let mut queue = bench.queue(4);
    write_over(&bench, &mut *queue, |handle| handle.change(1, Change::Detached)).of(1).unwrap_err();
    let enables = bench.handle.counters().enables;
    drop(queue);
    assert_eq!(bench.handle.counters().enables, enables);
    assert_eq!(bench.handle.violations(), Vec::<String>::new());
}

#[test]
fn a_notice_of_changed_namespaces_says_what_has_become_of_each() {
    // The fourth is there to be attached later.
    let device = nvme::device(",namespaces=4");
    device.handle().change(4, Change::Detached);
    let bench = Bench::of(device, Options::default()).unwrap();
    let mut queues = [1, 2, 3].map(|id| bench.controller.disk(id).unwrap().open_queue(4).unwrap());
    bench.handle.change(1, Change::Resized(128 << 20));
    bench.handle.change(2, Change::Attached(shape(64 << 20, 12)));
    bench.handle.change(4, Change::Attached(shape(64 << 20, 9)));
    let events = bench.controller.events().unwrap();
    // Each reading of the log lets another notice come.
    let (notices, found): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|event| *event == Event::NamespacesChanged);
    let expected = [
        Event::NamespaceGrown { id: 1, blocks: 262_144 },
        Event::NamespaceOver { id: 2 },
        Event::NamespaceNew { id: 4 },
    ];
    assert!(!notices.is_empty());
    assert_eq!(found, expected);
    let mut write = |index: usize| {
        execute(&mut *queues[index], Request::write(1, 0, 1, bench.filled(512, 0x11))).0
    };
    assert_eq!([write(0), write(2)], [Ok(()); 2]);
    assert_eq!(write(1), Err(IoError::Gone));
}

#[test]
fn a_namespace_that_is_not_ready_for_a_moment_after_a_reset_is_asked_for_again_and_written_on() {
    let bench = patient("");
    let mut queue = bench.queue(4);
    // The first question after a reset is for the controller.
    let rule = Rule::admin(Action::Status(Status::NAMESPACE_NOT_READY.0), admin::IDENTIFY).nth(2);
    assert_eq!(write_over(&bench, &mut *queue, |handle| handle.plan().add(rule)).of(1), Ok(()));
}

#[test]
fn namespaces_that_are_gone_after_a_reset_are_waited_for_together() {
    let bench = patient(",namespaces=16");
    let mut queue = bench.queue(4);
    let before = bench.handle.counters().admin_commands;
    let detach = |handle: &NvmeHandle| (1..=16).for_each(|id| handle.change(id, Change::Detached));
    assert_eq!(write_over(&bench, &mut *queue, detach).of(1), Err(IoError::Gone));
    // Each of them is asked for once, and five times more altogether; by itself each would be six
    // times.
    let asked = bench.handle.counters().admin_commands - before;
    assert!(asked < 64, "{asked} commands");
}
