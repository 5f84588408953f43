//! The suite on disks from one block on: what fits is run, what does not says that it was skipped
//! for lack of room.

use super::*;
use ring3_class::block::{Info, Ram};

fn run_on(block_size: u32, blocks: u64, change: impl FnOnce(&mut Info)) -> Report {
    let disk = Ram::new(block_size, blocks, 2 << 20).unwrap().with_info(change);
    run(&disk, &Options { requests: 60, depth: 8, patience: Duration::from_secs(20) })
}

fn report(block_size: u32, blocks: u64) -> Report {
    run_on(block_size, blocks, |_| {})
}

/// The checks that were skipped, and why.
fn skipped(report: &Report) -> Vec<(&'static str, &str)> {
    report
        .findings
        .iter()
        .filter_map(|finding| match &finding.verdict {
            Verdict::Skipped(why) => Some((finding.name, why.as_str())),
            _ => None,
        })
        .collect()
}

/// Of how many blocks a disk must be for each check that needs more than one.
const NEEDS: [(&str, u64); 8] = [
    ("a write changes no block beside its own", 2),
    ("data may lie in scattered pages", 16),
    ("blocks read as zeroes after write zeroes, and no others", 2),
    ("discard is accepted and changes no other block", 2),
    ("many requests in flight end exactly once, each with its own data", 2),
    ("several queues at once do not disturb each other", 2),
    ("a transfer longer than the longest is refused or done, not cut short", 257),
    ("a request longer than the device takes is cut and ends once", 897),
];

#[test]
fn every_disk_from_one_block_on_runs_what_fits_and_says_what_does_not() {
    // Most of a run is waiting, so that many go on at once.
    let sizes: Vec<_> = (1..=64).flat_map(|blocks| [(512, blocks), (4096, blocks)]).collect();
    for some in sizes.chunks(16) {
        std::thread::scope(|scope| {
            for &(block_size, blocks) in some {
                scope.spawn(move || {
                    let report = report(block_size, blocks);
                    assert!(report.passed(), "{blocks} blocks of {block_size} bytes: {report}");
                    for (name, why) in skipped(&report) {
                        assert!(
                            is_known(name, why, block_size, blocks),
                            "{blocks} blocks of {block_size} bytes: {name}: {why}"
                        );
                    }
                });
            }
        });
    }
}

/// Whether `name` cannot be run on such a disk, and `why` says so.
fn is_known(name: &str, why: &str, block_size: u32, blocks: u64) -> bool {
    let room = why.contains(&format!("the disk has {blocks} block"));
    let needs = |&(check, small): &(&str, u64)| {
        check == name && blocks < if block_size == 512 { small } else { small.min(229) }
    };
    match name {
        "sleeping is safe only while nothing is pending"
        | "a queue sleeps by interrupt though the one before it was dropped while it polled" => {
            why == "it has no interrupt"
        }
        "a write-protected disk refuses to change" => why == "it is not write-protected",
        "a queue more than there are is refused and changes nothing" => {
            why == "it has more queues than anyone opens"
        }
        "a queue that is detached under load is resumed with all that was in flight, and nothing \
        is done twice"
        | "a queue that was detached takes nothing more, and is resumed once" => {
            why.contains("cannot be left")
        }
        "a long write-zeroes is cut to the limit of the device" => room,
        _ => room && NEEDS.iter().any(needs),
    }
}

#[test]
fn a_disk_of_one_block_is_written_and_read_and_skips_what_needs_two() {
    let report = report(512, 1);
    let names: Vec<_> = skipped(&report).into_iter().map(|(name, _)| name).collect();
    assert!(report.passed(), "{report}");
    assert!(NEEDS.iter().all(|(name, _)| names.contains(name)), "{names:#?}");
    assert_eq!(names.len(), NEEDS.len() + 7, "{names:#?}");
}

#[test]
fn transfers_of_one_block_run_what_needs_no_more() {
    for blocks in [1, 2, 3, 100] {
        let report = run_on(512, blocks, |info| info.max_transfer = 512);
        assert!(report.passed(), "{blocks} blocks: {report}");
    }
}

#[test]
fn a_disk_that_cannot_write_through_is_seen_to_refuse() {
    let report = run_on(512, 64, |info| (info.volatile_cache, info.fua) = (true, false));
    let name = "a write with FUA is read back, or refused by a disk that cannot write through";
    let finding = report.findings.iter().find(|finding| finding.name == name).unwrap();
    assert_eq!(
        finding.verdict,
        Verdict::Failed("Write of 1 blocks at 9 succeeded".into()),
        "a Ram disk writes through"
    );
}
