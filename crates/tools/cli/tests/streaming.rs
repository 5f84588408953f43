//! `ring3 blk bench --dma`: memory outside of the arena, mapped or copied, and what that counts.

use std::process::Command;

use serde_json::Value;

/// The counters of 400 requests of a load on `device`, with `more` arguments.
fn streams(device: &str, more: &str) -> Value {
    let words =
        format!("blk bench --json --count 400 --overwrite --verify --device {device} {more}");
    let output = Command::new(env!("CARGO_BIN_EXE_ring3")).args(words.split(' ')).output().unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["operations"], &line["mismatches"]), (&400.into(), &0.into()));
    line["streams"].clone()
}

fn count(streams: &Value, name: &str) -> u64 {
    streams[name].as_u64().unwrap_or_else(|| panic!("no {name} in {streams}"))
}

#[test]
fn memory_that_was_mapped_once_is_hit_from_then_on() {
    let streams = streams("sim:nvme", "--dma zero-copy --workload seqwrite-4k-qd4");
    assert_eq!((count(&streams, "misses"), count(&streams, "hits")), (4, 396));
    assert_eq!((count(&streams, "mapped"), count(&streams, "copied")), (400, 0));
}

#[test]
fn more_allocations_than_mappings_evict_each_other() {
    let streams = streams(
        "sim:nvme",
        "--dma zero-copy --workload seqwrite-4k-qd1 --allocations 64 --mappings 16",
    );
    assert_eq!(count(&streams, "hits"), 0);
    assert_eq!(count(&streams, "evictions"), 400 - 16);
}

#[test]
fn fragmented_memory_is_gathered_into_segments() {
    let streams = streams("sim:nvme", "--dma zero-copy --workload seqwrite-64k-qd4 --fragments 16");
    assert_eq!((count(&streams, "mapped"), count(&streams, "segments")), (400, 400 * 16));
}

#[test]
fn copying_maps_nothing() {
    let streams = streams("sim:nvme", "--dma copy --workload seqwrite-16k-qd4 --fragments 2");
    assert_eq!((count(&streams, "copied"), count(&streams, "copied_bytes")), (400, 400 * 16384));
    assert_eq!((count(&streams, "misses"), count(&streams, "mapped_bytes")), (0, 0));
}

#[test]
fn memory_that_the_backend_cannot_map_is_copied() {
    let streams = streams("qtest:nvme,size=64M", "--dma zero-copy --workload seqwrite-4k-qd4");
    assert_eq!((count(&streams, "copied"), count(&streams, "unmappable")), (400, 400));
}

#[test]
fn a_device_whose_options_have_a_slash_is_no_path() {
    let file = std::env::temp_dir().join(format!("ring3-slash-{}", std::process::id()));
    let device = format!("qtest:nvme,size=8M,file={}", file.display());
    let streams = streams(&device, "--dma copy --workload seqwrite-4k-qd4");
    let _ = std::fs::remove_file(file);
    assert_eq!(count(&streams, "copied"), 400);
}

#[test]
fn a_file_has_no_memory_of_a_device() {
    let args = ["blk", "bench", "--device", "/dev/null", "--dma", "copy"];
    let output = Command::new(env!("CARGO_BIN_EXE_ring3")).args(args).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--dma"));
}
