//! The suite that every disk passes, on the driver of virtio disks over each backend that needs no
//! guest, with both layouts of virtqueues.

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
use ring3_driver::registry::{Driver, Settings};
use ring3_driver::virtio::Layout;
use ring3_driver::virtio::blk::{Disk, Options};

/// Runs the suite on the disk.
fn check(device: Arc<dyn Device>, options: Options, requests: u32) -> Result<Vec<Report>, Error> {
    let disk = Disk::open(device, options)?;
    Ok(vec![conformance::run(&disk, &suite::suite(requests, 16))])
}

fn conforms(uri: &str, options: Options, requests: u32) {
    suite::conforms(uri, OpenOptions::default(), |device| check(device, options, requests));
}

fn default() -> Options {
    Options::default()
}

fn polled() -> Options {
    Options { interrupts: Interrupts::Polled, ..default() }
}

/// Split virtqueues, whatever else the device offers.
fn split() -> Options {
    Options { layout: Layout::Split, ..polled() }
}

fn short() -> Options {
    Options { max_transfer: Some(8192), max_queues: 1, poll: Duration::ZERO, ..default() }
}

cases! { conforms;
    the_simulated_disk_conforms_with_both_layouts:
        ("sim:virtio-blk", default(), 2000)
        ("sim:virtio-blk,packed=on", default(), 2000)
        ("sim:virtio-blk,packed=on", split(), 500);
    requests_that_lie_in_the_queue_itself_conform:
        ("sim:virtio-blk,indirect=off", default(), 1000)
        ("sim:virtio-blk,indirect=off,packed=on", default(), 1000)
        ("sim:virtio-blk,indirect=off,packed=on,entries=4", default(), 200);
    a_disk_that_is_hardware_and_wants_its_order_conforms:
        ("sim:virtio-blk,order=on", default(), 500)
        ("sim:virtio-blk,order=on,packed=on", default(), 500);
    a_disk_with_split_virtqueues_that_is_told_by_flags_alone_conforms:
        ("sim:virtio-blk,events=off", default(), 500);
    disks_of_other_shapes_conform:
        ("sim:virtio-blk,block=4096", default(), 1000)
        ("sim:virtio-blk,cache=off,segments=1,entries=16", default(), 500)
        ("sim:virtio-blk,structures=apart,queues=1,vectors=0", default(), 500)
        ("sim:virtio-blk,delay=100us,ready=1ms,packed=on", default(), 500)
        ("sim:virtio-blk", short(), 500);
    qemus_disk_conforms_with_both_layouts:
        ("qtest:virtio-blk-pci,size=64M", default(), 200)
        ("qtest:virtio-blk-pci,size=64M,packed=on", default(), 200)
        ("qtest:virtio-blk-pci,size=64M,packed=on", split(), 100);
    qemus_disk_conforms_without_tables_with_blocks_of_4096_bytes_and_without_a_cache:
        ("qtest:virtio-blk-pci,size=64M,indirect_desc=off,packed=off", default(), 100)
        ("qtest:virtio-blk-pci,size=64M,indirect_desc=off,packed=on", default(), 100)
        ("qtest:virtio-blk-pci,size=64M,logical_block_size=4096,physical_block_size=4096",
         polled(), 100)
        ("qtest:virtio-blk-pci,size=64M,write-cache=off", polled(), 100);
}

#[test]
fn the_smallest_disks_conform() {
    suite::smallest("sim:virtio-blk", |uri| conforms(uri, default(), 50));
}

#[test]
fn the_model_behind_a_socket_and_over_a_lease_conforms() {
    for layout in ["", ",packed=on"] {
        let model = format!("sim:virtio-blk{layout}");
        served::served(&model, |uri| conforms(uri, default(), 500));
        served::leased(&model, |device| {
            suite::passes(device, |device| check(device, default(), 500));
        });
    }
}

#[test]
fn a_transitional_disk_is_refused_with_what_to_do() {
    let uri = "qtest:virtio-blk-pci,size=1M,disable-legacy=off".parse().unwrap();
    let device = ring3_backend::open(&uri, OpenOptions::default()).unwrap();
    let error = Driver::open(device, None, &Settings::default()).err().unwrap().to_string();
    assert!(error.contains("1af4:1001") && error.contains("disable-legacy=on"), "{error}");
}
