//! Partitions of disks whose tables the kernel does not read, because it does not trust who serves
//! them.
//!
//! # Shape
//! [`read`](read()) finds out what the table says, and runs where a hostile table can do no harm:
//! in a process of its own, in a sandbox. It answers with [`Found`]. [`check`] is what whoever
//! holds the disk believes of that, and [`kernel`] tells the kernel.
//!
//! # References
//! - `[UEFI]` UEFI specification 2.10, 5: GUID partition table
//! - `[MSDOS]` the kernel's documentation of `msdos` partitions: what is a table, and what a file
//!   system that begins with the same signature

pub mod kernel;
mod read;

use serde::{Deserialize, Serialize};

pub use read::read;

/// Most partitions of a disk: what a GPT has room for as everybody makes it.
pub const MOST: usize = 128;
/// The largest number of a partition: the kernel has no more.
const MAX_NUMBER: u32 = 255;

/// A part of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Partition {
    /// N in `/dev/ublkb0pN`.
    pub number: u32,
    /// Where it begins, in bytes.
    pub start: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
}

/// What a table was found to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// These; none if there is no table.
    Partitions(Vec<Partition>),
    /// Nothing that makes sense; why.
    Damaged(String),
}

/// Whether `partitions` can be those of a disk of `bytes` in blocks of `block`. The error says what
/// cannot be.
pub fn check(partitions: &[Partition], bytes: u64, block: u32) -> Result<(), String> {
    if partitions.len() > MOST {
        return Err(format!("it has {} partitions, and {MOST} are the most", partitions.len()));
    }
    let mut sorted = partitions.to_vec();
    sorted.sort_unstable_by_key(|partition| partition.start);
    for partition in &sorted {
        let Partition { number, start, bytes: len } = *partition;
        if !(1..=MAX_NUMBER).contains(&number) {
            return Err(format!("there is no partition {number}: {MAX_NUMBER} is the last"));
        }
        if partitions.iter().filter(|other| other.number == number).count() > 1 {
            return Err(format!("partition {number} is there twice"));
        }
        let block = u64::from(block.max(1));
        if start == 0 || len == 0 || start % block != 0 || len % block != 0 {
            return Err(format!(
                "partition {number} has {len} bytes from {start} on, in blocks of {block}"
            ));
        }
        if start.checked_add(len).is_none_or(|end| end > bytes) {
            return Err(format!(
                "partition {number} has {len} bytes from {start} on, and the disk has {bytes}"
            ));
        }
    }
    match sorted.windows(2).find(|pair| pair[0].start + pair[0].bytes > pair[1].start) {
        Some(pair) => Err(format!("partitions {} and {} overlap", pair[0].number, pair[1].number)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DISK: u64 = 1 << 20;

    fn part(number: u32, start: u64, bytes: u64) -> Partition {
        Partition { number, start, bytes }
    }

    #[test]
    fn partitions_side_by_side_and_up_to_the_end_are_right() {
        assert_eq!(check(&[part(2, 4096, DISK - 4096), part(1, 512, 3584)], DISK, 512), Ok(()));
        assert_eq!(check(&[], DISK, 512), Ok(()));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let many: Vec<_> =
            (1..=129).map(|number| part(number, u64::from(number) * 512, 512)).collect();
        for (partitions, why) in [
            (&many[..], "129 partitions"),
            (&[part(1, 512, 1024), part(2, 1024, 512)], "1 and 2 overlap"),
            (&[part(1, 512, DISK)], "the disk has 1048576"),
            (&[part(1, u64::MAX - 511, 512)], "the disk has 1048576"),
            (&[part(1, 0, 512)], "bytes from 0 on"),
            (&[part(1, 512, 0)], "0 bytes from"),
            (&[part(1, 513, 512)], "blocks of 512"),
            (&[part(0, 512, 512)], "no partition 0"),
            (&[part(256, 512, 512)], "no partition 256"),
            (&[part(1, 512, 512), part(1, 1024, 512)], "1 is there twice"),
        ] {
            assert!(check(partitions, DISK, 512).unwrap_err().contains(why), "{why}");
        }
    }

    proptest! {
        #[test]
        fn what_is_right_lies_on_the_disk_and_apart(starts in prop::collection::vec((0..400u32, 0..3000u64, 0..3000u64), 0..6)) {
            let partitions: Vec<_> = starts
                .into_iter()
                .map(|(number, start, blocks)| part(number, start * 512, blocks * 512))
                .collect();
            if check(&partitions, DISK, 512).is_ok() {
                for one in &partitions {
                    prop_assert!(one.start + one.bytes <= DISK);
                    let meets = |other: &&Partition| {
                        one.start < other.start + other.bytes
                            && other.start < one.start + one.bytes
                    };
                    prop_assert_eq!(partitions.iter().filter(meets).count(), 1);
                }
            }
        }
    }
}
