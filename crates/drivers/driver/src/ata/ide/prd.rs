//! Where the bytes of a request are, as physical region descriptors. [BMIDE 1.2]
//!
//! A channel has one table, because it moves the data of one command at a time. Regions that would
//! cross 64 KiB are cut; that none does, and that all lie where the bus master reaches, is what
//! [`Prd`] stands for.

use ring3_class::block::Data;
use ring3_device::Error;
use ring3_device::dma::{Arena, DmaBuffer, Segment, SegmentRules};
use ring3_device::order;
use ring3_device::ring::Words;
use ring3_spec::ata::SECTOR;
use ring3_spec::ide::{PRD_BOUNDARY, Prd};

use super::super::command::trim_ranges;

/// Most bytes of one request: the longest of the papers' measurements.
pub(super) const MAX_TRANSFER: u32 = 4 << 20;
/// Descriptors of a table; a power of two, so that a table aligned to its size does not cross 64
/// KiB.
const ENTRIES: usize = 4096;
/// Each segment costs at most one descriptor more than it has multiples of 64 KiB, and one because
/// of where it begins.
pub(super) const RULES: SegmentRules = SegmentRules {
    align: 2,
    boundary: 2,
    max: (ENTRIES as u32 - MAX_TRANSFER / PRD_BOUNDARY as u32) / 2,
};

/// The descriptors of a channel's transfer, and the ranges of a TRIM.
pub(super) struct Table {
    descriptors: DmaBuffer,
    ranges: DmaBuffer,
}

impl Table {
    pub(super) fn new(arena: &Arena) -> Result<Self, Error> {
        let bytes = ENTRIES * Prd::SIZE;
        Ok(Self { descriptors: arena.alloc(bytes, bytes)?, ranges: arena.alloc(SECTOR, SECTOR)? })
    }

    /// Describes the first `len` bytes of `data`; the table's device address, or `None` if they do
    /// not fit.
    pub(super) fn describe(&self, data: &Data, len: usize) -> Option<u32> {
        self.fill(data.segments(len), len)
    }

    /// The same for what TRIM is told about `blocks` from `lba` on.
    pub(super) fn describe_trim(&self, lba: u64, blocks: u32) -> Option<u32> {
        trim_ranges(lba, blocks)
            .enumerate()
            .for_each(|(index, range)| self.ranges.store(index, range));
        self.fill([self.ranges.segment(SECTOR)].into_iter(), SECTOR)
    }

    fn fill(&self, segments: impl Iterator<Item = Segment>, len: usize) -> Option<u32> {
        let (mut described, mut count, mut last) = (0, 0, None);
        for region in regions(segments) {
            let region = region?;
            if count == ENTRIES {
                return None;
            }
            self.descriptors.store(count, region.into_raw());
            (described, count, last) =
                (described + region.bytes() as usize, count + 1, Some(region));
        }
        let last = last.filter(|_| described == len)?;
        self.descriptors.store(count - 1, last.with_last().into_raw());
        order::hand_over();
        self.address()
    }

    /// The table's device address, of which bus masters have 32 bits.
    pub(super) fn address(&self) -> Option<u32> {
        u32::try_from(self.descriptors.iova()).ok()
    }

    /// Gives the memory up for good, because the bus master cannot be stopped.
    pub(super) fn abandon(&mut self) {
        self.descriptors.abandon();
        self.ranges.abandon();
    }
}

/// Whether a table can describe the first `len` bytes of `data`.
pub(super) fn fits(data: &Data, len: usize) -> bool {
    let (mut described, mut count) = (0, 0);
    for region in regions(data.segments(len)) {
        let Some(region) = region else { return false };
        (described, count) = (described + region.bytes() as usize, count + 1);
    }
    described == len && count <= ENTRIES
}

