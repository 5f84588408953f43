//! The suite that every disk passes, on the NVMe driver over each backend that needs no guest.

mod served;

use std::sync::Arc;
use std::time::Duration;

use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::{Request, execute};
use ring3_conformance::block::{self as conformance, Report};
use ring3_device::irq::IrqKind;
use ring3_device::{Deadline, Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::nvme::{Controller, Options};

fn run(
    uri: &Uri,
    memory: OpenOptions,
    options: Options,
    suite: &conformance::Options,
) -> Result<Vec<Report>, Error> {
    check(ring3_backend::open(uri, memory)?, options, suite)
}

fn check(
    device: Arc<dyn Device>,
    options: Options,
    suite: &conformance::Options,
) -> Result<Vec<Report>, Error> {
    let controller = Controller::open(device, options)?;
    Ok(controller.namespaces().iter().map(|disk| conformance::run(disk, suite)).collect())
}

fn conforms(uri: &str, options: Options, requests: u32) {
    let suite = conformance::Options { requests, depth: 16, patience: Duration::from_secs(20) };
    let reports = run(&uri.parse().unwrap(), OpenOptions::default(), options, &suite).unwrap();
    assert!(!reports.is_empty(), "{uri} has no namespace");
    for report in reports {
        assert!(report.passed(), "{report}");
    }
}

fn by(kind: IrqKind) -> Options {
    Options { interrupts: Interrupts::Only(kind), ..Options::default() }
}

#[test]
fn the_model_behind_a_socket_conforms() {
    served::served("sim:nvme", |uri| conforms(uri, Options::default(), 1000));
    served::served("sim:nvme,namespaces=2,block=4096", |uri| conforms(uri, by(IrqKind::Intx), 200));
}

#[test]
fn the_model_over_a_lease_conforms() {
    let suite =
        conformance::Options { requests: 1000, depth: 16, patience: Duration::from_secs(20) };
    for (model, options) in
        [("sim:nvme", Options::default()), ("sim:nvme,block=4096", by(IrqKind::Intx))]
    {
        served::leased(model, |device| {
            let reports = check(device, options, &suite).unwrap();
            assert!(reports.iter().all(Report::passed), "{reports:?}");
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

#[test]
fn the_simulated_controller_conforms() {
    conforms("sim:nvme", Options::default(), 3000);
}

#[test]
fn blocks_of_4096_bytes_conform() {
    conforms("sim:nvme,block=4096", Options::default(), 1000);
}

#[test]
fn nvme_without_scatter_gather_lists_conforms() {
    conforms("sim:nvme,sgl=off", Options::default(), 1000);
}

#[test]
fn larger_memory_pages_conform() {
    conforms("sim:nvme,mpsmin=1,sgl=off", Options::default(), 1000);
    conforms("sim:nvme,mpsmin=4", Options::default(), 500);
}

#[test]
fn namespaces_beside_some_of_other_command_sets_conform() {
    conforms("sim:nvme,namespaces=3,sets=nvm+zoned+nvm", Options::default(), 500);
}

#[test]
fn several_namespaces_conform() {
    conforms("sim:nvme,namespaces=2", Options::default(), 1000);
}

#[test]
fn the_pin_conforms() {
    conforms("sim:nvme", by(IrqKind::Intx), 1000);
}

#[test]
fn message_signalled_interrupts_conform() {
    conforms("sim:nvme", by(IrqKind::Msi), 1000);
}

#[test]
fn polling_conforms() {
    conforms("sim:nvme", Options { interrupts: Interrupts::Polled, ..Options::default() }, 1000);
}

#[test]
fn sleeping_for_every_completion_conforms() {
    conforms("sim:nvme", Options { poll: Duration::ZERO, ..Options::default() }, 1000);
}

#[test]
fn short_transfers_and_one_queue_conform() {
    let options =
        Options { max_transfer: Some(8192), max_queues: 1, max_depth: 4, ..Options::default() };
    conforms("sim:nvme", options, 1000);
}

#[test]
fn completions_that_come_later_conform() {
    conforms("sim:nvme,delay=100us", Options::default(), 500);
}

#[test]
fn qemus_controller_conforms() {
    conforms("qtest:nvme", Options::default(), 200);
}

#[test]
fn qemus_blocks_of_4096_bytes_and_the_pin_conform() {
    conforms("qtest:nvme,block=4096", by(IrqKind::Intx), 100);
}

/// Each of these sizes at once: most of a run is waiting.
fn all_conform(uris: impl IntoIterator<Item = String>) {
    std::thread::scope(|scope| {
        for uri in uris {
            scope.spawn(move || conforms(&uri, Options::default(), 50));
        }
    });
}

#[test]
fn the_smallest_disks_conform() {
    all_conform([512, 1024, 3584, 4096, 8192].map(|size| format!("sim:nvme,size={size}")));
    all_conform([4096, 8192, 20480].map(|size| format!("sim:nvme,block=4096,size={size}")));
}

#[test]
fn qemus_smallest_disks_conform() {
    all_conform([512, 3584, 4096].map(|size| format!("qtest:nvme,size={size}")));
}
