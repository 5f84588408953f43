//! The suite that every disk passes, on the IDE driver over each backend that needs no guest.

use std::time::Duration;

use ring3_backend::{Job, OpenOptions, with_device};
use ring3_class::block::conformance::{self, Report};
use ring3_device::{Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::ata::ide::Controller;
use ring3_driver::ata::{Level, Options};

struct Suite {
    options: Options,
    suite: conformance::Options,
}

impl Job for Suite {
    type Output = Result<Vec<Report>, Error>;

    fn run<D: Device>(self, device: D) -> Self::Output {
        let controller = Controller::open(device, self.options)?;
        assert!(controller.refused().is_empty(), "{:?}", controller.refused());
        Ok(controller.drives().iter().map(|disk| conformance::run(disk, &self.suite)).collect())
    }
}

/// Runs the suite on all drives of `uri`, of which there are `drives`.
fn conforms(uri: &str, options: Options, drives: usize, requests: u32) {
    let suite = conformance::Options { requests, depth: 16, patience: Duration::from_secs(60) };
    let memory = OpenOptions { below: 1 << 32, ..OpenOptions::default() };
    let reports = with_device(&uri.parse().unwrap(), memory, Suite { options, suite }).unwrap().unwrap();
    assert_eq!(reports.len(), drives, "{uri}");
    for report in reports {
        assert!(report.passed(), "{report}");
    }
}

fn polled() -> Options {
    Options { interrupts: Interrupts::Polled, ..Options::default() }
}

/// Data moved by the processor, in short transfers because each word is an access.
fn pio() -> Options {
    Options { level: Level::Pio, max_transfer: Some(16 << 10), ..Options::default() }
}

#[test]
fn qemus_piix3_conforms() {
    conforms("qtest:piix3-ide,size=64M", Options::default(), 1, 100);
}

#[test]
fn qemus_piix4_and_four_drives_conform() {
    conforms("qtest:piix4-ide,size=64M,disks=4", Options::default(), 4, 50);
}

#[test]
fn qemus_piix4_conforms_by_looking() {
    conforms("qtest:piix4-ide,size=64M,disks=2", polled(), 2, 50);
}

#[test]
fn qemus_piix3_conforms_by_pio() {
    conforms("qtest:piix3-ide,size=64M", Options { max_transfer: Some(4096), ..pio() }, 1, 10);
}
