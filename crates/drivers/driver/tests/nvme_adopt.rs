//! Controllers whose driver's process is killed, and which go on.

mod disks;
mod hands;
mod mortal;
mod nvme;

use std::sync::Arc;
use std::time::{Duration, Instant};

use hands::{Successor, altered, through_json, works};
use mortal::Mortal;
use nvme::succeed;
use ring3_class::block::{IoError, Queue, Request};
use ring3_device::Device;
use ring3_device::dma::{PersistentWords, Region, Span};
use ring3_device::found::Found;
use ring3_device::ring::Words;
use ring3_driver::Interrupts;
use ring3_driver::nvme::{Controller, Event, Options};
use ring3_model::Timing;
use ring3_model::nvme::{NvmeHandle, SimNvme};
use ring3_spec::nvme::event::AsyncEvent;
use ring3_spec::nvme::log;

type Victim = hands::Victim<Controller>;
type Orphan = hands::Orphan<Controller>;

fn victim(uri: &str) -> Victim {
    victim_with(uri, Options::default())
}

fn victim_with(uri: &str, options: Options) -> Victim {
    victim_of(nvme::device(uri), options)
}

/// A driver of `device`.
fn victim_of(device: SimNvme, options: Options) -> Victim {
    let handle = device.handle();
    let device: Arc<dyn Device> = Arc::new(device);
    let controller = Controller::open(device.clone(), options).unwrap();
    Victim::new(device, handle, controller)
}

/// It is not adopted, and opened as if nothing had been.
fn refuse(orphan: &Orphan, why: &str) {
    orphan.refusal(why);
    works(&orphan.open());
}

/// Two flushes of a driver that opens it as if nothing had been.
fn flush_afresh(orphan: &Orphan) -> [Result<(), IoError>; 2] {
    let mut queue = orphan.open().disk(1).unwrap().open_queue(16).unwrap();
    [(); 2].map(|()| flush(&mut *queue))
}

#[test]
fn a_killed_driver_is_followed_without_a_reset_and_nothing_of_its_commands_comes_later() {
    for interrupts in
        [Interrupts::Auto, Interrupts::Polled, Interrupts::Only(ring3_device::irq::IrqKind::Intx)]
    {
        let victim = victim_with(",cache=on", Options { interrupts, ..Options::default() });
        let handle = victim.handle.clone();
        let (mut first, mut second) = (victim.queue(), victim.queue());
        handle.set_timing(Timing::Held);
        let mut places = Vec::new();
        for token in 0..12 {
            let buffer = victim.buffer(0xee);
            let region = victim.device.dma().arena().regions().next().unwrap().region.clone();
            places.push((region, buffer.span().offset as usize));
            let queue = if token % 2 == 0 { &mut first } else { &mut second };
            let request = if token < 6 {
                Request::read(token, token, 1, buffer)
            } else {
                Request::write(token, token, 1, buffer)
            };
            queue.submit(request).unwrap();
            if token < 9 {
                queue.ring();
            }
        }
        let held = handle.held();
        assert!(held > 8);
        let orphan = victim.kill(vec![first, second]);
        handle.release_one();
        let controller = orphan.adopt();
        assert_eq!(handle.held(), 0, "the controller has nothing of the dead driver");
        // Free memory, which somebody else uses now.
        let paint = |byte: u8| {
            move |place: &(Arc<Region>, usize)| place.0.write(place.1, &[byte; 512]).unwrap()
        };
        places.iter().for_each(paint(0x5a));
        handle.set_timing(Timing::Inline);
        assert_eq!(handle.release(), 0);
        for (region, offset) in &places {
            let mut bytes = [0; 512];
            region.read(*offset, &mut bytes).unwrap();
            assert_eq!(bytes, [0x5a; 512]);
        }
        works(&controller);
        assert_eq!(handle.counters().enables, 1, "no reset");
        let mut block = [1; 512];
        assert!(
            handle.peek(1, 11 * 512, &mut block) && block == [0; 512],
            "what was not rung is not written"
        );
        assert_eq!(handle.violations(), Vec::<String>::new());
        drop(controller);
        let arena = orphan.device.dma().arena();
        assert_eq!(arena.free_bytes(), arena.len() - PersistentWords::BYTES);
    }
}

#[test]
fn a_driver_may_be_killed_many_times_in_a_row() {
    let mut victim = victim(",cache=on");
    for round in 0..70 {
        let queue = victim.queue();
        victim.handle.event(AsyncEvent::new(
            AsyncEvent::HEALTH,
            AsyncEvent::TEMPERATURE,
            log::SMART,
        ));
        if round % 3 == 0 {
            victim.controller.events().unwrap();
        }
        let orphan = victim.kill(vec![queue]);
        let controller = orphan.adopt();
        works(&controller);
        victim = orphan.next(controller);
    }
    assert_eq!((victim.handle.counters().enables, victim.handle.violations()), (1, Vec::new()));
}