/// The regions of `segments`, none across 64 KiB; `None` for one that the bus master cannot reach.
fn regions(segments: impl Iterator<Item = Segment>) -> impl Iterator<Item = Option<Prd>> {
    segments.flat_map(|Segment { iova, len }| {
        let mut left = u64::from(len);
        let mut at = iova;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let step = (PRD_BOUNDARY - at % PRD_BOUNDARY).min(left);
            let region = Prd::new(at, step as u32);
            (at, left) = (at.wrapping_add(step), left - step);
            Some(region)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scattered::scattered;
    use proptest::prelude::*;
    use ring3_device::dma::Region;

    fn arena() -> Arena {
        Arena::new(Region::new(1 << 20).unwrap(), 0x1000)
    }

    fn read_back(table: &Table) -> Vec<(u64, u32)> {
        let entries = (0..ENTRIES).map(|index| Prd::from_raw(table.descriptors.load(index)));
        let mut ended = false;
        let until_last = entries.take_while(|prd| !std::mem::replace(&mut ended, prd.is_last()));
        until_last.map(|prd| (prd.iova(), prd.bytes())).collect()
    }

    #[test]
    fn a_buffer_across_64_kib_is_two_regions() {
        let table = Table::new(&arena()).unwrap();
        assert!(table.describe(&scattered(&[(0xf000, 0x2000)]), 0x2000).is_some());
        assert_eq!(read_back(&table), [(0xf000, 0x1000), (0x1_0000, 0x1000)]);
    }

    #[test]
    fn a_table_does_not_cross_64_kib() {
        let table = Table::new(&arena()).unwrap();
        let (first, last) = (
            table.descriptors.iova(),
            table.descriptors.iova() + table.descriptors.len() as u64 - 1,
        );
        assert_eq!(first / PRD_BOUNDARY, last / PRD_BOUNDARY);
    }

    #[test]
    fn what_the_bus_master_cannot_reach_does_not_fit() {
        let table = Table::new(&arena()).unwrap();
        for (iova, len) in [(0x1001, 512), (0x1000, 513), (1 << 32, 512), ((1 << 32) - 512, 1024)] {
            let data = scattered(&[(iova, len)]);
            assert!(
                !fits(&data, len as usize) && table.describe(&data, len as usize).is_none(),
                "{iova:#x} {len}"
            );
        }
        assert!(!fits(&scattered(&[(0x1000, 512)]), 1024));
        assert!(!fits(&Data::None, 512));
    }

    #[test]
    fn the_most_segments_fit_wherever_they_lie() {
        let each = 2048;
        let pieces: Vec<_> =
            (0..u64::from(RULES.max)).map(|i| ((i + 1) * 0x1_0000 - 2, each)).collect();
        let len = pieces.len() * each as usize;
        assert!(fits(&scattered(&pieces), len));
        assert!(Table::new(&arena()).unwrap().describe(&scattered(&pieces), len).is_some());
    }

    proptest! {
        #[test]
        fn what_the_bus_master_moves_is_what_was_meant(
            pieces in prop::collection::vec((0u64..0x7fff_0000, 1u32..100_000), 1..20),
            cut in 0usize..1000
        ) {
            let pieces: Vec<_> =
                pieces.into_iter().map(|(iova, len)| (iova * 2, len * 2)).collect();
            let data = scattered(&pieces);
            let len = data.len() - (cut * 2).min(data.len() - 2);
            let table = Table::new(&arena()).unwrap();
            prop_assert!(fits(&data, len) && table.describe(&data, len).is_some());
            let mut joined: Vec<(u64, u32)> = Vec::new();
            for (iova, bytes) in read_back(&table) {
                prop_assert!(iova / PRD_BOUNDARY == (iova + u64::from(bytes) - 1) / PRD_BOUNDARY);
                match joined.last_mut() {
                    Some((start, so_far))
                        if *start + u64::from(*so_far) == iova && iova % PRD_BOUNDARY == 0 =>
                    {
                        *so_far += bytes
                    }
                    _ => joined.push((iova, bytes)),
                }
            }
            let mut meant: Vec<(u64, u32)> = Vec::new();
            for segment in data.segments(len) {
                match meant.last_mut() {
                    Some((start, so_far))
                        if *start + u64::from(*so_far) == segment.iova
                            && segment.iova % PRD_BOUNDARY == 0 =>
                    {
                        *so_far += segment.len
                    }
                    _ => meant.push((segment.iova, segment.len)),
                }
            }
            prop_assert_eq!(joined, meant);
        }
    }
}
