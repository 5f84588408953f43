//! The suite that every disk passes, on the AHCI driver over each backend that needs no guest.

mod served;

use std::sync::Arc;
use std::time::Duration;

use ring3_backend::{OpenOptions, Uri};
use ring3_conformance::block::{self as conformance, Report, Verdict};
use ring3_device::irq::IrqKind;
use ring3_device::{Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::ata::{Level, Options, ahci};

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
    let controller = ahci::Controller::open(device, options)?;
    assert!(controller.refused().is_empty(), "{:?}", controller.refused());
    Ok(controller.drives().iter().map(|disk| conformance::run(disk, suite)).collect())
}

/// Runs the suite on each of `drives` behind `uri`.
fn conforms(uri: &str, drives: usize, options: Options, requests: u32) {
    let suite = conformance::Options { requests, depth: 32, patience: Duration::from_secs(20) };
    let reports = run(&uri.parse().unwrap(), OpenOptions::default(), options, &suite).unwrap();
    assert_eq!(reports.len(), drives, "{uri}");
    for report in reports {
        assert!(report.passed(), "{report}");
        let passed =
            report.findings.iter().filter(|finding| finding.verdict == Verdict::Passed).count();
        assert!(passed > report.findings.len() / 2, "too little could be shown: {report}");
    }
}

#[test]
fn the_model_over_a_lease_conforms() {
    let suite =
        conformance::Options { requests: 500, depth: 32, patience: Duration::from_secs(20) };
    for options in [Options::default(), by(IrqKind::Intx)] {
        served::leased("sim:ahci", |device| {
            let reports = check(device, options, &suite).unwrap();
            assert!(reports.iter().all(Report::passed), "{reports:?}");
        });
    }
}

fn by(kind: IrqKind) -> Options {
    Options { interrupts: Interrupts::Only(kind), ..Options::default() }
}

fn polled() -> Options {
    Options { interrupts: Interrupts::Polled, ..Options::default() }
}

#[test]
fn the_model_behind_a_socket_conforms() {
    served::served("sim:ahci", |uri| conforms(uri, 1, Options::default(), 1000));
    served::served("sim:ahci,disks=2", |uri| conforms(uri, 2, by(IrqKind::Intx), 100));
}

#[test]
fn the_simulated_controller_conforms() {
    conforms("sim:ahci", 1, Options::default(), 3000);
}

#[test]
fn a_short_queue_conforms() {
    conforms("sim:ahci,depth=3", 1, Options::default(), 1000);
    conforms("sim:ahci,slots=1", 1, Options::default(), 500);
}

#[test]
fn a_drive_that_queues_nothing_conforms() {
    conforms("sim:ahci,ncq=off", 1, Options::default(), 1000);
}

#[test]
fn commands_that_are_not_queued_conform() {
    conforms("sim:ahci", 1, Options { level: Level::Dma, ..Options::default() }, 1000);
}

#[test]
fn an_old_drive_without_48_bit_commands_conforms() {
    conforms("sim:ahci,lba48=off,ncq=off,size=32M", 1, Options::default(), 500);
}

#[test]
fn a_controller_with_32_bit_addresses_conforms() {
    conforms("sim:ahci,wide=off,below=4G", 1, Options::default(), 1000);
}

#[test]
fn blocks_of_4096_bytes_conform() {
    conforms("sim:ahci,block=4096", 1, Options::default(), 1000);
}

#[test]
fn several_drives_conform() {
    conforms("sim:ahci,disks=4", 4, Options::default(), 500);
}

#[test]
fn the_pin_conforms() {
    conforms("sim:ahci", 1, by(IrqKind::Intx), 1000);
    conforms("sim:ahci,disks=2", 2, by(IrqKind::Intx), 300);
}

#[test]
fn polling_conforms() {
    conforms("sim:ahci", 1, polled(), 1000);
}

#[test]
fn sleeping_for_every_completion_conforms() {
    conforms(
        "sim:ahci,delay=20us",
        1,
        Options { poll: Duration::ZERO, ..Options::default() },
        1000,
    );
}

#[test]
fn sleeping_for_every_pin_conforms() {
    let options = Options { poll: Duration::ZERO, ..by(IrqKind::Intx) };
    conforms("sim:ahci,delay=20us,disks=2", 2, options, 500);
}

#[test]
fn short_transfers_conform() {
    conforms(
        "sim:ahci",
        1,
        Options { max_transfer: Some(8192), max_depth: 4, ..Options::default() },
        1000,
    );
}

#[test]
fn completions_that_come_later_conform() {
    conforms("sim:ahci,delay=100us", 1, Options::default(), 500);
}

#[test]
fn a_drive_that_writes_nothing_through_and_trims_nothing_conforms() {
    conforms("sim:ahci,fua=off,trim=off", 1, Options::default(), 500);
}

#[test]
fn a_controller_that_firmware_owned_conforms() {
    conforms("sim:ahci,handoff=on,ready=20ms", 1, Options::default(), 200);
}

#[test]
fn qemus_controller_conforms() {
    conforms("qtest:ich9-ahci", 1, Options::default(), 200);
}

#[test]
fn qemus_controller_with_the_pin_conforms() {
    conforms("qtest:ich9-ahci", 1, by(IrqKind::Intx), 100);
}

#[test]
fn qemus_controller_without_queued_commands_conforms() {
    conforms("qtest:ich9-ahci", 1, Options { level: Level::Dma, ..polled() }, 100);
}

#[test]
fn qemus_controller_with_several_drives_conforms() {
    conforms("qtest:ich9-ahci,disks=2", 2, Options::default(), 50);
}

/// Each of these sizes at once: most of a run is waiting.
fn all_conform(uris: impl IntoIterator<Item = String>) {
    std::thread::scope(|scope| {
        for uri in uris {
            scope.spawn(move || conforms(&uri, 1, Options::default(), 50));
        }
    });
}

#[test]
fn the_smallest_disks_conform() {
    all_conform([512, 1024, 3584, 4096, 8192].map(|size| format!("sim:ahci,size={size}")));
    all_conform([4096, 8192, 20480].map(|size| format!("sim:ahci,block=4096,size={size}")));
}

#[test]
fn qemus_smallest_disks_conform() {
    all_conform([512, 3584, 4096].map(|size| format!("qtest:ich9-ahci,size={size}")));
}
