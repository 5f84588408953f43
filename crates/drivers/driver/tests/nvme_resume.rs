//! Controllers that change hands while they run.

mod disks;
mod hands;
mod nvme;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hands::{Successor, altered, is_of_no_use, through_json};
use nvme::{PATIENCE, bytes, execute, finish, short, succeed};
use ring3_class::block::{self, Completion, Data, ForeignAccess, IoError, Queue, Request, detach};
use ring3_conformance::block as conformance;
use ring3_device::dma::Foreign;
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::nvme::{Controller, Options};
use ring3_driver::registry::{self, Driver, Offer, Settings};
use ring3_model::Timing;
use ring3_model::fault::{Action, Rule};
use ring3_spec::nvme::Status;
use ring3_spec::nvme::event::AsyncEvent;
use ring3_spec::nvme::opcode::nvm;

type First = hands::First<Controller>;
type Left = hands::Left<Controller>;

fn first(uri: &str, options: Options) -> First {
    First::open(uri, options)
}

#[test]
fn what_waits_for_its_repetition_goes_on_in_the_next_process() {
    let options = Options { timeout: PATIENCE, ..Options::default() };
    let first = first(",retry-delay=10s", options);
    let (handle, mut queue) = (first.handle.clone(), first.queue());
    handle.plan().add(Rule::io(Action::Status(Status::INTERNAL.with_retry_delay(1).0), nvm::READ));
    queue.submit(Request::read(7, 0, 1, first.buffer(0))).unwrap();
    queue.ring();
    assert!(queue.reap_one().unwrap().is_none() && handle.plan().fired() == 1);
    // As the holder does it that does not wait for what is in flight.
    let saved = through_json(&queue.detach().unwrap());
    let First { device, mut controller, .. } = first;
    let left = through_json(&controller.detach().unwrap());
    drop((queue, controller));
    let (device, start) = (Successor::of(&device), Instant::now());
    let controller = Controller::resume(device, None, &left).unwrap();
    let mut queue = controller.disk(1).unwrap().resume_queue(&saved).unwrap();
    assert_eq!(finish(&mut *queue).of(7), Ok(()));
    assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
}

#[test]
fn what_was_in_flight_ends_in_the_next_process_once_and_the_controller_is_never_disabled() {
    for interrupts in [
        Interrupts::Auto,
        Interrupts::Polled,
        Interrupts::Only(IrqKind::Intx),
        Interrupts::Only(IrqKind::Msi),
    ] {
        let first = first(",cache=on", Options { interrupts, ..Options::default() });
        let (handle, info, free) = (
            first.handle.clone(),
            first.controller.disk(1).unwrap().info().clone(),
            first.device.dma().arena().free_bytes(),
        );
        let mut queue = first.queue();
        handle.set_timing(Timing::Held);
        for token in 0..12 {
            queue.submit(Request::write(token, token, 1, first.buffer(token as u8 + 1))).unwrap();
            if token == 8 {
                queue.ring();
            }
        }
        let before = handle.counters();
        let left = first.detach_all(vec![queue]);
        // What ends in between is found by the first look.
        assert_eq!(handle.held(), 9);
        for _ in 0..4 {
            handle.release_one();
        }
        let (controller, mut queues) = left.resume();
        assert_eq!(left.device.dma().arena().unclaimed(), []);
        let queue = &mut *queues[0];
        assert_eq!(queue.in_flight(), 12);
        let mut done: [Completion; 16] = Default::default();
        assert_eq!(queue.reap(&mut done).unwrap(), 4);
        handle.set_timing(Timing::Inline);
        handle.release();
        let outcome = finish(queue);
        assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
        for token in 0..12u64 {
            let early = done
                .iter()
                .filter(|end| end.token == token && matches!(end.data, Data::Buffer(_)))
                .count();
            let late = outcome
                .completions
                .iter()
                .filter(|end| end.token == token && end.result == Ok(()))
                .count();
            assert_eq!(early + late, 1, "request {token}");
            let mut block = [0; 512];
            assert!(handle.peek(1, token * 512, &mut block) && block == [token as u8 + 1; 512]);
        }
        let after = handle.counters();
        assert_eq!(
            (after.commands - before.commands, after.enables, after.admin_commands),
            (12 - 9, 1, before.admin_commands)
        );
        assert_eq!(controller.disk(1).unwrap().info(), &info);
        assert_eq!(handle.violations(), Vec::<String>::new());
        // All memory comes back when the second process ends.
        drop((done, outcome, queues));
        assert_eq!(left.device.dma().arena().free_bytes(), free);
    }
}

