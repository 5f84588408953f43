//! AHCI controllers whose driver's process is killed, and which go on.

mod ahci;
mod disks;
mod hands;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ahci::{execute, succeed};
use hands::{altered, works};
use ring3_class::block::{Disk, IoError, Request};
use ring3_device::Device;
use ring3_device::irq::IrqKind;
use ring3_driver::Interrupts;
use ring3_driver::ata::ahci::Controller;
use ring3_driver::ata::{Level, Options};
use ring3_model::Timing;
use ring3_model::ahci::{AhciHandle, Statistics};

type Victim = hands::Victim<Controller>;
type Orphan = hands::Orphan<Controller>;

fn victim(options: Options) -> Victim {
    victim_of("", options)
}

/// With drives of which `drive` says more.
fn victim_of(drive: &str, options: Options) -> Victim {
    let device = ahci::device(&format!(",disks=2{drive}"));
    let handle = device.handle();
    let device: Arc<dyn Device> = Arc::new(device);
    let controller = Controller::open(device.clone(), options).unwrap();
    // Its port is not in its seat, as when a driver serves.
    let queue = controller.drives()[0].open_queue(16).unwrap();
    let victim = Victim::new(device, handle, controller);
    drop(queue);
    victim
}

/// It is killed with requests in the device's hands.
fn kill_under_load(victim: Victim) -> Orphan {
    let mut queue = victim.queue();
    victim.handle.set_timing(Timing::Held);
    for token in 0..8 {
        queue.submit(Request::write(token, token, 1, victim.buffer(token as u8 + 1))).unwrap();
    }
    queue.ring();
    victim.kill(vec![queue])
}

/// It is not adopted, and opened as if nothing had been.
fn refuse(orphan: &Orphan, why: &str) {
    orphan.refusal(why);
    orphan.handle.set_timing(Timing::Inline);
    works(&orphan.open());
}

/// How two flushes of the first drive end.
fn flushes(controller: &Controller) -> [Result<(), IoError>; 2] {
    let mut queue = controller.drives()[0].open_queue(16).unwrap();
    [(); 2].map(|()| execute(&mut *queue, Request::flush(99)).0)
}

/// A driver that was killed with something written and not flushed.
fn written(drive: &str) -> Orphan {
    let victim = victim_of(drive, Options::default());
    let mut queue = victim.queue();
    succeed(&mut *queue, Request::write(1, 8, 1, victim.buffer(0x11)));
    victim.kill(vec![queue])
}

const LOST: [Result<(), IoError>; 2] = [Err(IoError::Transport), Ok(())];

#[test]
fn a_killed_driver_is_followed_without_a_reset_once_its_commands_have_ended() {
    for level in [Level::Queued, Level::Dma] {
        for interrupts in [Interrupts::Auto, Interrupts::Polled, Interrupts::Only(IrqKind::Intx)] {
            let victim = victim(Options { level, interrupts, ..Options::default() });
            let resets = victim.handle.counters().resets;
            let orphan = kill_under_load(victim);
            let handle = orphan.handle.clone();
            let held = handle.held();
            assert!(held > 0);
            // They end while the next driver waits for that.
            let releaser = std::thread::spawn({
                let handle = handle.clone();
                move || {
                    std::thread::sleep(Duration::from_millis(20));
                    handle.set_timing(Timing::Inline);
                    handle.release();
                }
            });
            let controller = orphan.try_adopt().unwrap();
            releaser.join().unwrap();
            for token in 0..held as u64 {
                let mut block = [0; 512];
                assert!(
                    handle.peek(0, token * 512, &mut block) && block == [token as u8 + 1; 512],
                    "{level:?} {token}"
                );
            }
            works(&controller);
            assert_eq!(handle.counters().resets, resets, "no reset");
            assert_eq!(handle.violations(), Vec::<String>::new());
            assert!(orphan.device.dma().arena().unclaimed().is_empty());
        }
    }
}

#[test]
fn a_driver_may_be_killed_many_times_in_a_row() {
    let mut victim = victim(Options::default());
    let resets = victim.handle.counters().resets;
    for _ in 0..20 {
        let orphan = victim.kill(Vec::new());
        let controller = orphan.try_adopt().unwrap();
        works(&controller);
        victim = orphan.next(controller);
    }
    assert_eq!((victim.handle.counters().resets, victim.handle.violations()), (resets, Vec::new()));
}

