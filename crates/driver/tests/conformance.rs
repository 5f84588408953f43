//! The suite that every disk passes, on the NVMe driver over each backend that needs no guest.

mod served;

use std::time::Duration;

use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::conformance::{self, Report};
use ring3_device::Error;
use ring3_device::irq::IrqKind;
use ring3_driver::Interrupts;
use ring3_driver::nvme::{Controller, Options};

fn run(uri: &Uri, memory: OpenOptions, options: Options, suite: &conformance::Options) -> Result<Vec<Report>, Error> {
    let controller = Controller::open(ring3_backend::open(uri, memory)?, options)?;
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
fn the_simulated_controller_conforms() {
    conforms("sim:nvme", Options::default(), 3000);
}

#[test]
fn blocks_of_4096_bytes_conform() {
    conforms("sim:nvme,block=4096", Options::default(), 1000);
}

#[test]
fn larger_memory_pages_conform() {
    conforms("sim:nvme,mpsmin=1", Options::default(), 1000);
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
    let options = Options { max_transfer: Some(8192), max_queues: 1, max_depth: 4, ..Options::default() };
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
