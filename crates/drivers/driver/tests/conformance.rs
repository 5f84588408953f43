//! The suite that every disk passes, on the NVMe driver over each backend that needs no guest.

mod cases;
mod served;
mod suite;

use std::sync::Arc;
use std::time::Duration;

use cases::cases;
use ring3_backend::OpenOptions;
use ring3_class::block::{Request, execute};
use ring3_conformance::block::{self as conformance, Report};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::nvme::{Controller, Options};

/// Runs the suite on each namespace of `device`.
fn check(device: Arc<dyn Device>, options: Options, requests: u32) -> Result<Vec<Report>, Error> {
    let (controller, suite) = (Controller::open(device, options)?, suite::suite(requests, 16));
    Ok(controller.namespaces().iter().map(|disk| conformance::run(disk, &suite)).collect())
}

fn conforms(uri: &str, options: Options, requests: u32) {
    suite::conforms(uri, OpenOptions::default(), |device| check(device, options, requests));
}

fn default() -> Options {
    Options::default()
}

fn by(kind: IrqKind) -> Options {
    Options { interrupts: Interrupts::Only(kind), ..default() }
}

#[test]
fn the_model_behind_a_socket_conforms() {
    served::served("sim:nvme", |uri| conforms(uri, default(), 1000));
    served::served("sim:nvme,namespaces=2,block=4096", |uri| conforms(uri, by(IrqKind::Intx), 200));
}

#[test]
fn the_model_over_a_lease_conforms() {
    for (model, options) in [("sim:nvme", default()), ("sim:nvme,block=4096", by(IrqKind::Intx))] {
        served::leased(model, |device| {
            suite::passes(device, |device| check(device, options, 1000));
        });
    }
}

#[test]
fn memory_that_an_arena_gets_later_is_reached_behind_a_socket() {
    served::served("sim:nvme", |uri| {
        let device = ring3_backend::open(
            &uri.parse().unwrap(),
            OpenOptions { arena: 1 << 20, ..OpenOptions::default() },
        )
        .unwrap();
        let disk = Controller::open(device.clone(), Options::default()).unwrap().disk(1).unwrap();
        let arena = device.dma().arena();
        let taken: Vec<_> = std::iter::from_fn(|| arena.alloc_pages(4096).ok()).collect();
        device.dma().grow(64 << 10).unwrap();
        let buffers = [arena.alloc_pages(4096).unwrap(), arena.alloc_pages(4096).unwrap()];
        assert!(buffers.iter().all(|buffer| buffer.span().region == 1));
        drop(taken);
        let mut queue = disk.open_queue(4).unwrap();
        let [from, to] = buffers;
        from.write(0, &[0x5a; 4096]).unwrap();
        for request in [Request::write(0, 0, 8, from), Request::read(1, 0, 8, to)] {
            let end =
                execute(&mut *queue, request, Deadline::after(Duration::from_secs(20))).unwrap();
            let mut byte = [0];
            end.data.into_buffer().unwrap().read(4095, &mut byte).unwrap();
            assert_eq!((end.result, byte), (Ok(()), [0x5a]));
        }
    });
}

cases! { conforms;
    the_simulated_controller_conforms: ("sim:nvme", default(), 3000);
    blocks_of_4096_bytes_conform: ("sim:nvme,block=4096", default(), 1000);
    nvme_without_scatter_gather_lists_conforms: ("sim:nvme,sgl=off", default(), 1000);
    larger_memory_pages_conform:
        ("sim:nvme,mpsmin=1,sgl=off", default(), 1000) ("sim:nvme,mpsmin=4", default(), 500);
    namespaces_beside_some_of_other_command_sets_conform:
        ("sim:nvme,namespaces=3,sets=nvm+zoned+nvm", default(), 500);
    blocks_with_protection_information_of_each_type_conform:
        ("sim:nvme,namespaces=3,block=512p1+4096p2+512p3", default(), 500);
    several_namespaces_conform: ("sim:nvme,namespaces=2", default(), 1000);
    the_pin_conforms: ("sim:nvme", by(IrqKind::Intx), 1000);
    message_signalled_interrupts_conform: ("sim:nvme", by(IrqKind::Msi), 1000);
    polling_conforms:
        ("sim:nvme", Options { interrupts: Interrupts::Polled, ..default() }, 1000);
    sleeping_for_every_completion_conforms:
        ("sim:nvme", Options { poll: Duration::ZERO, ..default() }, 1000);
    short_transfers_and_one_queue_conform:
        ("sim:nvme",
         Options { max_transfer: Some(8192), max_queues: 1, max_depth: 4, ..default() }, 1000);
    completions_that_come_later_conform: ("sim:nvme,delay=100us", default(), 500);
    qemus_controller_conforms: ("qtest:nvme", default(), 200);
    qemus_blocks_of_4096_bytes_and_the_pin_conform:
        ("qtest:nvme,block=4096", by(IrqKind::Intx), 100);
}

fn smallest(model: &str) {
    suite::smallest(model, |uri| conforms(uri, default(), 50));
}

cases! { smallest;
    the_smallest_disks_conform: ("sim:nvme");
    qemus_smallest_disks_conform: ("qtest:nvme");
}
