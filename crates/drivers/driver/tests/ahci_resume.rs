//! AHCI controllers that change hands while they run.

mod ahci;
mod disks;
mod hands;

use std::sync::Arc;
use std::time::Duration;

use ahci::{PATIENCE, execute, finish, run, short, succeed};
use hands::{Successor, is_of_no_use, through_json};
use ring3_class::block::{Disk, Request};
use ring3_conformance::block as conformance;
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::ata::ahci::Controller;
use ring3_driver::ata::{Level, Options};
use ring3_driver::registry::{self, Driver, Offer, Settings};
use ring3_model::Timing;

type First = hands::First<Controller>;
type Left = hands::Left<Controller>;

fn first(uri: &str, options: Options) -> First {
    First::open(uri, options)
}

#[test]
fn what_was_in_flight_ends_in_the_next_process_once_and_the_controller_is_never_reset() {
    for level in [Level::Queued, Level::Dma] {
        for interrupts in [Interrupts::Auto, Interrupts::Polled, Interrupts::Only(IrqKind::Intx)] {
            let first = first(",disks=2", Options { level, interrupts, ..Options::default() });
            let (handle, info) =
                (first.handle.clone(), first.controller.drives()[0].info().clone());
            let free = first.device.dma().arena().free_bytes();
            let mut queue = first.queue();
            handle.set_timing(Timing::Held);
            for token in 0..12 {
                queue
                    .submit(Request::write(token, token, 1, first.buffer(token as u8 + 1)))
                    .unwrap();
                if token == 8 {
                    queue.ring();
                }
            }
            let before = handle.counters();
            let left = first.detach_all(vec![queue]);
            assert_eq!(handle.held(), if level == Level::Queued { 9 } else { 1 });
            // What ends in between is found by the first look.
            handle.release_one();
            let (controller, mut queues) = left.resume();
            assert_eq!(left.device.dma().arena().unclaimed(), []);
            let queue = &mut *queues[0];
            assert_eq!(queue.in_flight(), 12);
            assert!(queue.wait(Deadline::after(PATIENCE)).unwrap());
            let early = queue.reap_one().unwrap().expect("one has ended");
            assert_eq!(early.result, Ok(()));
            handle.set_timing(Timing::Inline);
            handle.release();
            let outcome = finish(queue);
            assert!(
                outcome.errors.is_empty() && outcome.completions.len() == 11,
                "{:?}",
                outcome.errors
            );
            for token in (0..12u64).filter(|&token| token != early.token) {
                assert_eq!(outcome.of(token), Ok(()));
                let mut block = [0; 512];
                assert!(handle.peek(0, token * 512, &mut block) && block == [token as u8 + 1; 512]);
            }
            let after = handle.counters();
            assert_eq!(
                (after.resets, after.admin_commands),
                (before.resets, before.admin_commands)
            );
            assert_eq!(
                after.commands - before.commands,
                if level == Level::Queued { 12 - 9 } else { 12 - 1 }
            );
            assert_eq!((controller.drives().len(), controller.drives()[0].info()), (2, &info));
            drop((early, outcome, queues));
            assert_eq!(left.device.dma().arena().free_bytes(), free);
            drop((controller, left));
            assert_eq!(handle.violations(), Vec::<String>::new());
        }
    }
}

#[test]
fn a_drive_that_was_resumed_conforms() {
    let options =
        conformance::Options { requests: 200, depth: 16, patience: Duration::from_secs(20) };
    let left = first(",disks=2", Options::default()).detach_all(Vec::new());
    for disk in left.resume().0.drives() {
        let report = conformance::run(disk, &options);
        assert!(report.passed(), "{report}");
    }
}

#[test]
fn a_command_that_never_ends_is_repeated_by_the_next_process() {
    let first = first("", short());
    let (handle, mut queue) = (first.handle.clone(), first.queue());
    handle.set_timing(Timing::Held);
    queue.submit(Request::read(1, 0, 1, first.buffer(0))).unwrap();
    queue.ring();
    let left = first.detach_all(vec![queue]);
    let (_controller, mut queues) = left.resume();
    handle.set_timing(Timing::Inline);
    assert_eq!(finish(&mut *queues[0]).of(1), Ok(()));
}

#[test]
fn a_controller_that_was_reset_while_nobody_was_there_is_taken_over_and_repeats_what_was_in_flight()
{
    let first = first("", short());
    let (handle, mut queue) = (first.handle.clone(), first.queue());
    handle.set_timing(Timing::Held);
    queue.submit(Request::write(1, 1, 1, first.buffer(2))).unwrap();
    queue.ring();
    let left = first.detach_all(vec![queue]);
    handle.set_timing(Timing::Inline);
    handle.reset_function();
    let (_controller, mut queues) = left.resume();
    assert_eq!(finish(&mut *queues[0]).of(1), Ok(()));
}

