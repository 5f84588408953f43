//! The generator over a class queue, here of a disk that is nothing but memory.

mod memory_disk;

use std::time::Duration;

use memory_disk::{Behaviour, MemoryDisk};
use ring3_bench::instructions::{Subject, drive};
use ring3_bench::load::{Direct, Limit, Load, run};
use ring3_bench::measure::{Method, measure};
use ring3_bench::report::Measurement;

fn load(workload: &str, limit: Limit) -> Load {
    Load { verify: true, ..Load::new(workload.parse().unwrap(), limit) }
}

#[test]
fn every_request_of_a_count_is_accounted_for_on_both_sides() {
    let disk = MemoryDisk::new(1 << 20, Behaviour::Good);
    let mut target = Direct::open(&disk, 32, 4096).unwrap();
    let outcome = run(
        &mut target,
        &Load { verify: false, ..load("randrw-4k-qd32", Limit::Count(5000)) },
        &mut || {},
    )
    .unwrap();
    assert_eq!((outcome.operations, outcome.errors, disk.requests()), (5000, 0, 5000));
}

#[test]
fn what_was_written_is_read_back_from_where_it_belongs() {
    let disk = MemoryDisk::new(1 << 20, Behaviour::Good);
    let mut target = Direct::open(&disk, 8, 16384).unwrap();
    run(&mut target, &load("seqwrite-16k-qd8", Limit::Count(64)), &mut || {}).unwrap();
    let outcome =
        run(&mut target, &load("randread-4k-qd8", Limit::Count(2000)), &mut || {}).unwrap();
    assert_eq!((outcome.errors, outcome.mismatches), (0, 0));
}

#[test]
fn a_disk_that_changes_a_bit_is_found() {
    let disk = MemoryDisk::new(1 << 20, Behaviour::FlipsBits);
    let mut target = Direct::open(&disk, 1, 4096).unwrap();
    run(&mut target, &load("seqwrite-4k-qd1", Limit::Count(256)), &mut || {}).unwrap();
    let outcome = run(&mut target, &load("seqread-4k-qd1", Limit::Count(256)), &mut || {}).unwrap();
    assert_eq!((outcome.errors, outcome.mismatches), (0, 256));
}

#[test]
fn requests_that_fail_are_counted_as_errors() {
    let disk = MemoryDisk::new(1 << 20, Behaviour::Fails);
    let mut target = Direct::open(&disk, 4, 4096).unwrap();
    let outcome =
        run(&mut target, &load("randread-4k-qd4", Limit::Count(100)), &mut || {}).unwrap();
    assert_eq!((outcome.operations, outcome.errors), (100, 100));
}

#[test]
fn one_doorbell_is_rung_for_a_whole_batch() {
    let disk = MemoryDisk::new(1 << 20, Behaviour::Good);
    drive(&disk, Subject::Nvme, 32, 3200, &mut || {}).unwrap();
    assert_eq!((disk.requests(), disk.rings()), (3200, 100));
}

#[test]
fn a_request_that_is_no_multiple_of_a_block_is_refused_by_name() {
    let disk = MemoryDisk::new(4 << 20, Behaviour::Good);
    let error = Direct::open(&disk, 1, 700).err().unwrap().to_string();
    assert!(error.contains("ram") && error.contains("multiples of its 512"), "{error}");
}

#[test]
fn a_request_longer_than_the_device_takes_is_cut() {
    let disk = MemoryDisk::new(4 << 20, Behaviour::Good);
    let mut target = Direct::open(&disk, 1, 1 << 20).unwrap();
    run(&mut target, &load("seqwrite-1m-qd1", Limit::Count(4)), &mut || {}).unwrap();
    let outcome = run(&mut target, &load("seqread-1m-qd1", Limit::Count(4)), &mut || {}).unwrap();
    assert_eq!((outcome.errors, outcome.mismatches), (0, 0));
    assert_eq!(disk.requests(), 2 * 4 * 8, "parts of 128 KiB");
}

#[test]
fn a_measurement_has_the_numbers_of_its_clock() {
    let disk = MemoryDisk::new(1 << 20, Behaviour::Good);
    let workload = "randread-4k-qd8".parse().unwrap();
    for (soaker_step, there, missing) in [
        (None, "cpu_us_per_op", "instructions_per_op"),
        (Some(1.0), "instructions_per_op", "cpu_percent"),
    ] {
        let method = Method {
            time: Duration::from_millis(60),
            latency: true,
            soaker_step,
            cpus: 1,
            seed: 1,
        };
        let mut target = Direct::open(&disk, 8, 4096).unwrap();
        let values =
            measure(&mut target, workload, &method, None, Measurement::new(1, workload, "process"))
                .unwrap()
                .values;
        assert!(values["iops"] > 0.0 && values["latency_us_p99"] >= values["latency_us_p50"]);
        assert!(values.contains_key(there) && !values.contains_key(missing), "{values:?}");
        assert_eq!(values["errors"], 0.0);
    }
}
