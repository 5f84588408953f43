//! The NVMe driver on QEMU's controller, beyond what `conformance.rs` shows: formats, limits,
//! resets, and a QEMU that is killed.

mod qemu;

use std::time::Duration;

use qemu::{device, end, finish, kill, read, submit};
use ring3_conformance::block::{self as conformance, Report};
use ring3_driver::Interrupts;
use ring3_driver::nvme::{Controller, Options};

fn conforms(uri: &str, options: Options) {
    let controller = Controller::open(device(uri), options).unwrap();
    for namespace in controller.namespaces() {
        let report = conformance::run(
            namespace,
            &conformance::Options { requests: 500, ..conformance::Options::default() },
        );
        assert!(report.passed(), "{}: {:#?}", report.subject, failures(&report));
    }
    controller.shutdown().unwrap();
}

fn failures(report: &Report) -> Vec<String> {
    report.failures().map(|finding| format!("{}: {:?}", finding.name, finding.verdict)).collect()
}

#[test]
fn the_disk_conforms_by_looking() {
    conforms(
        "qtest:nvme,size=64M",
        Options { interrupts: Interrupts::Polled, ..Options::default() },
    );
}

#[test]
fn four_namespaces_of_two_formats_conform() {
    conforms("qtest:nvme,namespaces=4,block=512:4096:512:4096,size=32M", Options::default());
}

/// Blocks of 4096 bytes: of smaller ones QEMU's controller zeroes the data at a discard, and leaves
/// their old guard where the file system holds them in one of its blocks with others.
#[test]
fn namespaces_with_protection_information_of_each_type_conform() {
    conforms(
        "qtest:nvme,namespaces=3,block=4096,meta=8,protection=1:2:3,size=32M",
        Options::default(),
    );
}

#[test]
fn a_zoned_namespace_is_refused_by_name_and_the_disk_beside_it_works() {
    let controller = Controller::open(
        device("qtest:nvme,namespaces=3,zoned=0:1:0,size=256M"),
        Options::default(),
    )
    .unwrap();
    let ids: Vec<_> = controller.namespaces().iter().map(|namespace| namespace.id()).collect();
    let refused: Vec<_> =
        controller.refused().iter().map(|(id, why)| (*id, why.to_string())).collect();
    assert_eq!(ids, [1, 3]);
    assert!(
        refused.len() == 1 && refused[0].0 == 2 && refused[0].1.contains("zoned"),
        "{refused:?}"
    );
    let disk = controller.disk(3).unwrap();
    let mut queue = disk.open_queue(8).unwrap();
    assert_eq!(end(&mut *queue, read(&*disk, 0, 8)), Ok(()));
}

#[test]
fn a_disk_that_moves_little_at_once_conforms() {
    conforms("qtest:nvme,size=64M,mdts=1,queues=1", Options::default());
}

#[test]
fn the_disk_works_again_after_a_reset_of_the_controller() {
    let controller = Controller::open(device("qtest:nvme,size=64M"), Options::default()).unwrap();
    let disk = controller.disk(1).unwrap();
    let mut queue = disk.open_queue(8).unwrap();
    for _ in 0..3 {
        assert_eq!(end(&mut *queue, read(&*disk, 0, 8)), Ok(()));
        controller.reset().unwrap();
    }
}

#[test]
fn requests_end_with_an_error_when_qemu_is_killed() {
    let device = device("qtest:nvme,size=64M");
    let process_id = device.process_id();
    let controller = Controller::open(
        device,
        Options { timeout: Duration::from_millis(500), ..Options::default() },
    )
    .unwrap();
    let disk = controller.disk(1).unwrap();
    let mut queue = disk.open_queue(8).unwrap();
    assert_eq!(end(&mut *queue, read(&*disk, 0, 8)), Ok(()));
    kill(process_id);
    submit(&*disk, &mut *queue, 4);
    let ends = finish(&mut *queue);
    assert!(ends.len() == 4 && ends.iter().all(|(_, end)| end.is_err()), "{ends:?}");
}