#[test]
fn a_drive_that_loses_its_power_while_nobody_is_there_fails_the_next_flush_of_who_has_written() {
    let first = first("", short());
    let (handle, mut queue) = (first.handle.clone(), first.queue());
    succeed(&mut *queue, Request::write(0, 0, 1, first.buffer(1)));
    let left = first.detach_all(vec![queue]);
    handle.lose_power();
    let (_controller, mut queues) = left.resume();
    let mut flush = || run(&mut *queues[0], Request::flush(1)).of(1);
    assert!(flush().is_err(), "what was written is lost");
    assert_eq!(flush(), Ok(()), "that is said once");
}

#[test]
fn a_controller_is_not_detached_while_a_queue_is_open_and_goes_on_then() {
    let mut first = first("", Options::default());
    let mut queue = first.queue();
    let error = first.controller.detach().unwrap_err();
    assert!(
        matches!(&error, Error::Busy(_)) && error.to_string().contains("port 0 is open"),
        "{error}"
    );
    let (end, _) = execute(&mut *queue, Request::read(1, 0, 1, first.buffer(0)));
    assert_eq!(end, Ok(()));
}

#[test]
fn nobody_opens_the_port_of_a_queue_that_was_detached_before_it_is_resumed() {
    let first = first("", Options::default());
    let (disk, mut queue) = (first.controller.drives()[0].clone(), first.queue());
    let saved = queue.detach().unwrap();
    drop(queue);
    let error = disk.open_queue(4).err().expect("it is refused");
    assert!(
        matches!(&error, Error::Busy(_)) && error.to_string().contains("was detached: resume it"),
        "{error}"
    );
    drop(disk.resume_queue(&saved).unwrap());
    assert!(disk.open_queue(4).is_ok());
}

#[test]
fn a_detached_controller_is_of_no_use_to_its_last_driver() {
    is_of_no_use(first("", Options::default()), Controller::reset, |handle| handle.counters());
}

#[test]
fn the_registry_detaches_and_resumes_a_controller_of_any_kind() {
    let device: Arc<dyn Device> = Arc::new(ahci::device(""));
    let mut opened = Driver::open(device.clone(), None, &Settings::default()).unwrap();
    let saved = through_json(&opened.controller.detach().unwrap());
    drop(opened);
    let registry::Opened { offers, .. } =
        Driver::resume(Successor::of(&device), &Settings::default(), &saved).unwrap();
    let [Offer::Disk(disk)] = &offers[..] else { panic!("one disk") };
    let buffer = disk.dma().arena().alloc_pages(512).unwrap();
    succeed(&mut *disk.open_queue(4).unwrap(), Request::read(0, 0, 1, buffer));
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
        |state| state["capabilities"] = 1.into(),
        |state| state["ports"] = u32::MAX.into(),
        |state| state["generation"] = u32::MAX.into(),
        |state| state["interrupts"] = "intx".into(),
        |state| state["seats"][0]["index"] = 31.into(),
        |state| state["seats"][0]["info"]["block_size"] = 0.into(),
        |state| state["seats"][0]["info"]["max_transfer"] = u32::MAX.into(),
        |state| drop(state["options"].take()),
    ]);
}

#[test]
fn a_state_that_is_not_the_queues_is_refused_and_changes_nothing() {
    left().refuses_queues(&[
        |state| state["port"]["index"] = 2.into(),
        |state| state["port"]["slots"] = 0.into(),
        |state| state["port"]["tables"] = state["port"]["page"].clone(),
        |state| state["port"]["page"]["offset"] = 1.into(),
        |state| state["serial"] = "another".into(),
        |state| state["depth"] = 33.into(),
        |state| state["depth"] = 0.into(),
        |state| state["done"] = 1.into(),
        |state| state["issued"] = 0.into(),
        |state| state["line"] = vec![7].into(),
        |state| state["claimed"] = 2.into(),
        |state| state["held"][0]["number"] = 31.into(),
        |state| state["held"][0]["request"]["data"][0]["len"] = 1024.into(),
    ]);
}

#[test]
fn a_controller_that_somebody_else_has_started_is_not_resumed() {
    let left = first("", Options::default()).detach_all(Vec::new());
    let other = Controller::open(left.device.clone(), Options::default()).unwrap();
    let error = left.refusal(&left.controller);
    assert!(error.to_string().contains("other memory than was saved"), "{error}");
    drop(other);
}