#[test]
fn a_disk_that_was_resumed_conforms() {
    let options =
        conformance::Options { requests: 200, depth: 16, patience: Duration::from_secs(20) };
    let left = first(",namespaces=2", Options::default()).detach_all(Vec::new());
    let (controller, _) = left.resume();
    assert_eq!(controller.namespaces().len(), 2);
    for disk in controller.namespaces() {
        let report = conformance::run(disk, &options);
        assert!(report.passed(), "{report}");
    }
}

#[test]
fn a_namespace_with_protection_information_keeps_it_with_the_next_driver() {
    let mut first = first(",block=512p1", Options::default());
    let mut queue = first.queue();
    succeed(&mut *queue, Request::write(1, 5, 1, first.buffer(0x5a)));
    drop(queue);
    let saved = first.controller.detach().unwrap();
    // A version that does not know of it must not go on with it.
    assert!(through_json(&saved).read::<serde_json::Value>("nvme controller", 2).is_err());
    let controller = Controller::resume(Successor::of(&first.device), None, &saved).unwrap();
    let disk = controller.disk(1).unwrap();
    let report = conformance::run(
        &*disk,
        &conformance::Options { requests: 200, depth: 16, patience: Duration::from_secs(20) },
    );
    assert!(report.passed(), "{report}");
}

#[test]
fn a_queue_changes_hands_many_times_and_its_rings_begin_many_laps() {
    let first = first("", Options::default());
    let (disk, mut queue) = (first.controller.disk(1).unwrap(), first.queue());
    for round in 0..100u64 {
        for token in 0..7 {
            queue
                .submit(Request::write(token, token, 1, first.buffer((round + token) as u8)))
                .unwrap();
        }
        queue.ring();
        let saved = through_json(&queue.detach().unwrap());
        queue = disk.resume_queue(&saved).unwrap();
        assert_eq!(finish(&mut *queue).completions.len(), 7);
    }
    assert_eq!(first.handle.counters().commands, 700);
}

#[test]
fn an_event_that_comes_while_nobody_is_there_is_reported_by_the_next_process() {
    let first = first("", Options::default());
    let handle = first.handle.clone();
    let left = first.detach_all(Vec::new());
    handle.event(AsyncEvent::new(AsyncEvent::NOTICE, AsyncEvent::NAMESPACE_CHANGED, 4));
    let (controller, _) = left.resume();
    assert_eq!(controller.events().unwrap(), [ring3_driver::nvme::Event::NamespacesChanged]);
    assert_eq!(handle.violations(), Vec::<String>::new());
}

#[test]
fn a_request_that_never_ends_is_aborted_by_the_next_process() {
    let first = first("", short());
    let (handle, mut queue) = (first.handle.clone(), first.queue());
    handle.set_timing(Timing::Held);
    queue.submit(Request::read(1, 0, 1, first.buffer(0))).unwrap();
    queue.ring();
    let left = first.detach_all(vec![queue]);
    let (_controller, mut queues) = left.resume();
    handle.set_timing(Timing::Inline);
    let outcome = finish(&mut *queues[0]);
    assert_eq!(outcome.of(1), Ok(()));
}

#[test]
fn a_controller_that_was_reset_while_nobody_was_there_is_started_anew_and_repeats_what_was_in_flight()
 {
    let first = first(",cache=on", short());
    let (handle, mut queue) = (first.handle.clone(), first.queue());
    succeed(&mut *queue, Request::write(0, 0, 1, first.buffer(1)));
    handle.set_timing(Timing::Held);
    queue.submit(Request::write(1, 1, 1, first.buffer(2))).unwrap();
    queue.ring();
    let left = first.detach_all(vec![queue]);
    handle.set_timing(Timing::Inline);
    handle.lose_power();
    let (_controller, mut queues) = left.resume();
    let outcome = finish(&mut *queues[0]);
    assert_eq!(outcome.of(1), Ok(()));
    // The write that the first process was told of may be lost, and nobody has said so yet.
    assert_eq!(execute(&mut *queues[0], Request::flush(2)).0, Err(IoError::Transport));
    assert_eq!(execute(&mut *queues[0], Request::flush(3)).0, Ok(()));
}