#[test]
fn wherever_a_driver_is_killed_it_is_adopted_as_it_was_or_not_at_all() {
    let (mut adopted, mut refused) = (0, 0);
    for accesses in 0.. {
        let device = nvme::device(",cache=on");
        let handle = device.handle();
        let device: Arc<dyn Device> = Arc::new(device);
        let mortal = Mortal::new(device.clone());
        let options = Options {
            interrupts: Interrupts::Polled,
            timeout: Duration::from_millis(50),
            ..Options::default()
        };
        let controller = Controller::open(mortal.clone(), options).unwrap();
        let (record, arena) =
            (through_json(&controller.record().unwrap()), device.dma().arena().save());
        mortal.doom(accesses);
        live(&controller, &handle);
        if !mortal.bury() {
            break;
        }
        std::mem::forget(controller);
        let enables = handle.counters().enables;
        let orphan = Orphan { device: Successor::with(&device, &arena), handle, record };
        let result = orphan.try_adopt();
        assert_eq!(orphan.handle.counters().enables, enables);
        let controller = match result {
            Ok(controller) => {
                adopted += 1;
                controller.events().unwrap();
                controller
            }
            Err(_) => {
                refused += 1;
                orphan.open()
            }
        };
        works(&controller);
        orphan.handle.event(AsyncEvent::new(AsyncEvent::HEALTH, AsyncEvent::SPARE, log::SMART));
        assert_eq!(
            controller.events().unwrap().len(),
            1,
            "killed at access {accesses}: events come"
        );
        assert_eq!(orphan.handle.violations(), Vec::<String>::new(), "killed at access {accesses}");
    }
    assert!(adopted > 5 && refused > 20, "{adopted} adopted, {refused} not");
}

/// What a driver does in its life: queues come and go, events happen, and at last the controller is
/// reset.
fn live(controller: &Controller, handle: &NvmeHandle) {
    let disk = controller.disk(1).unwrap();
    let Ok(mut queue) = disk.open_queue(16) else { return };
    for token in 0..3 {
        let buffer = disk.dma().arena().alloc_pages(512).unwrap();
        if queue.submit(Request::write(token, token, 1, buffer)).is_err() {
            break;
        }
        queue.ring();
        let _ = queue.reap_one();
    }
    handle.event(AsyncEvent::new(AsyncEvent::HEALTH, AsyncEvent::TEMPERATURE, log::SMART));
    let _ = controller.events();
    let _ = controller.smart();
    let _ = disk.open_queue(8);
    let _ = controller.reset();
    std::mem::forget(queue);
}

#[test]
fn an_event_that_nobody_has_read_is_reported_by_the_next_driver() {
    let victim = victim("");
    let orphan = victim.kill(Vec::new());
    orphan.handle.event(AsyncEvent::new(AsyncEvent::HEALTH, AsyncEvent::TEMPERATURE, log::SMART));
    let controller = orphan.adopt();
    assert!(matches!(
        controller.events().unwrap()[..],
        [Event::Health { info: AsyncEvent::TEMPERATURE, .. }]
    ));
    orphan.handle.event(AsyncEvent::new(AsyncEvent::HEALTH, AsyncEvent::SPARE, log::SMART));
    assert_eq!(controller.events().unwrap().len(), 1);
}

#[test]
fn a_controller_that_does_not_delete_its_queues_is_stopped_in_time() {
    for fault in [
        "drop:delete-sq",
        "hang:delete-sq",
        "status/0x6:delete-sq",
        "status/0x6:delete-cq",
        "drop:identify",
        "wrong-id/1:identify",
    ] {
        let victim = victim("");
        let queue = victim.queue();
        let orphan = victim.kill(vec![queue]);
        orphan.handle.plan().read(fault).unwrap();
        let since = Instant::now();
        assert!(orphan.try_adopt().is_err(), "{fault}");
        assert!(since.elapsed() < Duration::from_secs(5), "{fault}: {:?}", since.elapsed());
        orphan.handle.plan().clear();
        works(&orphan.open());
    }
}

#[test]
fn a_controller_that_is_not_as_its_driver_has_left_it_is_not_adopted() {
    let victim = victim("");
    let queue = victim.queue();
    let orphan = victim.kill(vec![queue]);
    orphan.handle.reset_function();
    refuse(&orphan, "reset behind");

    let orphan = self::victim("").kill(Vec::new());
    orphan.handle.fail();
    refuse(&orphan, "CFS");

    let orphan = self::victim("").kill(Vec::new());
    let bar = orphan.device.bar(0).unwrap();
    bar.write32(0x14, bar.read32(0x14) | 1 << 14);
    refuse(&orphan, "CSTS.SHST");
}

