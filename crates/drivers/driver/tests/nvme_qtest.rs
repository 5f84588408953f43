//! The NVMe driver on QEMU's controller, beyond what `conformance.rs` shows: formats, limits,
//! resets, and a QEMU that is killed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_backend::qtest::{self, Qtest};
use ring3_backend::{OpenOptions, Uri};
use ring3_class::block::{Disk, IoError, Queue, Request};
use ring3_conformance::block::{self as conformance, Report};
use ring3_device::Deadline;
use ring3_driver::Interrupts;
use ring3_driver::nvme::{Controller, Options};

const PATIENCE: Duration = Duration::from_secs(30);

fn device(uri: &str) -> Arc<Qtest> {
    Arc::new(
        qtest::open(&uri.parse::<Uri>().unwrap(), OpenOptions::default())
            .unwrap_or_else(|error| panic!("{error}")),
    )
}

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
    read(&*disk, &mut *queue, 1);
    queue.ring();
    assert_eq!(finish(&mut *queue), [Ok(())]);
}

#[test]
fn a_disk_that_moves_little_at_once_conforms() {
    conforms("qtest:nvme,size=64M,mdts=1,queues=1", Options::default());
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

fn read(disk: &dyn Disk, queue: &mut dyn Queue, token: u64) {
    let buffer = disk.dma().arena().alloc_pages(4096).unwrap();
    let blocks = 4096 / disk.info().block_size;
    queue.submit(Request::read(token, 0, blocks, buffer)).unwrap();
}

#[test]
fn the_disk_works_again_after_a_reset_of_the_controller() {
    let controller = Controller::open(device("qtest:nvme,size=64M"), Options::default()).unwrap();
    let disk = controller.disk(1).unwrap();
    let mut queue = disk.open_queue(8).unwrap();
    for round in 0..3 {
        read(&*disk, &mut *queue, round);
        queue.ring();
        assert_eq!(finish(&mut *queue), [Ok(())]);
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
    read(&*disk, &mut *queue, 1);
    queue.ring();
    assert_eq!(finish(&mut *queue), [Ok(())]);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(process_id as i32).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    for token in 2..6 {
        read(&*disk, &mut *queue, token);
    }
    queue.ring();
    let ends = finish(&mut *queue);
    assert!(ends.len() == 4 && ends.iter().all(Result::is_err), "{ends:?}");
}
