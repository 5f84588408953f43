//! The IDE driver on QEMU's controllers, beyond what `ide_conformance.rs` shows: what is found and
//! refused, drives that share a channel, bad blocks, memory out of reach, and a QEMU that is
//! killed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_backend::qtest::{self, Qtest};
use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::{Disk, IoError, Queue, Request, execute};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::ata::ide::Controller;
use ring3_driver::ata::{Level, Options};
use ring3_spec::ide::piix;

const PATIENCE: Duration = Duration::from_secs(30);

fn device(uri: &str) -> Arc<Qtest> {
    let options = OpenOptions { arena: 16 << 20, below: 1 << 32, ..OpenOptions::default() };
    Arc::new(
        qtest::open(&uri.parse::<Uri>().unwrap(), options)
            .unwrap_or_else(|error| panic!("{error}")),
    )
}

fn controller(uri: &str) -> Controller {
    Controller::open(device(uri), Options::default()).unwrap()
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// Writes `byte` to `blocks` from `lba` on and reads it back, `rounds` times.
fn churn(disk: &dyn Disk, rounds: u8) {
    let mut queue = disk.open_queue(8).unwrap();
    for byte in 1..=rounds {
        let lba = u64::from(byte) * 64;
        let buffer = disk.dma().arena().alloc_pages(32 << 10).unwrap();
        buffer.fill(byte);
        let done = execute(&mut *queue, Request::write(1, lba, 64, buffer), soon()).unwrap();
        assert_eq!(done.result, Ok(()));
        let buffer = done.data.into_buffer().unwrap();
        buffer.fill(0);
        let done = execute(&mut *queue, Request::read(2, lba, 64, buffer), soon()).unwrap();
        assert_eq!(done.result, Ok(()));
        let mut bytes = vec![0; 32 << 10];
        done.data.into_buffer().unwrap().read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&found| found == byte), "{} round {byte}", disk.name());
    }
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
    for token in 0..64 {
        let buffer = master.dma().arena().alloc_pages(64 << 10).unwrap();
        many.submit(Request::read(token, token, 128, buffer)).unwrap();
    }
    many.ring();
    let buffer = slave.dma().arena().alloc_pages(512).unwrap();
    // The slave's owner alone moves the channel on.
    assert_eq!(execute(&mut *one, Request::read(1, 0, 1, buffer), soon()).unwrap().result, Ok(()));
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
            let buffer = drive.dma().arena().alloc_pages(512).unwrap();
            let done = execute(&mut *queue, Request::read(lba, lba, 1, buffer), soon()).unwrap();
            assert_eq!(done.result.is_ok(), good, "{lba}: {:?}", done.result);
            assert!(done.data.len() == 512);
        }
        assert_eq!(drive.stats().resets, 0);
    }
}

#[test]
fn the_function_masters_the_bus_only_while_its_controller_lives() {
    let device = device("qtest:piix3-ide,null=on");
    let bus_master = || {
        device.config_read(ring3_spec::pci::COMMAND, 2) as u16 & ring3_spec::pci::COMMAND_BUS_MASTER
            != 0
    };
    let controller = Controller::open(device.clone(), Options::default()).unwrap();
    let queue = controller.drives()[0].open_queue(4).unwrap();
    drop(controller);
    assert!(bus_master());
    drop(queue);
    assert!(!bus_master());
}

/// Reaps until nothing is in flight; how each request ended.
fn finish(queue: &mut dyn Queue) -> Vec<Result<(), IoError>> {
    let start = Instant::now();
    let mut ends = Vec::new();
    while queue.in_flight() > 0 {
        assert!(start.elapsed() < PATIENCE, "{} requests never ended", queue.in_flight());
        let _ = queue.wait(Deadline::after(Duration::from_millis(10)));
        while let Ok(Some(completion)) = queue.reap_one() {
            ends.push(completion.result);
        }
        let _ = queue.tick(Instant::now());
    }
    ends
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
    for token in 0..2 {
        let buffer = drive.dma().arena().alloc_pages(4096).unwrap();
        queue.submit(Request::read(token, token, 8, buffer)).unwrap();
    }
    queue.ring();
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
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(process_id as i32).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    for (queue, drive) in queues.iter_mut().zip(controller.drives()) {
        for token in 0..4 {
            let buffer = drive.dma().arena().alloc_pages(4096).unwrap();
            queue.submit(Request::read(token, 0, 8, buffer)).unwrap();
        }
        queue.ring();
    }
    for queue in &mut queues {
        assert_eq!(finish(&mut **queue), [Err(IoError::Gone); 4]);
    }
}
