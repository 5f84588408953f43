//! The capability chains behind VFIO's info structs.
//!
//! # References
//! - `[VFIO]` Linux uapi `linux/vfio.h`: `vfio_info_cap_header` and the capabilities after it
//!
//! # Trust
//! The kernel wrote them, but nothing here depends on that: an offset beyond the end or a loop ends
//! the walk.

use std::ops::{Range, RangeInclusive};

/// One capability: its id and its bytes after the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capability<'a> {
    /// What it is, `VFIO_..._CAP_...`.
    pub(super) id: u16,
    body: &'a [u8],
}

/// The capabilities in `bytes`, of which the first is at `offset` (0: none).
pub(super) fn chain(bytes: &[u8], offset: u32) -> impl Iterator<Item = Capability<'_>> {
    let mut next = offset as usize;
    // Each header takes 8 bytes: a chain with more links than fit is a loop.
    let mut left = bytes.len() / 8;
    std::iter::from_fn(move || {
        let here = bytes.get(next..).filter(|rest| next != 0 && rest.len() >= 8 && left > 0)?;
        left -= 1;
        next = read_u32(here, 4)? as usize;
        Some(Capability { id: u16::from_ne_bytes([here[0], here[1]]), body: &here[8..] })
    })
}

impl Capability<'_> {
    /// `VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE`: the device addresses that may be used, both ends
    /// included.
    pub(super) fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.pairs().map(|(start, end)| start..=end).filter(|range| !range.is_empty()).collect()
    }

    /// `VFIO_REGION_INFO_CAP_SPARSE_MMAP`: the parts of the region that may be mapped.
    pub(super) fn sparse_areas(&self) -> Vec<Range<u64>> {
        self.pairs()
            .filter_map(|(offset, size)| Some(offset..offset.checked_add(size)?))
            .filter(|area| !area.is_empty())
            .collect()
    }

    /// `VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL`: mappings that can still be made.
    pub(super) fn dma_available(&self) -> Option<u32> {
        read_u32(self.body, 0)
    }

    /// A count, a reserved word, and that many pairs of 64-bit words.
    fn pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        let count = read_u32(self.body, 0).unwrap_or(0) as usize;
        let pairs = self.body.get(8..).unwrap_or(&[]);
        pairs
            .chunks_exact(16)
            .take(count)
            .filter_map(|pair| Some((read_u64(pair, 0)?, read_u64(pair, 8)?)))
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn link(id: u16, next: u32, body: &[u64]) -> Vec<u8> {
        let mut bytes = id.to_ne_bytes().to_vec();
        bytes.extend(1u16.to_ne_bytes());
        bytes.extend(next.to_ne_bytes());
        bytes.extend(body.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn capabilities_are_found_in_the_order_of_the_chain() {
        let mut bytes = vec![0; 24];
        bytes.extend(link(3, 0, &[77]));
        bytes.extend(link(1, 24, &[1, 0x1000, 0x1fff]));
        let found: Vec<_> = chain(&bytes, 40).map(|capability| capability.id).collect();
        assert_eq!(found, [1, 3]);
    }

    #[test]
    fn iova_ranges_include_their_ends() {
        let bytes = [vec![0; 8], link(1, 0, &[2, 0, 0xfedf_ffff, 0xfef0_0000, u64::MAX])].concat();
        let ranges = chain(&bytes, 8).next().unwrap().iova_ranges();
        assert_eq!(ranges, [0..=0xfedf_ffff, 0xfef0_0000..=u64::MAX]);
    }

    #[test]
    fn a_count_that_promises_more_than_there_is_gives_what_there_is() {
        let bytes = [vec![0; 8], link(1, 0, &[1000, 0x1000, 0x2000])].concat();
        assert_eq!(
            chain(&bytes, 8).next().unwrap().sparse_areas(),
            vec![Range { start: 0x1000, end: 0x3000 }]
        );
    }

    #[test]
    fn a_chain_that_points_at_itself_ends() {
        let bytes = [vec![0; 8], link(9, 8, &[])].concat();
        assert!(chain(&bytes, 8).count() <= bytes.len() / 8);
    }

    #[test]
    fn offset_zero_means_no_capabilities() {
        assert_eq!(chain(&[0xff; 64], 0).count(), 0);
    }

    proptest! {
        #[test]
        fn no_bytes_can_make_the_walk_fail(
            bytes in prop::collection::vec(any::<u8>(), 0..200), offset in any::<u32>(),
        ) {
            for capability in chain(&bytes, offset % 256) {
                let _ = (
                    capability.iova_ranges(), capability.sparse_areas(), capability.dma_available(),
                );
            }
        }
    }
}
