//! Which parts of a disk are read again and again.

use serde::{Deserialize, Serialize};

/// A part of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    pub offset: u64,
    pub bytes: u64,
}

/// Bytes that every offset is a multiple of, whatever the blocks are.
const ALIGN: u64 = 4096;

/// `count` regions of `bytes` each, from the start to the end of a disk of `capacity`; fewer, or
/// smaller, if it has no more.
pub fn regions(capacity: u64, count: u64, bytes: u64) -> Vec<Region> {
    let capacity = capacity / ALIGN * ALIGN;
    let bytes = bytes.min(capacity) / ALIGN * ALIGN;
    if bytes == 0 {
        return Vec::new();
    }
    let count = count.min(capacity / bytes).max(1);
    let room = capacity - bytes;
    let place = |index: u64| match count {
        1 => 0,
        // No product of two numbers of this size has more than 128 bits.
        _ => (u128::from(room) * u128::from(index) / u128::from(count - 1)) as u64 / ALIGN * ALIGN,
    };
    (0..count).map(|index| Region { offset: place(index), bytes }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_reach_from_the_start_to_the_end_and_never_beyond() {
        for capacity in [4096, 8192, 1 << 20, (64 << 20) + 512, 20 << 40, u64::MAX] {
            let regions = regions(capacity, 16, 1 << 20);
            let last = regions.last().unwrap();
            assert_eq!(regions[0].offset, 0);
            assert!(last.offset + last.bytes <= capacity, "{capacity}: {last:?}");
            assert!(capacity - last.offset - last.bytes < 2 * ALIGN, "{capacity}: {last:?}");
            assert!(regions.iter().all(|one| one.offset % ALIGN == 0 && one.bytes % ALIGN == 0));
        }
    }

    #[test]
    fn a_disk_without_room_has_no_regions() {
        assert!(regions(512, 16, 1 << 20).is_empty() && regions(0, 1, 4096).is_empty());
    }
}