#[test]
fn a_controller_is_not_detached_while_a_queue_is_open_and_goes_on_then() {
    let mut first = first("", Options::default());
    let mut queue = first.queue();
    let error = first.controller.detach().unwrap_err();
    assert!(
        matches!(&error, Error::Busy(_)) && error.to_string().contains("queue 1 is open"),
        "{error}"
    );
    succeed(&mut *queue, Request::read(1, 0, 1, first.buffer(0)));
}

#[test]
fn a_queue_whose_controller_was_reset_is_detached_once_it_has_repeated_what_was_in_flight() {
    let first = first("", Options::default());
    let mut queue = first.queue();
    first.handle.set_timing(Timing::Held);
    queue.submit(Request::read(1, 0, 1, first.buffer(0))).unwrap();
    queue.ring();
    first.controller.reset().unwrap();
    let error = queue.detach().unwrap_err();
    assert!(matches!(&error, Error::Busy(_)), "{error}");
    let handle = first.handle.clone();
    let left = first.detach_all(vec![queue]);
    handle.set_timing(Timing::Inline);
    handle.release();
    assert_eq!(finish(&mut *left.resume().1[0]).of(1), Ok(()));
}

#[test]
fn what_was_copied_ends_before_a_queue_is_detached_and_what_follows_is_resumed() {
    let first = first("", Options::default());
    let (handle, disk) = (first.handle.clone(), first.controller.disk(1).unwrap());
    let mut queue = block::open(&*disk, 8, ForeignAccess::default()).unwrap();
    handle.set_timing(Timing::Held);
    queue.submit(Request::write(1, 0, 8, Foreign::from(vec![7; 4096]))).unwrap();
    queue.submit(Request::read(2, 8, 1, first.buffer(0))).unwrap();
    queue.ring();
    let error = queue.detach().unwrap_err();
    assert!(
        matches!(&error, Error::Busy(_)) && error.to_string().contains("cut or copied"),
        "{error}"
    );
    // It gives up at the deadline, and the queue goes on.
    assert!(
        detach(&mut queue, &mut Vec::new(), Deadline::after(Duration::from_millis(20))).is_err()
    );
    let mut ended = Vec::new();
    handle.release_one();
    let saved = through_json(&detach(&mut queue, &mut ended, Deadline::after(PATIENCE)).unwrap());
    drop(queue);
    assert_eq!(ended.iter().map(|end| (end.token, end.result)).collect::<Vec<_>>(), [(1, Ok(()))]);
    let mut queue = block::resume(&*disk, &saved, ForeignAccess::default()).unwrap();
    handle.set_timing(Timing::Inline);
    handle.release();
    assert_eq!(finish(&mut queue).of(2), Ok(()));
    assert_eq!(
        bytes(succeed(
            &mut queue,
            Request::read(3, 0, 8, disk.dma().arena().alloc_pages(4096).unwrap())
        )),
        [7; 4096]
    );
}

#[test]
fn a_detached_controller_is_of_no_use_to_its_last_driver() {
    is_of_no_use(first("", Options::default()), Controller::reset, |handle| handle.counters());
}

#[test]
fn the_registry_detaches_and_resumes_a_controller_of_any_kind() {
    let device = nvme::device("");
    let handle = device.handle();
    let device: Arc<dyn Device> = Arc::new(device);
    let mut opened = Driver::open(device.clone(), None, &Settings::default()).unwrap();
    let saved = through_json(&opened.controller.detach().unwrap());
    drop(opened);
    let registry::Opened { offers, .. } =
        Driver::resume(Successor::of(&device), &Settings::default(), &saved).unwrap();
    let [Offer::Disk(disk)] = &offers[..] else { panic!("one disk") };
    let buffer = disk.dma().arena().alloc_pages(512).unwrap();
    assert_eq!(
        bytes(succeed(&mut *disk.open_queue(4).unwrap(), Request::read(0, 0, 1, buffer))),
        [0; 512]
    );
    assert_eq!(handle.counters().enables, 1);
}