#[test]
fn a_record_that_lies_is_refused_before_a_register_is_written() {
    let state = |change: fn(&mut serde_json::Value)| change;
    let lies = [
        state(|state| state["cap"] = 1.into()),
        state(|state| state["queues"] = vec![1].into()),
        state(|state| state["generation"] = 1.into()),
        state(|state| state["vectors"] = 3.into()),
        state(|state| state["admin"]["checkpoint"] = serde_json::Value::Null),
        state(|state| state["admin"]["checkpoint"]["offset"] = 77.into()),
        state(|state| state["admin"]["submission"]["memory"] = state["admin"]["page"].clone()),
        state(|state| {
            state["admin"]["completion"]["memory"] = state["admin"]["submission"]["memory"].clone()
        }),
        state(|state| state["traits"]["page"] = 1.into()),
    ];
    for lie in lies {
        let victim = victim("");
        let queue = victim.queue();
        let mut orphan = victim.kill(vec![queue]);
        let before = orphan.handle.counters();
        orphan.record = altered(&orphan.record, lie);
        assert!(orphan.try_adopt().is_err());
        assert_eq!(orphan.handle.counters(), before);
    }
}

#[test]
fn a_controller_with_another_serial_number_is_stopped() {
    let mut orphan = victim("").kill(Vec::new());
    orphan.record =
        altered(&orphan.record, |state| state["traits"]["identity"]["serial"] = "another".into());
    refuse(&orphan, "another");
}

#[test]
fn a_checkpoint_that_is_damaged_or_says_nothing_is_not_believed() {
    for flip in [0, 1, 1 << 7, 1 << 40, u64::MAX] {
        let orphan = victim("").kill(Vec::new());
        let span: Span =
            serde_json::from_value(orphan.record.state["admin"]["checkpoint"].clone()).unwrap();
        let word = Successor::of(&orphan.device).dma().arena().claim(span).unwrap();
        word.store(0, if flip == 0 { 0 } else { word.load(0) ^ flip });
        refuse(&orphan, "admin command was under way");
    }
}

#[test]
fn a_controller_that_was_reset_or_shut_down_by_its_driver_is_not_adopted() {
    let victim = victim("");
    victim.controller.reset().unwrap();
    assert!(victim.controller.record().is_err());
    refuse(&victim.kill(Vec::new()), "after a reset");
}

fn flush(queue: &mut dyn Queue) -> Result<(), IoError> {
    nvme::execute(queue, Request::flush(2)).0
}

#[test]
fn what_a_killed_driver_had_written_and_not_flushed_is_lost_with_the_power_of_the_adopted_controller()
 {
    let victim = victim("");
    let mut queue = victim.queue();
    succeed(&mut *queue, Request::write(1, 0, 1, victim.buffer(0x11)));
    let orphan = victim.kill(vec![queue]);
    let controller = orphan.adopt();
    let mut queues = [(); 2].map(|()| controller.disk(1).unwrap().open_queue(16).unwrap());
    orphan.handle.lose_power();
    for queue in &mut queues {
        assert_eq!((flush(&mut **queue), flush(&mut **queue)), (Err(IoError::Transport), Ok(())));
    }
}

#[test]
fn the_flush_of_a_driver_that_opens_the_controller_of_a_killed_one_fails_if_the_power_was_lost_in_between()
 {
    let victim = victim("");
    let mut queue = victim.queue();
    succeed(&mut *queue, Request::write(1, 0, 1, victim.buffer(0x11)));
    let orphan = victim.kill(vec![queue]);
    orphan.handle.lose_power();
    refuse(&orphan, "reset behind");
    assert_eq!(flush_afresh(&orphan), [Err(IoError::Transport), Ok(())]);
}

#[test]
fn a_killed_drivers_controller_that_was_only_reset_has_what_was_written() {
    let victim = victim("");
    let mut queue = victim.queue();
    succeed(&mut *queue, Request::write(1, 0, 1, victim.buffer(0x11)));
    let orphan = victim.kill(vec![queue]);
    orphan.handle.reset_function();
    assert_eq!(flush_afresh(&orphan), [Ok(()); 2]);
}

#[test]
fn of_a_controller_that_does_not_count_its_losses_of_power_only_the_fence_says_that_it_has_run_on()
{
    for (found, first) in [
        (Found::Running, Ok(())),
        (Found::Disturbed, Err(IoError::Transport)),
        (Found::Unknown, Err(IoError::Transport)),
    ] {
        let device = nvme::device("");
        device.handle().count_no_power();
        let victim = victim_of(device, Options::default());
        let mut queue = victim.queue();
        succeed(&mut *queue, Request::write(1, 0, 1, victim.buffer(0x11)));
        let orphan = victim.kill(vec![queue]);
        found.record(&orphan.device.dma().arena().persistent_words().unwrap());
        assert_eq!(flush_afresh(&orphan), [first, Ok(())], "{found:?}");
    }
}

#[test]
fn what_a_killed_driver_had_flushed_is_not_lost_with_the_power() {
    let victim = victim("");
    let mut queue = victim.queue();
    succeed(&mut *queue, Request::write(1, 0, 1, victim.buffer(0x11)));
    flush(&mut *queue).unwrap();
    let orphan = victim.kill(vec![queue]);
    orphan.handle.lose_power();
    assert_eq!(flush_afresh(&orphan), [Ok(()); 2]);
}