#[test]
fn a_drive_that_does_not_end_its_commands_is_stopped_in_time_and_what_it_had_does_not_come_later() {
    let orphan = kill_under_load(victim(Options::default()));
    let since = Instant::now();
    refuse(&orphan, "the end of what a drive was doing");
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    assert_eq!(orphan.handle.release(), 0);
}

#[test]
fn a_command_that_fails_meanwhile_is_the_end_of_the_adoption() {
    let victim = victim(Options { level: Level::Dma, ..Options::default() });
    victim.handle.plan().read("error/0x40:write").unwrap();
    let orphan = kill_under_load(victim);
    orphan.handle.release();
    refuse(&orphan, "has met an error");
}

#[test]
fn a_controller_that_somebody_has_reset_or_a_drive_with_another_serial_number_is_not_adopted() {
    let orphan = victim(Options::default()).kill(Vec::new());
    orphan.device.reset().unwrap();
    assert!(orphan.try_adopt().is_err());

    let mut orphan = victim(Options::default()).kill(Vec::new());
    orphan.record =
        altered(&orphan.record, |state| state["seats"][0]["identity"]["serial"] = "another".into());
    refuse(&orphan, "another");
}

#[test]
fn a_record_that_lies_is_refused() {
    let state = |change: fn(&mut serde_json::Value)| change;
    for lie in [
        state(|state| state["generation"] = 1.into()),
        state(|state| state["ports"] = 0.into()),
        state(|state| state["capabilities"] = 0.into()),
        state(|state| state["seats"][0]["port"] = serde_json::Value::Null),
        state(|state| state["seats"][0]["port"]["index"] = 1.into()),
        state(|state| {
            state["seats"][0]["port"]["page"] = state["seats"][0]["port"]["tables"].clone()
        }),
    ] {
        let mut orphan = victim(Options::default()).kill(Vec::new());
        let resets = orphan.handle.counters().resets;
        orphan.record = altered(&orphan.record, lie);
        assert!(orphan.try_adopt().is_err());
        assert_eq!(orphan.handle.counters().resets, resets);
    }
}

#[test]
fn a_controller_that_its_driver_had_to_reset_is_not_recorded() {
    let victim = victim(Options::default());
    victim.controller.reset().unwrap();
    assert!(victim.controller.record().is_err());
}

#[test]
fn what_a_killed_driver_had_written_is_lost_if_the_adopted_drive_counts_a_loss_of_power() {
    for (lost, expected) in [(false, [Ok(()); 2]), (true, LOST)] {
        let orphan = written("");
        if lost {
            orphan.handle.lose_power_unseen(0);
        }
        assert_eq!(flushes(&orphan.try_adopt().unwrap()), expected);
    }
}

#[test]
fn an_adopted_drive_that_does_not_count_or_does_not_any_more_has_what_was_written() {
    let orphan = written(",statistics=off");
    assert_eq!(flushes(&orphan.try_adopt().unwrap()), [Ok(()); 2]);
    let orphan = written("");
    orphan.handle.set_statistics(0, Statistics::Refused);
    assert_eq!(flushes(&orphan.try_adopt().unwrap()), [Ok(()); 2]);
}

#[test]
fn an_adopted_drive_is_compared_with_what_it_said_last_and_not_when_its_driver_began() {
    let victim = victim(Options::default());
    let mut queue = victim.queue();
    // The drive alone is reset, so that the controller may be adopted.
    victim.handle.unplug(0);
    victim.handle.plug(0);
    let buffer = victim.buffer(0);
    succeed(&mut *queue, Request::read(1, 8, 1, buffer));
    succeed(&mut *queue, Request::write(1, 8, 1, victim.buffer(0x11)));
    let orphan = victim.kill(vec![queue]);
    assert_eq!(flushes(&orphan.try_adopt().unwrap()), [Ok(()); 2]);
}

#[test]
fn the_next_driver_that_opens_a_killed_ones_drive_believes_its_count_and_no_link() {
    let open = |drive, lose: fn(&AhciHandle)| {
        let orphan = written(drive);
        lose(&orphan.handle);
        flushes(&orphan.open())
    };
    assert_eq!(open("", |handle| handle.reset_function()), [Ok(()); 2]);
    assert_eq!(open("", |handle| handle.lose_power()), LOST);
    assert_eq!(open(",statistics=off", |handle| handle.reset_function()), LOST);
}