/// What is left of a controller with a request in flight.
fn left() -> Left {
    let first = first("", Options::default());
    let mut queue = first.queue();
    first.handle.set_timing(Timing::Held);
    queue.submit(Request::read(1, 0, 1, first.buffer(0))).unwrap();
    queue.ring();
    first.detach_all(vec![queue])
}

#[test]
fn a_state_that_is_not_the_controllers_is_refused_and_changes_nothing() {
    left().refuses_controllers(&[
        |state| state["cap"] = 1.into(),
        |state| state["generation"] = u32::MAX.into(),
        |state| state["vectors"] = 77.into(),
        |state| state["queues"] = vec![1, 1].into(),
        |state| state["queues"] = vec![200].into(),
        |state| state["admin"]["page"]["offset"] = 1.into(),
        |state| state["admin"]["page"]["region"] = 9.into(),
        |state| state["admin"]["next_id"] = 0xffff.into(),
        |state| state["admin"]["submission"]["state"]["size"] = 16.into(),
        |state| state["admin"]["submission"]["state"]["committed"] = 77.into(),
        |state| state["admin"]["completion"]["memory"] = state["admin"]["page"].clone(),
        |state| state["namespaces"][0]["info"]["block_size"] = 0.into(),
        |state| drop(state["traits"].take()),
        // Found by `ring3 faults hunt --only saved`: the next flush, or write, went beyond the end
        // of its numbers.
        |state| state["namespaces"][0]["cache"]["begun"] = u64::MAX.into(),
        |state| state["namespaces"][0]["cache"]["covering"] = u64::MAX.into(),
        |state| state["namespaces"][0]["cache"]["flushed"] = 77.into(),
        |state| state["namespaces"][0]["cache"]["failed"] = 77.into(),
    ]);
}

#[test]
fn a_state_that_is_not_the_queues_is_refused_and_changes_nothing() {
    left().refuses_queues(&[
        |state| state["namespace"] = 2.into(),
        |state| state["serial"] = "another".into(),
        |state| state["id"] = 2.into(),
        |state| state["slots"] = 0.into(),
        |state| state["slots"] = 17.into(),
        |state| state["slots"] = 1024.into(),
        |state| state["submission"]["state"]["tail"] = 100.into(),
        |state| state["lists"] = state["submission"]["memory"].clone(),
        |state| state["held"][0]["id"] = 0x8000.into(),
        |state| state["held"][0]["request"]["blocks"] = 2.into(),
        |state| state["held"][0]["request"]["data"][0]["len"] = 1024.into(),
        |state| {
            let twice = state["held"][0].clone();
            state["held"].as_array_mut().unwrap().push(twice);
        },
    ]);
}

#[test]
fn a_flush_that_was_not_begun_is_refused() {
    let first = first(",cache=on", Options::default());
    let mut queue = first.queue();
    first.handle.set_timing(Timing::Held);
    queue.submit(Request::flush(1)).unwrap();
    queue.ring();
    let left = first.detach_all(vec![queue]);
    let controller = Controller::resume(left.device.clone(), None, &left.controller).unwrap();
    let disk = controller.disk(1).unwrap();
    for number in [0, 2, u64::MAX] {
        let saved = altered(&left.queues[0], |state| state["held"][0]["flush"] = number.into());
        let error = disk.resume_queue(&saved).err().expect("it is refused");
        assert!(matches!(error, Error::Invalid(_)), "{number}: {error}");
    }
    disk.resume_queue(&left.queues[0]).unwrap();
}

#[test]
fn a_controller_that_somebody_else_has_started_is_not_resumed() {
    let left = left();
    let other = Controller::open(left.device.clone(), Options::default()).unwrap();
    let error = left.refusal(&left.controller);
    assert!(error.to_string().contains("another admin queue"), "{error}");
    drop(other);
}
