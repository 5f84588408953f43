//! The IDE driver on QEMU's controllers, beyond what `ide_conformance.rs` shows: what is found and
//! refused, drives that share a channel, bad blocks, memory out of reach, and a QEMU that is
//! killed.

mod qemu;

use std::time::Duration;

use qemu::{churn, device, end, finish, kill, masters_the_bus, read, soon, submit};
use ring3_class::block::{Disk, IoError, execute};
use ring3_device::irq::IrqKind;
use ring3_device::{Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::ata::ide::Controller;
use ring3_driver::ata::{Level, Options};
use ring3_spec::ide::piix;

fn controller(uri: &str) -> Controller {
    Controller::open(device(uri), Options::default()).unwrap()
}

#[test]
fn drives_are_named_by_their_places_and_an_optical_one_is_refused_as_what_it_is() {
    let controller = controller("qtest:piix3-ide,disks=3,cdrom=on,null=on");
    let names: Vec<_> = controller.drives().iter().map(|drive| drive.name()).collect();
    let places = ["primary master", "primary slave", "secondary master"];
    assert!(
        names.iter().zip(places).all(|(name, place)| name.ends_with(place)) && names.len() == 3,
        "{names:?}"
    );
    assert_eq!(
        controller.drives().iter().map(|drive| drive.place()).collect::<Vec<_>>(),
        [(0, 0), (0, 1), (1, 0)]
    );
    let [(name, error)] = controller.refused() else { panic!("{:?}", controller.refused()) };
    assert!(
        name.ends_with("secondary slave") && error.to_string().contains("ATAPI"),
        "{name}: {error}"
    );
    assert_eq!(controller.interrupts(), Some(IrqKind::Intx));
}

#[test]
fn a_function_without_drives_is_open_and_empty() {
    let controller = controller("qtest:piix4-ide,disks=0");
    assert!(controller.drives().is_empty() && controller.refused().is_empty());
}

#[test]
fn drives_and_chip_are_set_to_the_best_mode_that_both_have() {
    let device = device("qtest:piix4-ide,disks=2,null=on");
    let controller = Controller::open(device.clone(), Options::default()).unwrap();
    assert!(controller.drives().iter().all(|drive| drive.mode() == "Ultra DMA mode 2"));
    assert_eq!(device.config_read(piix::ULTRA_DMA_CONTROL, 1), 0b0011);
    assert_eq!(device.config_read(piix::ULTRA_DMA_TIMING, 2), 0x0022);
    let controller = self::controller("qtest:piix3-ide,null=on");
    assert_eq!(controller.drives()[0].mode(), "multiword DMA mode 2");
    assert!(controller.drives()[0].identity().multiple == 16);
}

#[test]
fn four_drives_in_four_threads_do_not_disturb_each_other() {
    for interrupts in [Interrupts::Auto, Interrupts::Polled] {
        let controller = Controller::open(
            device("qtest:piix4-ide,disks=4,size=16M"),
            Options { interrupts, ..Options::default() },
        )
        .unwrap();
        std::thread::scope(|scope| {
            for drive in controller.drives() {
                scope.spawn(move || churn(drive, 60));
            }
        });
        assert!(controller.drives().iter().all(|drive| drive.stats().resets == 0));
    }
}

#[test]
fn a_slave_is_served_while_its_master_is_busy_with_many() {
    let controller = controller("qtest:piix3-ide,disks=2,null=on");
    let [master, slave] = controller.drives() else { panic!() };
    let (mut many, mut one) = (master.open_queue(64).unwrap(), slave.open_queue(1).unwrap());
    (0..64).for_each(|lba| many.submit(read(master, lba, 128)).unwrap());
    many.ring();
    // The slave's owner alone moves the channel on.
    assert_eq!(end(&mut *one, read(slave, 0, 1)), Ok(()));
    // One is under way when it comes, and each look at what has ended may start another one.
    assert!(
        master.stats().commands <= 8,
        "its turn came after {} commands",
        master.stats().commands
    );
}

#[test]
fn a_second_queue_is_refused_by_the_drives_name_until_the_first_is_closed() {
    let controller = controller("qtest:piix3-ide,null=on");
    let drive = &controller.drives()[0];
    let first = drive.open_queue(4).unwrap();
    let Err(Error::Busy(text)) = drive.open_queue(4) else { panic!("a second queue was opened") };
    assert!(text.contains("primary master"), "{text}");
    drop(first);
    drive.open_queue(4).unwrap();
}

#[test]
fn a_bad_block_is_an_error_and_its_neighbours_are_read() {
    for options in [Options::default(), Options { level: Level::Pio, ..Options::default() }] {
        let controller =
            Controller::open(device("qtest:piix3-ide,size=1M,bad=16:read"), options).unwrap();
        let drive = &controller.drives()[0];
        let mut queue = drive.open_queue(4).unwrap();
        for (lba, good) in [(8, true), (16, false), (17, true), (15, true)] {
            let done = execute(&mut *queue, read(drive, lba, 1), soon()).unwrap();
            assert_eq!(done.result.is_ok(), good, "{lba}: {:?}", done.result);
            assert!(done.data.len() == 512);
        }
        assert_eq!(drive.stats().resets, 0);
    }
}

#[test]
fn the_function_masters_the_bus_only_while_its_controller_lives() {
    let device = device("qtest:piix3-ide,null=on");
    let controller = Controller::open(device.clone(), Options::default()).unwrap();
    let queue = controller.drives()[0].open_queue(4).unwrap();
    drop(controller);
    assert!(masters_the_bus(&*device));
    drop(queue);
    assert!(!masters_the_bus(&*device));
}

#[test]
fn a_drive_that_takes_too_long_times_out_and_works_afterwards() {
    // One command a second passes at once; those that follow pay for it.
    let options = Options {
        timeout: Duration::from_millis(400),
        ready_timeout: Duration::from_secs(5),
        ..Options::default()
    };
    let controller =
        Controller::open(device("qtest:piix3-ide,null=on,commands=1"), options).unwrap();
    let drive = &controller.drives()[0];
    let mut queue = drive.open_queue(4).unwrap();
    submit(drive, &mut *queue, 2);
    assert_eq!(finish(&mut *queue).len(), 2);
    assert!(drive.stats().resets > 0);
}

#[test]
fn requests_end_as_gone_when_qemu_is_killed() {
    let device = device("qtest:piix3-ide,disks=2,null=on");
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
        assert!(ends.len() == 4 && ends.iter().all(|&(_, end)| end == Err(IoError::Gone)));
    }
}
