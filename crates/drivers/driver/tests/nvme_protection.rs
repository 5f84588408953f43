//! Blocks with protection information: what gets damaged or misplaced on the medium is an error of
//! the read.

mod disks;
mod nvme;

use nvme::{Bench, bench, bytes, execute, succeed};
use ring3_class::block::{IoError, Queue, Request};

/// Blocks 0 to 7 hold their numbers.
fn written(bench: &Bench) -> Box<dyn Queue> {
    let mut queue = bench.queue(8);
    for lba in 0..8 {
        succeed(&mut *queue, Request::write(lba, lba, 1, bench.filled(512, lba as u8)));
    }
    succeed(&mut *queue, Request::flush(9));
    queue
}

/// How a read of `lba` ends, and the first byte of its data.
fn read(bench: &Bench, queue: &mut dyn Queue, lba: u64) -> Result<u8, IoError> {
    let (end, data) = execute(queue, Request::read(1, lba, 1, bench.buffer(512)));
    end.map(|()| bytes(data)[0])
}

#[test]
fn data_that_were_damaged_on_the_medium_are_an_error_and_not_other_data() {
    for (block, outcome) in [
        ("512", Ok(0xff)),
        ("512p1", Err(IoError::Integrity)),
        ("512p2", Err(IoError::Integrity)),
        ("512p3", Err(IoError::Integrity)),
    ] {
        let bench = bench(&format!(",block={block}"));
        let mut queue = written(&bench);
        assert!(bench.handle.poke(1, 3 * 512, &[0xff]));
        assert_eq!(read(&bench, &mut *queue, 3), outcome, "{block}");
        assert_eq!([2, 4].map(|lba| read(&bench, &mut *queue, lba)), [Ok(2), Ok(4)], "{block}");
    }
}

#[test]
fn data_of_another_block_are_an_error_if_the_reference_tag_is_the_controllers() {
    for (block, outcome) in [
        ("512", Ok(2)),
        ("512p1", Err(IoError::Integrity)),
        ("512p2", Err(IoError::Integrity)),
        // Its reference tag may be anything.
        ("512p3", Ok(2)),
    ] {
        let bench = bench(&format!(",block={block}"));
        let mut queue = written(&bench);
        bench.handle.misplace(1, 2, 5);
        assert_eq!(read(&bench, &mut *queue, 5), outcome, "{block}");
    }
}

#[test]
fn a_damaged_block_is_whole_again_once_it_is_written() {
    let bench = bench(",block=512p1");
    let mut queue = written(&bench);
    bench.handle.poke(1, 3 * 512, &[0xff]);
    succeed(&mut *queue, Request::write_zeroes(1, 3, 1));
    assert_eq!(read(&bench, &mut *queue, 3), Ok(0));
}

#[test]
fn blocks_that_were_discarded_or_never_written_are_read_unchecked() {
    let bench = bench(",block=512p1");
    let mut queue = written(&bench);
    succeed(&mut *queue, Request::discard(1, 3, 1));
    assert_eq!([3, 100].map(|lba| read(&bench, &mut *queue, lba)), [Ok(0), Ok(0)]);
}

#[test]
fn a_loss_of_power_leaves_blocks_that_hold_together() {
    let bench = bench(",block=512p1,cache=on");
    let mut queue = written(&bench);
    succeed(&mut *queue, Request::write(1, 6, 1, bench.filled(512, 0x66)));
    bench.handle.lose_power();
    assert_eq!(read(&bench, &mut *queue, 6), Ok(6));
}
