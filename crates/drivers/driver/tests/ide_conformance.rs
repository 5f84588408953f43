//! The suite that every disk passes, on the IDE driver over each backend that needs no guest.

mod served;

use std::time::Duration;

use ring3_backend::{OpenOptions, Uri};
use ring3_conformance::block::{self as conformance, Report};
use ring3_device::Error;
use ring3_driver::Interrupts;
use ring3_driver::ata::ide::Controller;
use ring3_driver::ata::{Level, Options};

fn run(
    uri: &Uri,
    memory: OpenOptions,
    options: Options,
    suite: &conformance::Options,
) -> Result<Vec<Report>, Error> {
    let controller = Controller::open(ring3_backend::open(uri, memory)?, options)?;
    assert!(controller.refused().is_empty(), "{:?}", controller.refused());
    Ok(controller.drives().iter().map(|disk| conformance::run(disk, suite)).collect())
}

/// Runs the suite on all drives of `uri`, of which there are `drives`.
fn conforms(uri: &str, options: Options, drives: usize, requests: u32) {
    let suite = conformance::Options { requests, depth: 16, patience: Duration::from_secs(60) };
    let memory = OpenOptions { below: 1 << 32, ..OpenOptions::default() };
    let reports = run(&uri.parse().unwrap(), memory, options, &suite).unwrap();
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
fn the_models_behind_a_socket_conform() {
    served::served("sim:ide", |uri| conforms(uri, Options::default(), 1, 100));
    served::served("sim:ide,chip=cmd646", |uri| conforms(uri, Options::default(), 1, 20));
}

#[test]
fn the_simulated_piix4_conforms() {
    conforms("sim:ide", Options::default(), 1, 2000);
}

#[test]
fn the_simulated_piix3_and_multiword_dma_conform() {
    conforms("sim:ide,chip=piix3", Options::default(), 1, 500);
}

#[test]
fn the_simulated_cmd646_and_the_pin_that_its_channels_share_conform() {
    conforms("sim:ide,chip=cmd646,disks=4", Options::default(), 4, 200);
}

#[test]
fn two_drives_of_a_channel_conform() {
    conforms("sim:ide,disks=2", Options::default(), 2, 500);
}

#[test]
fn polling_conforms() {
    conforms("sim:ide,disks=4", polled(), 4, 200);
    conforms("sim:ide,chip=cmd646", polled(), 1, 200);
}

#[test]
fn sleeping_for_every_end_conforms() {
    conforms("sim:ide,disks=2", Options { poll: Duration::ZERO, ..Options::default() }, 2, 300);
    conforms(
        "sim:ide,chip=cmd646,disks=2",
        Options { poll: Duration::ZERO, ..Options::default() },
        2,
        300,
    );
}

#[test]
fn pio_conforms_with_and_without_interrupts() {
    conforms("sim:ide,chip=piix3", pio(), 1, 200);
    conforms(
        "sim:ide,chip=cmd646,disks=2",
        Options { interrupts: Interrupts::Polled, ..pio() },
        2,
        100,
    );
}

#[test]
fn pio_without_read_multiple_conforms() {
    conforms("sim:ide,multiple=0", pio(), 1, 200);
}

#[test]
fn a_drive_without_dma_conforms() {
    conforms(
        "sim:ide,dma=off",
        Options { max_transfer: Some(16 << 10), ..Options::default() },
        1,
        200,
    );
}

#[test]
fn blocks_of_4096_bytes_conform() {
    conforms("sim:ide,block=4096,disks=2", Options::default(), 2, 300);
    conforms("sim:ide,block=4096", Options { max_transfer: Some(64 << 10), ..pio() }, 1, 100);
}

#[test]
fn a_drive_of_28_bit_addresses_conforms() {
    conforms("sim:ide,lba48=off", Options::default(), 1, 500);
}

#[test]
fn a_drive_without_a_cache_conforms() {
    conforms("sim:ide,cache=off,fua=off,trim=off", Options::default(), 1, 300);
}

#[test]
fn ends_that_come_later_conform() {
    conforms("sim:ide,disks=2,delay=100us", Options::default(), 2, 200);
    conforms("sim:ide,delay=100us", polled(), 1, 200);
    conforms("sim:ide,delay=100us", pio(), 1, 100);
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

/// QEMU's CMD646 belongs to an AlphaServer, whose QEMU is not installed everywhere.
#[test]
fn qemus_cmd646_conforms_where_there_is_one() {
    let suite = conformance::Options { requests: 50, depth: 16, patience: Duration::from_secs(60) };
    let memory = OpenOptions { below: 1 << 32, ..OpenOptions::default() };
    let uri = "qtest:cmd646-ide,size=64M".parse().unwrap();
    match run(&uri, memory, Options::default(), &suite) {
        Err(error @ Error::Unsupported(_))
            if error.to_string().contains("needs qemu-system-alpha") =>
        {
            println!("skipped: {error}")
        }
        reports => reports.unwrap().iter().for_each(|report| assert!(report.passed(), "{report}")),
    }
}

/// Each of these sizes at once: most of a run is waiting.
fn all_conform(uris: impl IntoIterator<Item = String>) {
    std::thread::scope(|scope| {
        for uri in uris {
            scope.spawn(move || conforms(&uri, Options::default(), 1, 50));
        }
    });
}

#[test]
fn the_smallest_disks_conform() {
    all_conform([512, 1024, 3584, 4096, 8192].map(|size| format!("sim:ide,size={size}")));
    all_conform([4096, 8192, 20480].map(|size| format!("sim:ide,block=4096,size={size}")));
}

#[test]
fn qemus_smallest_disks_conform() {
    all_conform([512, 3584, 4096].map(|size| format!("qtest:piix4-ide,size={size}")));
}
