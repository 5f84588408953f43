//! The AHCI driver on QEMU's controller, beyond what `ata_conformance.rs` shows: what is found and
//! refused, drives that share the interrupt, bad blocks, resets, and a QEMU that is killed.

mod qemu;

use std::time::{Duration, Instant};

use qemu::{PATIENCE, churn, device, end, finish, kill, masters_the_bus, read, submit};
use ring3_class::block::{Disk, IoError};
use ring3_device::Device;
use ring3_device::irq::IrqKind;
use ring3_driver::Interrupts;
use ring3_driver::ata::ahci::Controller;
use ring3_driver::ata::{Level, Options};

fn controller(uri: &str) -> Controller {
    Controller::open(device(uri), Options::default()).unwrap()
}

#[test]
fn drives_are_named_by_their_ports_and_an_optical_one_is_refused_as_what_it_is() {
    let controller = controller("qtest:ich9-ahci,disks=2,cdrom=on,null=on");
    let names: Vec<_> = controller.drives().iter().map(|drive| drive.name()).collect();
    assert!(
        names[0].ends_with(" port 0") && names[1].ends_with(" port 1") && names.len() == 2,
        "{names:?}"
    );
    let [(place, error)] = controller.refused() else { panic!("{:?}", controller.refused()) };
    assert!(place == "port 2" && error.to_string().contains("ATAPI"), "{place}: {error}");
    assert_eq!(controller.interrupts(), Some(IrqKind::Msi));
}

#[test]
fn a_controller_without_drives_is_open_and_empty() {
    let controller = controller("qtest:ich9-ahci,disks=0");
    assert!(controller.drives().is_empty() && controller.refused().is_empty());
}

#[test]
fn four_drives_in_four_threads_do_not_disturb_each_other() {
    for interrupts in
        [Interrupts::Only(IrqKind::Msi), Interrupts::Only(IrqKind::Intx), Interrupts::Polled]
    {
        let options = Options { interrupts, ..Options::default() };
        let controller =
            Controller::open(device("qtest:ich9-ahci,disks=4,size=16M"), options).unwrap();
        std::thread::scope(|scope| {
            for drive in controller.drives() {
                scope.spawn(move || churn(drive, 30));
            }
        });
    }
}

#[test]
fn a_bad_block_is_an_error_and_those_in_flight_with_it_are_read() {
    for level in [Level::Queued, Level::Dma] {
        let options = Options { level, ..Options::default() };
        let controller =
            Controller::open(device("qtest:ich9-ahci,size=1M,bad=16:read"), options).unwrap();
        let drive = &controller.drives()[0];
        let mut queue = drive.open_queue(32).unwrap();
        for round in 0..2 {
            for lba in 0..24 {
                queue.submit(read(drive, lba, 1)).unwrap();
            }
            queue.ring();
            let ends = finish(&mut *queue);
            assert!(
                ends.iter().all(|&(lba, end)| end.is_ok() == (lba != 16)),
                "{level:?} round {round}: {ends:?}"
            );
        }
    }
}

#[test]
fn requests_in_flight_outlive_a_reset_of_the_controller() {
    let controller = controller("qtest:ich9-ahci,disks=2,size=16M");
    let mut queues: Vec<_> =
        controller.drives().iter().map(|drive| drive.open_queue(16).unwrap()).collect();
    for _ in 0..3 {
        for (queue, drive) in queues.iter_mut().zip(controller.drives()) {
            submit(drive, &mut **queue, 16);
        }
        controller.reset().unwrap();
        for queue in &mut queues {
            let ends = finish(&mut **queue);
            assert!(ends.len() == 16 && ends.iter().all(|(_, end)| end.is_ok()), "{ends:?}");
        }
    }
}

#[test]
fn a_reset_behind_the_drivers_back_is_seen_on_a_controller_that_knows_nothing_but_ahci() {
    // QEMU's keeps GHC.AE set whatever happens (CAP.SAM); its ports tell.
    let device = device("qtest:ich9-ahci,size=16M");
    let controller = Controller::open(device.clone(), Options::default()).unwrap();
    let drive = &controller.drives()[0];
    let mut queue = drive.open_queue(4).unwrap();
    device.reset().unwrap();
    let start = Instant::now();
    assert_eq!(end(&mut *queue, read(drive, 8, 8)), Ok(()));
    assert!(start.elapsed() < PATIENCE / 2, "not by its time-out: {:?}", start.elapsed());
}

#[test]
fn a_drive_that_takes_too_long_is_reset_and_every_request_ends() {
    let options = Options {
        timeout: Duration::from_millis(400),
        ready_timeout: Duration::from_secs(5),
        ..Options::default()
    };
    // One command a second passes at once; those that follow pay for it.
    let controller =
        Controller::open(device("qtest:ich9-ahci,null=on,commands=1"), options).unwrap();
    let drive = &controller.drives()[0];
    let mut queue = drive.open_queue(4).unwrap();
    submit(drive, &mut *queue, 2);
    assert_eq!(finish(&mut *queue).len(), 2);
}

#[test]
fn the_function_masters_the_bus_only_while_its_controller_lives() {
    let device = device("qtest:ich9-ahci,null=on");
    let controller = Controller::open(device.clone(), Options::default()).unwrap();
    let queue = controller.drives()[0].open_queue(4).unwrap();
    drop(controller);
    assert!(masters_the_bus(&*device));
    drop(queue);
    assert!(!masters_the_bus(&*device));
}

#[test]
fn requests_end_as_gone_when_qemu_is_killed() {
    let device = device("qtest:ich9-ahci,disks=2,null=on");
    let process_id = device.process_id();
    let controller = Controller::open(
        device,
        Options { timeout: Duration::from_millis(500), ..Options::default() },
    )
    .unwrap();
    let mut queues: Vec<_> =
        controller.drives().iter().map(|drive| drive.open_queue(8).unwrap()).collect();
    kill(process_id);
    for (queue, drive) in queues.iter_mut().zip(controller.drives()) {
        submit(drive, &mut **queue, 4);
    }
    for queue in &mut queues {
        let ends = finish(&mut **queue);
        assert!(
            ends.len() == 4 && ends.iter().all(|&(_, end)| end == Err(IoError::Gone)),
            "{ends:?}"
        );
    }
}
