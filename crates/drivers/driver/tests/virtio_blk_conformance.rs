//! The suite that every disk passes, on the driver of virtio disks over each backend that needs no
//! guest, with both layouts of virtqueues.

mod served;

use std::sync::Arc;
use std::time::Duration;

use ring3_backend::OpenOptions;
use ring3_conformance::block as conformance;
use ring3_device::Device;
use ring3_driver::Interrupts;
use ring3_driver::registry::{Driver, Settings};
use ring3_driver::virtio::Layout;
use ring3_driver::virtio::blk::{Disk, Options};

fn conforms(uri: &str, options: Options, requests: u32) {
    let device = ring3_backend::open(&uri.parse().unwrap(), OpenOptions::default());
    passes(uri, device.unwrap_or_else(|error| panic!("{uri}: {error}")), options, requests);
}

fn passes(uri: &str, device: Arc<dyn Device>, options: Options, requests: u32) {
    let suite = conformance::Options { requests, depth: 16, patience: Duration::from_secs(20) };
    let disk = Disk::open(device, options).unwrap_or_else(|error| panic!("{uri}: {error}"));
    let report = conformance::run(&disk, &suite);
    assert!(report.passed(), "{uri}: {report}");
}

fn polled() -> Options {
    Options { interrupts: Interrupts::Polled, ..Options::default() }
}

#[test]
fn the_simulated_disk_conforms_with_both_layouts() {
    conforms("sim:virtio-blk", Options::default(), 2000);
    conforms("sim:virtio-blk,packed=on", Options::default(), 2000);
    conforms("sim:virtio-blk,packed=on", Options { layout: Layout::Split, ..polled() }, 500);
}

#[test]
fn requests_that_lie_in_the_queue_itself_conform() {
    conforms("sim:virtio-blk,indirect=off", Options::default(), 1000);
    conforms("sim:virtio-blk,indirect=off,packed=on", Options::default(), 1000);
    conforms("sim:virtio-blk,indirect=off,packed=on,entries=4", Options::default(), 200);
}

#[test]
fn a_disk_that_is_hardware_and_wants_its_order_conforms() {
    conforms("sim:virtio-blk,order=on", Options::default(), 500);
    conforms("sim:virtio-blk,order=on,packed=on", Options::default(), 500);
}

#[test]
fn a_disk_with_split_virtqueues_that_is_told_by_flags_alone_conforms() {
    conforms("sim:virtio-blk,events=off", Options::default(), 500);
}

#[test]
fn disks_of_other_shapes_conform() {
    conforms("sim:virtio-blk,block=4096", Options::default(), 1000);
    conforms("sim:virtio-blk,cache=off,segments=1,entries=16", Options::default(), 500);
    conforms("sim:virtio-blk,structures=apart,queues=1,vectors=0", Options::default(), 500);
    conforms("sim:virtio-blk,delay=100us,ready=1ms,packed=on", Options::default(), 500);
    let short = Options {
        max_transfer: Some(8192),
        max_queues: 1,
        poll: Duration::ZERO,
        ..Options::default()
    };
    conforms("sim:virtio-blk", short, 500);
}

#[test]
fn the_smallest_disks_conform() {
    for size in [512, 1024, 3584, 4096] {
        conforms(&format!("sim:virtio-blk,size={size}"), Options::default(), 50);
    }
    conforms("sim:virtio-blk,block=4096,size=4096", Options::default(), 50);
}

#[test]
fn the_model_behind_a_socket_and_over_a_lease_conforms() {
    for layout in ["", ",packed=on"] {
        let model = format!("sim:virtio-blk{layout}");
        served::served(&model, |uri| conforms(uri, Options::default(), 500));
        served::leased(&model, |device| passes(&model, device, Options::default(), 500));
    }
}

#[test]
fn qemus_disk_conforms_with_both_layouts() {
    conforms("qtest:virtio-blk-pci,size=64M", Options::default(), 200);
    conforms("qtest:virtio-blk-pci,size=64M,packed=on", Options::default(), 200);
    conforms(
        "qtest:virtio-blk-pci,size=64M,packed=on",
        Options { layout: Layout::Split, ..polled() },
        100,
    );
}

#[test]
fn qemus_disk_conforms_without_tables_with_blocks_of_4096_bytes_and_without_a_cache() {
    for layout in ["off", "on"] {
        conforms(
            &format!("qtest:virtio-blk-pci,size=64M,indirect_desc=off,packed={layout}"),
            Options::default(),
            100,
        );
    }
    conforms(
        "qtest:virtio-blk-pci,size=64M,logical_block_size=4096,physical_block_size=4096",
        polled(),
        100,
    );
    conforms("qtest:virtio-blk-pci,size=64M,write-cache=off", polled(), 100);
}

#[test]
fn a_transitional_disk_is_refused_with_what_to_do() {
    let uri = "qtest:virtio-blk-pci,size=1M,disable-legacy=off".parse().unwrap();
    let device = ring3_backend::open(&uri, OpenOptions::default()).unwrap();
    let error = Driver::open(device, None, &Settings::default()).err().unwrap().to_string();
    assert!(error.contains("1af4:1001") && error.contains("disable-legacy=on"), "{error}");
}
