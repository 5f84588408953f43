//! The suite that every disk passes, on the IDE driver over each backend that needs no guest.

mod cases;
mod served;
mod suite;

use std::sync::Arc;
use std::time::Duration;

use cases::cases;
use ring3_backend::OpenOptions;
use ring3_conformance::block::{self as conformance, Report};
use ring3_device::{Device, Error};
use ring3_driver::Interrupts;
use ring3_driver::ata::ide::Controller;
use ring3_driver::ata::{Level, Options};

fn memory() -> OpenOptions {
    OpenOptions { below: 1 << 32, ..OpenOptions::default() }
}

/// Runs the suite on each drive of `device`.
fn check(device: Arc<dyn Device>, options: Options, requests: u32) -> Result<Vec<Report>, Error> {
    let controller = Controller::open(device, options)?;
    assert!(controller.refused().is_empty(), "{:?}", controller.refused());
    let suite = suite::suite(requests, 16);
    Ok(controller.drives().iter().map(|disk| conformance::run(disk, &suite)).collect())
}

/// Runs the suite on all drives of `uri`, of which there are `drives`.
fn conforms(uri: &str, options: Options, drives: usize, requests: u32) {
    let reports = suite::conforms(uri, memory(), |device| check(device, options, requests));
    assert_eq!(reports.len(), drives, "{uri}");
}

fn default() -> Options {
    Options::default()
}

fn polled() -> Options {
    Options { interrupts: Interrupts::Polled, ..default() }
}

/// The owner sleeps for every end.
fn asleep() -> Options {
    Options { poll: Duration::ZERO, ..default() }
}

/// Transfers of `most` bytes.
fn short(most: u32, options: Options) -> Options {
    Options { max_transfer: Some(most), ..options }
}

/// Data moved by the processor, in short transfers because each word is an access.
fn pio() -> Options {
    short(16 << 10, Options { level: Level::Pio, ..default() })
}

#[test]
fn the_models_behind_a_socket_conform() {
    served::served("sim:ide", |uri| conforms(uri, default(), 1, 100));
    served::served("sim:ide,chip=cmd646", |uri| conforms(uri, default(), 1, 20));
}

cases! { conforms;
    the_simulated_piix4_conforms: ("sim:ide", default(), 1, 2000);
    the_simulated_piix3_and_multiword_dma_conform: ("sim:ide,chip=piix3", default(), 1, 500);
    the_simulated_cmd646_and_the_pin_that_its_channels_share_conform:
        ("sim:ide,chip=cmd646,disks=4", default(), 4, 200);
    two_drives_of_a_channel_conform: ("sim:ide,disks=2", default(), 2, 500);
    polling_conforms:
        ("sim:ide,disks=4", polled(), 4, 200) ("sim:ide,chip=cmd646", polled(), 1, 200);
    sleeping_for_every_end_conforms:
        ("sim:ide,disks=2", asleep(), 2, 300) ("sim:ide,chip=cmd646,disks=2", asleep(), 2, 300);
    pio_conforms_with_and_without_interrupts:
        ("sim:ide,chip=piix3", pio(), 1, 200)
        ("sim:ide,chip=cmd646,disks=2",
         Options { interrupts: Interrupts::Polled, ..pio() }, 2, 100);
    pio_without_read_multiple_conforms: ("sim:ide,multiple=0", pio(), 1, 200);
    a_drive_without_dma_conforms: ("sim:ide,dma=off", short(16 << 10, default()), 1, 200);
    blocks_of_4096_bytes_conform:
        ("sim:ide,block=4096,disks=2", default(), 2, 300)
        ("sim:ide,block=4096", short(64 << 10, pio()), 1, 100);
    a_drive_of_28_bit_addresses_conforms: ("sim:ide,lba48=off", default(), 1, 500);
    a_drive_without_a_cache_conforms: ("sim:ide,cache=off,fua=off,trim=off", default(), 1, 300);
    ends_that_come_later_conform:
        ("sim:ide,disks=2,delay=100us", default(), 2, 200)
        ("sim:ide,delay=100us", polled(), 1, 200)
        ("sim:ide,delay=100us", pio(), 1, 100);
    qemus_piix3_conforms: ("qtest:piix3-ide,size=64M", default(), 1, 100);
    qemus_piix4_and_four_drives_conform: ("qtest:piix4-ide,size=64M,disks=4", default(), 4, 50);
    qemus_piix4_conforms_by_looking: ("qtest:piix4-ide,size=64M,disks=2", polled(), 2, 50);
    qemus_piix3_conforms_by_pio: ("qtest:piix3-ide,size=64M", short(4096, pio()), 1, 10);
}

/// QEMU's CMD646 belongs to an AlphaServer, whose QEMU is not installed everywhere.
#[test]
fn qemus_cmd646_conforms_where_there_is_one() {
    match ring3_backend::open(&"qtest:cmd646-ide,size=64M".parse().unwrap(), memory()) {
        Err(error @ Error::Unsupported(_))
            if error.to_string().contains("needs qemu-system-alpha") =>
        {
            println!("skipped: {error}")
        }
        device => {
            suite::passes(device.unwrap(), |device| check(device, default(), 50));
        }
    }
}

fn smallest(model: &str) {
    suite::smallest(model, |uri| conforms(uri, default(), 1, 50));
}

cases! { smallest;
    the_smallest_disks_conform: ("sim:ide");
    qemus_smallest_disks_conform: ("qtest:piix4-ide");
}
