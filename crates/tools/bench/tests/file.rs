//! The generator over a plain file.

use std::path::PathBuf;
use std::time::Duration;

use ring3_bench::load::{File, FileOptions, Limit, Load, Target, run};

const SIZE: u64 = 4 << 20;

fn file(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    path
}

fn open(path: &std::path::Path, depth: u16, bytes: u32) -> File {
    File::open(path, depth, bytes, FileOptions { write: true, direct: false }).unwrap()
}

fn load(workload: &str, limit: Limit) -> Load {
    Load { verify: true, ..Load::new(workload.parse().unwrap(), limit) }
}

#[test]
fn every_request_of_a_count_is_accounted_for() {
    let mut target = open(&file("count"), 7, 4096);
    let outcome = run(
        &mut target,
        &Load { verify: false, ..load("randrw-4k-qd7", Limit::Count(1000)) },
        &mut || {},
    )
    .unwrap();
    assert_eq!((outcome.operations, outcome.errors), (1000, 0));
    assert!(outcome.elapsed > Duration::ZERO);
}

#[test]
fn what_was_written_is_read_back_from_where_it_belongs() {
    let path = file("verify");
    let mut target = open(&path, 8, 16384);
    run(&mut target, &load("seqwrite-16k-qd8", Limit::Count(SIZE / 16384)), &mut || {}).unwrap();
    let outcome =
        run(&mut target, &load("randread-4k-qd8", Limit::Count(2000)), &mut || {}).unwrap();
    assert_eq!((outcome.errors, outcome.mismatches), (0, 0));
}

#[test]
fn bytes_that_do_not_belong_there_are_mismatches() {
    let mut target = open(&file("mismatch"), 4, 4096);
    let outcome = run(&mut target, &load("seqread-4k-qd4", Limit::Count(10)), &mut || {}).unwrap();
    assert_eq!((outcome.operations, outcome.mismatches), (10, 10));
}

#[test]
fn a_time_limit_ends_the_load_and_percentiles_are_in_order() {
    let mut target = open(&file("time"), 2, 4096);
    let timed = Load {
        latency: true,
        verify: false,
        ..load("randread-4k-qd2", Limit::Time(Duration::from_millis(200)))
    };
    let mut ended = 0;
    let outcome = run(&mut target, &timed, &mut || ended += 1).unwrap();
    let latency = outcome.latency.unwrap();
    assert!(outcome.elapsed >= Duration::from_millis(200) && ended == 1);
    assert!(latency.p50 > 0.0 && latency.p50 <= latency.p99);
}

#[test]
fn requests_that_fail_are_errors_not_operations_that_went_well() {
    let path = file("short");
    let mut target = open(&path, 1, 4096);
    // The file loses its end after it was opened: reads there come back short.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    let outcome = run(
        &mut target,
        &Load { verify: false, ..load("seqread-4k-qd1", Limit::Count(5)) },
        &mut || {},
    )
    .unwrap();
    assert_eq!((outcome.operations, outcome.errors), (5, 5));
}

#[test]
fn a_region_smaller_than_a_request_is_refused() {
    let mut target = open(&file("region"), 1, 4096);
    let error = run(
        &mut target,
        &Load { region: Some(512), ..load("randread-4k-qd1", Limit::Count(1)) },
        &mut || {},
    )
    .unwrap_err();
    assert!(error.to_string().contains("region of 512 bytes"), "{error}");
}

#[test]
fn one_turn_is_one_system_call() {
    let mut target = open(&file("enters"), 1, 4096);
    run(
        &mut target,
        &Load { verify: false, ..load("randread-4k-qd1", Limit::Count(100)) },
        &mut || {},
    )
    .unwrap();
    assert!(target.enters() <= 102, "{} calls for 100 requests", target.enters());
    assert_eq!(target.depth(), 1);
}
