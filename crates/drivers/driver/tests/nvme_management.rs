//! What a controller says of its namespaces and firmware, and other formats for namespaces.

mod disks;
mod nvme;

use std::sync::Arc;

use nvme::{Bench, bench, bytes, short, succeed};
use ring3_class::block::{IoError, Request};
use ring3_device::Error;
use ring3_driver::nvme::{Controller, WantedFormat};

const PLAIN_4096: WantedFormat = WantedFormat { block_size: 4096, protection: 0, all: false };

/// Block size and protection of each namespace as the controller says, and whether it is refused.
fn formats(controller: &Controller) -> Vec<(u32, u8, bool)> {
    let all = controller.describe_namespaces().unwrap();
    all.iter()
        .map(|report| {
            let now = report.formats.iter().find(|format| format.index == report.format).unwrap();
            (now.block_size, report.protection, report.refused.is_some())
        })
        .collect()
}

fn first_byte(bench: &Bench, namespace: u32) -> u8 {
    let mut queue = bench.controller.disk(namespace).unwrap().open_queue(4).unwrap();
    bytes(succeed(&mut *queue, Request::read(1, 0, 1, bench.buffer(4096))))[0]
}

fn fill(bench: &Bench, namespace: u32) {
    let mut queue = bench.controller.disk(namespace).unwrap().open_queue(4).unwrap();
    succeed(&mut *queue, Request::write(1, 0, 1, bench.filled(512, 0x5a)));
}

#[test]
fn namespaces_are_described_whether_or_not_they_are_disks() {
    let bench = bench(",namespaces=3,block=512+512m8+4096p2");
    let reports = bench.controller.describe_namespaces().unwrap();
    assert_eq!(formats(&bench.controller), [(512, 0, false), (512, 0, true), (4096, 2, false)]);
    assert!(reports[1].refused.as_ref().unwrap().contains("8 bytes of metadata"));
    let sizes: Vec<_> =
        reports[0].formats.iter().map(|format| (format.block_size, format.metadata)).collect();
    assert_eq!(sizes, [(512, 0), (512, 0), (4096, 0), (512, 8), (4096, 8)]);
}

#[test]
fn a_format_erases_one_namespace_and_the_next_driver_has_the_new_blocks() {
    let bench = bench(",namespaces=2");
    (1..=2).for_each(|namespace| fill(&bench, namespace));
    bench.controller.format(1, PLAIN_4096).unwrap();
    assert_eq!(formats(&bench.controller), [(4096, 0, false), (512, 0, false)]);
    assert_eq!(first_byte(&bench, 2), 0x5a);
    // Who has it open does not go on with blocks of another size.
    let error = bench.controller.disk(1).unwrap().open_queue(4).map(drop).unwrap_err().to_string();
    assert!(error.contains("was formatted"), "{error}");
    let handle = bench.handle.clone();
    drop(bench);
    let controller = Controller::open(Arc::new(handle.claim().unwrap()), short()).unwrap();
    assert_eq!(controller.disk(1).unwrap().info().block_size, 4096);
}

#[test]
fn protection_information_is_made_by_a_format() {
    let bench = bench("");
    bench
        .controller
        .format(1, WantedFormat { block_size: 512, protection: 1, all: false })
        .unwrap();
    assert_eq!(formats(&bench.controller), [(512, 1, false)]);
}

#[test]
fn a_controller_that_formats_all_namespaces_at_once_wants_that_said() {
    let bench = bench(",namespaces=2,quirk=formats-all");
    fill(&bench, 2);
    let error = bench.controller.format(1, PLAIN_4096).unwrap_err().to_string();
    assert!(error.contains("--all-namespaces"), "{error}");
    assert_eq!(first_byte(&bench, 2), 0x5a);
    bench.controller.format(1, WantedFormat { all: true, ..PLAIN_4096 }).unwrap();
    assert_eq!(formats(&bench.controller), [(4096, 0, false); 2]);
}

#[test]
fn what_cannot_be_formatted_is_refused_and_stays_as_it_is() {
    let bench = bench("");
    fill(&bench, 1);
    let refused = |wanted| bench.controller.format(1, wanted).unwrap_err().to_string();
    let error = refused(WantedFormat { block_size: 1024, ..PLAIN_4096 });
    assert!(error.contains("no format with 1024+0") && error.contains("4096+0"), "{error}");
    let error = refused(WantedFormat { protection: 4, ..PLAIN_4096 });
    assert!(error.contains("type 1, 2 or 3"), "{error}");
    let queue = bench.queue(4);
    assert!(matches!(bench.controller.format(1, PLAIN_4096), Err(Error::Busy(_))));
    drop(queue);
    assert!(bench.controller.format(7, PLAIN_4096).is_err());
    assert_eq!(first_byte(&bench, 1), 0x5a);
}

#[test]
fn the_firmware_of_each_slot_is_told() {
    let firmware = bench(",firmware=EXA1").controller.firmware().unwrap();
    assert_eq!((firmware.active, firmware.next), (1, None));
    assert_eq!(firmware.slots, [(1, "EXA1".to_owned())]);
}

#[test]
fn a_request_to_a_namespace_that_somebody_else_has_reserved_ends_at_once() {
    use ring3_model::fault::{Action, Rule};
    use ring3_spec::nvme::Status;
    use ring3_spec::nvme::opcode::nvm;
    let bench = bench("");
    bench.handle.plan().add(Rule::io(Action::Status(Status::RESERVATION_CONFLICT.0), nvm::READ));
    let mut queue = bench.queue(4);
    let end = nvme::execute(&mut *queue, Request::read(1, 0, 1, bench.buffer(512)));
    assert_eq!((end.0, bench.handle.plan().fired()), (Err(IoError::Transport), 1));
}
