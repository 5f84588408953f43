//! The suite that every disk passes, on the AHCI driver over each backend that needs no guest.

mod cases;
mod served;
mod suite;

use std::sync::Arc;
use std::time::Duration;

use cases::cases;
use ring3_backend::OpenOptions;
use ring3_conformance::block::{self as conformance, Report, Verdict};
use ring3_device::irq::IrqKind;
use ring3_device::{Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::ata::{Level, Options, ahci};

/// Runs the suite on each drive of `device`.
fn check(device: Arc<dyn Device>, options: Options, requests: u32) -> Result<Vec<Report>, Error> {
    let controller = ahci::Controller::open(device, options)?;
    assert!(controller.refused().is_empty(), "{:?}", controller.refused());
    let suite = suite::suite(requests, 32);
    Ok(controller.drives().iter().map(|disk| conformance::run(disk, &suite)).collect())
}

/// Runs the suite on each of `drives` behind `uri`.
fn conforms(uri: &str, drives: usize, options: Options, requests: u32) {
    let reports =
        suite::conforms(uri, OpenOptions::default(), |device| check(device, options, requests));
    assert_eq!(reports.len(), drives, "{uri}");
    for report in reports {
        let passed =
            report.findings.iter().filter(|finding| finding.verdict == Verdict::Passed).count();
        assert!(passed > report.findings.len() / 2, "too little could be shown: {report}");
    }
}

fn default() -> Options {
    Options::default()
}

fn by(kind: IrqKind) -> Options {
    Options { interrupts: Interrupts::Only(kind), ..default() }
}

fn polled() -> Options {
    Options { interrupts: Interrupts::Polled, ..default() }
}

fn unqueued() -> Options {
    Options { level: Level::Dma, ..default() }
}

/// The owner sleeps for every completion.
fn asleep() -> Options {
    Options { poll: Duration::ZERO, ..default() }
}

fn short() -> Options {
    Options { max_transfer: Some(8192), max_depth: 4, ..default() }
}

#[test]
fn the_model_over_a_lease_conforms() {
    for options in [default(), by(IrqKind::Intx)] {
        served::leased("sim:ahci", |device| {
            suite::passes(device, |device| check(device, options, 500));
        });
    }
}

#[test]
fn the_model_behind_a_socket_conforms() {
    served::served("sim:ahci", |uri| conforms(uri, 1, default(), 1000));
    served::served("sim:ahci,disks=2", |uri| conforms(uri, 2, by(IrqKind::Intx), 100));
}

cases! { conforms;
    the_simulated_controller_conforms: ("sim:ahci", 1, default(), 3000);
    a_short_queue_conforms:
        ("sim:ahci,depth=3", 1, default(), 1000) ("sim:ahci,slots=1", 1, default(), 500);
    a_drive_that_queues_nothing_conforms: ("sim:ahci,ncq=off", 1, default(), 1000);
    commands_that_are_not_queued_conform: ("sim:ahci", 1, unqueued(), 1000);
    an_old_drive_without_48_bit_commands_conforms:
        ("sim:ahci,lba48=off,ncq=off,size=32M", 1, default(), 500);
    a_controller_with_32_bit_addresses_conforms:
        ("sim:ahci,wide=off,below=4G", 1, default(), 1000);
    blocks_of_4096_bytes_conform: ("sim:ahci,block=4096", 1, default(), 1000);
    several_drives_conform: ("sim:ahci,disks=4", 4, default(), 500);
    the_pin_conforms:
        ("sim:ahci", 1, by(IrqKind::Intx), 1000) ("sim:ahci,disks=2", 2, by(IrqKind::Intx), 300);
    polling_conforms: ("sim:ahci", 1, polled(), 1000);
    sleeping_for_every_completion_conforms: ("sim:ahci,delay=20us", 1, asleep(), 1000);
    sleeping_for_every_pin_conforms:
        ("sim:ahci,delay=20us,disks=2", 2,
         Options { poll: Duration::ZERO, ..by(IrqKind::Intx) }, 500);
    short_transfers_conform: ("sim:ahci", 1, short(), 1000);
    completions_that_come_later_conform: ("sim:ahci,delay=100us", 1, default(), 500);
    a_drive_that_writes_nothing_through_and_trims_nothing_conforms:
        ("sim:ahci,fua=off,trim=off", 1, default(), 500);
    a_controller_that_firmware_owned_conforms:
        ("sim:ahci,handoff=on,ready=20ms", 1, default(), 200);
    qemus_controller_conforms: ("qtest:ich9-ahci", 1, default(), 200);
    qemus_controller_with_the_pin_conforms: ("qtest:ich9-ahci", 1, by(IrqKind::Intx), 100);
    qemus_controller_without_queued_commands_conforms:
        ("qtest:ich9-ahci", 1, Options { level: Level::Dma, ..polled() }, 100);
    qemus_controller_with_several_drives_conforms: ("qtest:ich9-ahci,disks=2", 2, default(), 50);
}

fn smallest(model: &str) {
    suite::smallest(model, |uri| conforms(uri, 1, default(), 50));
}

cases! { smallest;
    the_smallest_disks_conform: ("sim:ahci");
    qemus_smallest_disks_conform: ("qtest:ich9-ahci");
}
